package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"intentd"
	"intentd/internal/pgtest"
)

// TestReadme runs the commands of README.md and compares what they say with what
// the page shows. The conventions of the page's ```console blocks:
//
//   - A line that begins with "$ " is a command, with the lines that follow for as
//     long as one ends in a backslash; what follows it is all that it prints.
//   - Commands that begin with curl are run, and so are lines that do no more than
//     assign a variable (NAME='...' or NAME=$(curl ...)), for later commands to
//     use: from top to bottom, in one bash, against a service on localhost:8080 that
//     has the keys of make api-run. Others are not.
//   - "..." stands for any text within its line; alone on a line, for any number of
//     lines.
//   - An intent's id or a time is a name for what the service says there. Wherever
//     the page shows it again, in a command too, it is the same one, and another one
//     is another. Request ids and the dates of HTTP may be any. Everything else is
//     shown as it is.
//   - What the service answers stands below the command that it answers. A create
//     that is not refused has a body that is an example of openapi.yaml too.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	commands, err := parseConsole(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if len(commands) == 0 {
		t.Fatal("README.md has no command to run")
	}
	makefile, err := os.ReadFile(filepath.Join("..", "..", "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`(?m)^api-run: export API_DEMO_KEYS \?= (.*)$`).FindSubmatch(makefile)
	if match == nil {
		t.Fatal("make api-run sets no API_DEMO_KEYS")
	}
	keys := "API_DEMO_KEYS=" + string(match[1])
	for name, open := range map[string]func(*testing.T) *replica{
		"Memory":   func(t *testing.T) *replica { t.Helper(); return start(t, "API_STORE=memory", keys) },
		"Postgres": func(t *testing.T) *replica { t.Helper(); return startOn(t, pgtest.New(t), keys) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sh := newShell(t, strings.TrimPrefix(open(t).url, "http://"))
			page := make(transcript)
			for _, c := range commands {
				printed := sh.run(t, page.resolve(c.text))
				if err := page.compare(c.shown, printed); err != nil {
					t.Fatalf("README.md, line %d: %v\n$ %s\nshown:\n%s\n\nprinted:\n%s", c.line, err, c.text, c.shown, printed)
				}
				for _, body := range sh.creates(t) {
					if !refused.MatchString(c.shown) && !slices.ContainsFunc(requestExamples(t), func(example any) bool { return reflect.DeepEqual(body, example) }) {
						t.Errorf("README.md, line %d: openapi.yaml has no example of a request with the body %v", c.line, body)
					}
				}
			}
		})
	}
}

// TestReadme_Start: the page shows every line of a first start, by level, message
// and members. Their order may differ: a schema that takes its time is not waited
// for.
func TestReadme_Start(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(text), "```console\n$ make api-run\n")
	if !ok {
		t.Fatal("README.md does not show make api-run")
	}
	block, _, _ = strings.Cut(block, "```")
	r := launch(t, "PWD="+openDir(t), "LOG_FORMAT=text", "LOG_LEVEL=info")
	eventually(t, "it does not start", func() bool {
		return strings.Contains(r.log.String(), " msg=listening ") && strings.Contains(r.log.String(), ` msg="schema is current" `)
	})
	member := regexp.MustCompile(`(\w+)=("(?:\\.|[^"\\])*"|\S+)`)
	outline := func(log string) (lines []string) {
		for line := range strings.Lines(log) {
			if !strings.HasPrefix(line, "time=") {
				continue
			}
			var b strings.Builder
			for _, m := range member.FindAllStringSubmatch(line, -1) {
				if m[1] != "level" && m[1] != "msg" {
					m[0] = m[1]
				}
				b.WriteString(" " + m[0])
			}
			lines = append(lines, b.String())
		}
		slices.Sort(lines)
		return lines
	}
	if diff := cmp.Diff(outline(block), outline(r.log.String())); diff != "" {
		t.Errorf("the start (-README.md +the program):\n%s", diff)
	}
}

// refused finds an answer that is an error.
var refused = regexp.MustCompile(`(?m)^(HTTP/1\.1 [45]|\{"error":)`)

// command is one of the page's, with what the page shows below it.
type command struct {
	line        int // 1 is the page's first
	text, shown string
}

