package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"intentd/internal/secret/secrettest"
)

// module makes a module with one test file in it and returns its directory.
func module(t *testing.T, test string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module m\n\ngo 1.26\n", "m_test.go": test} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRun(t *testing.T) {
	t.Parallel()
	// The words are put together by the program, so that this output shows none.
	const file = `package m

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

var word, long = "s3cr" + "3t", strings.Repeat("x", 5000)

func init() { fmt.Fprintln(os.Stderr, "msg=request status=200") }

func TestM(t *testing.T) {
	_, _, _ = fmt.Fprint, os.Stderr, word + long
	t.Log("a passing test")
	%s
}
`
	for name, tt := range map[string]struct {
		body string
		logs []string
		code int
		says []string // each of them
		not  string
	}{
		"Clean":         {`t.Log("nothing")`, nil, 0, []string{"ok  \tm"}, "a passing test"},
		"LoggedByATest": {`t.Log("Bearer " + word)`, nil, 1, []string{"a secret is in the output of m TestM: ...", "ok  \tm"}, "FAIL"},
		"Printed":       {`fmt.Println(word)`, nil, 1, []string{"a secret is in the output of m"}, ""},
		"StandardError": {`fmt.Fprintln(os.Stderr, word)`, nil, 1, []string{"a secret is in the output of m"}, ""},
		"AToken":        {`t.Log("sk_" + "live_abcdefghijkl")`, nil, 1, []string{"a secret is in the output of m TestM"}, ""},
		"InASubtest":    {`t.Run("A", func(t *testing.T) { t.Log(word) })`, nil, 1, []string{"a secret is in the output of m TestM/A"}, ""},
		"InAName":       {`t.Run(word, func(t *testing.T) {})`, nil, 1, []string{"a secret is in the output of m"}, ""},
		// go test -json tells a line of more than 4 KiB in pieces.
		"LongLine":     {`for i := range 100 { fmt.Println(long[:4000+i] + word) }`, nil, 1, []string{"and 80 more"}, ""},
		"Fails":        {`t.Error("it is broken")`, nil, 1, []string{"it is broken", "--- FAIL: TestM", "a passing test", "FAIL\tm"}, "=== RUN"},
		"Panics":       {`panic("it is broken")`, nil, 1, []string{"it is broken", "goroutine", "FAIL\tm"}, ""},
		"Exits":        {`os.Exit(3)`, nil, 1, []string{"FAIL\tm"}, ""},
		"DoesNotBuild": {`undefined()`, nil, 1, []string{"undefined: undefined", "FAIL\tm"}, ""},
		"Logs":         {``, []string{"m"}, 0, []string{"ok  \tm"}, ""},
		"NoLogs":       {``, []string{"m", "n"}, 1, []string{"n has printed no line of a request's log", "ok  \tm"}, "m has printed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			dir := module(t, fmt.Sprintf(file, tt.body))
			code := run(dir, tt.logs, []string{"-count=1", "./..."}, &out, &out)
			shown := strings.ReplaceAll(out.String(), secrettest.Word, "(the word)")
			if code != tt.code {
				t.Errorf("exit code %d, want %d:\n%s", code, tt.code, shown)
			}
			for _, want := range tt.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in:\n%s", want, shown)
				}
			}
			if tt.not != "" && strings.Contains(out.String(), tt.not) {
				t.Errorf("%q in:\n%s", tt.not, shown)
			}
		})
	}

	t.Run("NoSuchDirectory", func(t *testing.T) {
		t.Parallel()
		var out strings.Builder
		if code := run(filepath.Join(t.TempDir(), "none"), nil, nil, &out, &out); code == 0 {
			t.Errorf("exit code 0:\n%s", out.String())
		}
	})
}
