// Command tokens runs go test and looks for secrets in all that the tests print:
// for the tokens of package apikey, and for those that tests make up, which have
// secrettest.Word in them.
//
//	go run ./tests/tokens [-C dir] [-logs package,...] -- [arguments of go test]
//
// The tests run as with -v, so that what they log is printed, that of tests that
// pass too. What is shown is what go test shows without -v: each package's result,
// and the output of what has failed. The exit code is 1 where a test has failed, a
// secret was printed, or a package of -logs has printed no line of a request's log,
// which would mean that nothing was looked through.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"intentd/internal/secret/secrettest"
)

func main() {
	dir := flag.String("C", ".", "the directory to run in")
	logs := flag.String("logs", "", "packages, by comma, that have to print requests' logs")
	flag.Parse()
	os.Exit(run(*dir, splitList(*logs), flag.Args(), os.Stdout, os.Stderr))
}

func splitList(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// run runs go test in dir and returns the exit code.
func run(dir string, logs, args []string, stdout, stderr io.Writer) int {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...) //nolint:gosec,noctx // the arguments are ours; it ends with go test
	cmd.Dir = dir
	var complaints bytes.Buffer // of the go command itself
	cmd.Stderr = io.MultiWriter(stderr, &complaints)
	out, err := cmd.StdoutPipe()
	if err != nil {
		fmt.Fprintln(stderr, "tokens:", err)
		return 1
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(stderr, "tokens:", err)
		return 1
	}
	r := newReader(stdout)
	readErr := r.read(out)
	err = cmd.Wait()
	r.look("go test", complaints.String())

	code := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintln(stderr, "tokens:", err)
		code = 1
	}
	if readErr != nil {
		fmt.Fprintln(stderr, "tokens: the output can not be read:", readErr)
		code = max(code, 1)
	}
	if !r.report(logs, stderr) {
		code = max(code, 1)
	}
	return code
}

// event is one of go test -json's: see go doc test2json.
type event struct {
	Action     string
	Package    string
	Test       string
	Output     string
	ImportPath string // of what was built
}

// name is a test of a package's; the empty test is the package's own output.
type name struct{ pkg, test string }

// output is what was printed in a test's name.
type output struct {
	lines []string
	open  string // what was printed of a line so far
}

// reader reads the events of a run.
type reader struct {
	stdout io.Writer
	tests  map[name]*output
	order  []name // as they first printed
	logged map[string]bool
	leaks  []string
}

func newReader(stdout io.Writer) *reader {
	return &reader{stdout: stdout, tests: make(map[name]*output), logged: make(map[string]bool)}
}

// read reads events to their end. A line that is none is shown as it is.
func (r *reader) read(events io.Reader) error {
	in := bufio.NewReader(events)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				r.look("go test", string(line))
				_, _ = r.stdout.Write(line)
			} else {
				r.take(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// take takes in one event.
func (r *reader) take(e event) {
	n := name{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		r.look(e.ImportPath, e.Output)
		_, _ = io.WriteString(r.stdout, e.Output)
	case "output":
		r.print(n, e.Output)
	case "pass", "skip":
		if e.Test == "" {
			r.finish(e.Package, false)
			return
		}
		// Nobody wants to see it; its name stays in the order.
		r.end(n)
		delete(r.tests, n)
	case "fail":
		if e.Test == "" {
			r.finish(e.Package, true)
		}
	}
}

// print keeps what a test has printed, and looks at each line when it is whole:
// one that is long comes in several events.
func (r *reader) print(n name, text string) {
	o := r.tests[n]
	if o == nil {
		o = new(output)
		r.tests[n] = o
		r.order = append(r.order, n)
	}
	for {
		line, rest, whole := strings.Cut(text, "\n")
		o.open += line
		if !whole {
			return
		}
		r.line(n, o)
		text = rest
	}
}

// line ends the line that is open.
func (r *reader) line(n name, o *output) {
	where := n.pkg
	if n.test != "" {
		where += " " + n.test
	}
	r.look(where, o.open)
	if strings.Contains(o.open, "msg=request ") || strings.Contains(o.open, `"msg":"request"`) {
		r.logged[n.pkg] = true
	}
	o.lines = append(o.lines, o.open)
	o.open = ""
}

// end ends a test's output.
func (r *reader) end(n name) {
	if o := r.tests[n]; o != nil && o.open != "" {
		r.line(n, o)
	}
}

// finish shows what go test shows of a package that has ended, and forgets it.
// What had no end of its own, as where the program was killed, has failed.
func (r *reader) finish(pkg string, failed bool) {
	var rest []name
	for _, n := range r.order {
		if n.pkg != pkg {
			rest = append(rest, n)
			continue
		}
		r.end(n)
		if o := r.tests[n]; o != nil && n.test != "" && failed {
			r.show(o, func(line string) bool { return !strings.HasPrefix(line, "=== ") })
		}
	}
	r.order = rest
	own := name{pkg, ""}
	if o := r.tests[own]; o != nil {
		r.show(o, func(line string) bool {
			return failed || strings.HasPrefix(line, "ok  ") || strings.HasPrefix(line, "?   ") || strings.Contains(line, "[no test files]")
		})
	}
	for n := range r.tests {
		if n.pkg == pkg {
			delete(r.tests, n)
		}
	}
}

func (r *reader) show(o *output, wanted func(string) bool) {
	for _, line := range o.lines {
		if wanted(line) {
			fmt.Fprintln(r.stdout, line)
		}
	}
}

// look looks for secrets in a text, and keeps where it finds one.
func (r *reader) look(where, text string) {
	if at := secrettest.Find(text); at != nil {
		begin, end := max(0, at[0]-200), min(len(text), at[1]+60)
		r.leaks = append(r.leaks, fmt.Sprintf("%s: ...%s...", where, strings.TrimSpace(text[begin:end])))
	}
}

// report tells of what was found, and whether all is well.
func (r *reader) report(logs []string, stderr io.Writer) bool {
	const most = 20
	for i, leak := range r.leaks {
		if i == most {
			fmt.Fprintf(stderr, "and %d more\n", len(r.leaks)-most)
			break
		}
		fmt.Fprintln(stderr, "a secret is in the output of", leak)
	}
	var silent []string
	for _, pkg := range logs {
		if !r.logged[pkg] {
			silent = append(silent, pkg)
		}
	}
	slices.Sort(silent)
	for _, pkg := range silent {
		fmt.Fprintf(stderr, "%s has printed no line of a request's log: there was nothing to look through\n", pkg)
	}
	return len(r.leaks) == 0 && len(silent) == 0
}