var (
	assignment = regexp.MustCompile(`^[A-Za-z_]\w*=('[^']*'|"[^"]*"|\$\(.*\)|[^\s'"]*)$`)
	callsCurl  = regexp.MustCompile(`\bcurl\b`)
	answers    = regexp.MustCompile(`^(HTTP/1\.1 |\{")`)
)

// parseConsole returns the commands to run. It refuses what it would have to pass
// over, though it is the service's.
func parseConsole(page string) (commands []command, err error) {
	lines := strings.Split(page, "\n")
	var last *command // of this block; nil: none yet
	inside := false
	finish := func() error {
		if last == nil {
			return nil
		}
		last.shown = strings.TrimRight(last.shown, "\n")
		switch {
		case strings.HasPrefix(last.text, "curl ") || assignment.MatchString(last.text):
			commands = append(commands, *last)
		case callsCurl.MatchString(last.text):
			return fmt.Errorf("line %d: begin the command with curl, so that it is run", last.line)
		}
		last = nil
		return nil
	}
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		text, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			if err := finish(); err != nil {
				return nil, err
			}
			inside = !inside && line == "```console"
		case !inside:
		case isCommand:
			if err := finish(); err != nil {
				return nil, err
			}
			last = &command{line: i + 1}
			for strings.HasSuffix(text, `\`) && i+1 < len(lines) {
				i++
				text += "\n" + lines[i]
			}
			last.text = text
		case last != nil:
			last.shown += line + "\n"
		case answers.MatchString(line):
			return nil, fmt.Errorf("line %d: an answer without the command that it answers", i+1)
		}
	}
	return commands, finish()
}

// transcript is what the names on the page, ids and times, stand for.
type transcript map[string]string

var (
	names = regexp.MustCompile(`pi_[0-9a-f]{32}|[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z`)
	// What may differ from what is shown, in this order of preference.
	passing = regexp.MustCompile(`(?m)^\.\.\.$\n?|\.\.\.|` + names.String() + `|` + uuid + `|` + httpDate)
)

const (
	uuid     = `[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`
	httpDate = `(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT`
)

// resolve puts what its names stand for into a command.
func (p transcript) resolve(command string) string {
	return names.ReplaceAllStringFunc(command, func(name string) string {
		if value, ok := p[name]; ok {
			return value
		}
		return name
	})
}

// compare says why printed is not what is shown, and learns the names that are
// new.
func (p transcript) compare(shown, printed string) error {
	var pattern strings.Builder
	var learned []string // the name of each group
	rest := shown
	for rest != "" {
		at := passing.FindStringIndex(rest)
		// (?m)^ holds at the beginning of any text, also where that is within a line.
		if at == nil {
			pattern.WriteString(regexp.QuoteMeta(rest))
			break
		}
		pattern.WriteString(regexp.QuoteMeta(rest[:at[0]]))
		token := rest[at[0]:at[1]]
		alone := strings.TrimSuffix(token, "\n") == "..." && (at[0] > 0 && rest[at[0]-1] == '\n' || len(rest) == len(shown) && at[0] == 0) &&
			(strings.HasSuffix(token, "\n") || at[1] == len(rest))
		switch value, known := p[token]; {
		case alone:
			pattern.WriteString(`(?s:(?:.*\n)?)`)
			if !strings.HasSuffix(token, "\n") { // the last line
				pattern.WriteString(`.*`)
			}
		case strings.HasPrefix(token, "..."):
			pattern.WriteString(`.*`)
			if strings.HasSuffix(token, "\n") {
				pattern.WriteString("\n")
			}
		case known:
			pattern.WriteString(regexp.QuoteMeta(value))
		case names.MatchString(token):
			pattern.WriteString(`(` + names.String() + `)`)
			learned = append(learned, token)
		case strings.HasSuffix(token, "GMT"):
			pattern.WriteString(httpDate)
		default:
			pattern.WriteString(uuid)
		}
		rest = rest[at[1]:]
	}
	groups := regexp.MustCompile(`^` + pattern.String() + `$`).FindStringSubmatch(printed)
	if groups == nil {
		return fmt.Errorf("not what is printed")
	}
	for i, name := range learned {
		value := groups[i+1]
		if was, ok := p[name]; ok && was != value {
			return fmt.Errorf("%s stands for both %s and %s", name, was, value)
		}
		for other, was := range p {
			if other != name && was == value {
				return fmt.Errorf("%s and %s both stand for %s", other, name, value)
			}
		}
		p[name] = value
	}
	return nil
}

// shell is a bash that keeps its variables from one command to the next.
type shell struct {
	host   string // of the service, for localhost:8080
	in     io.Writer
	out    *bufio.Reader
	stderr bytes.Buffer
	args   string // the file with the arguments of every curl since it was read
}

// newShell starts one, without anybody's settings.
func newShell(t *testing.T, host string) *shell {
	t.Helper()
	dir := t.TempDir()
	sh := &shell{host: host, args: filepath.Join(dir, "args")}
	cmd := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc")
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C", "ARGS=" + sh.args}
	cmd.Stderr = &sh.stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // the status of the last command, which was looked at
	})
	sh.in, sh.out = in, bufio.NewReader(out)
	fmt.Fprintf(in, `curl() { printf '%%s\0' "$@" $'\n' >>"$ARGS"; command curl --max-time %.0f "$@"; }`+"\n", patience.Seconds())
	return sh
}

// run runs one command, which must succeed, and returns what it printed.
func (sh *shell) run(t *testing.T, text string) string {
	t.Helper()
	// The command does not get what is left of bash's input.
	fmt.Fprintf(sh.in, "{ %s\n} </dev/null; printf '\\0%%d\\0' $?\n", strings.ReplaceAll(text, "localhost:8080", sh.host))
	printed, err := sh.out.ReadString(0)
	status := ""
	if err == nil {
		status, err = sh.out.ReadString(0)
	}
	if err != nil || status != "0\x00" {
		t.Fatalf("$ %s\nended with %q, %v\n%s", text, status, err, sh.stderr.String())
	}
	printed = strings.NewReplacer("\x00", "", "\r\n", "\n", sh.host, "localhost:8080").Replace(printed)
	return strings.TrimRight(printed, "\n")
}

// creates returns the bodies of the creates that were sent since it was asked
// last.
func (sh *shell) creates(t *testing.T) (bodies []any) {
	t.Helper()
	text, err := os.ReadFile(sh.args)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	_ = os.Remove(sh.args)
	for call := range strings.SplitSeq(string(text), "\n\x00") {
		args := strings.Split(call, "\x00")
		if !slices.ContainsFunc(args, func(arg string) bool { return strings.HasSuffix(arg, sh.host+"/v1/payment_intents") }) {
			continue
		}
		i := slices.IndexFunc(args, func(arg string) bool { return arg == "-d" || arg == "--json" || strings.HasPrefix(arg, "--data") })
		if i < 0 || i+1 == len(args) {
			continue
		}
		var body any
		if err := json.Unmarshal([]byte(args[i+1]), &body); err != nil {
			t.Errorf("%v: %s", err, args[i+1])
		}
		bodies = append(bodies, body)
	}
	return bodies
}

// requestExamples are the bodies of a create that openapi.yaml shows.
func requestExamples(t *testing.T) (bodies []any) {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(intentd.OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	for _, example := range doc.Paths.Value("/v1/payment_intents").Post.RequestBody.Value.Content["application/json"].Examples {
		text, err := json.Marshal(example.Value.Value)
		if err != nil {
			t.Fatal(err)
		}
		var body any
		if err := json.Unmarshal(text, &body); err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, body)
	}
	return bodies
}

func TestParseConsole(t *testing.T) {
	t.Parallel()
	const page = "text\n" +
		"$ curl not/in/a/block\n" +
		"```sh\n$ curl another language\n```\n" +
		"```console\n" +
		"$ make api-run\nlistening\n" +
		"$ API_PORT=0 docker compose up\n" +
		"$ id=pi_1\n" +
		"$ id=$(curl -s x | cut -c2)\n" +
		"$ curl -s x \\\n    -d '{}'\n\nHTTP/1.1 200 OK\n\n{\"a\":1}\n\n" +
		"```\n" +
		"```console\ntime=... level=INFO\n```\n" +
		"```console\n$ curl y\n```\n"
	got, err := parseConsole(page)
	want := []command{
		{10, "id=pi_1", ""},
		{11, "id=$(curl -s x | cut -c2)", ""},
		{12, "curl -s x \\\n    -d '{}'", "\nHTTP/1.1 200 OK\n\n{\"a\":1}"},
		{24, "curl y", ""},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	for name, page := range map[string]string{
		"AnswerAlone":     "```console\nHTTP/1.1 200 OK\n```\n",
		"BodyAlone":       "```console\n{\"error\":\"x\"}\n```\n",
		"HiddenCurl":      "```console\n$ sudo curl x\n```\n",
		"HiddenCurlFirst": "```console\n$ for i in 1 2; do curl x; done\n$ make\n```\n",
	} {
		if got, err := parseConsole(page); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestTranscript_Compare(t *testing.T) {
	t.Parallel()
	const (
		id1, id2     = "pi_01a227ad00037e149deb5ac7ce81d7d2", "pi_01a227ad00037e149deb5ac7ce81d7d3"
		real1, real2 = "pi_11111111111111111111111111111111", "pi_22222222222222222222222222222222"
		time1, time2 = "2026-11-29T14:19:38.883628Z", "2027-01-01T00:00:00.000001Z"
		uuid1, uuid2 = "10605125-65a7-4ee2-9500-bd4fd33f8637", "3f0d4c1e-6f5b-4b8e-9a57-0d1f6a2c9b7e"
	)
	for name, c := range map[string]struct {
		shown, printed string
		same           bool
	}{
		"Same":               {"a\nb", "a\nb", true},
		"Nothing":            {"", "", true},
		"NothingShown":       {"", "a", false},
		"NothingPrinted":     {"a", "", false},
		"OtherStatus":        {"HTTP/1.1 201 Created", "HTTP/1.1 200 OK", false},
		"OneMoreLine":        {"a\nb", "a\nx\nb", false},
		"OneLineLess":        {"a\nx\nb", "a\nb", false},
		"More":               {"a", "ab", false},
		"NoPattern":          {"a.c", "abc", false},
		"RestOfLine":         {"Date: ...\nb", "Date: today\nb", true},
		"WithinLine":         {`{"a":...,"c":1}`, `{"a":1,"b":2,"c":1}`, true},
		"NotMoreThanLine":    {"Date: ...\nb", "Date: today\nx\nb", false},
		"NotMoreThanItsLine": {"x ...\nb", "x y\nz\nb", false},
		"Lines":              {"a\n...\nb", "a\n1\n2\nb", true},
		"LinesAreNone":       {"a\n...\nb", "a\nb", true},
		"LinesAtEnd":         {"a\n...", "a\n1\n2", true},
		"LinesAtBeginning":   {"...\nb", "1\n2\nb", true},
		"LinesKeepTheirEnds": {"a\n...\nb", "a\n1b", false},
		"NewID":              {id1, real1, true},
		"IDTwice":            {id1 + id1, real1 + real1, true},
		"IDTwoMeanings":      {id1 + id1, real1 + real2, false},
		"OneMeaningTwice":    {id1 + id2, real1 + real1, false},
		"TwoIDs":             {id1 + id2, real1 + real2, true},
		"NoID":               {id1, "pi_x", false},
		"Time":               {time1 + " " + time1, time2 + " " + time2, true},
		"TimeTwoMeanings":    {time1 + " " + time1, time1 + " " + time2, false},
		"NoTime":             {time1, "2026-11-29T14:19:38Z", false},
		"RequestID":          {uuid1 + " " + uuid1, uuid1 + " " + uuid2, true},
		"HTTPDate":           {"Date: Sun, 29 Nov 2026 16:50:15 GMT", "Date: Mon, 01 Jan 2029 01:02:03 GMT", true},
		"NoHTTPDate":         {"Date: Sun, 29 Nov 2026 16:50:15 GMT", "Date: now", false},
	} {
		if err := make(transcript).compare(c.shown, c.printed); (err == nil) != c.same {
			t.Errorf("%s: %v", name, err)
		}
	}

	p := make(transcript)
	if err := p.compare("Location: "+id1, "Location: "+real1); err != nil {
		t.Fatal(err)
	}
	if got := p.resolve("curl x/" + id1 + "/" + id2); got != "curl x/"+real1+"/"+id2 {
		t.Errorf("the command is %s", got)
	}
	if err := p.compare(id1, real2); err == nil {
		t.Error("a name has changed its meaning")
	}
	if err := p.compare(id2, real1); err == nil {
		t.Error("a meaning has a second name")
	}
}
