//go:build clients

package client_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"intentd/client"
	"intentd/internal/api"
)

// program is a file that docs/clients.md shows.
type program struct {
	name   string // from its first line
	text   string
	prints string // what the page says that it prints; "" for a library
}

// fence finds the page's blocks of code: language and text.
var fence = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// programs reads the page. A block with a file's name in its first line is that
// file; a block of text is what the file before it prints.
func programs(t *testing.T) (all []program) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "docs", "clients.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`^(?:#|//) ([a-z]+\.(?:sh|py|ts))\n`)
	for _, block := range fence.FindAllStringSubmatch(string(page), -1) {
		language, text := block[1], block[2]
		switch match := name.FindStringSubmatch(text); {
		case match != nil:
			all = append(all, program{name: match[1], text: text})
		case language == "text" && len(all) > 0 && all[len(all)-1].prints == "":
			all[len(all)-1].prints = text
		case language != "sql":
			t.Errorf("docs/clients.md has a block that nothing runs:\n%s", text)
		}
	}
	return all
}

// tool returns a program that make clients-test has found or installed.
func tool(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	if path == "" {
		t.Fatalf("%s is not set: run make clients-test", variable)
	}
	return path
}

// language is how the page's programs of one kind are run. under is a program
// beside them that makes many payments through the same function: its arguments
// are the address, how many, and a first number; it prints the id of each, or
// the kind of its failure.
type language struct {
	suffix string
	build  func(t *testing.T, dir string)
	run    func(t *testing.T, file string) []string
	under  string
	// at is a program that makes one payment without waiting, of the address and
	// key that are its arguments, and prints the same.
	at string
}

