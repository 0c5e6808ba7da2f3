package api_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd"
	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/idempotency/memidem"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/intent"
	"intentd/internal/intent/memintent"
	"intentd/internal/intent/pgintent"
	"intentd/internal/pgtest"
	"intentd/internal/secret"
	"intentd/internal/secret/secrettest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	ttl   = 24 * time.Hour
	lease = 30 * time.Second

	// patience bounds what a test waits for that should come at once.
	patience = 15 * time.Second

	intentsPath = "/v1/payment_intents"

	// What must never be logged has this word in it.
	mark  = secrettest.Word
	alice = "alices-" + mark
	bob   = "bobs-" + mark
	// Others of alice's own: a second live key, and one for tests.
	aliceToo  = "alices-second-" + mark
	aliceTest = "alices-test-" + mark
	// Those that act for merchants.
	relayer      = "relayers-" + mark
	listener     = "listeners-" + mark
	operator     = "operators-" + mark
	operatorTest = "operators-test-" + mark

	exampleBody = `{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3",` +
		`"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",` +
		`"amount":"100000000","expires_in_seconds":900}`
)

// newKey returns a key that no log may hold.
func newKey() string {
	// Digits, which can not spell anything that no error may show.
	return fmt.Sprintf("key-%s-%x", mark, rand.Text())
}

// edit returns the example body with one member changed to this JSON text; ""
// leaves the member out.
func edit(t testing.TB, member, value string) string {
	t.Helper()
	pattern := regexp.MustCompile(`"` + regexp.QuoteMeta(member) + `":("[^"]*"|[0-9]+),?`)
	changed := ""
	if value != "" {
		changed = `"` + member + `":` + value + `,`
	}
	body := exampleBody
	if pattern.MatchString(body) {
		body = pattern.ReplaceAllLiteralString(body, changed)
	} else {
		body = "{" + changed + body[1:]
	}
	return strings.Replace(body, ",}", "}", 1)
}

// service is the whole API on a real listener, over one kind of store. What
// goes through it is held to openapi.yaml, and its log to the contract.
type service struct {
	handler http.Handler
	server  *httptest.Server
	db      *pgtest.DB // nil: in memory
	log     *logBuffer

	// orphans is how many intents of the test's have lost their record.
	orphans int

	mu      sync.Mutex
	answers []*answer
	served  int
}

// parts are what a service is made of, for a test to change.
type parts struct {
	intents intent.Store
	keys    idempotency.Store
	auth    apikey.Authenticator
	ready   func(context.Context) error
}

// setup is how a service differs from the usual one.
type setup struct {
	lease   time.Duration // 0: 30 s
	limit   api.RateLimit
	docsURL string
	// observer is told what becomes of requests.
	observer api.Observer
	change   func(*parts)
}

// stores are wired as the command wires them.
var stores = map[string]func(*testing.T, setup) *service{
	"Memory": func(t *testing.T, o setup) *service {
		t.Helper()
		return newService(t, o, memoryParts(cmp.Or(o.lease, lease)), nil)
	},
	"Postgres": func(t *testing.T, o setup) *service {
		t.Helper()
		db := pgtest.New(t)
		return newService(t, o, postgresParts(t, db.URL, cmp.Or(o.lease, lease)), db)
	},
}

// eachStore runs a test over both stores: one contract.
func eachStore(t *testing.T, test func(*testing.T, *service)) {
	t.Helper()
	eachStoreWith(t, setup{}, test)
}

func eachStoreWith(t *testing.T, o setup, test func(*testing.T, *service)) {
	t.Helper()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t, o))
		})
	}
}

func memoryParts(lease time.Duration) parts {
	return parts{
		intents: memintent.New(time.Now, func(ctx context.Context) (memintent.Joined, bool) {
			return memidem.FromContext(ctx)
		}),
		keys: memidem.New(ttl, lease, time.Now),
	}
}

func postgresParts(t testing.TB, url string, lease time.Duration) parts {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 4
	pgidem.Configure(c)
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return parts{
		intents: pgintent.New(pool, func(ctx context.Context) (pgintent.Tx, bool) {
			return pgidem.FromContext(ctx)
		}),
		keys:  pgidem.New(pool, ttl, lease),
		ready: pool.Ping,
	}
}

