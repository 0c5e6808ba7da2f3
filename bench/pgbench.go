package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// The places of the statements that a create runs.
const (
	keysSource    = "internal/idempotency/pgidem/pgidem.go"
	intentsSource = "internal/intent/pgintent/store.go"
)

// script returns what pgbench runs: the statements of a create of the service
// under source, taken from its own text so that the two can not part, in the
// service's two round trips. What the service computes is made up here: keys,
// locks and identifiers are random, answers always the same.
func script(source string) (string, error) {
	keys, err := constants(filepath.Join(source, keysSource))
	if err != nil {
		return "", err
	}
	intents, err := constants(filepath.Join(source, intentsSource))
	if err != nil {
		return "", err
	}
	// pgbench would take what follows a colon in a string for a variable.
	const (
		key = `'pgbench-' || lpad(:a::text, 28, '0')`
		id  = `(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || ` +
			`right(lpad(to_hex(:d::bigint), 16, '0'), 3) || '8' || right(lpad(to_hex(:b::bigint), 16, '0'), 15))::text`
	)
	// The service was told it by its first round trip.
	const claimed = `transaction_timestamp()`
	scope := "'" + merchant + "'"
	var b strings.Builder
	b.WriteString("\\set a random(1, 9000000000000000000)\n\\set b random(1, 9000000000000000000)\n" +
		"\\set c random(1, 9000000000000000000)\n\\set d random(1, 9000000000000000000)\n")
	for _, line := range []struct {
		text string // a command of pgbench's, or nothing
		from map[string]string
		name string
		args []string
	}{
		{text: `\startpipeline`},
		{from: keys, name: "beginSQL"},
		{from: keys, name: "lockSQL", args: []string{fmt.Sprintf("'%d'", lease.Milliseconds()), ":c", ":d"}},
		{from: keys, name: "recordSQL", args: []string{scope, key}},
		{text: `\endpipeline`},
		{text: `\startpipeline`},
		{from: intents, name: "insertIntent", args: []string{
			scope, id, `'evm' || chr(58) || '31337'`, `'0x5FbDB2315678afecb367f032d93F642f64180aa3'`,
			`'0x70997970C51812dc3A010C7d01b50e0d17dc79C8'`, `'0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC'`,
			`'100000000'`, `''`, `null`, claimed, `(` + claimed + ` + interval '15 minutes')`,
		}},
		{from: keys, name: "insertSQL", args: []string{
			scope, key, `'\x` + hex.EncodeToString(fingerprint[:]) + `'::bytea`, `201`, `'` + answerHeader + `'`,
			`'\x` + hex.EncodeToString([]byte(answerBody)) + `'::bytea`, claimed,
			`(` + claimed + ` + interval '` + strconv.FormatFloat(ttl.Seconds(), 'f', -1, 64) + ` s')`,
		}},
		{text: "commit;"},
		{text: `\endpipeline`},
	} {
		text := line.text
		if text == "" {
			sql, ok := line.from[line.name]
			if !ok {
				return "", fmt.Errorf("pgbench: the service has no statement %s any more", line.name)
			}
			if text, err = inline(sql, line.args); err != nil {
				return "", fmt.Errorf("pgbench: %s: %w", line.name, err)
			}
			text += ";"
		}
		b.WriteString(text + "\n")
	}
	return b.String(), nil
}

// constants returns the string constants of a Go file, by name.
func constants(path string) (map[string]string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		return nil, err
	}
	found := make(map[string]string)
	for _, d := range f.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.CONST {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.ValueSpec) // what a declaration of constants is made of
			for i, v := range spec.Values {
				if lit, ok := v.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if found[spec.Names[i].Name], err = strconv.Unquote(lit.Value); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return found, nil
}

var parameter = regexp.MustCompile(`\$\d+`)

// inline puts args, which are SQL, in the places of a statement's parameters.
func inline(sql string, args []string) (string, error) {
	var err error
	used := 0
	text := parameter.ReplaceAllStringFunc(sql, func(p string) string {
		n, _ := strconv.Atoi(p[1:]) // digits
		if n < 1 || n > len(args) {
			err = fmt.Errorf("no value for %s", p)
			return p
		}
		used = max(used, n)
		return "(" + args[n-1] + ")"
	})
	if err == nil && used != len(args) {
		err = fmt.Errorf("it has %d parameters, want %d", used, len(args))
	}
	return strings.TrimSpace(text), err
}

