package pgidem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/localpg"
	"intentd/migrations"
)

// TestStore_Claim_StandbyAway has a server of its own, since it sets what all
// databases of a server share. A COMMIT whose wait for a synchronous standby is
// cut short can be read on the primary, and would be lost with it. It must not be
// acknowledged by a replay.
func TestStore_Claim_StandbyAway(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]func(*pgidem.Store){
		"Alone": func(*pgidem.Store) {},
		"Group": func(s *pgidem.Store) { pgidem.Gather(s.WithCommitters(2), time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testStandbyAway(t, kind)
		})
	}
}

func testStandbyAway(t *testing.T, kind func(*pgidem.Store)) {
	t.Helper()
	ctx := t.Context()
	server, err := localpg.Start(ctx, localpg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop(context.Background()) })
	if err := migrations.Up(ctx, server.URL()); err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	pgidem.Configure(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	set := func(names string) {
		t.Helper()
		for _, sql := range []string{"alter system set synchronous_standby_names = '" + names + "'", "select pg_reload_conf()"} {
			if _, err := pool.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the backends have not read the new setting", func() bool {
			var now string
			if err := pool.QueryRow(ctx, "show synchronous_standby_names").Scan(&now); err != nil {
				t.Fatal(err)
			}
			return now == names
		})
	}
	store := pgidem.New(pool, time.Hour, 30*time.Second)
	kind(store)
	id := idempotency.ID{Scope: "m", Key: "k"}
	fp := idempotency.FingerprintOf("POST", "/", nil)

	set("nobody")
	// Commits wait from when the checkpointer has read it too.
	eventually(t, "no commit waits for the standby", func() bool {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, err := pool.Exec(short, "select pg_logical_emit_message(true, 'test', '')")
		return errors.Is(err, context.DeadlineExceeded)
	})
	claim, err := store.Claim(ctx, id, fp)
	if err != nil || claim.Outcome != idempotency.Fresh {
		t.Fatalf("Claim = %v, %v", claim.Outcome, err)
	}
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	if err := claim.Attempt.Complete(short, idempotency.Response{Status: 201}); !errors.Is(err, idempotency.ErrInDoubt) {
		t.Fatalf("Complete = %v, want ErrInDoubt", err)
	}
	for range 5 {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		claim, err := store.Claim(short, id, fp)
		cancel()
		if err == nil && claim.Outcome == idempotency.Replay {
			t.Fatal("what no standby has was replayed")
		}
		short, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
		rec, _, err := store.Lookup(short, id)
		cancel()
		if err == nil && rec != nil {
			t.Fatal("what no standby has was told to stand")
		}
	}

	// Where there is no record, there is nothing to wait for.
	if rec, running, err := store.Lookup(ctx, idempotency.ID{Scope: "m", Key: "none"}); rec != nil || running || err != nil {
		t.Fatalf("Lookup = %+v, %t, %v; want nothing", rec, running, err)
	}

	set("")
	claim, err = store.Claim(ctx, id, fp)
	if err != nil || claim.Outcome != idempotency.Replay {
		t.Fatalf("Claim = %v, %v, want a replay once nothing is waited for", claim.Outcome, err)
	}
	if rec, running, err := store.Lookup(ctx, id); rec == nil || running || err != nil {
		t.Fatalf("Lookup = %+v, %t, %v; want the record once nothing is waited for", rec, running, err)
	}
}
