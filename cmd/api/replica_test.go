package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"intentd/internal/pgtest"
	"intentd/internal/secret/secrettest"
)

// asMain makes this test binary the service, so that tests run replicas as
// processes of their own: only a process can be killed.
const asMain = "INTENTD_TEST_RUNS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

const (
	patience = 20 * time.Second // for what only the system can bring about
	merchant = "merchant-demo"
	token    = merchant + "-" + secrettest.Word // the merchant's
	// Another merchant's.
	otherToken = "other-" + secrettest.Word
	example    = `{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3",` +
		`"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",` +
		`"amount":"100000000","expires_in_seconds":900}`
)

// replica is the service as a process.
type replica struct {
	cmd    *exec.Cmd
	url    string
	log    *logBuffer
	exited chan struct{}
	err    error // what it exited with, once exited is closed
}

// start runs the service and returns once it listens. It is stopped by SIGTERM
// when the test ends, and must then end well, unless the test ended it before.
func start(t *testing.T, env ...string) *replica {
	t.Helper()
	return startProgram(t, os.Args[0], env...)
}

// startProgram is start for a program that need not be this one.
func startProgram(t *testing.T, program string, env ...string) *replica {
	t.Helper()
	r := launchProgram(t, program, env...)
	r.url = "http://" + r.logged(t, "listening")["addr"].(string)
	return r
}

// launch runs the service.
func launch(t *testing.T, env ...string) *replica {
	t.Helper()
	return launchProgram(t, os.Args[0], env...)
}

func launchProgram(t *testing.T, program string, env ...string) *replica {
	t.Helper()
	r := &replica{log: newLogBuffer(), exited: make(chan struct{})}
	r.cmd = exec.Command(program)
	r.cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "PG_BINDIR=" + os.Getenv("PG_BINDIR"), "HOME=" + os.Getenv("HOME"),
		asMain + "=1", "API_ADDR=127.0.0.1:0", "ADMIN_ADDR=127.0.0.1:0", "API_DEMO_KEYS=" + merchant + "=" + token + ",other-merchant=" + otherToken, "LOG_FORMAT=json", "LOG_LEVEL=debug",
		"PGPASSWORD=" + secrettest.Word, // where DATABASE_URL has none; a private server asks for none
		"SHUTDOWN_TIMEOUT=6s",           // a fifteenth of it passes before the listener closes
	}, env...)
	for _, kv := range env {
		if dir, ok := strings.CutPrefix(kv, "PWD="); ok {
			r.cmd.Dir = dir
		}
	}
	r.cmd.Stderr = r.log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		r.err = r.cmd.Wait()
		close(r.exited)
	}()
	t.Cleanup(func() {
		select {
		case <-r.exited:
		default:
			r.stop(t)
		}
		// Where the test has passed this is shown to tests/tokens alone.
		t.Logf("log of replica %s:\n%s", r.url, r.log)
	})
	return r
}

// stop ends the replica by SIGTERM, which must end well.
func (r *replica) stop(t *testing.T) {
	t.Helper()
	r.signal(t, syscall.SIGTERM)
	r.wait(t)
	if r.err != nil {
		t.Errorf("replica ended with %v", r.err)
	}
}

// kill ends it by SIGKILL.
func (r *replica) kill(t *testing.T) {
	t.Helper()
	r.signal(t, syscall.SIGKILL)
	r.wait(t)
}

func (r *replica) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v: %v", s, err)
	}
}

func (r *replica) wait(t *testing.T) {
	t.Helper()
	select {
	case <-r.exited:
	case <-time.After(patience):
		_ = r.cmd.Process.Kill()
		t.Fatalf("replica did not end in %v:\n%s", patience, r.log)
	}
}

// logged waits for a line with that message and returns its attributes.
func (r *replica) logged(t *testing.T, msg string) map[string]any {
	t.Helper()
	deadline := time.After(patience)
	for {
		changed := r.log.changed()
		for _, line := range r.log.lines() {
			if line["msg"] == msg {
				return line
			}
		}
		select {
		case <-changed:
		case <-r.exited:
			t.Fatalf("replica ended (%v) without saying %q:\n%s", r.err, msg, r.log)
		case <-deadline:
			t.Fatalf("replica did not say %q in %v:\n%s", msg, patience, r.log)
		}
	}
}

