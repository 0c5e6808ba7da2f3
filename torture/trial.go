package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"intentd/internal/redistest"
)

// trial is one run of one scenario.
type trial struct {
	s    scenario
	seed uint64
	bin  string
	dir  string
	// sabotage are statements run on the migrated schema, for broken builds.
	sabotage []string

	rec   *recorder
	count *counter
	worst *longestOf
	http  *http.Client
	// streams numbers the random streams of those who come and go.
	streams atomic.Uint64

	replicas   []*replica
	direct     func() string      // the database's URL, past everything that is in between
	through    func(n int) string // the URL that replica n is given
	beforeLeft func()             // ends what keeps connections for others
	primary    *cluster
	standby    *cluster
	ways       []*way
	redis      *redistest.Server // where the records are, if not in the database
	env        []string          // of the replicas, beside what all have
	// replication is how the standby reaches its primary.
	replication *way
	endings     []func()

	mu           sync.Mutex
	payments     []payment
	acknowledged map[name]Request
}

// counter counts by name.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) add(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[name] += n
}

func (c *counter) all() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.n)
}

// longestOf keeps the longest duration by name.
type longestOf struct {
	mu sync.Mutex
	d  map[string]time.Duration
}

func (l *longestOf) add(name string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.d[name] = max(l.d[name], d)
}

func (l *longestOf) lines() (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(l.d)) {
		lines = append(lines, fmt.Sprintf("%s: %v", name, l.d[name].Round(time.Millisecond)))
	}
	return lines
}

// onEnd adds what the end of the trial must do; the last comes first.
func (t *trial) onEnd(f func()) { t.endings = append(t.endings, f) }

func (t *trial) end() {
	for _, f := range slices.Backward(t.endings) {
		f()
	}
	t.endings = nil
}

func (t *trial) remember(p payment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.payments = append(t.payments, p)
}

// run runs the scenario for d, and returns its history. An error means that the
// trial itself failed.
func (t *trial) run(ctx context.Context, d time.Duration) (*History, error) {
	transport := &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: 5 * time.Second}
	t.http = &http.Client{Transport: transport}
	t.count = &counter{n: make(map[string]int)}
	t.worst = &longestOf{d: make(map[string]time.Duration)}
	t.acknowledged = make(map[name]Request)
	t.rec = &recorder{start: time.Now()}
	t.rec.h.Setup = Setup{
		Scenario: t.s.name, Seed: t.seed, Lease: t.s.lease, TTL: t.s.ttl, Sweep: t.s.sweep, Steady: t.s.steady, Apart: t.s.apart,
	}
	defer t.end()
	if err := t.set(ctx); err != nil {
		return nil, err
	}

	working, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var clients sync.WaitGroup
	for i := range t.s.clients {
		m := &merchant{t: t, rng: rand.New(rand.NewPCG(t.seed, uint64(i)+1))}
		clients.Go(func() { m.work(working) })
	}
	for i := range t.s.libraryMerchants() {
		c, err := newCustomer(t, 1<<33+uint64(i))
		if err != nil {
			return nil, err
		}
		clients.Go(func() { c.work(working) })
	}
	watching, stopWatching := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() { t.watch(watching) })
	n := &nemesis{t: t, rng: rand.New(rand.NewPCG(t.seed, 0))}
	err := n.work(working)
	clients.Wait()
	stopWatching()
	watcher.Wait()
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}

	if err := t.rest(ctx); err != nil {
		return nil, err
	}
	transport.CloseIdleConnections()
	if err := t.inspect(ctx); err != nil {
		return nil, err
	}
	return &t.rec.h, nil
}

// set starts the database and the replicas.
func (t *trial) set(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := t.s.database(ctx, t); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if err := t.migrate(ctx); err != nil {
		return err
	}
	if len(t.sabotage) > 0 {
		if err := execSQL(ctx, t.direct(), t.sabotage...); err != nil {
			return err
		}
	}
	for n := range t.s.replicas {
		r, err := newReplica(n, t.bin, t.dir, t.through(n), &t.s)
		if err != nil {
			return err
		}
		r.env = append(r.env, t.env...)
		if err := r.start(); err != nil {
			return err
		}
		t.onEnd(r.kill)
		t.replicas = append(t.replicas, r)
	}
	for _, r := range t.replicas {
		if err := r.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// migrate brings the schema up to date, on the server itself.
func (t *trial) migrate(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, t.bin, "migrate", "up")
	cmd.Env = []string{"DATABASE_URL=" + t.direct()}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("migrate: %w: %s", err, out)
	}
	return nil
}

