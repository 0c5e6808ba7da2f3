package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// fault is one thing that can go wrong. It returns when it is over and healed;
// its error means that the trial itself failed.
type fault func(ctx context.Context, n *nemesis) error

// faults are all that the nemesis knows, by name.
var faults = map[string]fault{
	"kill -9":                     killReplica,
	"kill -9 while it waits":      killWaiting,
	"SIGSTOP past the lease":      stopReplica,
	"SIGTERM under load":          restartReplica,
	"terminate backends":          terminateBackends,
	"restart fast":                restartDatabase(syscall.SIGINT),
	"restart immediate":           restartDatabase(syscall.SIGQUIT),
	"cut":                         cut,
	"stall":                       toxic("timeout", "downstream", map[string]any{"timeout": 0}),
	"slow":                        toxic("latency", "upstream", map[string]any{"latency": 200, "jitter": 150}),
	"reset":                       toxic("reset_peer", "downstream", map[string]any{"timeout": 0}),
	"half-close":                  halfClose,
	"COMMIT never sent":           catchCommit(trapBefore),
	"COMMIT sent, then cut":       catchCommit(trapSent),
	"COMMIT done, answer lost":    catchCommit(trapAnswer),
	"COMMIT done, answer silent":  catchCommit(trapSilent),
	"payment_intents locked 5 s":  lockTable("payment_intents"),
	"idempotency_keys locked 5 s": lockTable("idempotency_keys"),
	"repeatable read":             isolation("repeatable read"),
	"serializable":                isolation("serializable"),
	"clock 10 min ahead":          clock("+600s"),
	"clock 10 min behind":         clock("-600s"),
	"Redis killed":                killRedis,
	"Redis silent for a moment":   stopRedis(time.Second),
	"Redis silent past the lease": stopRedis(6 * time.Second),
	"Redis cut off":               cutRedis,
	"kill primary, promote":       failOver,
	"stall standby, then kill":    stallThenFailOver,
}

// nemesis does one fault after the other, each at a random instant.
type nemesis struct {
	t   *trial
	rng *rand.Rand
	now string // the fault in force
}

// work does faults until ctx ends, each in turn of a shuffled round, so that a
// short trial has tried each.
func (n *nemesis) work(ctx context.Context) error {
	names := n.t.s.faults
	for len(names) > 0 {
		for _, i := range n.rng.Perm(len(names)) {
			pause(ctx, 100*time.Millisecond+time.Duration(n.rng.Int64N(int64(400*time.Millisecond))))
			if ctx.Err() != nil {
				return nil
			}
			n.now = names[i]
			begin := n.t.rec.now()
			// A fault that has begun is healed, even if the time is over.
			err := faults[n.now](context.WithoutCancel(ctx), n)
			n.t.rec.fault(Fault{Name: n.now, Begin: begin, End: n.t.rec.now()})
			n.t.count.add(n.now, 1)
			if err != nil {
				return fmt.Errorf("nemesis, %s: %w", n.now, err)
			}
		}
	}
	return nil
}

// a returns one of the replicas.
func (n *nemesis) a() *replica { return n.t.replicas[n.rng.IntN(len(n.t.replicas))] }

func (n *nemesis) way() *way { return n.t.ways[n.rng.IntN(len(n.t.ways))] }

// between is a random duration.
func (n *nemesis) between(least, most time.Duration) time.Duration {
	return least + time.Duration(n.rng.Int64N(int64(most-least)+1))
}

// killReplica kills a replica, asks another about the keys that it held, and
// starts it again.
func killReplica(ctx context.Context, n *nemesis) error { return n.killAndAsk(ctx, n.a()) }

// killWaiting kills a replica whose requests wait for a table that somebody has
// locked: their backends are in the middle of a statement, and do not notice by
// themselves that their client has gone. The lock ends well within the patience
// for the keys.
func killWaiting(ctx context.Context, n *nemesis) error {
	conn, err := pgx.Connect(ctx, n.t.direct())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "lock table payment_intents in exclusive mode"); err != nil {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	released := make(chan error)
	go func() {
		time.Sleep(700 * time.Millisecond)
		released <- tx.Rollback(ctx)
	}()
	err = n.killAndAsk(ctx, n.a())
	return errors.Join(err, <-released)
}

func (n *nemesis) killAndAsk(ctx context.Context, victim *replica) error {
	since := n.t.rec.now()
	victim.kill()
	var wg sync.WaitGroup
	for _, p := range n.t.brokenOff(victim.n, since, 8) {
		wg.Go(func() { n.t.askUntilFinal(p, (victim.n+1)%len(n.t.replicas), opProbe, since, killPatience+time.Second) })
	}
	wg.Wait()
	return n.revive(ctx, victim)
}

// revive starts a replica and waits until it serves.
func (n *nemesis) revive(ctx context.Context, r *replica) error {
	if err := r.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return r.awaitReady(ctx)
}

// stopReplica stops a replica for longer than its lease.
func stopReplica(_ context.Context, n *nemesis) error {
	victim := n.a()
	victim.signal(syscall.SIGSTOP)
	time.Sleep(n.t.s.lease + n.between(100*time.Millisecond, time.Second))
	victim.signal(syscall.SIGCONT)
	return nil
}

// restartReplica ends a replica as a rolling restart does.
func restartReplica(ctx context.Context, n *nemesis) error {
	victim := n.a()
	victim.term()
	return n.revive(ctx, victim)
}

// terminateBackends terminates each of the service's sessions, or half of them.
func terminateBackends(ctx context.Context, n *nemesis) error {
	return execSQL(ctx, n.t.direct(), fmt.Sprintf(
		"select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and pid %% 2 <> %d",
		n.rng.IntN(3)))
}

