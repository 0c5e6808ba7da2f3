package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// measures are the scenarios that measure a bound and break nothing.
var measures = map[string]func(ctx context.Context, o options, bin, dir string) (result, error){
	"memory": measureMemory,
	"sweep":  measureSweep,
}

// alone is one replica over a server of its own.
func alone(ctx context.Context, o options, bin, dir string, sweep time.Duration) (*trial, func(), error) {
	t := &trial{
		s: scenario{
			name: "alone", replicas: 1, conns: 10, lease: 30 * time.Second, ttl: 24 * time.Hour, sweep: sweep, manners: usual,
			database: func(ctx context.Context, t *trial) error {
				url, stop, err := plainDatabase(ctx, map[string]string{"autovacuum_naptime": "5s"})
				if err != nil {
					return err
				}
				t.onEnd(stop)
				t.direct = func() string { return url }
				t.through = func(int) string { return url }
				return nil
			},
		},
		seed: o.seed, bin: bin, dir: dir,
		rec: &recorder{start: time.Now()}, worst: &longestOf{d: make(map[string]time.Duration)}, count: &counter{n: make(map[string]int)},
		http:         &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
		acknowledged: make(map[name]Request),
	}
	if err := t.set(ctx); err != nil {
		t.end()
		return nil, nil, err
	}
	return t, t.end, nil
}

// payOnce makes one payment, for which a single answer will do.
func (m *merchant) payOnce() (time.Duration, error) {
	p := m.newPayment()
	r := m.t.send(p, 0, how{op: opCreate, timeout: 10 * time.Second})
	if r.Status != http.StatusCreated {
		return 0, fmt.Errorf("answered %d %s %s", r.Status, r.Code, r.Err)
	}
	return time.Duration(r.Return - r.Call), nil
}

// forget drops what was recorded, so that the trial's own memory is bounded too.
func (t *trial) forget() {
	t.rec.mu.Lock()
	t.rec.h.Requests = nil
	t.rec.mu.Unlock()
	t.mu.Lock()
	clear(t.acknowledged)
	t.mu.Unlock()
}

// measureMemory sends many keys through one replica and compares what it holds
// after the first 10,000 with what it holds in the end.
func measureMemory(ctx context.Context, o options, bin, dir string) (result, error) {
	t, end, err := alone(ctx, o, bin, dir, 5*time.Second)
	if err != nil {
		return result{}, err
	}
	defer end()
	first := min(10_000, o.keys)
	r := result{About: fmt.Sprintf("%d keys through one replica", o.keys), Requests: o.keys, Keys: o.keys}
	began := time.Now()
	early, err := t.fill(ctx, first)
	if err != nil {
		return r, err
	}
	late, err := t.fill(ctx, o.keys-first)
	if err != nil {
		return r, err
	}
	const mib = 1 << 20
	r.Measured = []string{fmt.Sprintf("RSS after %d keys %.1f MiB, at the end %.1f MiB; %.0f keys/s",
		first, float64(early)/mib, float64(late)/mib, float64(o.keys)/time.Since(began).Seconds())}
	// The garbage collector's heap breathes; what grows with the keys would
	// show as many times this.
	if late > early+early/4 {
		r.Violations = append(r.Violations, violation{"memory", "RSS grew by more than a quarter"})
	}
	return r, nil
}