func newService(t *testing.T, o setup, p parts, db *pgtest.DB) *service {
	t.Helper()
	if o.change != nil {
		o.change(&p)
	}
	if p.auth == nil {
		p.auth = apikey.NewStatic(holders)
	}
	if p.ready == nil {
		p.ready = func(context.Context) error { return nil }
	}
	s := &service{db: db, log: new(logBuffer)}
	h := api.New(api.Config{
		Intents:       intent.New(p.intents),
		Idempotency:   p.keys,
		Authenticator: p.auth,
		Ready:         p.ready,
		Log:           slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		RateLimit:     o.limit,
		DocsURL:       o.docsURL,
		Observer:      o.observer,
	})
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.served++
		s.mu.Unlock()
		h.ServeHTTP(w, r)
	})
	s.server = httptest.NewServer(s.handler)
	t.Cleanup(func() {
		t.Helper()
		s.server.Close()              // once every request has ended
		t.Logf("the log:\n%s", s.log) // where the test has passed, for tests/tokens
		s.checkLog(t)
		s.checkPairs(t)
	})
	return s
}

// holders are who has which token.
var holders = map[apikey.Digest]apikey.Holder{
	digestOf(alice):        {Merchant: "alice", Role: apikey.API, Mode: apikey.Live},
	digestOf(aliceToo):     {Merchant: "alice", Role: apikey.API, Mode: apikey.Live},
	digestOf(aliceTest):    {Merchant: "alice", Role: apikey.API, Mode: apikey.Test},
	digestOf(bob):          {Merchant: "bob", Role: apikey.API, Mode: apikey.Live},
	digestOf(relayer):      {Merchant: "chain-1", Role: apikey.Relayer, Mode: apikey.Live},
	digestOf(listener):     {Merchant: "chain-1", Role: apikey.Listener, Mode: apikey.Live},
	digestOf(operator):     {Merchant: "desk", Role: apikey.Operator, Mode: apikey.Live},
	digestOf(operatorTest): {Merchant: "desk", Role: apikey.Operator, Mode: apikey.Test},
}

func digestOf(token string) apikey.Digest { return apikey.DigestOf(secret.New(token)) }

// call is a request to make. The zero call is the contract's example with a key
// of its own and a good credential.
type call struct {
	method string   // "": POST
	path   string   // "": /v1/payment_intents
	key    string   // "": a new one for a POST
	body   string   // "": the contract's example for a POST
	token  string   // "": alice's
	header []string // lines such as "X: y", instead of the ones above where "-X" stands
}

// answer is a response, read to its end.
type answer struct {
	method, path string // of the request
	status       int
	header       http.Header
	body         string
}

// do makes a call over HTTP.
func (s *service) do(t testing.TB, c call) *answer {
	t.Helper()
	if c.method == "" {
		c.method = http.MethodPost
	}
	if c.path == "" {
		c.path = intentsPath
	}
	if c.method == http.MethodPost {
		if c.key == "" {
			c.key = newKey()
		}
		if c.body == "" {
			c.body = exampleBody
		}
	}
	if c.token == "" {
		c.token = alice
	}
	newRequest := func() *http.Request {
		r, err := http.NewRequestWithContext(context.Background(), c.method, s.server.URL+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+c.token)
		if c.key != "" {
			r.Header.Set("Idempotency-Key", c.key)
		}
		for _, line := range c.header {
			if name, ok := strings.CutPrefix(line, "-"); ok {
				r.Header.Del(name)
				continue
			}
			name, value, _ := strings.Cut(line, ": ")
			r.Header.Add(name, value)
		}
		return r
	}
	resp, err := s.server.Client().Do(newRequest())
	if err != nil {
		t.Fatal(err)
	}
	a := s.receive(t, resp, newRequest())
	if a.status < 300 {
		if err := documentTakes(newRequest()); err != nil {
			t.Errorf("openapi.yaml refuses a request that was answered %d: %v", a.status, err)
		}
	}
	return a
}

