package api_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"intentd/internal/pgtest"
)

// stored returns how many intents and records there are.
func (s *service) stored(t testing.TB) (intents, records int) {
	t.Helper()
	return pgtest.QueryVal[int](t, s.db, "select count(*) from payment_intents"),
		pgtest.QueryVal[int](t, s.db, "select count(*) from idempotency_keys")
}

func (s *service) wantStored(t testing.TB, intents, records int) {
	t.Helper()
	if i, r := s.stored(t); i != intents || r != records {
		t.Errorf("%d intents and %d records, want %d and %d", i, r, intents, records)
	}
}

// TestPostgres_PassingFailure is case 3: a failure that passes is not recorded.
func TestPostgres_PassingFailure(t *testing.T) {
	t.Parallel()
	s := stores["Postgres"](t, setup{})
	existing := s.created(t, call{})
	c := call{key: newKey()}

	s.db.Exec(t, "alter table payment_intents rename to x")
	for range 2 {
		s.do(t, c).wantProblem(t, http.StatusServiceUnavailable, "unavailable", undecidedDetail)
	}
	s.do(t, call{method: http.MethodGet, path: existing.header.Get("Location")}).
		wantProblem(t, http.StatusServiceUnavailable, "unavailable", "the service can not reach its data now; try again")
	if n := pgtest.QueryVal[int](t, s.db, "select count(*) from idempotency_keys where key = $1", c.key); n != 0 {
		t.Errorf("%d records of a failure", n)
	}

	s.db.Exec(t, "alter table x rename to payment_intents")
	first := s.created(t, c)
	s.replayed(t, c, first)
	s.wantStored(t, 2, 2)
}

// The other way round: where the record can not be kept, neither is the intent,
// and the claim itself fails.
func TestPostgres_RecordsAway(t *testing.T) {
	t.Parallel()
	s := stores["Postgres"](t, setup{})
	c := call{key: newKey()}

	s.db.Exec(t, "alter table idempotency_keys rename to x")
	s.do(t, c).wantProblem(t, http.StatusServiceUnavailable, "unavailable", undecidedDetail)
	s.db.Exec(t, "alter table x rename to idempotency_keys")

	s.db.Exec(t, "alter table idempotency_keys add constraint none check (status <> 201)")
	s.do(t, c).wantProblem(t, http.StatusServiceUnavailable, "unavailable", undecidedDetail)
	s.wantStored(t, 0, 0)
	s.db.Exec(t, "alter table idempotency_keys drop constraint none")

	s.replayed(t, c, s.created(t, c))
}

// TestPostgres_CheckThenAct is case 5 within one process.
func TestPostgres_CheckThenAct(t *testing.T) {
	t.Parallel()
	s := stores["Postgres"](t, setup{})
	const rounds, clients = 10, 50
	for range rounds {
		c := call{key: newKey()}
		answers := make([]*answer, clients)
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() {
				<-start
				answers[i] = s.do(t, c)
			})
		}
		close(start)
		wg.Wait()

		var fresh *answer
		for _, a := range answers {
			if a.status == http.StatusCreated && a.header.Get("Idempotent-Replayed") == "" {
				if fresh != nil {
					t.Error("two fresh answers in one round")
				}
				fresh = a
			}
		}
		if fresh == nil {
			t.Fatal("no fresh answer in a round")
		}
		for _, a := range answers {
			switch {
			case a == fresh:
			case a.status == http.StatusCreated:
				a.wantReplayed(t, true)
				if a.body != fresh.body {
					t.Errorf("replay = %s, want %s", a.body, fresh.body)
				}
			default:
				a.want(t, http.StatusConflict, "idempotency_key_in_flight")
			}
		}
		s.replayed(t, c, fresh)
	}
	s.wantStored(t, rounds, rounds)
}

