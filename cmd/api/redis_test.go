package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"intentd/internal/pgtest"
	"intentd/internal/redistest"
	"intentd/internal/secret/secrettest"
)

// startWith runs the service with its intents in db and its records in a server
// of Redis.
func startWith(t *testing.T, db *pgtest.DB, redis *redistest.Server, env ...string) *replica {
	t.Helper()
	return startOn(t, db, append([]string{"IDEMPOTENCY_STORE=redis", "REDIS_URL=" + redis.URL()}, env...)...)
}

func intents(t *testing.T, db *pgtest.DB) int {
	t.Helper()
	return pgtest.QueryVal[int](t, db, "select count(*) from payment_intents")
}

func TestReplica_Redis(t *testing.T) {
	t.Parallel()

	t.Run("OneKeyOneIntent", func(t *testing.T) {
		t.Parallel()
		db, redis := pgtest.New(t), redistest.Run(t, redistest.Durable)
		a, b := startWith(t, db, redis), startWith(t, db, redis)
		if !strings.Contains(a.log.String(), "are not one transaction") {
			t.Errorf("the log does not say what is lost:\n%s", a.log)
		}
		lock := holdTable(t, db)
		running := make(chan reply)
		go func() { running <- a.post("K", example) }()
		eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
		if got := b.post("K", example); got.status != http.StatusConflict || got.code() != "idempotency_key_in_flight" || got.header.Get("Retry-After") != "1" {
			t.Errorf("a copy: %v", got)
		}
		if got := b.post("K", with("amount", `"1"`)); got.status != http.StatusUnprocessableEntity {
			t.Errorf("another request while it runs: %v", got)
		}
		lock.release()
		first := <-running
		if !first.fresh() {
			t.Fatalf("first: %v", first)
		}
		redis.Kill()
		if err := redis.Start(); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*replica{a, b} {
			if got := r.post("K", example); !got.replayed() || got.body != first.body {
				t.Errorf("again: %v", got)
			}
			if got := r.post("K", with("amount", `"1"`)); got.status != http.StatusUnprocessableEntity || !strings.Contains(got.body, "(fingerprint ") {
				t.Errorf("another request: %v", got)
			}
		}
		if got := b.postAs(otherToken, "K", example); !got.fresh() {
			t.Errorf("another merchant: %v", got)
		}
		found := b.do(http.MethodGet, "/v1/idempotency_keys", "", "Authorization", "Bearer "+token, "Idempotency-Key", "K")
		if found.status != http.StatusOK || !strings.Contains(found.body, first.id(t)) {
			t.Errorf("the key asked for: %v", found)
		}
		// Redis deletes its own, so there is a lag of the intents alone.
		// And nobody shares a transaction.
		if text := a.admin(t).get("/metrics").body; strings.Count(text, "\nintentd_sweeper_lag_seconds{") != 1 || strings.Contains(text, "commit_group") {
			t.Errorf("not one lag, or groups, in:\n%s", text)
		}
		if n := pgtest.QueryVal[int](t, db, "select count(*) from idempotency_keys"); n != 0 {
			t.Errorf("%d records are in PostgreSQL", n)
		}
		if n := intents(t, db); n != 2 {
			t.Errorf("%d intents, want 2", n)
		}
	})

	// Beside the record in Redis there is no lock that dies with its holder.
	t.Run("HolderDies", func(t *testing.T) {
		t.Parallel()
		db, redis := pgtest.New(t), redistest.Run(t, redistest.Options{})
		a, b := startWith(t, db, redis, "IDEMPOTENCY_LEASE=2s"), startWith(t, db, redis, "IDEMPOTENCY_LEASE=2s")
		lock := holdTable(t, db)
		go a.post("K", example)
		eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
		a.kill(t)
		if got := b.post("K", example); got.status != http.StatusConflict || got.code() != "idempotency_key_in_flight" {
			t.Errorf("within the lease: %v", got)
		}
		lock.release()
		eventually(t, "the key is not open after the lease", func() bool { return b.post("K", example).fresh() })
	})

	// What the README says is lost: the intent is committed, and its record is not.
	t.Run("LostBetweenTheTwo", func(t *testing.T) {
		t.Parallel()
		db, redis := pgtest.New(t), redistest.Run(t, redistest.Durable)
		r := startWith(t, db, redis, "IDEMPOTENCY_LEASE=2s", "SWEEP_INTERVAL=50ms")
		body := with("expires_in_seconds", "1")
		lock := holdTable(t, db)
		running := make(chan reply)
		go func() { running <- r.post("K", body) }()
		eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
		redis.Kill()
		lock.release()
		if got := <-running; got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") != "1" {
			t.Errorf("a create without its record: %v", got)
		}
		if n := intents(t, db); n != 1 {
			t.Fatalf("%d intents, want the one that nobody was told of", n)
		}
		if got := r.get("/readyz"); got.status != http.StatusServiceUnavailable {
			t.Errorf("/readyz without Redis: %v", got)
		}
		if err := redis.Start(); err != nil {
			t.Fatal(err)
		}
		var told reply
		eventually(t, "the key is not open after the lease", func() bool {
			told = r.post("K", body)
			return told.fresh()
		})
		if n := intents(t, db); n != 2 {
			t.Errorf("%d intents, want the one that was told and the one that was not", n)
		}
		if got := r.post("K", body); !got.replayed() || got.body != told.body {
			t.Errorf("again: %v", got)
		}
		eventually(t, "the sweeper does not cancel both", func() bool {
			return pgtest.QueryVal[int](t, db, "select count(*) from payment_intents where state = 'canceled'") == 2
		})
	})

	t.Run("Away", func(t *testing.T) {
		t.Parallel()
		db, redis := pgtest.New(t), redistest.Run(t, redistest.Options{TCP: true})
		redis.Kill()
		r := startWith(t, db, redis)
		if got := r.get("/healthz"); got.status != http.StatusOK {
			t.Errorf("/healthz: %v", got)
		}
		for _, got := range []reply{r.get("/readyz"), r.post("K", example)} {
			if got.status != http.StatusServiceUnavailable || got.code() != "unavailable" || got.header.Get("Retry-After") != "1" {
				t.Errorf("without Redis: %v", got)
			}
		}
		if n := intents(t, db); n != 0 {
			t.Errorf("%d intents were made without Redis", n)
		}
		if err := redis.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "not ready after Redis came", func() bool { return r.get("/readyz").status == http.StatusOK })
		if got := r.post("K", example); !got.fresh() {
			t.Errorf("after Redis came: %v", got)
		}
	})

	t.Run("SecretsAreNotShown", func(t *testing.T) {
		t.Parallel()
		const secret = secrettest.Word
		db, redis := pgtest.New(t), redistest.Run(t, redistest.Options{TCP: true})
		if err := redistest.On(t, redis.URL()).Client.ConfigSet(t.Context(), "requirepass", "another").Err(); err != nil {
			t.Fatal(err)
		}
		r := startOn(t, db, "IDEMPOTENCY_STORE=redis", "LOG_LEVEL=debug",
			"REDIS_URL="+strings.Replace(redis.URL(), "redis://", "redis://:"+secret+"@", 1))
		if got := r.post("order-secret", example); got.status != http.StatusServiceUnavailable || strings.Contains(got.body, "PASS") {
			t.Errorf("a create by the wrong password: %v", got)
		}
		if got := r.get("/readyz"); got.status != http.StatusServiceUnavailable {
			t.Errorf("/readyz: %v", got)
		}
		r.stop(t)
		if log := r.log.String(); strings.Contains(log, secret) || strings.Contains(log, "order-secret") {
			t.Errorf("a secret is in the log:\n%s", log)
		}
	})

	// A URL that only the other store needs is a mistake to be told of.
	t.Run("NotUsed", func(t *testing.T) {
		t.Parallel()
		r := start(t, "API_STORE=memory", "REDIS_URL=redis://localhost")
		if !strings.Contains(r.log.String(), "REDIS_URL is set and not used") {
			t.Errorf("the log does not say that REDIS_URL is not used:\n%s", r.log)
		}
	})

	t.Run("CommandsNeedNone", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		environ := []string{"DATABASE_URL=" + db.URL, "IDEMPOTENCY_STORE=redis", "REDIS_URL=redis://127.0.0.1:1"}
		for _, args := range [][]string{{"migrate", "up"}, {"keys", "create", "-merchant", "shop-1"}, {"keys", "list"}} {
			began := time.Now()
			if code, _, diag := call(t, environ, args...); code != 0 || strings.Contains(diag, "redis") {
				t.Errorf("%q: exit code %d after %v, %q", args, code, time.Since(began), diag)
			}
		}
	})
}
