// Command torture tries the service under fire: replicas of the real program
// over a real PostgreSQL, clients that behave as merchants do, and a nemesis that
// breaks something at random instants. What must hold is judged from a recorded
// history and from SQL. It exits with 1 where something did not hold.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	held, err := run(ctx, os.Args[1:], os.Stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(2)
	case !held:
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	seed       uint64
	duration   time.Duration
	scenarios  string
	short      bool
	race       bool
	out        string
	history    string
	broken     string
	clients    int
	think      time.Duration
	service    string
	keys       int
	rows       int
	committers int
}

// longest bounds a scenario, whatever is asked for.
const longest = 10 * time.Minute

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("torture", flag.ContinueOnError)
	f.Uint64Var(&o.seed, "seed", 0, "what the random choices come from; 0: a new one")
	f.DurationVar(&o.duration, "duration", 30*time.Second, "how long clients and nemesis are at it, in each scenario")
	f.StringVar(&o.scenarios, "scenario", "all", "comma-separated; all: every fault; memory and sweep measure and are named on their own")
	f.BoolVar(&o.short, "short", false, "a selection, in under a minute")
	f.BoolVar(&o.race, "race", false, "build the replicas with the race detector")
	f.StringVar(&o.out, "out", "", "file for the results as JSON")
	f.StringVar(&o.history, "history", "", "directory for the histories as JSON lines, and the logs of what failed")
	f.StringVar(&o.broken, "broken", "", "put this fault into the replicas first, to try the checks: "+strings.Join(slices.Sorted(maps.Keys(breakages)), ", "))
	f.IntVar(&o.clients, "clients", 0, "how many clients; 0: as the scenario has it")
	f.DurationVar(&o.think, "think", 0, "a client's longest pause between two payments; 0: as the scenario has it")
	f.IntVar(&o.committers, "committers", 0, "committers of each replica, -1: none; 0: as the scenario has it")
	f.StringVar(&o.service, "service", "..", "directory of the service's module")
	f.IntVar(&o.keys, "keys", 300_000, "keys of the scenario memory")
	f.IntVar(&o.rows, "rows", 500_000, "expired keys of the scenario sweep")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if o.duration <= 0 || o.duration > longest {
		return o, fmt.Errorf("-duration must be from 0 to %v", longest)
	}
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano()) % 1_000_000
	}
	return o, nil
}

// result is what one scenario came to.
type result struct {
	Scenario   string         `json:"scenario"`
	About      string         `json:"about"`
	Seed       uint64         `json:"seed"`
	Seconds    float64        `json:"seconds"`
	Requests   int            `json:"requests"`
	Retries    int            `json:"retries"`
	Keys       int            `json:"keys"`
	Tries      map[string]int `json:"tries,omitempty"`
	Answers    map[string]int `json:"answers,omitempty"`
	Measured   []string       `json:"measured,omitempty"`
	Violations []violation    `json:"violations"`
	Command    string         `json:"command"`
}

func run(ctx context.Context, args []string, w io.Writer) (held bool, err error) {
	o, err := parse(args)
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "torture-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	overlay := ""
	b, ok := breakages[o.broken]
	if o.broken != "" {
		if !ok {
			return false, fmt.Errorf("unknown -broken %q", o.broken)
		}
		if overlay, err = b.overlay(o.service, dir); err != nil {
			return false, err
		}
	}
	bin, err := build(ctx, o.service, dir, o.race, overlay)
	if err != nil {
		return false, err
	}
	fmt.Fprintf(w, "seed %d\n", o.seed)

	held = true
	var results []result
	for _, name := range o.names() {
		started := time.Now()
		var r result
		if measure, ok := measures[name]; ok {
			r, err = measure(ctx, o, bin, dir)
		} else {
			r, err = try(ctx, o, name, bin, dir, b.sql)
		}
		if err != nil {
			return false, fmt.Errorf("%s (seed %d): %w", name, o.seed, err)
		}
		r.Seconds = time.Since(started).Round(100 * time.Millisecond).Seconds()
		r.Scenario, r.Seed, r.Command = name, o.seed, o.command(name)
		r.print(w)
		results = append(results, r)
		held = held && len(r.Violations) == 0
	}
	if o.out != "" {
		raw, err := json.MarshalIndent(results, "", "  ")
		if err != nil {
			return false, err
		}
		return held, os.WriteFile(o.out, append(raw, '\n'), 0o644)
	}
	return held, nil
}

// names returns the scenarios that were asked for.
func (o options) names() (names []string) {
	if o.scenarios != "all" {
		return strings.Split(o.scenarios, ",")
	}
	for _, s := range scenarios {
		if !o.short || s.short > 0 {
			names = append(names, s.name)
		}
	}
	return names
}