// TestPostgres_Expired is case 8: a record past its time counts as none, with
// nobody to delete it.
func TestPostgres_Expired(t *testing.T) {
	t.Parallel()
	s := stores["Postgres"](t, setup{})
	c := call{key: newKey()}
	first := s.created(t, c)
	s.db.Exec(t, "update idempotency_keys set created_at = created_at - interval '1 day', expires_at = expires_at - interval '1 day' where key = $1", c.key)
	c.body = edit(t, "amount", `"999000000"`)
	second := s.created(t, c)
	if first.member(t, "id") == second.member(t, "id") {
		t.Errorf("both intents are %v", first.member(t, "id"))
	}
	s.replayed(t, c, second)
	s.wantStored(t, 2, 1)
	s.orphans = 1
	if !pgtest.QueryVal[bool](t, s.db, "select expires_at = created_at + interval '24 hours' and expires_at > now() from idempotency_keys") {
		t.Error("the record does not expire 24 hours from its claim")
	}
	// What the first one's record pointed to is still there.
	a := s.do(t, call{method: http.MethodGet, path: first.header.Get("Location")})
	a.want(t, http.StatusOK, "")
}

// TestPostgres_Scope: the record belongs to the merchant, under the key as it
// was meant, and holds what is replayed and no more.
func TestPostgres_Scope(t *testing.T) {
	t.Parallel()
	s := stores["Postgres"](t, setup{})
	a := s.created(t, call{key: `"quoted-` + mark + `"`, token: bob})
	got := pgtest.QueryVal[string](t, s.db, `
		select format('%s %s %s %s %s', scope, key, status, encode(fingerprint, 'hex'), header)
		from idempotency_keys`)
	if !strings.HasPrefix(got, "bob quoted-"+mark+" 201 ff330e75a93099c4") {
		t.Errorf("record = %s", got)
	}
	want := fmt.Sprintf(`{"Etag": ["\"1\""], "Location": [%q], "Content-Type": ["application/json"]}`, a.header.Get("Location"))
	if !strings.HasSuffix(got, want) {
		t.Errorf("record = %s, want the headers %s", got, want)
	}
	if body := pgtest.QueryVal[string](t, s.db, "select convert_from(body, 'utf8') from idempotency_keys"); body != a.body {
		t.Errorf("recorded body = %s, answered %s", body, a.body)
	}
}

// TestPostgres_Refusals: nothing that is refused before the handler leaves a
// row, and what the handler refuses leaves its record only.
func TestPostgres_Refusals(t *testing.T) {
	t.Parallel()
	s := stores["Postgres"](t, setup{})
	for _, c := range []call{
		{token: "nobody-" + mark}, {header: []string{"-Idempotency-Key"}}, {key: "a b"}, {header: []string{"Content-Encoding: gzip"}},
		{body: strings.Repeat("x", 70_000)}, {method: http.MethodGet, path: intentsPath + "/x", key: newKey()}, {path: "/nowhere"},
	} {
		if a := s.do(t, c); a.status < 400 {
			t.Errorf("%+v = %d", c, a.status)
		}
	}
	s.wantStored(t, 0, 0)
	s.do(t, call{body: "{}"}).want(t, http.StatusBadRequest, "invalid_request")
	s.wantStored(t, 0, 1)
}

// TestPostgres_Away: the service serves without its database, as far as it
// can, and says that the rest may be tried again.
func TestPostgres_Away(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	s := newService(t, setup{}, postgresParts(t, "postgres://intentd@"+addr+"/intentd?connect_timeout=3", lease), nil)
	for range 2 {
		s.do(t, call{}).wantProblem(t, http.StatusServiceUnavailable, "unavailable", undecidedDetail)
		s.do(t, call{body: "{}"}).want(t, http.StatusServiceUnavailable, "unavailable") // the handler does not run
		s.do(t, call{method: http.MethodGet, path: intentsPath + "/pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f"}).
			wantProblem(t, http.StatusServiceUnavailable, "unavailable", "the service can not reach its data now; try again")
		s.do(t, call{method: http.MethodGet, path: "/readyz"}).
			wantProblem(t, http.StatusServiceUnavailable, "unavailable", "the service can not serve now")
		s.do(t, call{method: http.MethodGet, path: "/healthz"}).want(t, http.StatusOK, "")
	}
	// What needs no database is as it was.
	s.do(t, call{token: "nobody-" + mark}).want(t, http.StatusUnauthorized, "unauthorized")
	s.do(t, call{header: []string{"-Idempotency-Key"}}).want(t, http.StatusBadRequest, "idempotency_key_required")
	s.do(t, call{method: http.MethodGet, path: "/nowhere"}).want(t, http.StatusNotFound, "not_found")
}