// brokenOff returns payments whose request to a replica ended without an answer
// since then.
func (t *trial) brokenOff(replica int, since int64, most int) []payment {
	// The clients hear of it a moment later.
	time.Sleep(20 * time.Millisecond)
	keys := make(map[name]bool)
	t.rec.mu.Lock()
	for _, r := range slices.Backward(t.rec.h.Requests) {
		if r.Return < since || len(keys) == most {
			break
		}
		if r.Op == opCreate && r.Replica == replica && r.Variant == 0 && !r.Answered() && r.Call < since {
			keys[r.name()] = true
		}
	}
	t.rec.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	var broken []payment
	for _, p := range t.payments {
		if keys[name{p.scope, p.key}] {
			broken = append(broken, p)
		}
	}
	t.count.add("keys asked about after kill -9", len(broken))
	return broken
}

// askUntilFinal asks about a key until it is answered finally, for so long.
func (t *trial) askUntilFinal(p payment, replica int, op string, since int64, patience time.Duration) {
	for t.rec.now()-since < int64(patience) {
		if t.send(p, replica, how{op: op, timeout: 3 * time.Second, since: since}).Final() {
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
}

// rest waits until every replica says that it serves, and asks about every key.
func (t *trial) rest(ctx context.Context) error {
	ready, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, r := range t.replicas {
		if err := r.awaitReady(ready); err != nil {
			t.rec.seen("after the last fault: %v", err)
			return nil
		}
	}
	rng := rand.New(rand.NewPCG(t.seed, 1<<32))
	queue := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range queue {
				t.askUntilFinal(t.payments[i], i%len(t.replicas), opFinal, t.rec.now(), 2*t.s.lease+time.Second)
			}
		})
	}
	for _, i := range rng.Perm(len(t.payments)) {
		queue <- i
	}
	close(queue)
	wg.Wait()
	if t.s.steady {
		// What the last questions made has to come due and be canceled.
		time.Sleep(time.Duration(t.s.expiresIn)*time.Second + 2*t.s.sweep + time.Second)
	}
	return nil
}

const (
	duplicatesSQL = `
select merchant_id || '/' || reference
from payment_intents
group by merchant_id, reference
having count(*) > 1
limit 5`

	singlesSQL = `
select coalesce(k.scope, i.merchant_id) || '/' || coalesce(k.key, i.reference)
from idempotency_keys k
full join payment_intents i on i.merchant_id = k.scope and i.reference = k.key
where (k.key is null or i.reference is null)
  and coalesce(k.status, 201) = 201
limit 5`
)

// watch looks for what must never be seen, while the trial runs: both questions
// are about what is committed, and so hold at every instant.
func (t *trial) watch(ctx context.Context) {
	if t.s.ttl < time.Minute || t.s.apart {
		return // records and intents part as they should, or as they may
	}
	for ctx.Err() == nil {
		pause(ctx, 500*time.Millisecond)
		conn, err := pgx.Connect(ctx, t.direct())
		if err != nil {
			continue // the database is away
		}
		for question, sql := range map[string]string{"more than one intent": duplicatesSQL, "intent or record alone": singlesSQL} {
			rows, err := conn.Query(ctx, sql)
			if err != nil {
				break
			}
			names, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				break
			}
			for _, name := range names {
				t.rec.seen("%s: %s", name, question)
			}
		}
		t.count.add("looks at the database", 1)
		_ = conn.Close(ctx)
	}
}

// logs keeps the replicas' logs where the trial failed.
func (t *trial) logs(to string) error {
	if err := os.RemoveAll(to); err != nil { // those of an earlier trial
		return err
	}
	return os.CopyFS(to, os.DirFS(t.dir))
}
