package console_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/apikey/pgapikey"
	"intentd/internal/console"
	"intentd/internal/idempotency"
	"intentd/internal/idempotency/memidem"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/intent"
	"intentd/internal/intent/memintent"
	"intentd/internal/intent/pgintent"
	"intentd/internal/metrics"
	"intentd/internal/pgtest"
	"intentd/internal/secret"
	"intentd/internal/secret/secrettest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// The tokens of the fixtures' keys.
const (
	operatorKey     = "operator-" + secrettest.Word
	testOperatorKey = "test-operator-" + secrettest.Word
	merchantKey     = "merchant-" + secrettest.Word
	otherKey        = "other-merchant-" + secrettest.Word
	testKey         = "test-merchant-" + secrettest.Word
	relayerKey      = "relayer-" + secrettest.Word
	listenerKey     = "listener-" + secrettest.Word

	intentsPath = "/v1/payment_intents"
	txHash      = "0x00000000000000000000000000000000000000000000000000000000000000aa"
)

var holders = map[apikey.Digest]apikey.Holder{
	apikey.DigestOf(secret.New(operatorKey)):     {Merchant: "desk", Role: apikey.Operator, Mode: apikey.Live},
	apikey.DigestOf(secret.New(testOperatorKey)): {Merchant: "desk", Role: apikey.Operator, Mode: apikey.Test},
	apikey.DigestOf(secret.New(merchantKey)):     {Merchant: "shop-1", Role: apikey.API, Mode: apikey.Live},
	apikey.DigestOf(secret.New(otherKey)):        {Merchant: "shop-2", Role: apikey.API, Mode: apikey.Live},
	apikey.DigestOf(secret.New(testKey)):         {Merchant: "shop-1", Role: apikey.API, Mode: apikey.Test},
	apikey.DigestOf(secret.New(relayerKey)):      {Merchant: "chain-1", Role: apikey.Relayer, Mode: apikey.Live},
	apikey.DigestOf(secret.New(listenerKey)):     {Merchant: "chain-1", Role: apikey.Listener, Mode: apikey.Live},
}

// store is everything of a service that the console looks at.
type store struct {
	intents interface {
		intent.Store
		intent.Searcher
	}
	keys idempotency.Store
	auth apikey.Authenticator
	db   *pgtest.DB // nil in memory
	pool *pgxpool.Pool
	dir  apikey.Store // of API keys; nil in memory
}

func memory() store {
	return store{
		intents: memintent.New(time.Now, func(ctx context.Context) (memintent.Joined, bool) { return memidem.FromContext(ctx) }),
		keys:    memidem.New(time.Hour, time.Minute, time.Now),
		auth:    apikey.NewStatic(holders),
	}
}

func postgres(t testing.TB) store {
	t.Helper()
	db := pgtest.New(t)
	c, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 5
	pgidem.Configure(c)
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	dir := pgapikey.New(pool)
	directory := apikey.NewDirectory(dir, slog.New(slog.DiscardHandler))
	t.Cleanup(directory.Close)
	return store{
		intents: pgintent.New(pool, func(ctx context.Context) (pgintent.Tx, bool) { return pgidem.FromContext(ctx) }),
		keys:    pgidem.New(pool, time.Hour, time.Minute),
		auth:    apikey.First(apikey.NewStatic(holders), directory),
		db:      db, pool: pool, dir: dir,
	}
}