// raw sends bytes as they are, closes its side where half is set, and returns
// the answer.
func (s *service) raw(t testing.TB, text string, half bool) *answer {
	t.Helper()
	conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if half {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	method, rest, _ := strings.Cut(text, " ")
	path, _, _ := strings.Cut(rest, " ")
	r, err := http.NewRequestWithContext(context.Background(), method, s.server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		t.Fatal(err)
	}
	return s.receive(t, resp, r)
}

// head returns the beginning of a raw POST by alice.
func head(lines ...string) string {
	return "POST /v1/payment_intents HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + alice + "\r\n" +
		strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// receive reads a response and holds it to the document.
func (s *service) receive(t testing.TB, resp *http.Response, r *http.Request) *answer {
	t.Helper()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := &answer{method: r.Method, path: strings.ToValidUTF8(r.URL.Path, "\ufffd"), status: resp.StatusCode, header: resp.Header, body: string(body)}
	if a.header.Get("X-Request-Id") == "" && a.status == http.StatusBadRequest {
		return a // net/http's own: the handler has never seen the request
	}
	if err := documentSays(r, a); err != nil {
		t.Errorf("openapi.yaml does not describe %s %s -> %d %s: %v", r.Method, r.URL.Path, a.status, a.body, err)
	}
	if a.status >= 400 && leak.MatchString(a.body) {
		t.Errorf("the error tells of what is behind it: %s", a.body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, a)
	return a
}

// leak is what no error may show: SQL, SQLSTATEs, names of tables, drivers,
// stacks.
var leak = regexp.MustCompile(`(?i)sqlstate|\b(insert into|select\b.*\bfrom|update\b.*\bset|delete from|rollback)\b|_keys\b|payment_intents|relation|pgx|postgres|conn|dial|goroutine|\.go\b|panic|jsontext`)

// created makes a call that must be answered 201, fresh.
func (s *service) created(t testing.TB, c call) *answer {
	t.Helper()
	a := s.do(t, c)
	a.want(t, http.StatusCreated, "")
	a.wantReplayed(t, false)
	return a
}

// replayed makes a call that must be answered as first was, from the record.
func (s *service) replayed(t testing.TB, c call, first *answer) {
	t.Helper()
	a := s.do(t, c)
	a.wantReplayed(t, true)
	if a.status != first.status || a.body != first.body {
		t.Errorf("replay = %d %q,\nwant     %d %q", a.status, a.body, first.status, first.body)
	}
	for _, name := range []string{"Content-Type", "Location", "ETag", "Content-Length"} {
		if diff := gocmp.Diff(first.header.Values(name), a.header.Values(name)); diff != "" {
			t.Errorf("replayed %s (-first +replay):\n%s", name, diff)
		}
	}
}

// want checks status and, of an error, its code.
func (a *answer) want(t testing.TB, status int, code string) {
	t.Helper()
	if got := a.problem().Error; a.status != status || got != code {
		t.Fatalf("%s %s = %d %q, want %d %q: %s", a.method, a.path, a.status, got, status, code, a.body)
	}
}

// wantDetail checks an error's sentence.
func (a *answer) wantDetail(t testing.TB, detail string) {
	t.Helper()
	if got := a.problem().Detail; got != detail {
		t.Errorf("detail = %q,\nwant     %q", got, detail)
	}
}

func (a *answer) wantReplayed(t testing.TB, replayed bool) {
	t.Helper()
	var want []string
	if replayed {
		want = []string{"true"}
	}
	if diff := gocmp.Diff(want, a.header["Idempotent-Replayed"]); diff != "" {
		t.Errorf("Idempotent-Replayed of %d %s (-want +got):\n%s", a.status, a.body, diff)
	}
}

type problem struct{ Error, Detail string }

func (a *answer) problem() (p problem) {
	if a.status >= 400 {
		_ = json.Unmarshal([]byte(a.body), &p) // the document is judge of the form
	}
	return p
}

// member returns a member of the answer's body.
func (a *answer) member(t testing.TB, name string) any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(a.body), &m); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return m[name]
}

// logBuffer is a log that several goroutines write.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// logLine is what the log says of one request.
type logLine struct {
	Time        time.Time
	Level       string
	Msg         string
	Method      string
	Path        string
	Status      int
	Duration    *int64
	RequestID   string `json:"request_id"`
	TraceID     string `json:"trace_id"`
	Merchant    string
	Role        string
	Outcome     string
	Fingerprint string
	Undone      string
	Error       string
	Stack       string
}

// lines returns what was logged, by request id. Call it when the server is
// closed: the line comes after the answer.
func (l *logBuffer) lines(t testing.TB) map[string]logLine {
	t.Helper()
	lines := make(map[string]logLine)
	dec := json.NewDecoder(strings.NewReader(l.String()))
	dec.DisallowUnknownFields()
	for {
		var line logLine
		err := dec.Decode(&line)
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := lines[line.RequestID]; twice || line.RequestID == "" {
			t.Errorf("log line without a request id of its own: %+v", line)
		}
		lines[line.RequestID] = line
	}
}

// levels are the levels that the line of a request may have.
func (l logLine) levels() []string {
	switch {
	case l.Status == http.StatusInternalServerError, l.Stack != "":
		return []string{"ERROR"}
	case l.Status == http.StatusServiceUnavailable: // the second for what the API does not know
		return []string{"WARN", "ERROR"}
	case l.Undone == "superseded":
		return []string{"WARN"}
	case l.Status == http.StatusOK && (l.Path == "/healthz" || l.Path == "/readyz"):
		return []string{"DEBUG"}
	default:
		return []string{"INFO"}
	}
}

// members are what a line may have, in their order.
var members = []string{
	"time", "level", "msg", "method", "path", "status", "duration", "request_id", "trace_id",
	"merchant", "role", "outcome", "fingerprint", "undone", "error", "stack",
}

// checkOrder checks that the members of each line stand in their order.
func (l *logBuffer) checkOrder(t testing.TB) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		at := -1
		for _, m := range regexp.MustCompile(`[{,]"(\w+)":`).FindAllStringSubmatch(stringValue.ReplaceAllLiteralString(line, `:""`), -1) {
			i := slices.Index(members, m[1])
			if i <= at {
				t.Errorf("%s stands where it does not belong: %s", m[1], line)
			}
			at = i
		}
	}
}

