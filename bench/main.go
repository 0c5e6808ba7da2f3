// Command bench measures the service beside what a user would write instead, and
// beside what PostgreSQL itself can do at most. Every contestant has a database
// of its own on one private PostgreSQL server whose commits are durable. They run
// one after the other in each round, so that what disturbs a round disturbs all;
// what counts are the ratios within the rounds. README.md says how to read it.
//
// It exits with 1 where a request was not answered as it should be: then nothing
// that was measured counts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The program starts itself as these.
const (
	workerCommand = "worker"
	peerCommand   = "peer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch command := append(os.Args[1:], "")[0]; command {
	case workerCommand:
		if work(os.Stdin, os.Stdout) != nil { // it has said why
			os.Exit(1)
		}
		return
	case peerCommand:
		err = servePeer(ctx, os.Args[2:], os.Stderr)
	default:
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	source      string
	only        []string
	connections []int
	rounds      int
	window      time.Duration
	warmup      time.Duration
	keys        int
	records     []int
	sweep       int
	conns       int
	committers  int
	out         string
	short       bool
}

// readWindow is the window of scenarios that write nothing: they wait for no
// disk, and settle sooner.
func (o options) readWindow() time.Duration { return o.window * 3 / 5 }

// readRounds are the rounds of such scenarios.
func (o options) readRounds() int { return (o.rounds + 1) / 2 }

// short are the flags that -short sets, where nobody else did: every scenario
// runs, and none for long.
var short = map[string]string{
	"only": "create,replay-hot,replay-cold,get,replicas,sweep,growth", "connections": "1,8", "rounds": "1", "window": "300ms",
	"warmup": "50ms", "keys": "2000", "records": "0,2000", "sweep": "2000",
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only, connections, records string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.source, "service", "..", "directory of the service's source")
	f.StringVar(&only, "only", "", "comma-separated scenarios: "+strings.Join(scenarioNames(true), ", ")+"; empty: all but growth, which takes long")
	f.StringVar(&connections, "connections", "1,8,32,64,128,256", "comma-separated numbers of connections")
	f.IntVar(&o.rounds, "rounds", 5, "rounds of each point; scenarios that only read have half of them")
	f.DurationVar(&o.window, "window", 5*time.Second, "how long each contestant is measured in a round; reads: three fifths of it")
	f.DurationVar(&o.warmup, "warmup", 500*time.Millisecond, "how long the same load runs before each window")
	f.IntVar(&o.keys, "keys", 1_000_000, "how many cold keys are replayed")
	f.StringVar(&records, "records", "0,1000000,10000000", "comma-separated numbers of records for growth")
	f.IntVar(&o.sweep, "sweep", 100_000, "rows that each job of the sweeper finds due")
	f.IntVar(&o.conns, "conns", 20, "size of each contestant's pool of database connections; pgbench has one for each client")
	f.IntVar(&o.committers, "committers", 2, "committers of the service, where it groups claims")
	f.StringVar(&o.out, "out", "", "directory for results.md, results.json and the plots; empty: only the table is printed")
	f.BoolVar(&o.short, "short", false, "see that all of it works, in under a minute; its numbers mean nothing")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	if o.short {
		given := make(map[string]bool)
		f.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range short {
			if !given[name] {
				if err := f.Set(name, value); err != nil {
					return o, err
				}
			}
		}
	}
	var err error
	if o.connections, err = numbers("-connections", connections, 1); err != nil {
		return o, err
	}
	if o.records, err = numbers("-records", records, 0); err != nil {
		return o, err
	}
	o.only = scenarioNames(false)
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, name := range o.only {
		if !slices.Contains(scenarioNames(true), name) {
			return o, fmt.Errorf("-only: there is no scenario %q", name)
		}
	}
	if o.rounds < 1 || o.window <= 0 || o.warmup < 0 || o.keys < 1 || o.sweep < 1 || o.conns < 2 || o.committers < 1 {
		return o, errors.New("rounds, window, keys, sweep and committers must be positive, warmup not negative, conns at least 2")
	}
	return o, nil
}

// numbers reads a list of whole numbers, none of them below least.
func numbers(name, list string, least int) (all []int, err error) {
	for field := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < least {
			return nil, fmt.Errorf("%s: %q must be a whole number of at least %d", name, field, least)
		}
		all = append(all, n)
	}
	return all, nil
}

// scenarioNames are the scenarios in their order, with or without those that
// take long.
func scenarioNames(long bool) (names []string) {
	for _, s := range scenarios {
		if long || !s.alone {
			names = append(names, s.name)
		}
	}
	return names
}

// report is all that a run found out.
type report struct {
	Machine  machine           `json:"machine"`
	Settings map[string]string `json:"postgres_settings"`
	Options  map[string]string `json:"options"`
	Results  []result          `json:"results"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := logDir()
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m, err := describeMachine(ctx, o.source)
	if err != nil {
		return err
	}
	st := &stage{options: o, out: stderr, dir: dir, load: loader{self: self}}
	if st.api, err = buildService(ctx, o.source, dir); err != nil {
		return err
	}
	if st.groups, err = hasGroups(ctx, st.api); err != nil {
		return err
	}
	if st.postgres, err = startPostgres(ctx, settings(m.Memory)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.postgres.stop()) }()
	if err := st.postgres.durable(); err != nil {
		return err
	}
	m.PostgreSQL = st.postgres.shown["server_version"]
	if m.Flush, err = flushTime(); err != nil {
		return err
	}

	rep := report{Machine: m, Settings: st.postgres.shown, Options: o.described(st.groups)}
	rep.printHead(stderr)
	for _, name := range o.only {
		s := scenarios[slices.IndexFunc(scenarios, func(s scenario) bool { return s.name == name })]
		began := time.Now()
		fmt.Fprintf(stderr, "\n%s\n", s.title)
		r, err := s.run(ctx, st)
		err = errors.Join(err, st.end(context.WithoutCancel(ctx)))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.Name, r.Title, r.Took = s.name, s.title, time.Since(began).Round(time.Second).String()
		rep.Results = append(rep.Results, r)
	}
	rep.print(stdout)
	if o.out == "" {
		return nil
	}
	return rep.write(o.out)
}

// described are the options that numbers depend on.
func (o options) described(groups bool) map[string]string {
	d := map[string]string{
		"rounds": fmt.Sprintf("%d (reads: %d)", o.rounds, o.readRounds()),
		"window": fmt.Sprintf("%v (reads: %v)", o.window, o.readWindow()),
		"warmup": o.warmup.String(),
		"pool":   fmt.Sprintf("%d connections to the database for each process", o.conns),
		"keys":   strconv.Itoa(o.keys),
	}
	if groups {
		d["committers"] = strconv.Itoa(o.committers)
	}
	return d
}

// write puts the report and its plots into a directory.
func (rep report) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	md, err := os.Create(filepath.Join(dir, "results.md"))
	if err != nil {
		return err
	}
	rep.print(md)
	if err := md.Close(); err != nil {
		return err
	}
	js, err := os.Create(filepath.Join(dir, "results.json"))
	if err != nil {
		return err
	}
	if err := errors.Join(encode(js, rep), js.Close()); err != nil {
		return err
	}
	for _, r := range rep.Results {
		if err := r.plot(dir); err != nil {
			return err
		}
	}
	return nil
}
