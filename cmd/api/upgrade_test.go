//go:build upgrade

package main

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"intentd/internal/pgtest"
)

// TestUpgrade is a rolling upgrade under load: the version before, which is the
// program that UPGRADE_FROM names, serves alone; this one starts, migrates, and
// both serve on the schema of this one. tests/upgrade.sh builds the first.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath(os.Getenv("UPGRADE_FROM"))
	if err != nil {
		t.Fatalf("UPGRADE_FROM: %v: run this as make upgrade-test", err)
	}
	duration, err := time.ParseDuration(os.Getenv("UPGRADE_DURATION"))
	if err != nil {
		t.Fatalf("UPGRADE_DURATION: %v", err)
	}
	db := pgtest.Empty(t)
	environ := []string{"DATABASE_URL=" + db.URL, "SWEEP_INTERVAL=100ms"}
	before := startProgram(t, program, environ...) // which makes its own schema
	eventually(t, "the version before is not ready", func() bool { return before.get("/readyz").status == 200 })

	// Each merchant sends a key to two replicas at once, and then to both again.
	const merchants = 8
	var (
		wg                      sync.WaitGroup
		creates, replays, waits atomic.Int64
		second                  atomic.Pointer[replica]
	)
	second.Store(before)
	warm := make(chan struct{})
	sendTo := func(replicas [2]*replica, key, body string) {
		var (
			both  sync.WaitGroup
			first [2]reply
		)
		for n, r := range replicas {
			both.Go(func() { first[n] = r.post(key, body) })
		}
		both.Wait()
		var answers []reply
		for n, got := range first {
			switch {
			case got.fresh():
				answers = append(answers, got)
			case got.replayed():
				replays.Add(1)
			case got.code() == "idempotency_key_in_flight":
				waits.Add(1)
			default:
				t.Errorf("replica %d, first: %v", n, got)
			}
		}
		if len(answers) != 1 {
			t.Errorf("%d fresh answers: %v", len(answers), first)
			return
		}
		for n, r := range replicas {
			again := r.post(key, body)
			// The lock of who was told to wait goes a moment after its answer.
			for again.code() == "idempotency_key_in_flight" {
				waits.Add(1)
				again = r.post(key, body)
			}
			location := again.header.Get("Location")
			if !again.replayed() || again.body != answers[0].body || location != answers[0].header.Get("Location") {
				t.Errorf("replica %d, again: %v, want %v", n, again, answers[0])
			}
			replays.Add(1)
			if got := r.get(location); got.status != 200 {
				t.Errorf("replica %d, read: %v", n, got)
			}
		}
		if creates.Add(1) == 1000 {
			close(warm)
		}
	}
	ends := time.Now().Add(duration)
	for m := range merchants {
		wg.Go(func() {
			for i := 0; time.Now().Before(ends) && !t.Failed(); i++ {
				body := example
				if i%10 == 0 {
					body = with("expires_in_seconds", "1") // which the sweepers cancel
				}
				sendTo([2]*replica{before, second.Load()}, fmt.Sprint("K", m, "-", i), body)
			}
		})
	}
	select {
	case <-warm:
	case <-time.After(duration):
		t.Error("less than a thousand creates before the upgrade")
	}
	now := start(t, environ...) // which migrates, under load
	eventually(t, "this version is not ready", func() bool { return now.get("/readyz").status == 200 })
	alone := creates.Load()
	second.Store(now)
	wg.Wait()
	wantPaired(t, db)
	wantSchema(t, db)
	for name, r := range map[string]*replica{"the version before": before, "this version": now} {
		for _, line := range r.log.lines() {
			if line["level"] != "INFO" {
				t.Errorf("%s logged: %v", name, line)
			}
		}
	}
	t.Logf("%d creates before and while this version migrated, %d beside it; %d replays, %d told to wait",
		alone, creates.Load()-alone, replays.Load(), waits.Load())
}