// logBuffer collects a replica's log, and tells who waits for more.
type logBuffer struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	more chan struct{}
}

func newLogBuffer() *logBuffer { return &logBuffer{more: make(chan struct{})} }

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.more)
	b.more = make(chan struct{})
	return b.buf.Write(p)
}

func (b *logBuffer) changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.more
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lines returns the lines that are whole.
func (b *logBuffer) lines() (lines []map[string]any) {
	for text := range strings.Lines(b.String()) {
		var line map[string]any
		if json.Unmarshal([]byte(text), &line) == nil {
			lines = append(lines, line)
		}
	}
	return lines
}

// requests returns the log's lines of requests other than health checks.
func (b *logBuffer) requests() (requests []map[string]any) {
	for _, line := range b.lines() {
		if line["msg"] == "request" && strings.HasPrefix(line["path"].(string), "/v1/") {
			requests = append(requests, line)
		}
	}
	return requests
}

// reply is what came back. A status of 0 means that nothing did.
type reply struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a reply) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

// fresh says whether this is the first answer of a create.
func (a reply) fresh() bool { return a.status == 201 && a.header.Get("Idempotent-Replayed") == "" }

// replayed says whether it is a later one.
func (a reply) replayed() bool {
	return a.status == 201 && len(a.header.Values("Idempotent-Replayed")) == 1 && a.header.Get("Idempotent-Replayed") == "true"
}

func (a reply) id(t *testing.T) string {
	t.Helper()
	var in struct{ ID string }
	if err := json.Unmarshal([]byte(a.body), &in); err != nil || in.ID == "" {
		t.Fatalf("no intent in %v", a)
	}
	return in.ID
}

// code returns the error's code.
func (a reply) code() string {
	var e struct{ Error string }
	_ = json.Unmarshal([]byte(a.body), &e) // no JSON has no code
	return e.Error
}

// client has as many connections as a test wants.
var client = &http.Client{
	Transport: &http.Transport{MaxIdleConnsPerHost: 100},
	Timeout:   time.Minute,
}

// post creates an intent as merchant-demo.
func (r *replica) post(key, body string) reply { return r.postAs(token, key, body) }

func (r *replica) postAs(token, key, body string) reply {
	return r.do(http.MethodPost, "/v1/payment_intents", body, "Authorization", "Bearer "+token, "Idempotency-Key", key)
}

// get reads an intent, or any other path.
func (r *replica) get(path string) reply {
	return r.do(http.MethodGet, path, "", "Authorization", "Bearer "+token)
}

func (r *replica) do(method, path, body string, headers ...string) reply {
	for i, name := range headers {
		if i%2 == 0 && name == "Authorization" && !secrettest.Known(headers[i+1]) {
			panic("tests/tokens would not know this credential: let it have secrettest.Word in it")
		}
	}
	req, err := http.NewRequestWithContext(context.Background(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return reply{err: err}
	}
	return reply{status: resp.StatusCode, header: resp.Header, body: string(b)}
}

// eventually asks again until ok, for as long as only the system knows when.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond) // nothing tells when
	}
}

// wantPaired checks that the intents and the records that answer with one pair
// one to one.
func wantPaired(t *testing.T, db *pgtest.DB) {
	t.Helper()
	const unpaired = `
select count(*)
from payment_intents i
full join (
  select replace(header -> 'Location' ->> 0, '/v1/payment_intents/pi_', '')::uuid as id
  from idempotency_keys
  where status = 201
) k using (id)
where i.merchant_id is null
   or k.id is null`
	const twice = `
select count(*) - count(distinct header -> 'Location' ->> 0)
from idempotency_keys
where status = 201`
	if n := pgtest.QueryVal[int](t, db, unpaired) + pgtest.QueryVal[int](t, db, twice); n != 0 {
		t.Errorf("%d intents or records stand alone", n)
	}
}