// stringValue is a member's value that is a JSON string.
var stringValue = regexp.MustCompile(`:"(\\.|[^"\\])*"`)

// checkLog holds the log of a whole test to the contract: one line for each
// request, with what the client saw, and nothing secret in it.
func (s *service) checkLog(t testing.TB) {
	t.Helper()
	if text := s.log.String(); strings.Contains(text, mark) {
		i := strings.Index(text, mark)
		t.Errorf("the log holds a key or a credential: ...%s...", text[max(0, i-200):min(len(text), i+100)])
	}
	lines := s.log.lines(t)
	if len(lines) != s.served {
		t.Errorf("%d log lines for %d requests", len(lines), s.served)
	}
	s.log.checkOrder(t)
	for _, line := range lines {
		if !slices.Contains(line.levels(), line.Level) {
			t.Errorf("a line of level %s, want %v: %+v", line.Level, line.levels(), line)
		}
	}
	for _, a := range s.answers {
		line, ok := lines[a.header.Get("X-Request-Id")]
		if !ok {
			t.Errorf("no log line for %s %s -> %d", a.method, a.path, a.status)
			continue
		}
		if line.Method != a.method || line.Path != a.path || line.Status != a.status || line.Duration == nil || *line.Duration < 0 {
			t.Errorf("log line %+v for %s %s -> %d", line, a.method, a.path, a.status)
		}
	}
}

// unpaired finds intents without their record and records of a 201 without
// their intent; the two are of one transaction, as long as the intent has not
// moved on.
const unpaired = `
select count(*)
from payment_intents i
full join (select scope, key, header, xmin from idempotency_keys where status = 201) k
  on k.scope = i.merchant_id
 and k.header->'Location'->>0 = '/v1/payment_intents/pi_' || replace(i.id::text, '-', '')
where i.id is null
   or k.key is null
   or i.version = 1 and i.xmin::text <> k.xmin::text`