// fill makes n payments as fast as a few clients can, and returns the replica's
// RSS then.
func (t *trial) fill(ctx context.Context, n int) (int, error) {
	var left atomic.Int64
	left.Store(int64(n))
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range 8 {
		m := &merchant{t: t, rng: rand.New(rand.NewPCG(t.seed, t.streams.Add(1)))}
		wg.Go(func() {
			for k := 0; left.Add(-1) >= 0 && ctx.Err() == nil && failed.Load() == nil; k++ {
				if _, err := m.payOnce(); err != nil {
					failed.Store(&err)
				}
				if k%1000 == 0 {
					t.forget()
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return t.replicas[0].rss()
}

const (
	// expiredSQL makes records whose time is over all at once.
	expiredSQL = `
insert into idempotency_keys (scope, key, fingerprint, status, header, body, created_at, expires_at)
select 'north',
       'expired-' || n,
       sha256(n::text::bytea),
       201,
       '{"Content-Type": ["application/json"]}',
       convert_to(repeat('x', 450), 'UTF8'),
       now() - interval '24 hours',
       now() + interval '%d seconds'
from generate_series(1, %d) n`

	expiredLeftSQL = `select count(*) from idempotency_keys where key like 'expired-%'`

	deadSQL = `
select n_live_tup, n_dead_tup, autovacuum_count, pg_total_relation_size(relid)
from pg_stat_user_tables
where relname = 'idempotency_keys'`
)

// measureSweep compares how long requests take while a great many records are
// swept with how long they usually take.
func measureSweep(ctx context.Context, o options, bin, dir string) (result, error) {
	t, end, err := alone(ctx, o, bin, dir, time.Second)
	if err != nil {
		return result{}, err
	}
	defer end()
	r := result{About: fmt.Sprintf("%d expired keys are swept under load", o.rows)}
	const warmUp = 3 * time.Second
	t.paced(ctx, func() bool { return time.Since(t.rec.start) > warmUp })

	// The rows are there before, so that the usual is measured on the same table.
	// The insert takes its time, and what it made comes due after the usual.
	const ahead = 90
	inserted := time.Now()
	if err := execSQL(ctx, t.direct(), fmt.Sprintf(expiredSQL, ahead, o.rows), "checkpoint", "vacuum analyze idempotency_keys"); err != nil {
		return r, err
	}
	due := inserted.Add(ahead * time.Second)
	if time.Until(due) < 20*time.Second {
		return r, fmt.Errorf("%d rows took too long to make", o.rows)
	}
	t.forget()
	usualEnd := time.Now().Add(min(20*time.Second, time.Until(due)-2*time.Second))
	before := t.paced(ctx, func() bool { return time.Now().After(usualEnd) })
	pause(ctx, time.Until(due)-500*time.Millisecond)

	began := time.Now()
	var left atomic.Int64
	left.Store(int64(o.rows))
	swept := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			var n int64
			if err := t.query(ctx, expiredLeftSQL, &n); err != nil {
				swept <- err
				return
			}
			if left.Store(n); n == 0 {
				break
			}
			pause(ctx, time.Second)
		}
		swept <- ctx.Err()
	}()
	during := t.paced(ctx, func() bool { return left.Load() == 0 || time.Since(began) > 3*time.Minute })
	took := time.Since(began)
	if err := <-swept; err != nil {
		return r, err
	}

	var live, dead, vacuums, size int64
	for deadline := time.Now().Add(90 * time.Second); ; {
		if err := t.query(ctx, deadSQL, &live, &dead, &vacuums, &size); err != nil {
			return r, err
		}
		if vacuums > 0 && dead < int64(o.rows)/50 || time.Now().After(deadline) {
			break
		}
		pause(ctx, time.Second)
	}
	t.rec.mu.Lock()
	bad := goodAnswers(&t.rec.h)
	r.Requests, r.Keys = len(t.rec.h.Requests), len(t.rec.h.Requests)
	t.rec.mu.Unlock()
	for _, text := range bad {
		r.Violations = append(r.Violations, violation{"4 good answers", text})
	}
	ratio := float64(p99(during)) / float64(max(p99(before), 1))
	r.Measured = []string{
		fmt.Sprintf("p99 usual %v of %d, during the sweep %v of %d: ratio %.2f", p99(before).Round(10*time.Microsecond), len(before),
			p99(during).Round(10*time.Microsecond), len(during), ratio),
		fmt.Sprintf("%d keys swept in %v", o.rows, took.Round(100*time.Millisecond)),
		fmt.Sprintf("after autovacuum (%d runs): %d live rows, %d dead; table and indexes %d MiB", vacuums, live, dead, size>>20),
	}
	if ratio > 2 {
		r.Violations = append(r.Violations, violation{"sweep", fmt.Sprintf("p99 during the sweep is %.2f times the usual", ratio)})
	}
	if left.Load() > 0 || dead >= int64(o.rows)/50 {
		r.Violations = append(r.Violations, violation{"sweep", fmt.Sprintf("%d rows not swept, %d dead rows stay", left.Load(), dead)})
	}
	return r, nil
}

// paced makes payments at a steady 100 a second until done, and returns how long
// each took.
func (t *trial) paced(ctx context.Context, done func() bool) []time.Duration {
	var (
		mu   sync.Mutex
		took []time.Duration
		wg   sync.WaitGroup
	)
	const clients = 10
	for range clients {
		m := &merchant{t: t, rng: rand.New(rand.NewPCG(t.seed, t.streams.Add(1)))}
		wg.Go(func() {
			tick := time.NewTicker(clients * 10 * time.Millisecond)
			defer tick.Stop()
			for !done() && ctx.Err() == nil {
				d, err := m.payOnce()
				if err != nil {
					d = time.Minute // it shows in the p99, and in the answers
				}
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
				<-tick.C
			}
		})
	}
	wg.Wait()
	return took
}

func p99(took []time.Duration) time.Duration {
	if len(took) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(took))
	return s[len(s)*99/100]
}