func restartDatabase(sig syscall.Signal) fault {
	return func(ctx context.Context, n *nemesis) error {
		n.t.primary.end(sig)
		time.Sleep(n.between(0, 500*time.Millisecond))
		return n.returned(ctx, n.t.primary.start(ctx))
	}
}

// returned waits until every replica serves again after the database came back,
// which it must within 5 s. err is how the database did.
func (n *nemesis) returned(ctx context.Context, err error) error {
	if err != nil {
		return err
	}
	const patience = 5 * time.Second
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, r := range n.t.replicas {
		if err := r.awaitReady(ctx); err != nil {
			n.t.rec.seen("%v after the database's return: %v", patience, err)
			return nil
		}
	}
	n.t.worst.add("slowest to serve again after the database's return", time.Since(begin))
	return nil
}

func cut(_ context.Context, n *nemesis) error {
	mend := n.way().cut()
	time.Sleep(n.between(50*time.Millisecond, 700*time.Millisecond))
	return mend()
}

func toxic(kind, stream string, attributes map[string]any) fault {
	return func(_ context.Context, n *nemesis) error {
		mend, err := n.way().add(kind, stream, attributes)
		if err != nil {
			return err
		}
		time.Sleep(n.between(100*time.Millisecond, 2*time.Second))
		mend()
		return nil
	}
}

// halfClose ends one direction of every connection of a replica.
func halfClose(_ context.Context, n *nemesis) error {
	towardsClient := n.rng.IntN(2) == 0
	n.way().commits.each(func(l *link) { l.halfClose(towardsClient) })
	return nil
}

// catchCommit waits for the next COMMITs of a replica.
func catchCommit(t trap) fault {
	return func(_ context.Context, n *nemesis) error {
		p := n.way().commits
		before := p.caught.Load()
		p.set(t)
		defer p.set(trapNone)
		for range 100 {
			time.Sleep(5 * time.Millisecond)
			if p.caught.Load() > before+2 {
				break
			}
		}
		if t == trapSilent {
			// For longer than the service waits for a COMMIT: the lease and 5 s.
			time.Sleep(n.t.s.lease + n.between(100*time.Millisecond, 6*time.Second))
		}
		n.t.count.add(n.now+", hits", int(p.caught.Load()-before))
		return nil
	}
}

func lockTable(table string) fault {
	return func(ctx context.Context, n *nemesis) error {
		conn, err := pgx.Connect(ctx, n.t.direct())
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "lock table "+table+" in exclusive mode"); err != nil {
				return err
			}
			time.Sleep(5 * time.Second)
			return nil
		})
	}
}

// isolation changes the database's default for a while; sessions have it from
// their beginning, so all begin anew.
func isolation(level string) fault {
	return func(ctx context.Context, n *nemesis) error {
		const begin = "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
		if err := execSQL(ctx, n.t.direct(),
			"alter database intentd set default_transaction_isolation = '"+level+"'", begin); err != nil {
			return err
		}
		time.Sleep(n.between(2*time.Second, 4*time.Second))
		return execSQL(ctx, n.t.direct(), "alter database intentd reset default_transaction_isolation", begin)
	}
}

// clock restarts the server with a clock that is off.
func clock(offset string) fault {
	return func(ctx context.Context, n *nemesis) error {
		library, err := faketime()
		if err != nil {
			return err
		}
		n.t.primary.end(syscall.SIGINT)
		n.t.primary.env = []string{"LD_PRELOAD=" + library, "FAKETIME=" + offset, "FAKETIME_DONT_FAKE_MONOTONIC=1"}
		if err := n.returned(ctx, n.t.primary.start(ctx)); err != nil {
			return err
		}
		time.Sleep(n.between(time.Second, 2*time.Second))
		return nil
	}
}

// failOver kills the primary, promotes the standby, and builds the next standby
// in the dead one's place.
func failOver(ctx context.Context, n *nemesis) error {
	n.t.primary.crash()
	if err := n.returned(ctx, n.t.promote(ctx)); err != nil {
		return err
	}
	time.Sleep(n.between(500*time.Millisecond, 2*time.Second))
	return n.t.attachStandby(ctx)
}

// stallThenFailOver lets nothing reach the standby, for longer than the service
// waits for a COMMIT, and then loses the primary: what only that one has must not
// have been acknowledged. A few patient merchants ask until the end.
func stallThenFailOver(ctx context.Context, n *nemesis) error {
	mend, err := n.t.replication.add("timeout", "downstream", map[string]any{"timeout": 0})
	if err != nil {
		return err
	}
	defer mend()
	stall, cancel := context.WithTimeout(ctx, n.t.s.lease+n.between(6*time.Second, 8*time.Second))
	defer cancel()
	var patient sync.WaitGroup
	for i := range uint64(6) {
		m := &merchant{t: n.t, rng: rand.New(rand.NewPCG(n.rng.Uint64(), i))}
		p := m.newPayment()
		n.t.remember(p)
		patient.Go(func() {
			for stall.Err() == nil && !n.t.send(p, m.replica(), how{op: opCreate, timeout: time.Second}).Final() {
				pause(stall, 200*time.Millisecond)
			}
		})
	}
	patient.Wait()
	<-stall.Done()
	n.t.primary.crash()
	if err := n.returned(ctx, n.t.promote(ctx)); err != nil {
		return err
	}
	time.Sleep(n.between(500*time.Millisecond, 2*time.Second))
	return n.t.attachStandby(ctx)
}