// records counts the idempotency records.
func (s *service) records(t testing.TB) int {
	t.Helper()
	return pgtest.QueryVal[int](t, s.db, `select count(*) from idempotency_keys`)
}

func (s *service) checkPairs(t testing.TB) {
	t.Helper()
	if s.db == nil {
		return
	}
	if n := pgtest.QueryVal[int](t, s.db, unpaired); n != s.orphans {
		t.Errorf("%d intents or records are not one of each from one transaction, want %d", n, s.orphans)
	}
}

// document is openapi.yaml.
var document = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(intentd.OpenAPI)
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(context.Background(), openapi3.EnableExamplesValidation())
})

var documentRouter = sync.OnceValues(func() (routers.Router, error) {
	doc, err := document()
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
})

// documentTakes says why the document does not describe the request.
func documentTakes(r *http.Request) error {
	router, err := documentRouter()
	if err != nil {
		return err
	}
	if r.Method == http.MethodHead {
		r.Method = http.MethodGet
	}
	// It is not looked at, and the document speaks of JSON.
	r.Header.Set("Content-Type", "application/json")
	route, params, err := router.FindRoute(r)
	if err != nil {
		return err
	}
	return openapi3filter.ValidateRequest(context.Background(), &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			SkipSettingDefaults:               true,
			RejectWhenRequestBodyNotSpecified: true,
			AuthenticationFunc: func(_ context.Context, in *openapi3filter.AuthenticationInput) error {
				scheme, _, _ := strings.Cut(in.RequestValidationInput.Request.Header.Get("Authorization"), " ")
				if !strings.EqualFold(scheme, "Bearer") {
					return errors.New("no bearer token")
				}
				return nil
			},
		},
	})
}

// contractHeaders must be documented where they are sent.
var contractHeaders = []string{
	"Location", "Etag", "Idempotent-Replayed", "Idempotency-Key-Expires", "Retry-After", "Www-Authenticate", "Allow", "Link",
	"X-Request-Id",
}

// documentSays says why the document does not describe the answer.
func documentSays(r *http.Request, a *answer) error {
	router, err := documentRouter()
	if err != nil {
		return err
	}
	doc, err := document()
	if err != nil {
		return err
	}
	options := &openapi3filter.Options{IncludeResponseStatus: true}
	if r.Method == http.MethodHead {
		// The document speaks of GET; a HEAD has all of it but the body.
		if a.body != "" {
			return fmt.Errorf("a HEAD was answered with a body: %s", a.body)
		}
		options.ExcludeResponseBody = true
		r = r.Clone(r.Context())
		r.Method = http.MethodGet
	}
	route, params, err := router.FindRoute(r)
	switch {
	case errors.Is(err, routers.ErrMethodNotAllowed):
		route, err = component(doc, "MethodNotAllowed", http.StatusMethodNotAllowed), nil
	case errors.Is(err, routers.ErrPathNotFound):
		route, err = component(doc, "NotFound", http.StatusNotFound), nil
	}
	if err != nil {
		return err
	}
	err = openapi3filter.ValidateResponse(context.Background(), (&openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route},
		Status:                 a.status,
		Header:                 a.header,
		Options:                options,
	}).SetBodyBytes([]byte(a.body)))
	if err != nil {
		return err
	}
	documented := route.Operation.Responses.Status(a.status).Value.Headers
	for name := range a.header {
		if slices.Contains(contractHeaders, name) && !slices.ContainsFunc(headerNames(documented), func(n string) bool {
			return strings.EqualFold(n, name)
		}) {
			return fmt.Errorf("the header %s is not documented", name)
		}
	}
	return nil
}

func headerNames(h openapi3.Headers) (names []string) {
	for name := range h {
		names = append(names, name)
	}
	return names
}

// component is a route whose one answer is a component of the document.
func component(doc *openapi3.T, name string, status int) *routers.Route {
	ref := doc.Components.Responses[name]
	return &routers.Route{Spec: doc, Operation: &openapi3.Operation{
		Responses: openapi3.NewResponses(openapi3.WithStatus(status, ref)),
	}}
}
