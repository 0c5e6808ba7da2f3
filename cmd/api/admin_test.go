package main

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"intentd/internal/apikey"
	"intentd/internal/pgtest"
	"intentd/internal/secret/secrettest"
)

// admin returns the replica as its admin listener shows it.
func (r *replica) admin(t *testing.T) *replica {
	t.Helper()
	return &replica{url: "http://" + r.logged(t, "admin listening")["addr"].(string)}
}

func TestReplica_Admin(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := startOn(t, db, "SWEEP_INTERVAL=50ms")
	admin := r.admin(t)
	for path, want := range map[string]string{
		"/":                              `name="key"`, // it leads to the console
		"/metrics":                       "go_goroutines",
		"/healthz":                       `"ok"`,
		"/readyz":                        `"ready"`,
		"/debug/pprof/":                  "goroutine",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
		"/debug/pprof/cmdline":           "",
		"/debug/pprof/symbol":            "num_symbols",
		"/debug/pprof/profile?seconds=1": "",
		"/debug/pprof/trace?seconds=0.1": "",
	} {
		if got := admin.get(path); got.status != 200 || !strings.Contains(got.body, want) {
			t.Errorf("admin %s: %d, without %q: %.300s", path, got.status, want, got.body)
		}
		if strings.HasSuffix(path, "z") {
			continue
		}
		if got := r.get(path); got.status != 404 || got.code() != "not_found" {
			t.Errorf("public %s: %v; want 404", path, got)
		}
	}
	for _, path := range []string{"/index.html", "/v1/payment_intents", "/debug/pprof/nothing", "/metrics/x"} {
		if got := admin.get(path); got.status != 404 {
			t.Errorf("admin %s: %d, want 404", path, got.status)
		}
	}
	if got := admin.do(http.MethodPost, "/metrics", ""); got.status != 405 {
		t.Errorf("admin POST /metrics: %d, want 405", got.status)
	}

	r.post("K", example)
	r.post("K", example)
	r.postAs(apikey.NewToken(apikey.Live).Reveal(), "K", example)
	// One that is due at once.
	r.post("L", with("expires_in_seconds", "1"))
	const canceled = `intentd_intents_moved_total{actor="system",state="canceled"} 1`
	eventually(t, "the sweep is not counted", func() bool { return strings.Contains(admin.get("/metrics").body, canceled+"\n") })
	text := admin.get("/metrics").body
	for _, line := range []string{
		"intentd_ready 1",
		`intentd_http_requests_total{code="201",method="POST",route="/v1/payment_intents"} 3`,
		`intentd_idempotency_claims_total{outcome="fresh"} 2`,
		`intentd_idempotency_claims_total{outcome="replay"} 1`,
		`intentd_intents_moved_total{actor="api",state="created"} 2`,
		`intentd_sweeper_rows_total{task="cancel_expired_intents"} 1`,
		`intentd_sweeper_rows_total{task="delete_expired_idempotency_keys"} 0`,
		`intentd_sweeper_lag_seconds{task="delete_expired_idempotency_keys"} 0`,
		"intentd_sweeper_lag_failures_total 0",
		"intentd_db_pool_max_connections 20",
		"intentd_rate_limited_requests_total 0",
		"intentd_idempotency_lone_attempts_total 2",
		"intentd_idempotency_commit_group_attempts_count 0",
		`intentd_api_key_lookups_total{result="refused"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s in:\n%s", line, text)
		}
	}
	if !strings.Contains(text, `intentd_sweeper_lag_seconds{task="cancel_expired_intents"} `) {
		t.Errorf("no lag of canceling in:\n%s", text)
	}
	for _, secret := range []string{merchant, token, "127.0.0.1"} {
		if strings.Contains(text, secret) {
			t.Errorf("the figures hold %q:\n%s", secret, text)
		}
	}
}

// It outlives the rest, so that a drain that takes its time can be looked into.
func TestReplica_AdminEndsLast(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := startOn(t, db)
	admin := r.admin(t)
	lock := holdTable(t, db)
	running := make(chan reply)
	go func() { running <- r.post("K", example) }()
	eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
	r.signal(t, syscall.SIGTERM)
	eventually(t, "still accepts connections", func() bool { return r.get("/healthz").status == 0 })
	if got := admin.get("/readyz"); got.status != 503 {
		t.Errorf("/readyz in the drain: %v", got)
	}
	if got := admin.get("/metrics"); got.status != 200 || !strings.Contains(got.body, "intentd_db_pool_acquired_connections") {
		t.Errorf("/metrics in the drain: %v", got)
	}
	lock.release()
	if got := <-running; !got.fresh() {
		t.Errorf("the running request: %v", got)
	}
	r.wait(t)
	if r.err != nil {
		t.Errorf("exit: %v", r.err)
	}
}

func TestReplica_AdminInMemory(t *testing.T) {
	t.Parallel()
	r := start(t, "API_STORE=memory", "RATE_LIMIT=0.001:1")
	for _, want := range []int{200, 429, 429} {
		if got := r.get("/v1/payment_intents"); got.status != want {
			t.Errorf("a list: %v, want %d", got, want)
		}
	}
	text := r.admin(t).get("/metrics").body
	for _, line := range []string{
		"intentd_ready 1",
		"intentd_rate_limited_requests_total 2",
		`intentd_sweeper_lag_seconds{task="cancel_expired_intents"} 0`,
		`intentd_sweeper_lag_seconds{task="delete_expired_idempotency_keys"} 0`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s in:\n%s", line, text)
		}
	}
	if strings.Contains(text, "intentd_db_pool") || strings.Contains(text, "commit_group") {
		t.Errorf("figures of what is not there:\n%s", text)
	}
}

func TestListenAdmin(t *testing.T) {
	t.Parallel()

	t.Run("Off", func(t *testing.T) {
		t.Parallel()
		r := start(t, "API_STORE=memory", "ADMIN_ADDR=off")
		r.logged(t, "no admin listener")
		if strings.Contains(r.log.String(), "admin listening") {
			t.Errorf("listens:\n%s", r.log)
		}
	})

	t.Run("AddressInUse", func(t *testing.T) {
		t.Parallel()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		code, _, diag := call(t, []string{"API_STORE=memory", "API_ADDR=127.0.0.1:0", "ADMIN_ADDR=" + ln.Addr().String()})
		if code != 1 || !strings.Contains(diag, "ADMIN_ADDR: ") || !strings.Contains(diag, "off") {
			t.Errorf("exit code %d, %q", code, diag)
		}
	})
}

// A profile that is being taken does not hold up the end.
func TestStartAdmin(t *testing.T) {
	t.Parallel()
	ln, err := listenAdmin(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	c, err := parseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := startAdmin(ln, newLogger(c, t.Output()), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(asked)
		<-r.Context().Done()
	}))
	answered := make(chan reply)
	go func() { answered <- (&replica{url: "http://" + ln.Addr().String()}).get("/") }()
	<-asked
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(patience):
		t.Fatal("does not end")
	}
	select {
	case got := <-answered:
		if got.status != 0 {
			t.Errorf("answered: %v", got)
		}
	case <-time.After(patience):
		t.Error("the connection was left open")
	}
}

func TestAdminHandler(t *testing.T) {
	t.Parallel()
	http.HandleFunc("/debug/of-another-package", func(http.ResponseWriter, *http.Request) {})
	nothing := http.NotFoundHandler()
	h := adminHandler(nothing, nothing, nothing)
	for path, want := range map[string]struct {
		status int
		to     string
	}{
		"/":                         {http.StatusSeeOther, "/console"},
		"/else":                     {http.StatusNotFound, ""},
		"/debug/of-another-package": {http.StatusNotFound, ""}, // what any package puts on the default mux stays there
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil))
		if to := w.Header().Get("Location"); w.Code != want.status || to != want.to {
			t.Errorf("%s: %d to %q, want %d to %q", path, w.Code, to, want.status, want.to)
		}
	}
}

// logIn sends the console's form, and returns the answer and the cookie's line.
func (r *replica) logIn(t *testing.T, key string) (status int, cookie string) {
	t.Helper()
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.PostForm(r.url+"/console/login", url.Values{"key": {key}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	for _, c := range resp.Cookies() {
		cookie = c.Name + "=" + c.Value
	}
	return resp.StatusCode, cookie
}

// operatorKey opens the console.
const operatorKey = "operator-" + secrettest.Word

// TestReplica_Console: the console is on the admin listener and on no other, shows
// this replica, and lets in who the program's keys say.
func TestReplica_Console(t *testing.T) {
	t.Parallel()
	r := startOn(t, pgtest.New(t), "API_DEMO_KEYS="+merchant+"="+token+",desk="+operatorKey+":operator")
	admin := r.admin(t)
	id := r.post("console-key", with("reference", `"order-1001"`)).id(t)
	if got := r.get("/console"); got.status != 404 {
		t.Errorf("public /console: %v, want 404", got)
	}
	if got := admin.get("/console"); got.status != 200 || !strings.Contains(got.body, "API key") {
		t.Errorf("without a session: %v, want the form", got)
	}
	if status, cookie := admin.logIn(t, token); status != 403 || cookie != "" {
		t.Errorf("a merchant's key: %d, cookie %q, want 403", status, cookie)
	}
	status, cookie := admin.logIn(t, operatorKey)
	if status != 303 {
		t.Errorf("login: %d, want 303", status)
	}
	for path, wants := range map[string][]string{
		"/console":                     {"Overview", "ready", strings.TrimPrefix(r.url, "http://"), "of 20", "cancel expired intents"},
		"/console/find?q=order-1001":   {id, "Intents with this reference"},
		"/console/find?q=console-key":  {id, "What this idempotency key has produced"},
		"/console/find?q=" + id:        {"Timeline", "order-1001"}, // which leads to it
		"/console/find?q=x&merchant=a": {"No intent of a has this reference."},
	} {
		got := admin.do(http.MethodGet, path, "", "Cookie", cookie)
		for _, want := range wants {
			if got.status != 200 || !strings.Contains(got.body, want) {
				t.Errorf("%s: %d, without %q: %s", path, got.status, want, got.body)
			}
		}
	}
	// There is a plot of the pool once the figures have been read.
	eventually(t, "the figures are not read", func() bool {
		return strings.Contains(admin.do(http.MethodGet, "/console", "", "Cookie", cookie).body, `<h3 id="pool">`)
	})
	_, session, _ := strings.Cut(cookie, "=")
	for _, secret := range []string{operatorKey, session} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, r.log)
		}
	}
}

// TestReplica_ConsoleByServiceRole: the role that serves may read what the console
// shows.
func TestReplica_ConsoleByServiceRole(t *testing.T) {
	t.Parallel()
	roles := newRoles(t)
	roles.migrate(t)
	roles.grant(t)
	r := start(t, "DATABASE_URL="+roles.service, "API_DEMO_KEYS="+merchant+"="+token+",desk="+operatorKey+":operator")
	eventually(t, "not ready", func() bool { return r.get("/readyz").status == 200 })
	admin := r.admin(t)
	id := r.post("console-key", with("reference", `"order-1001"`)).id(t)
	_, cookie := admin.logIn(t, operatorKey)
	for q, want := range map[string]string{
		"order-1001": id, "console-key": id, id: "Timeline", "0x" + strings.Repeat("ab", 32): "No intent has this transaction hash",
	} {
		if got := admin.do(http.MethodGet, "/console/find?q="+q, "", "Cookie", cookie); got.status != 200 || !strings.Contains(got.body, want) {
			t.Errorf("%s: %v", q, got)
		}
	}
	if strings.Contains(r.log.String(), "permission denied") {
		t.Errorf("the log has a refusal:\n%s", r.log)
	}
}