var languages = map[string]language{
	"curl": {
		suffix: ".sh",
		run:    func(_ *testing.T, file string) []string { return []string{"bash", "--noprofile", "--norc", file} },
		under: `source ./pay.sh
BASE_URL=$1 TOKEN=merchant-demo ATTEMPTS=30 FIRST_WAIT_MS=5 PATIENCE=0.25
one() {
  printf '{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3","payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC","amount":"%s","reference":"order-%s"}' "${2:-100}" "$1" >"order-$1.json"
  local made
  made=$(pay "order-$1" "order-$1.json" 2>/dev/null)
  case $? in
    0) grep -o 'pi_[0-9a-f]*' <<<"$made" | head -n 1 ;;
    1) echo refused ;;
    75) echo open ;;
  esac
}
for ((i = $3; i < $3 + $2; i++)); do one "$i"; done
one "$3" 200
ATTEMPTS=2 BASE_URL=http://127.0.0.1:1
one "$i"
`,
		at: `source ./pay.sh
BASE_URL=$1 TOKEN=merchant-demo ATTEMPTS=5
sleep() { :; }
echo '{}' >"$2.json"
made=$(pay "$2" "$2.json" 2>/dev/null)
case $? in
  0) grep -o 'pi_[0-9a-z]*' <<<"$made" | head -n 1 ;;
  1) echo refused ;;
  75) echo open ;;
esac
`,
	},
	"Python": {
		suffix: ".py",
		run:    func(t *testing.T, file string) []string { return []string{tool(t, "CLIENTS_PYTHON"), "-B", file} },
		under: `import sys
import httpx
import pay
def one(url, i, amount="100", attempts=30):
    with httpx.Client(base_url=url, headers={"Authorization": "Bearer merchant-demo"}, timeout=0.25, trust_env=False) as http:
        try:
            print(pay.create_payment(http, f"order-{i}", {
                "chain": "evm:31337", "token": "0x5FbDB2315678afecb367f032d93F642f64180aa3",
                "payer": "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", "merchant": "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
                "amount": amount, "reference": f"order-{i}"}, attempts, 0.005)["id"])
        except pay.Refused:
            print("refused")
        except pay.Open:
            print("open")
url, n, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for i in range(first, first + n):
    one(url, i)
one(url, first, "200")
one("http://127.0.0.1:1", first + n, attempts=2)
`,
		at: `import sys
import httpx
import pay
pay.time.sleep = lambda _: None
with httpx.Client(base_url=sys.argv[1], trust_env=False) as http:
    try:
        print(pay.create_payment(http, sys.argv[2], {}, 5)["id"])
    except pay.Refused:
        print("refused")
    except pay.Open:
        print("open")
`,
	},
	"TypeScript": {
		suffix: ".ts",
		build: func(t *testing.T, dir string) {
			t.Helper()
			for name, text := range map[string]string{
				"package.json":  `{"type":"module"}`,
				"tsconfig.json": `{"compilerOptions":{"strict":true,"noUnusedLocals":true,"module":"nodenext","target":"es2022","lib":["es2022","dom"],"types":[]}}`,
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			// It checks the types, too.
			execute(t, dir, "node", tool(t, "CLIENTS_TSC"))
		},
		run: func(_ *testing.T, file string) []string {
			return []string{"node", strings.TrimSuffix(file, ".ts") + ".js"}
		},
		under: `import { createPayment, Open, Refused } from "./pay.js";
declare const process: { argv: string[] };
async function one(baseURL: string, i: number, amount = "100", attempts = 30): Promise<void> {
  try {
    const made = await createPayment({ baseURL, token: "merchant-demo", attempts, patience: 250, firstWait: 5 }, "order-" + i, {
      chain: "evm:31337", token: "0x5FbDB2315678afecb367f032d93F642f64180aa3",
      payer: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", merchant: "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
      amount, reference: "order-" + i,
    });
    console.log(made.id);
  } catch (error) {
    console.log(error instanceof Refused ? "refused" : error instanceof Open ? "open" : error);
  }
}
const [url, n, first] = [process.argv[2]!, Number(process.argv[3]), Number(process.argv[4])];
for (let i = first; i < first + n; i++) await one(url, i);
await one(url, first, "200");
await one("http://127.0.0.1:1", first + n, "100", 2);
`,
		at: `import { createPayment, Open, Refused } from "./pay.js";
declare const process: { argv: string[] };
const wait = setTimeout; // fetch has waits of its own
globalThis.setTimeout = ((done: () => void, ms: number) => wait(done, new Error().stack!.split("\n")[2]!.includes("pay.js") ? 0 : ms)) as typeof setTimeout;
try {
  console.log((await createPayment({ baseURL: process.argv[2]!, token: "t", attempts: 5 }, process.argv[3]!, {} as never)).id);
} catch (error) {
  console.log(error instanceof Refused ? "refused" : error instanceof Open ? "open" : error);
}
`,
	},
}

// execute runs a program to its end and returns what it prints.
func execute(t *testing.T, dir string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// TestDocs runs every program of docs/clients.md as it stands there, and its
// functions through the proxy of TestClient_EachPaymentOnce.
func TestDocs(t *testing.T) {
	t.Parallel()
	all := programs(t)
	run := make(map[string]bool)
	for name, l := range languages {
		dir := t.TempDir()
		service := serve(t, inMemory(api.RateLimit{}))
		var shown []program
		for _, p := range all {
			if filepath.Ext(p.name) != l.suffix {
				continue
			}
			run[p.name] = true
			shown = append(shown, p)
			text := strings.ReplaceAll(p.text, "http://localhost:8080", service)
			if err := os.WriteFile(filepath.Join(dir, p.name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if len(shown) < 2 {
			t.Errorf("docs/clients.md shows %d programs for %s", len(shown), name)
			continue
		}
		for file, text := range map[string]string{"under": l.under, "at": l.at} {
			if err := os.WriteFile(filepath.Join(dir, file+l.suffix), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if l.build != nil {
				l.build(t, dir)
			}
			for _, p := range shown {
				if p.prints == "" {
					continue
				}
				if got := execute(t, dir, l.run(t, p.name)...); got != p.prints {
					t.Errorf("%s prints %q, and the page shows %q", p.name, got, p.prints)
				}
			}
			underFire(t, l, dir)
			eachEnd(t, l, dir)
		})
	}
	for _, p := range all {
		if !run[p.name] {
			t.Errorf("nothing runs %s", p.name)
		}
	}
}

// answers are headers and a status.
type answers func(http.Header) int

var (
	// atFirst are answers to the first sendings of a process' payments with these
	// numbers: the rule for clients says that they are sent again.
	atFirst = map[int]answers{
		3: func(h http.Header) int { h.Set("Retry-After", "1"); return http.StatusConflict },
		4: func(h http.Header) int { h.Set("Retry-After", "1"); return http.StatusTooManyRequests },
		5: func(http.Header) int { return http.StatusTooManyRequests },
		6: func(http.Header) int { return http.StatusInternalServerError },
	}
	// finally are answers to every sending: they are final.
	finally = map[int]answers{
		7: func(h http.Header) int { h.Set("Idempotency-Key-Expires", "soon"); return http.StatusConflict },
		8: func(h http.Header) int { h.Set("Idempotent-Replayed", "true"); return http.StatusInternalServerError },
		9: func(h http.Header) int { h.Set("Retry-After", "1"); return http.StatusUnprocessableEntity },
	}
)

// hurdles puts those answers before a service.
func hurdles(service http.Handler) http.Handler {
	var mu sync.Mutex
	seen := make(map[string]int) // by key
	number := regexp.MustCompile(`^order-(\d+)`)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		mu.Lock()
		seen[key]++
		nth := seen[key]
		mu.Unlock()
		answer := answers(nil)
		if match := number.FindStringSubmatch(key); match != nil {
			n, _ := strconv.Atoi(match[1]) // digits
			if answer = finally[n%1000]; answer == nil && nth <= 2 {
				answer = atFirst[n%1000]
			}
		}
		if answer == nil {
			service.ServeHTTP(w, r)
			return
		}
		w.WriteHeader(answer(w.Header()))
		_, _ = io.WriteString(w, `{"error":"made_up","detail":"d"}`)
	})
}

// ends are what a loop of the page makes of answers, one to each attempt: of the
// last one, where there are more attempts.
var ends = map[string]struct {
	answers  []step
	want     string
	attempts int
}{
	"made":                    {[]step{docMade}, "pi_1", 1},
	"refused":                 {[]step{revoked}, "refused", 1},
	"revoked-after-cut":       {[]step{docCut, revoked}, "open", 2},
	"revoked-after-failure":   {[]step{unavailable, revoked}, "open", 2},
	"revoked-while-it-ran":    {[]step{inFlight, revoked}, "open", 2},
	"revoked-after-garbage":   {[]step{says(201, `null`), revoked}, "open", 2},
	"revoked-after-another":   {[]step{says(200, `{"id":"pi_1"}`), revoked}, "open", 2},
	"revoked-after-limit":     {[]step{limited, revoked}, "refused", 2},
	"revoked-after-cut-limit": {[]step{docCut, limited, revoked}, "open", 3},
	"recorded-after-cut":      {[]step{docCut, invalid}, "refused", 2},
	"replayed-after-cut":      {[]step{docCut, says(500, `{}`, "Idempotent-Replayed: true")}, "refused", 2},
	"reused-after-cut":        {[]step{docCut, reused}, "refused", 2},
	"null":                    {[]step{says(201, `null`), docMade}, "pi_1", 2},
	"number":                  {[]step{says(201, `7`), docMade}, "pi_1", 2},
	"empty":                   {[]step{says(201, ``), docMade}, "pi_1", 2},
	"no-intent":               {[]step{says(201, `{"state":"created"}`), docMade}, "pi_1", 2},
	// Their last byte is a brace, and nothing tells that more was to come.
	"cut-at-a-brace":     {[]step{says(201, `{"id":"pi_2","metadata":{"a":"b"}`), docMade}, "pi_1", 2},
	"cut-within-a-brace": {[]step{says(201, `{"id":"pi_2","reference":"order }`), docMade}, "pi_1", 2},
	"braces-in-strings":  {[]step{says(201, `{"id":"pi_1","reference":"\"}{{","metadata":{"\\":"}"}}`)}, "pi_1", 1},
	"undecodable":        {[]step{says(201, `{"id":"pi_2"`, "Content-Encoding: gzip"), docMade}, "pi_1", 2},
	"date":               {[]step{says(409, `{}`, "Retry-After: Mon, 02 Mar 2026 12:00:00 GMT"), docMade}, "pi_1", 2},
	"octal":              {[]step{says(503, `{}`, "Retry-After: 08"), docMade}, "pi_1", 2},
	"zeros":              {[]step{says(503, `{}`, "Retry-After: 000"), docMade}, "pi_1", 2},
	"superscript":        {[]step{says(503, `{}`, "Retry-After: \xb2"), docMade}, "pi_1", 2},
	"two-minutes":        {[]step{says(503, `{}`, "Retry-After: 120"), docMade}, "pi_1", 2},
	"too-long":           {[]step{says(503, `{}`, "Retry-After: 121")}, "open", 1},
	"31-bits-of-ms":      {[]step{says(503, `{}`, "Retry-After: 2147484")}, "open", 1},
	"64-bits":            {[]step{says(503, `{}`, "Retry-After: 18446744073709551617")}, "open", 1},
	"used-up":            {[]step{unavailable}, "open", 5},
}

// docMade is a success, and docCut one whose end is missing.
var (
	docMade = says(201, `{"id":"pi_1","state":"created","metadata":{"a":"b"},"version":1}`)
	docCut  = says(201, `{"id":"pi_1","state":"cre`, "Content-Length: 99")
)

// eachEnd runs a language's loop against each of those.
func eachEnd(t *testing.T, l language, dir string) {
	t.Helper()
	for name, c := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			sent := 0
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				answer := c.answers[min(sent, len(c.answers)-1)]
				sent++
				mu.Unlock()
				resp, err := answer(r)
				if err != nil {
					t.Error(err)
				}
				defer resp.Body.Close()
				maps.Copy(w.Header(), resp.Header)
				w.WriteHeader(resp.StatusCode)
				_, _ = io.Copy(w, resp.Body)
			}))
			if got := strings.TrimSpace(execute(t, dir, append(l.run(t, "at"+l.suffix), url, name)...)); got != c.want {
				t.Errorf("it ends with %q, want %q", got, c.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if sent != c.attempts {
				t.Errorf("%d attempts, want %d", sent, c.attempts)
			}
		})
	}
}

