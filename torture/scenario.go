package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// scenario is one trial: which database, what is done to it, and who asks.
type scenario struct {
	name     string
	about    string
	database func(ctx context.Context, t *trial) error
	replicas int
	conns    int // of the database, for each replica
	// committers of each replica; 0: two of all but the last one, which has none,
	// so that both ways meet; less: none anywhere.
	committers int
	faults     []string
	short      time.Duration // how long in the short form; 0: not part of it
	lengthy    []string      // faults that the short form has no time for
	lease      time.Duration
	ttl        time.Duration
	sweep      time.Duration
	steady     bool // nothing keeps the sweeper from its work
	apart      bool // the records are in Redis, by onRedis
	manners
}

// committersOf returns how many committers a replica has.
func (s *scenario) committersOf(replica int) int {
	switch {
	case s.committers == 0 && replica < s.replicas-1:
		return 2
	default:
		return max(s.committers, 0)
	}
}

// usual are the manners of merchants that nothing else is said of.
var usual = manners{clients: 12, think: 30 * time.Millisecond, expiresIn: 900, again: 0.2}

// scenarios are all of them, in the order in which they run.
var scenarios = []scenario{
	{
		name: "crash", about: "replicas are killed, stopped past their lease, restarted one by one",
		database: onPlain, replicas: 3, conns: 10, short: 5 * time.Second,
		faults: []string{"kill -9", "kill -9 while it waits", "SIGSTOP past the lease", "SIGTERM under load"},
		lease:  time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
	{
		name: "groups", about: "many clients share transactions, which are killed, terminated and lost at their COMMIT",
		database: onWays, replicas: 2, conns: 10, short: 5 * time.Second, committers: 1,
		faults: []string{
			"kill -9", "kill -9 while it waits", "SIGSTOP past the lease", "terminate backends",
			"cut", "COMMIT never sent", "COMMIT sent, then cut", "COMMIT done, answer lost",
		},
		lease: time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond,
		manners: manners{clients: 48, think: 5 * time.Millisecond, expiresIn: 900, again: 0.3},
	},
	{
		name: "database", about: "backends are terminated, PostgreSQL is restarted",
		database: onOwn, replicas: 3, conns: 10, short: 4 * time.Second,
		faults: []string{"terminate backends", "restart fast", "restart immediate"},
		lease:  time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
	{
		name: "network", about: "connections to the database are cut, stalled, half closed; COMMIT loses its way or its answer",
		database: onWays, replicas: 3, conns: 10, short: 5 * time.Second,
		faults: []string{
			"cut", "stall", "slow", "half-close", "reset", "COMMIT never sent", "COMMIT sent, then cut",
			"COMMIT done, answer lost", "COMMIT done, answer silent",
		},
		lengthy: []string{"COMMIT done, answer silent", "stall", "slow", "reset"},
		lease:   time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
	{
		name: "clients", about: "200 clients over pools of 2, that hang up and trickle",
		database: onPlain, replicas: 3, conns: 2, short: 3 * time.Second,
		lease: 2 * time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond,
		manners: manners{clients: 200, think: 400 * time.Millisecond, expiresIn: 900, hangUp: 0.3, trickle: 0.1, again: 0.2},
	},
	{
		name: "sweeper", about: "every replica sweeps each 50 ms, keys and intents live for a second",
		database: onPlain, replicas: 3, conns: 10, short: 2 * time.Second,
		lease: time.Second, ttl: time.Second, sweep: 50 * time.Millisecond, steady: true,
		manners: manners{clients: 8, think: 60 * time.Millisecond, expiresIn: 1, again: 0.5},
	},
	{
		name: "redis", about: "records in Redis: it is killed, silent and cut off, replicas and backends too",
		database: onRedis, replicas: 3, conns: 10, short: 4 * time.Second,
		faults: []string{
			"kill -9", "SIGSTOP past the lease", "SIGTERM under load", "terminate backends",
			"Redis killed", "Redis silent for a moment", "Redis silent past the lease", "Redis cut off",
		},
		lengthy: []string{"SIGSTOP past the lease", "SIGTERM under load", "Redis silent past the lease"},
		lease:   time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, apart: true, manners: usual,
	},
	{
		name: "locks", about: "tables are locked for 5 s, the database's default isolation is changed",
		database: onPlain, replicas: 3, conns: 10,
		faults: []string{"payment_intents locked 5 s", "idempotency_keys locked 5 s", "repeatable read", "serializable"},
		lease:  time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
	{
		name: "clock", about: "the database's clock is 10 minutes off, and jumps as it restarts",
		database: onOwn, replicas: 3, conns: 10,
		faults: []string{"clock 10 min ahead", "clock 10 min behind", "kill -9"},
		lease:  time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
	{
		name: "pgbouncer", about: "PgBouncer in transaction mode stands between the two",
		database: onPooler, replicas: 3, conns: 10,
		faults: []string{"terminate backends", "restart fast", "kill -9", "SIGSTOP past the lease"},
		lease:  time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
	{
		name: "failover", about: "a primary with a synchronous standby is killed, and the standby promoted",
		database: onPair, replicas: 3, conns: 10,
		faults: []string{"kill primary, promote"},
		lease:  time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
	{
		name: "standby", about: "the synchronous standby stalls for longer than the service waits, then the primary is lost",
		database: onPair, replicas: 3, conns: 10,
		faults: []string{"stall standby, then kill"},
		lease:  time.Second, ttl: time.Hour, sweep: 500 * time.Millisecond, manners: usual,
	},
}

// onPlain is a server that nobody restarts.
func onPlain(ctx context.Context, t *trial) error {
	url, stop, err := plainDatabase(ctx, nil)
	if err != nil {
		return err
	}
	t.onEnd(stop)
	t.direct = func() string { return url }
	t.through = func(int) string { return url }
	return nil
}

// onOwn is a server of the trial's own.
func onOwn(ctx context.Context, t *trial) error {
	var err error
	if t.primary, err = ownDatabase(ctx); err != nil {
		return err
	}
	t.onEnd(func() { t.primary.remove() })
	t.direct = func() string { return tcpURL(t.primary.port) }
	t.through = func(int) string { return t.direct() }
	return nil
}

// onWays has for each replica a way to the server that can be disturbed.
func onWays(ctx context.Context, t *trial) error {
	if err := onOwn(ctx, t); err != nil {
		return err
	}
	for n := range t.s.replicas {
		w, err := newWay(n, t.primary.port)
		if err != nil {
			return err
		}
		t.onEnd(w.close)
		t.ways = append(t.ways, w)
	}
	t.through = func(n int) string { return tcpURL(t.ways[n].port()) }
	return nil
}

// onPooler has a PgBouncer before the server. The schema is brought up to date
// on the server itself: a migration needs a session.
func onPooler(ctx context.Context, t *trial) error {
	if err := onOwn(ctx, t); err != nil {
		return err
	}
	if err := t.migrate(ctx); err != nil {
		return err
	}
	port, stop, err := startPooler(ctx, t.primary.port)
	if err != nil {
		return err
	}
	t.onEnd(stop)
	t.beforeLeft = stop
	t.through = func(int) string { return poolerDSN(port) }
	return nil
}

// onPair has a synchronous standby; the replicas know both addresses.
func onPair(ctx context.Context, t *trial) error {
	if err := onOwn(ctx, t); err != nil {
		return err
	}
	standby, err := newCluster()
	if err != nil {
		return err
	}
	t.standby = standby
	t.onEnd(func() {
		t.standby.remove()
		if t.replication != nil {
			t.replication.close()
		}
	})
	if err := t.attachStandby(ctx); err != nil {
		return err
	}
	ports := []int{t.primary.port, t.standby.port}
	t.through = func(int) string { return tcpURL(ports...) }
	return nil
}

// attachStandby makes t.standby a synchronous standby of t.primary, anew.
func (t *trial) attachStandby(ctx context.Context) error {
	if err := os.RemoveAll(t.standby.data); err != nil {
		return err
	}
	if t.replication != nil {
		t.replication.close()
	}
	w, port, err := newToxicWay(0, t.primary.port)
	if err != nil {
		return err
	}
	t.replication = w
	if err := t.standby.copyOf(port); err != nil {
		return err
	}
	if err := t.standby.start(ctx); err != nil {
		return err
	}
	if err := execSQL(ctx, t.direct(),
		"alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"); err != nil {
		return err
	}
	for range 400 {
		var sync bool
		err := t.query(ctx, "select exists (select from pg_stat_replication where sync_state = 'sync')", &sync)
		if err != nil {
			return err
		}
		if sync {
			return nil
		}
		time.Sleep(25 * time.Millisecond)
	}
	return errors.New("the standby does not become synchronous")
}

// promote makes the standby the primary, and the dead primary's place the
// standby's.
func (t *trial) promote(ctx context.Context) error {
	next := t.standby
	if err := execSQL(ctx, maintenance(next.port),
		"alter system reset synchronous_standby_names", "select pg_promote(true, 30)", "select pg_reload_conf()"); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	t.standby, t.primary = t.primary, next
	return nil
}