// fixture is a console over a service, both of which can be asked.
type fixture struct {
	store
	console *console.Console
	api     http.Handler
	figures *metrics.Metrics
	log     *lockedBuffer
	cookie  *http.Cookie // of who has logged in
	host    string
	// present is told instead of what was counted, where it is set.
	present func() (metrics.Snapshot, error)
	away    atomic.Bool // for present to go by
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newFixture(t testing.TB, s store) *fixture {
	t.Helper()
	f := &fixture{store: s, figures: metrics.New("v1.2.3"), log: new(lockedBuffer), host: "127.0.0.1:9090"}
	log := slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	f.figures.Probe(metrics.Probe{
		Ready: func(context.Context) error { return nil },
		Lag: func(context.Context) (map[string]time.Duration, error) {
			return map[string]time.Duration{"cancel expired intents": 0, "delete expired idempotency keys": 0}, nil
		},
	})
	if s.pool != nil {
		f.figures.Pool(s.pool.Stat)
	}
	intents := intent.New(s.intents)
	f.api = api.New(api.Config{
		Intents: intents, Idempotency: s.keys, Authenticator: s.auth,
		Ready: func(context.Context) error { return nil },
		Log:   slog.New(slog.DiscardHandler), DocsURL: "/docs",
		Observer: api.Observer{
			Request: f.figures.Request, Claim: f.figures.Claim,
			Moved:   func(to intent.State, by intent.Actor) { f.figures.Moved(to, by, 1) },
			Limited: f.figures.Limited,
		},
	})
	f.console = console.New(console.Config{
		Authenticator: s.auth, Intents: intents, Searcher: s.intents, Keys: s.keys,
		Snapshot: func() (metrics.Snapshot, error) {
			if f.present != nil {
				return f.present()
			}
			return f.figures.Snapshot()
		},
		Log: log, Replica: "machine-1, 127.0.0.1:8080", Version: "v1.2.3",
	})
	return f
}

// loggedIn is a fixture with an operator's session.
func loggedIn(t testing.TB, s store) *fixture {
	t.Helper()
	f := newFixture(t, s)
	f.logIn(t, operatorKey)
	return f
}

// answer is what the console has answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends a request to the console, with the cookie if there is one; header are
// lines such as "X: y".
func (f *fixture) ask(method, path, form string, header ...string) answer {
	r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(form))
	r.Host = f.host
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if f.cookie != nil {
		r.AddCookie(f.cookie)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	f.console.ServeHTTP(w, r)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func (f *fixture) get(path string) answer { return f.ask(http.MethodGet, path, "") }

// tryLogIn sends the form.
func (f *fixture) tryLogIn(key string, header ...string) answer {
	return f.ask(http.MethodPost, "/console/login", url.Values{"key": {key}}.Encode(), header...)
}

// logIn logs in and keeps the cookie.
func (f *fixture) logIn(t testing.TB, key string) {
	t.Helper()
	a := f.tryLogIn(key)
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/console" {
		t.Fatalf("login: %d to %q: %s", a.status, a.header.Get("Location"), a.body)
	}
	f.cookie = cookieOf(t, a)
}

func cookieOf(t testing.TB, a answer) *http.Cookie {
	t.Helper()
	cookies := (&http.Response{Header: a.header}).Cookies()
	if len(cookies) != 1 {
		t.Fatalf("%d cookies are set", len(cookies))
	}
	return cookies[0]
}

// wantPage checks that a page is there and has each text.
func (f *fixture) wantPage(t testing.TB, path string, status int, texts ...string) answer {
	t.Helper()
	a := f.get(path)
	if a.status != status {
		t.Errorf("%s: status %d, want %d, to %q: %s", path, a.status, status, a.header.Get("Location"), a.body)
	}
	for _, text := range texts {
		if !strings.Contains(a.body, text) {
			t.Errorf("%s: no %q in:\n%s", path, text, a.body)
		}
	}
	return a
}

var keys atomic.Int64

// call asks the API, and returns the id of the intent that it answers with.
func (f *fixture) call(t testing.TB, token, path, body string, header ...string) intent.ID {
	t.Helper()
	r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Idempotency-Key", fmt.Sprint("key-", keys.Add(1)))
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	f.api.ServeHTTP(w, r)
	var in struct{ ID string }
	text, _ := io.ReadAll(w.Body)
	if err := json.Unmarshal(text, &in); err != nil || w.Code >= 300 {
		t.Fatalf("%s: %d %s", path, w.Code, text)
	}
	id, err := intent.ParseID(in.ID)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// create makes an intent with these members beside the required ones.
func (f *fixture) create(t testing.TB, token, members string, header ...string) intent.ID {
	t.Helper()
	return f.call(t, token, intentsPath, `{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3",`+
		`"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",`+
		`"amount":"100000000"`+members+`}`, header...)
}

// move takes a step of the intent of shop-1's, by the key of the role.
func (f *fixture) move(t testing.TB, token string, id intent.ID, step string, header ...string) {
	t.Helper()
	if token != merchantKey {
		header = append(header, "Intent-Merchant: shop-1")
	}
	f.call(t, token, intentsPath+"/"+id.String()+"/transitions", step, header...)
}

// settle takes an intent of shop-1's through a whole life, a reorganisation of the
// chain included.
func (f *fixture) settle(t testing.TB, id intent.ID) {
	t.Helper()
	f.move(t, merchantKey, id, `{"to":"authorized"}`)
	f.move(t, relayerKey, id, `{"to":"settling"}`, "Idempotency-Key: relayer-key-"+id.String())
	f.move(t, relayerKey, id, `{"to":"confirming","tx_hash":"`+txHash+`"}`)
	f.move(t, listenerKey, id, `{"to":"settling","reason":"block 1234 is no longer there"}`)
	f.move(t, relayerKey, id, `{"to":"confirming","tx_hash":"`+strings.Replace(txHash, "aa", "bb", 1)+`"}`)
	f.move(t, listenerKey, id, `{"to":"settled","tx_hash":"`+strings.Replace(txHash, "aa", "bb", 1)+`"}`)
}