// underFire makes payments through the proxy, in a few processes at once, and
// counts what was made.
func underFire(t *testing.T, l language, dir string) {
	t.Helper()
	service := serve(t, hurdles(inMemory(api.RateLimit{})))
	p, baseURL := newProxy(t, 1, strings.TrimPrefix(service, "http://"))
	const processes, each = 4, 30
	var wg sync.WaitGroup
	printed := make([]string, processes)
	for i := range processes {
		wg.Go(func() {
			// Not Fatal, which is for the test's own goroutine.
			args := append(l.run(t, "under"+l.suffix), baseURL, fmt.Sprint(each), fmt.Sprint(i*1000))
			cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			printed[i] = string(out)
		})
	}
	wg.Wait()
	p.after.Wait()
	p.mu.Lock()
	if len(p.did) < len(faults)*2/3 {
		t.Errorf("the proxy did no more than %v", p.did)
	}
	p.mu.Unlock()

	made := make(map[string]string) // id by reference
	for pi, err := range newClient(t, service, merchantToken).List(t.Context(), client.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if other, twice := made[pi.Reference]; twice {
			t.Errorf("%s was made twice: %s and %s", pi.Reference, pi.ID, other)
		}
		made[pi.Reference] = pi.ID
	}
	if want := processes * (each - len(finally)); len(made) != want {
		t.Errorf("%d payment intents, want %d", len(made), want)
	}
	for i, text := range printed {
		var want []string
		for n := range each {
			if finally[n] != nil {
				want = append(want, "refused")
				continue
			}
			want = append(want, made[fmt.Sprintf("order-%d", i*1000+n)])
		}
		// Another amount under the first key, and a service that nobody runs.
		want = append(want, "refused", "open")
		if got := strings.Fields(text); !slices.Equal(got, want) {
			t.Errorf("process %d was told\n%s\nwant\n%s", i, text, strings.Join(want, "\n"))
		}
	}
}