// TestPostgres_SessionLost is row 10 where the database takes the attempt's
// session away: between two statements, and while it waits for its commit.
func TestPostgres_SessionLost(t *testing.T) {
	t.Parallel()
	const terminate = `
		select count(pg_terminate_backend(pid))
		from pg_stat_activity
		where datname = current_database()
		  and pid <> pg_backend_pid()
		  and state like $1`
	t.Run("Idle", func(t *testing.T) {
		t.Parallel()
		g := new(gate)
		s := stores["Postgres"](t, setup{change: func(p *parts) { g.Store, p.intents = p.intents, g }})
		c := call{key: newKey()}
		g.set(func(context.Context) error {
			if n := pgtest.QueryVal[int](t, s.db, terminate, "idle in transaction"); n != 1 {
				t.Errorf("%d sessions were idle in a transaction, want the attempt's", n)
			}
			return nil
		})
		s.do(t, c).wantProblem(t, http.StatusServiceUnavailable, "unavailable", undecidedDetail)
		g.set(nil)
		s.replayed(t, c, s.eventually(t, c))
		s.wantStored(t, 1, 1)
	})

	t.Run("Committing", func(t *testing.T) {
		t.Parallel()
		s := stores["Postgres"](t, setup{})
		c := call{key: newKey()}
		blocker, err := s.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := blocker.Exec(t.Context(), "lock table payment_intents in share mode"); err != nil {
			t.Fatal(err)
		}
		waiting := make(chan *answer, 1)
		go func() {
			defer close(waiting)
			waiting <- s.do(t, c)
		}()
		for deadline := time.Now().Add(patience); ; {
			const blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
			if pgtest.QueryVal[int](t, s.db, blocked) > 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the attempt does not wait for the table")
			}
		}
		s.do(t, c).want(t, http.StatusConflict, "idempotency_key_in_flight")
		if n := pgtest.QueryVal[int](t, s.db, terminate+" and wait_event_type = 'Lock'", "active"); n != 1 {
			t.Errorf("%d sessions waited for the table, want the attempt's", n)
		}
		(<-waiting).wantProblem(t, http.StatusServiceUnavailable, "unavailable", undecidedDetail)
		if err := blocker.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.replayed(t, c, s.eventually(t, c))
		s.wantStored(t, 1, 1)
	})
}

// eventually makes a call until it is not in flight any more: a session's locks
// fall a moment after its client has heard of its end.
func (s *service) eventually(t *testing.T, c call) *answer {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		a := s.do(t, c)
		if a.status == http.StatusConflict && time.Now().Before(deadline) {
			continue
		}
		a.want(t, http.StatusCreated, "")
		a.wantReplayed(t, false)
		return a
	}
}

// A database that takes connections and says nothing is as good as away, after
// its time.
func TestPostgres_Silent(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() }) // and with it what nobody has accepted
	s := newService(t, setup{}, postgresParts(t, "postgres://intentd@"+ln.Addr().String()+"/intentd", lease), nil)
	var wg sync.WaitGroup
	wg.Go(func() { s.do(t, call{}).want(t, http.StatusServiceUnavailable, "unavailable") })
	wg.Go(func() {
		s.do(t, call{method: http.MethodGet, path: intentsPath + "/pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f"}).
			want(t, http.StatusServiceUnavailable, "unavailable")
	})
	wg.Go(func() {
		s.do(t, call{method: http.MethodGet, path: "/readyz"}).want(t, http.StatusServiceUnavailable, "unavailable")
	})
	wg.Wait()
}