// pgbench runs the script with so many clients, and measures it in a window as
// a worker measures a load. marked is called when the window begins and ends.
type pgbench struct {
	program, url, script string
	dir                  string // of scripts and logs, in memory
}

// run returns what it measured.
func (b pgbench) run(ctx context.Context, connections int, warmup, window time.Duration, marked func() error) (tally, error) {
	config, err := pgx.ParseConfig(b.url)
	if err != nil {
		return tally{}, err
	}
	dir, err := os.MkdirTemp(b.dir, "pgbench-")
	if err != nil {
		return tally{}, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "create.sql")
	if err := os.WriteFile(file, []byte(b.script), 0o600); err != nil {
		return tally{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.program, "-n", "-M", "prepared", "-c", strconv.Itoa(connections), "-j", strconv.Itoa(min(2, connections)),
		"-T", strconv.Itoa(int(pgbenchLongest.Seconds())), "-f", file, "-l", "--log-prefix", filepath.Join(dir, "log"),
		"-h", config.Host, "-p", strconv.Itoa(int(config.Port)), "-U", config.User, config.Database)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return tally{}, err
	}
	exited := make(chan error, 1)
	alive, over := context.WithCancel(ctx)
	go func() {
		exited <- cmd.Wait()
		over()
	}()
	fail := func(err error) (tally, error) {
		cancel()
		<-exited
		return tally{}, err
	}

	if err := awaitLog(alive, dir); err != nil {
		return fail(fmt.Errorf("pgbench: %w: %s", err, said.String()))
	}
	begin := time.Now().Add(warmup)
	end := begin.Add(window)
	for _, at := range []time.Time{begin, end} {
		select {
		case err := <-exited:
			return tally{}, fmt.Errorf("pgbench ended inside its window (%v): %s", err, said.String())
		case <-time.After(time.Until(at)):
			if err := marked(); err != nil {
				return fail(err)
			}
		}
	}
	// Its time begins before its clients have connected, which takes seconds where
	// they are many, and counts in whole seconds. So it is given too much, and
	// ended by the signal with which it tells itself that it is over; each client
	// completes its transaction.
	time.Sleep(afterWindow)
	if err := cmd.Process.Signal(syscall.SIGALRM); err != nil {
		return fail(err)
	}
	if err := <-exited; err != nil {
		return tally{}, fmt.Errorf("pgbench: %w: %s", err, said.String())
	}
	paths, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil {
		return tally{}, err
	}
	var latencies []time.Duration
	last := time.Time{}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return tally{}, err
		}
		latest, err := readLog(f, begin, end, &latencies)
		if err = errors.Join(err, f.Close()); err != nil {
			return tally{}, err
		}
		if latest.After(last) {
			last = latest
		}
	}
	if last.Before(end) || len(latencies) == 0 {
		return tally{}, errors.New("pgbench ended before its window")
	}
	return tallyOf(latencies, window), nil
}

const (
	// pgbenchLongest is more than a window takes.
	pgbenchLongest = time.Hour
	// afterWindow is for the transactions that run when the window ends.
	afterWindow = 100 * time.Millisecond
)

// awaitLog waits until pgbench has written of its first transactions.
func awaitLog(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		paths, err := filepath.Glob(filepath.Join(dir, "log.*"))
		if err != nil {
			return err
		}
		for _, path := range paths {
			if info, err := os.Stat(path); err == nil && info.Size() > 0 {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("it has logged nothing")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// readLog reads pgbench's log of transactions, whose lines are: client, number,
// microseconds taken, script, and when it ended in seconds and microseconds. It
// appends the latencies of those that ended between begin and end, and returns
// when the latest of all ended.
func readLog(r io.Reader, begin, end time.Time, latencies *[]time.Duration) (latest time.Time, err error) {
	for lines := bufio.NewScanner(r); ; {
		if !lines.Scan() {
			return latest, lines.Err()
		}
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 {
			return latest, fmt.Errorf("pgbench: unknown line in its log: %q", lines.Text())
		}
		var n [3]int64
		for i, field := range []string{fields[2], fields[4], fields[5]} {
			if n[i], err = strconv.ParseInt(field, 10, 64); err != nil {
				return latest, fmt.Errorf("pgbench: a line of its log says %q: %w", lines.Text(), err)
			}
		}
		at := time.Unix(n[1], n[2]*int64(time.Microsecond))
		if at.After(latest) {
			latest = at
		}
		if !at.Before(begin) && at.Before(end) {
			*latencies = append(*latencies, time.Duration(n[0])*time.Microsecond)
		}
	}
}