// TestDocs_Short holds the page to what it says of curl.
func TestDocs_Short(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(programs(t), func(p program) bool { return p.name == "short.sh" })
	if i < 0 {
		t.Fatal("docs/clients.md has no short.sh")
	}
	short := strings.Replace(programs(t)[i].text, "--retry 5", "--retry 1", 1)
	plain := strings.NewReplacer("--fail-with-body ", "", "--retry-all-errors ", "").Replace(short)
	const body = `{"id":"pi_1","state":"created"}`
	for name, c := range map[string]struct {
		script string
		answer func(w http.ResponseWriter)
		sent   int
	}{
		"RefusalIsSentAgain":         {short, func(w http.ResponseWriter) { w.WriteHeader(422) }, 2},
		"UnauthorizedIsSentAgain":    {short, func(w http.ResponseWriter) { w.WriteHeader(401) }, 2},
		"InFlightIsSentAgain":        {short, func(w http.ResponseWriter) { w.Header().Set("Retry-After", "1"); w.WriteHeader(409) }, 2},
		"InFlightIsNot":              {plain, func(w http.ResponseWriter) { w.Header().Set("Retry-After", "1"); w.WriteHeader(409) }, 1},
		"CutIsNot":                   {plain, func(w http.ResponseWriter) { w.Header().Set("Content-Length", "99"); _, _ = io.WriteString(w, body) }, 1},
		"CutIsSentAgain":             {short, func(w http.ResponseWriter) { w.Header().Set("Content-Length", "99"); _, _ = io.WriteString(w, body) }, 2},
		"RecordedFailureIsSentAgain": {short, func(w http.ResponseWriter) { w.Header().Set("Idempotent-Replayed", "true"); w.WriteHeader(500) }, 2},
		"UnavailableIsSentAgain":     {plain, func(w http.ResponseWriter) { w.WriteHeader(503) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			sent := make(map[string]int) // by key and body
			url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				raw, err := io.ReadAll(r.Body)
				if err != nil || !json.Valid(raw) {
					t.Errorf("%q, %v", raw, err)
				}
				mu.Lock()
				sent[r.Header.Get("Idempotency-Key")+string(raw)]++
				mu.Unlock()
				c.answer(w)
			}))
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "short.sh"), []byte(strings.ReplaceAll(c.script, "http://localhost:8080", url)), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "bash", "--noprofile", "--norc", "short.sh")
			cmd.Dir = dir
			_ = cmd.Run() // grep finds nothing in a refusal
			mu.Lock()
			defer mu.Unlock()
			if len(sent) != 1 {
				t.Errorf("%d different requests", len(sent))
			}
			for _, n := range sent {
				if n != c.sent {
					t.Errorf("sent %d times, and the page says %d", n, c.sent)
				}
			}
		})
	}
}