// command repeats a scenario.
func (o options) command(name string) string {
	c := fmt.Sprintf("go run . -seed %d -scenario %s", o.seed, name)
	switch _, measured := measures[name]; {
	case measured:
	case o.short:
		c += " -short"
	default:
		c += " -duration " + o.duration.String()
	}
	if o.clients > 0 {
		c += fmt.Sprintf(" -clients %d", o.clients)
	}
	if o.think > 0 {
		c += " -think " + o.think.String()
	}
	if o.committers != 0 {
		c += fmt.Sprintf(" -committers %d", o.committers)
	}
	if o.race {
		c += " -race"
	}
	if o.broken != "" {
		c += " -broken " + o.broken
	}
	return c
}

// try runs one scenario and judges its history.
func try(ctx context.Context, o options, name, bin, dir string, sabotage []string) (result, error) {
	i := slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })
	if i < 0 {
		return result{}, errors.New("no such scenario")
	}
	s := scenarios[i]
	d := o.duration
	if o.short && s.short > 0 {
		d = s.short
		s.faults = slices.DeleteFunc(slices.Clone(s.faults), func(f string) bool { return slices.Contains(s.lengthy, f) })
	}
	s.clients, s.think = cmp.Or(o.clients, s.clients), cmp.Or(o.think, s.think)
	s.committers = cmp.Or(o.committers, s.committers)
	place, err := os.MkdirTemp(dir, name+"-")
	if err != nil {
		return result{}, err
	}
	t := &trial{s: s, seed: o.seed, bin: bin, dir: place, sabotage: sabotage}
	h, err := t.run(ctx, d)
	if err != nil {
		if o.history != "" {
			err = errors.Join(err, t.logs(filepath.Join(o.history, name+".failed")))
		}
		return result{}, err
	}
	r := result{
		About: s.about, Requests: len(h.Requests), Keys: len(t.payments), Violations: judge(h),
		Tries: t.count.all(), Answers: make(map[string]int), Measured: append(observations(h), t.worst.lines()...),
	}
	r.Retries = r.Tries["retries"]
	delete(r.Tries, "retries")
	for _, q := range h.Requests {
		switch {
		case !q.Answered():
			r.Answers["none"]++
		case q.Replayed:
			r.Answers[fmt.Sprintf("%d replayed", q.Status)]++
		default:
			r.Answers[fmt.Sprint(q.Status)]++
		}
	}
	if o.history != "" {
		err = save(h, filepath.Join(o.history, name+".jsonl"))
		if len(r.Violations) > 0 {
			err = errors.Join(err, t.logs(filepath.Join(o.history, name+".logs")))
		}
	}
	return r, err
}

func save(h *History, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(h.Write(f), f.Close())
}

// observations are numbers of a history that bounds are about.
func observations(h *History) []string {
	var slowest, probe, late int64
	due := make(map[string]int64)
	for _, i := range h.Intents {
		due[i.ID] = i.Expires
	}
	for _, r := range h.Requests {
		switch took := r.Return - r.Since; {
		case !r.Final():
		case r.Op == opFinal:
			slowest = max(slowest, took)
		case r.Op == opProbe:
			probe = max(probe, took)
		}
	}
	n := 0
	for _, m := range h.Moves {
		n++
		late = max(late, m.At-due[m.ID])
	}
	obs := []string{fmt.Sprintf("slowest final answer once at rest: %v", time.Duration(slowest).Round(time.Millisecond))}
	if probe > 0 {
		obs = append(obs, fmt.Sprintf("slowest final answer after kill -9: %v", time.Duration(probe).Round(time.Millisecond)))
	}
	if n > 0 && h.Setup.Steady {
		obs = append(obs, fmt.Sprintf("%d intents canceled, the latest %.1f ms after its time", n, float64(late)/1000))
	}
	if h.Setup.Apart {
		obs = append(obs, apart(h))
	}
	return obs
}

// print prints the result as a table.
func (r result) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s\n", r.Scenario, r.About)
	fmt.Fprintf(w, "  %-40s %8.1f s\n", "took", r.Seconds)
	fmt.Fprintf(w, "  %-40s %8d\n  %-40s %8d\n  %-40s %8d\n", "requests", r.Requests, "retries", r.Retries, "keys", r.Keys)
	for _, name := range slices.Sorted(maps.Keys(r.Tries)) {
		fmt.Fprintf(w, "  %-40s %8d\n", name, r.Tries[name])
	}
	for _, name := range slices.Sorted(maps.Keys(r.Answers)) {
		fmt.Fprintf(w, "  %-40s %8d\n", "answer: "+name, r.Answers[name])
	}
	for _, m := range r.Measured {
		fmt.Fprintf(w, "  %s\n", m)
	}
	fmt.Fprintf(w, "  %-40s %8d\n", "violations", len(r.Violations))
	for i, v := range r.Violations {
		if i == 20 {
			fmt.Fprintf(w, "    and %d more\n", len(r.Violations)-i)
			break
		}
		fmt.Fprintf(w, "    [%s] %s\n", v.Check, v.Text)
	}
	fmt.Fprintf(w, "  again: %s\n", r.Command)
}
