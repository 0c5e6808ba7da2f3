package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"intentd/internal/pgtest"
)

// TestReplica_ServiceRole serves as docs/operations.md has it: one role owns and
// migrates, the other has what deploy/grants.sql gives it.
func TestReplica_ServiceRole(t *testing.T) {
	t.Parallel()

	t.Run("CurrentSchema", func(t *testing.T) {
		t.Parallel()
		roles := newRoles(t)
		roles.migrate(t)
		roles.grant(t)

		r := start(t, "DATABASE_URL="+roles.service, "SWEEP_INTERVAL=20ms", "IDEMPOTENCY_TTL=1s", "IDEMPOTENCY_LEASE=1s")
		eventually(t, "not ready", func() bool { return r.get("/readyz").status == 200 })
		if got := r.logged(t, "schema is current"); got["level"] != "INFO" {
			t.Errorf("log: %v", got)
		}
		first := r.post("K", with("expires_in_seconds", "1"))
		if !first.fresh() {
			t.Fatalf("create: %v", first)
		}
		if again := r.post("K", with("expires_in_seconds", "1")); !again.replayed() || again.body != first.body {
			t.Errorf("replay: %v, want %v", again, first)
		}
		eventually(t, "the sweeper does not cancel", func() bool {
			return strings.Contains(r.get("/v1/payment_intents/"+first.id(t)).body, `"state":"canceled","version":2`)
		})
		eventually(t, "the sweeper does not delete", func() bool {
			return pgtest.QueryVal[int](t, roles.db, "select count(*) from idempotency_keys") == 0
		})

		// Another key of the directory, a step, the lists and the trail.
		type created struct{ Token string }
		key := keysJSON[created](t, []string{"DATABASE_URL=" + roles.owner}, "create", "-merchant", "shop-1", "-json")
		second := r.postAs(key.Token, "K", example)
		path := "/v1/payment_intents/" + second.id(t)
		for _, ask := range []struct{ method, path, body, key string }{
			{"POST", path + "/transitions", `{"to":"authorized"}`, "K2"},
			{"POST", path + "/cancel", `{"reason":"changed her mind"}`, "K3"},
			{"GET", path + "/transitions", "", ""},
			{"GET", "/v1/payment_intents?state=canceled", "", ""},
			{"GET", "/v1/idempotency_keys", "", "K"},
		} {
			got := r.do(ask.method, ask.path, ask.body, "Authorization", "Bearer "+key.Token, "Idempotency-Key", ask.key)
			if got.status != 200 {
				t.Errorf("%s %s: %v", ask.method, ask.path, got)
			}
		}
		eventually(t, "the day of the key's use is not noted", func() bool {
			return pgtest.QueryVal[int](t, roles.db, "select count(*) from api_keys where last_used_on is not null") == 1
		})
		if log := r.log.String(); strings.Contains(log, "permission denied") {
			t.Errorf("the log has a refusal:\n%s", log)
		}
	})

	// What is behind waits for the owner, and says so.
	t.Run("SchemaBehind", func(t *testing.T) {
		t.Parallel()
		roles := newRoles(t)
		r := start(t, "DATABASE_URL="+roles.service)
		r.logged(t, "database is not ready, will be tried again")
		if got := r.get("/readyz"); got.status != 503 {
			t.Errorf("/readyz before the owner has migrated: %v", got)
		}
		roles.migrate(t)
		roles.grant(t)
		eventually(t, "not ready", func() bool { return r.get("/readyz").status == 200 })
		if got := r.post("K", example); !got.fresh() {
			t.Errorf("create: %v", got)
		}
	})

	t.Run("NoMoreThanItNeeds", func(t *testing.T) {
		t.Parallel()
		roles := newRoles(t)
		roles.migrate(t)
		roles.grant(t)
		conn, err := pgx.Connect(t.Context(), roles.service)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		const insufficientPrivilege = "42501"
		for _, sql := range []string{
			"create table t (i int)",
			"create temporary table t (i int)",
			"drop table payment_intents",
			"alter table payment_intents add column c text",
			"truncate idempotency_keys",
			"delete from payment_intents",
			"update payment_intents set amount = 1",
			"update intent_transitions set actor = 'operator'",
			"delete from intent_transitions",
			"update idempotency_keys set body = ''",
			"insert into api_keys (id) values (gen_random_uuid())",
			"update api_keys set revoked_at = null",
			"delete from api_keys",
			"update schema_migrations set version = 1",
		} {
			_, err := conn.Exec(t.Context(), sql)
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != insufficientPrivilege {
				t.Errorf("%s: %v, want a refusal", sql, err)
			}
		}
	})

	// A migration that makes a table has to say what the service may do with it.
	t.Run("EveryTableIsNamed", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		tables := strings.Split(pgtest.QueryVal[string](t, db, `
select string_agg(relname, ',' order by relname collate "C")
from pg_class
where relkind in ('r', 'p')
  and relnamespace = 'public'::regnamespace`), ",")
		var named []string
		for _, m := range regexp.MustCompile(`(?m)^grant .* on (\w+) to`).FindAllStringSubmatch(grants(t), -1) {
			named = append(named, m[1])
		}
		slices.Sort(named)
		if diff := cmp.Diff(tables, named); diff != "" {
			t.Errorf("tables (-the schema's +those in deploy/grants.sql):\n%s", diff)
		}
	})
}

// roles are the two roles of docs/operations.md and a database of theirs, under
// names of the test's own: roles belong to the whole server.
type roles struct {
	db             *pgtest.DB
	owner, service string // connection strings
	names          *strings.Replacer
}

func newRoles(t *testing.T) roles {
	t.Helper()
	db := pgtest.Empty(t)
	name := pgtest.QueryVal[string](t, db, "select current_database()")
	owner, service := name+"_owner", name+"_service"
	db.Exec(t, fmt.Sprintf(`
create role %[2]s login password 'secret';
create role %[3]s login password 'secret';
revoke all on database %[1]s from public;
grant create, connect on database %[1]s to %[2]s;
grant all on schema public to %[2]s;
grant connect on database %[1]s to %[3]s;`, name, owner, service))
	t.Cleanup(func() {
		db.Exec(t, fmt.Sprintf("drop owned by %[1]s, %[2]s; drop role %[1]s, %[2]s", owner, service))
	})
	return roles{
		db: db, owner: withUser(t, db.URL, owner), service: withUser(t, db.URL, service),
		names: strings.NewReplacer("intentd_owner", owner, "intentd_service", service),
	}
}

// withUser returns the URL for another role.
func withUser(t *testing.T, connection, user string) string {
	t.Helper()
	u, err := url.Parse(connection)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, "secret")
	return u.String()
}

func (r roles) migrate(t *testing.T) {
	t.Helper()
	if code, _, stderr := call(t, []string{"DATABASE_URL=" + r.owner}, "migrate", "up"); code != 0 {
		t.Fatalf("migrate up: exit code %d, %s", code, stderr)
	}
}

func (r roles) grant(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), r.owner)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), r.names.Replace(grants(t)), pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// grants is deploy/grants.sql.
func grants(t *testing.T) string {
	t.Helper()
	sql, err := os.ReadFile("../../deploy/grants.sql")
	if err != nil {
		t.Fatal(err)
	}
	return string(sql)
}
