package redisidem_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/idemtest"
	"intentd/internal/idempotency/redisidem"
	"intentd/internal/redistest"
)

func TestMain(m *testing.M) { redistest.Main(m) }

const (
	longLease = time.Minute
	patience  = 10 * time.Second // for what only the server can bring about
)

var (
	id    = idempotency.ID{Scope: "merchant-a", Key: "order-1001"}
	fp    = idempotency.FingerprintOf("POST", "/things", []byte("one"))
	other = idempotency.FingerprintOf("POST", "/things", []byte("two"))
	resp  = idempotency.Response{
		Status: http.StatusCreated,
		Header: http.Header{"Location": {"/things/1"}},
		Body:   []byte("made"),
	}
)

// fixture is a store in a place of its own.
type fixture struct {
	*redistest.DB
	store *redisidem.Store
	wire  *wire
}

func newFixture(t *testing.T, lease time.Duration) *fixture {
	t.Helper()
	return over(t, redistest.New(t), lease)
}

// over makes a store over db, by a client of its own.
func over(t *testing.T, db *redistest.DB, lease time.Duration) *fixture {
	t.Helper()
	o, err := redis.ParseURL(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	redisidem.Configure(o)
	f := &fixture{DB: db, wire: new(wire)}
	o.Dialer = f.wire.Dial
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	f.store = redisidem.New(client, db.Prefix, idemtest.TTL, lease)
	return f
}

func (f *fixture) claim(t *testing.T, fp idempotency.Fingerprint) idempotency.Claim {
	t.Helper()
	c, err := f.store.Claim(t.Context(), id, fp)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return c
}

func (f *fixture) fresh(t *testing.T) *redisidem.Attempt {
	t.Helper()
	c := f.claim(t, fp)
	if c.Outcome != idempotency.Fresh {
		t.Fatalf("claim = %v, want fresh", c.Outcome)
	}
	a, ok := redisidem.FromContext(c.Attempt.Bind(t.Context()))
	if !ok {
		t.Fatal("the context is bound to no attempt")
	}
	return a
}

func (f *fixture) complete(t *testing.T, a *redisidem.Attempt) {
	t.Helper()
	if err := a.Complete(t.Context(), resp); err != nil {
		t.Fatalf("Complete: %v", err)
	}
}

func (f *fixture) wantOutcome(t *testing.T, fp idempotency.Fingerprint, want idempotency.Outcome) {
	t.Helper()
	if got := f.claim(t, fp).Outcome; got != want {
		t.Errorf("claim = %v, want %v", got, want)
	}
}

// now is the server's time.
func (f *fixture) now(t *testing.T) time.Time {
	t.Helper()
	now, err := f.Client.Time(t.Context()).Result()
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// shift moves the times of the place's hashes that have the field given: what the
// fields say, and with native when Redis forgets them.
func (f *fixture) shift(t *testing.T, field string, d time.Duration, native bool) {
	t.Helper()
	ctx := t.Context()
	for _, key := range f.Keys(t) {
		h := f.Client.HGetAll(ctx, key).Val()
		end, err := strconv.ParseInt(h[field], 10, 64)
		if err != nil {
			continue // another kind
		}
		since, err := strconv.ParseInt(h["since"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		end, since = end-d.Microseconds(), since-d.Microseconds()
		f.Client.HSet(ctx, key, field, end, "since", since)
		if native {
			f.Client.PExpireAt(ctx, key, time.UnixMilli(int64(math.Ceil(float64(end)/1000))))
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // only the server knows when
	}
}

// wire counts what is sent, and can have answers lost.
type wire struct {
	writes atomic.Int64
	mu     sync.Mutex
	lose   string // of a request that has this in it, the answer is lost
	times  int
}

func (w *wire) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &wireConn{Conn: c, wire: w}, nil
}

// loseAnswers has the next so many answers to requests with text in them lost,
// with their connections.
func (w *wire) loseAnswers(text string, times int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lose, w.times = text, times
}

func (w *wire) loses(b []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.times == 0 || !strings.Contains(string(b), w.lose) {
		return false
	}
	w.times--
	return true
}

type wireConn struct {
	net.Conn
	wire *wire
	lost atomic.Bool
}

func (c *wireConn) Write(b []byte) (int, error) {
	c.wire.writes.Add(1)
	if c.wire.loses(b) {
		c.lost.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *wireConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lost.Load() && n > 0 { // the server has done it
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

func TestStore(t *testing.T) {
	t.Parallel()
	suite := func(native bool, open func(t *testing.T, lease time.Duration) *fixture) func(*testing.T, time.Duration) idemtest.Harness {
		return func(t *testing.T, lease time.Duration) idemtest.Harness {
			f := open(t, lease)
			return idemtest.Harness{
				Store:        f.store,
				SelfExpiring: true,
				Age:          func(t *testing.T, d time.Duration) { f.shift(t, "expires", d, native) },
				Expire:       func(t *testing.T) { f.shift(t, "until", lease, native) },
				Work: func(t *testing.T, ctx context.Context, name string) {
					a, ok := redisidem.FromContext(ctx)
					if !ok {
						t.Error("the context is bound to no attempt")
						return
					}
					// Of the attempt's slot, and found by its name's end.
					a.Queue("incr", a.Key("work:"+name))
					a.Queue("pexpire", a.Key("work:"+name), time.Hour.Milliseconds())
				},
				Kept: func(t *testing.T, name string) (n int) {
					for _, key := range f.Keys(t) {
						if !strings.HasSuffix(key, ":work:"+name) {
							continue
						}
						i, err := f.Client.Get(t.Context(), key).Int()
						if err != nil {
							t.Error(err)
						}
						n += i
					}
					return n
				},
			}
		}
	}
	// Redis forgets what has expired in time.
	t.Run("Forgotten", func(t *testing.T) {
		t.Parallel()
		idemtest.Run(t, suite(true, newFixture))
	})
	// It does not, and the scripts have to look.
	t.Run("NotForgotten", func(t *testing.T) {
		t.Parallel()
		idemtest.Run(t, suite(false, newFixture))
	})
	// A cluster refuses a script whose keys are in different slots.
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		server := redistest.Run(t, redistest.Options{TCP: true, Args: []string{"--cluster-enabled", "yes"}})
		admin := redistest.On(t, server.URL())
		if err := admin.Client.ClusterAddSlotsRange(t.Context(), 0, 16383).Err(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the cluster is not up", func() bool {
			return strings.Contains(admin.Client.ClusterInfo(t.Context()).Val(), "cluster_state:ok")
		})
		addr := admin.Client.Options().Addr
		idemtest.Run(t, suite(true, func(t *testing.T, lease time.Duration) *fixture {
			client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
			t.Cleanup(func() { _ = client.Close() })
			db := redistest.On(t, server.URL())
			return &fixture{DB: db, store: redisidem.New(client, db.Prefix, idemtest.TTL, lease)}
		}))
	})
}

func TestNew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prefix     string
		ttl, lease time.Duration
	}{
		"NoLease":            {"p:", time.Hour, 0},
		"LeaseLongerThanTTL": {"p:", time.Minute, time.Hour},
		"Brace":              {"p{x}:", time.Hour, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("New did not panic")
				}
			}()
			redisidem.New(nil, c.prefix, c.ttl, c.lease)
		})
	}
}

func TestStore_RoundTrips(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	if err := f.store.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The first run of each script brings it along.
	f.complete(t, f.fresh(t))
	f.wantOutcome(t, fp, idempotency.Replay)
	f.Client.Del(t.Context(), f.Keys(t)...)

	before := f.wire.writes.Load()
	a := f.fresh(t)
	a.Queue("set", a.Key("x"), "1", "ex", "60")
	f.complete(t, a)
	f.wantOutcome(t, fp, idempotency.Replay)
	if got := f.wire.writes.Load() - before; got != 3 {
		t.Errorf("claim, complete and replay took %d round trips, want 3", got)
	}
	// A server that was restarted has forgotten the scripts.
	if err := f.Client.ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	f.wantOutcome(t, fp, idempotency.Replay)
}

// TestStore_Names: names differ where ids do, whatever the ids hold, and the part
// that chooses the slot is the same for all that belongs to one id.
func TestStore_Names(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	ids := []idempotency.ID{
		{Scope: "a", Key: "b"}, {Scope: "a}b", Key: "{c}"}, {Scope: "a}", Key: "b{c}"}, {Scope: "", Key: "ab"}, {Scope: "ab", Key: ""},
		{Scope: "a", Key: "{}"}, {Scope: "a", Key: "}{"}, {Scope: "a\x00", Key: "b"}, {Scope: "a", Key: "\x00b"}, {Scope: "*", Key: "?[x]"},
		{Scope: strings.Repeat("s", 300), Key: strings.Repeat("k", 255)}, {Scope: strings.Repeat("s", 301), Key: strings.Repeat("k", 254)},
	}
	for i, id := range ids {
		c, err := f.store.Claim(t.Context(), id, fp)
		if err != nil || c.Outcome != idempotency.Fresh {
			t.Fatalf("%q: claim = %v, %v; want fresh", id, c.Outcome, err)
		}
		a, _ := redisidem.FromContext(c.Attempt.Bind(t.Context()))
		tag := a.Key("")[strings.Index(a.Key(""), "{"):]
		if strings.Count(tag, "{") != 1 || strings.Count(tag, "}") != 1 || strings.Index(tag, "}") == 1 {
			t.Errorf("%q: %s has not one hash tag", id, tag)
		}
		if err := a.Complete(t.Context(), idempotency.Response{Status: 200 + i}); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		if c, err := f.store.Claim(t.Context(), id, fp); err != nil || c.Record == nil || c.Record.Response.Status != 200+i || c.Record.Response.Header == nil {
			t.Errorf("%q: claim = %+v, %v; want its own record, with a header that can be set", id, c, err)
		}
	}
	for _, key := range f.Keys(t) {
		if strings.Contains(key, "sss") || strings.Contains(key, "kkk") {
			t.Errorf("%s shows what it is of", key)
		}
	}
}

func TestStore_Clock(t *testing.T) {
	t.Parallel()

	t.Run("IsTheServers", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		before := f.now(t)
		a := f.fresh(t)
		after := f.now(t)
		if got := a.Time(); got.Before(before) || got.After(after) || !got.Equal(got.Truncate(time.Microsecond)) {
			t.Errorf("claimed at %v, want from %v to %v, in microseconds", got, before, after)
		}
	})

	t.Run("NumbersRise", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		last := int64(0)
		next := func() {
			t.Helper()
			a := f.fresh(t)
			n, err := strconv.ParseInt(a.Number(), 10, 64)
			if err != nil || n <= last {
				t.Errorf("number %s, %v; want one above %d", a.Number(), err, last)
			}
			last = n
		}
		next()
		// As if the clock had been set back after that attempt began.
		last += time.Hour.Microseconds()
		f.Client.HSet(t.Context(), f.Keys(t)[0], "number", last, "until", 1)
		next()
		f.shift(t, "until", longLease, true) // forgotten by Redis
		last = 0
		next()
	})
}

// TestStore_Forgets: each key has its end, to the millisecond, and has nothing of
// what it was before.
func TestStore_Forgets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	until := func(want time.Time) {
		t.Helper()
		got := f.Client.PExpireTime(t.Context(), f.Keys(t)[0]).Val()
		if late := time.UnixMilli(got.Milliseconds()).Sub(want); late < 0 || late >= time.Millisecond {
			t.Errorf("Redis forgets the key %v after %v, want 0 to 1 ms", late, want)
		}
	}
	// What is left of an old record would live again where the clock is set back.
	fields := func(want ...string) {
		t.Helper()
		got := f.Client.HKeys(t.Context(), f.Keys(t)[0]).Val()
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("the hash has %q, want %q", got, want)
		}
	}
	a := f.fresh(t)
	until(a.Time().Add(longLease))
	f.shift(t, "until", longLease, false)
	b := f.fresh(t) // takes over
	until(b.Time().Add(longLease))
	f.complete(t, b)
	until(b.Time().Add(idemtest.TTL))
	fields("body", "expires", "fingerprint", "header", "number", "since", "status")
	f.shift(t, "expires", idemtest.TTL, false)
	c := f.fresh(t)
	until(c.Time().Add(longLease))
	fields("claim", "fingerprint", "number", "since", "until")
	if err := c.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if keys := f.Keys(t); len(keys) != 0 {
		t.Errorf("left after Abandon: %q", keys)
	}
}

// TestStore_Lease waits for the time itself to pass.
func TestStore_Lease(t *testing.T) {
	t.Parallel()
	const lease = 200 * time.Millisecond
	f := newFixture(t, lease)
	a := f.fresh(t)
	var free time.Time
	eventually(t, "the key is not free", func() bool {
		c := f.claim(t, fp)
		if c.Outcome == idempotency.Fresh {
			free = c.Attempt.Time()
		}
		return c.Outcome == idempotency.Fresh
	})
	if held := free.Sub(a.Time()); held < lease {
		t.Errorf("the key was free after %v, want the lease, %v", held, lease)
	}
	if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
		t.Errorf("Complete after the lease = %v, want ErrSuperseded", err)
	}
}

// TestStore_LostAnswers: what is sent again is recognised.
func TestStore_LostAnswers(t *testing.T) {
	t.Parallel()

	t.Run("Claim", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		f.complete(t, f.fresh(t)) // so that the script is there
		f.shift(t, "expires", idemtest.TTL, true)
		f.wire.loseAnswers("evalsha", 1)
		a := f.fresh(t)
		f.wantOutcome(t, fp, idempotency.InFlight)
		f.complete(t, a)
	})

	t.Run("ClaimForGood", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		f.complete(t, f.fresh(t))
		f.shift(t, "expires", idemtest.TTL, true)
		f.wire.loseAnswers("evalsha", 3)
		if c, err := f.store.Claim(t.Context(), id, fp); err == nil {
			t.Fatalf("claim = %v, want an error", c.Outcome)
		}
		f.wantOutcome(t, fp, idempotency.InFlight) // nobody's, for the lease
		f.shift(t, "until", longLease, true)
		f.wantOutcome(t, fp, idempotency.Fresh)
	})

	t.Run("Complete", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		a := f.fresh(t)
		a.Queue("incr", a.Key("n"))
		a.Queue("pexpire", a.Key("n"), 60_000)
		if err := f.store.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.wire.loseAnswers("made", 1)
		f.complete(t, a)
		f.wantOutcome(t, fp, idempotency.Replay)
		if got := f.Client.Get(t.Context(), a.Key("n")).Val(); got != "1" {
			t.Errorf("the work was done %s times, want once", got)
		}
	})

	t.Run("CompleteForGood", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		f.complete(t, f.fresh(t)) // so that the script is there
		f.shift(t, "expires", idemtest.TTL, true)
		a := f.fresh(t)
		f.wire.loseAnswers("made", 3)
		if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrInDoubt) {
			t.Errorf("Complete = %v, want ErrInDoubt", err)
		}
		if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("Complete of what has ended = %v, want ErrSuperseded", err)
		}
		if err := a.Abandon(t.Context()); err != nil {
			t.Errorf("Abandon: %v", err)
		}
		f.wantOutcome(t, fp, idempotency.Replay) // it had been kept
	})
}

// TestAttempt_Abandon: an attempt in doubt of which nothing was kept frees its
// key, and can not be kept later.
func TestAttempt_Abandon(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	a := f.fresh(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Complete(ctx, resp); !errors.Is(err, idempotency.ErrInDoubt) {
		t.Errorf("Complete without time = %v, want ErrInDoubt", err)
	}
	f.wantOutcome(t, fp, idempotency.InFlight)
	if err := a.Abandon(t.Context()); err != nil {
		t.Errorf("Abandon: %v", err)
	}
	f.wantOutcome(t, other, idempotency.Fresh)
}

// TestAttempt_Fencing: an attempt whose number is not the holder's changes
// nothing, be the holder running or ended, of the same request or another.
func TestAttempt_Fencing(t *testing.T) {
	t.Parallel()
	for name, byRedis := range map[string]bool{"Forgotten": true, "NotForgotten": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, longLease)
			late := f.fresh(t)
			late.Queue("set", late.Key("late"), "1")
			lateToo := *late
			f.shift(t, "until", longLease, byRedis)
			next := f.fresh(t)
			if err := late.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
				t.Errorf("late Complete while the next runs = %v, want ErrSuperseded", err)
			}
			if err := lateToo.Abandon(t.Context()); err != nil {
				t.Errorf("late Abandon: %v", err)
			}
			f.wantOutcome(t, fp, idempotency.InFlight)
			f.complete(t, next)
			f.wantOutcome(t, fp, idempotency.Replay)
			if n := f.Client.Exists(t.Context(), late.Key("late")).Val(); n != 0 {
				t.Error("the late attempt's work was kept")
			}
		})
	}

	t.Run("AfterTheNextHasEnded", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		late := f.fresh(t)
		f.shift(t, "until", longLease, true)
		f.complete(t, f.fresh(t))
		if err := late.Complete(t.Context(), idempotency.Response{Status: 500}); !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("late Complete = %v, want ErrSuperseded", err)
		}
		if c := f.claim(t, fp); c.Record == nil || c.Record.Response.Status != resp.Status {
			t.Errorf("claim = %+v, want the next attempt's record", c)
		}
	})

	t.Run("AfterTheNextWasAbandoned", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		late := f.fresh(t)
		f.shift(t, "until", longLease, true)
		if err := f.fresh(t).Abandon(t.Context()); err != nil {
			t.Fatal(err)
		}
		third := f.fresh(t)
		if err := late.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrSuperseded) {
			t.Errorf("late Complete = %v, want ErrSuperseded", err)
		}
		f.complete(t, third)
	})
}

func TestAttempt_Queue(t *testing.T) {
	t.Parallel()

	t.Run("AllOrNone", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		ctx := t.Context()
		list, number, fresh, text := f.Prefix+"list", f.Prefix+"number", f.Prefix+"fresh", f.Prefix+"text"
		f.Client.RPush(ctx, list, "a", "b")
		f.Client.Set(ctx, number, "7", time.Hour)
		f.Client.Set(ctx, text, "no number", time.Hour)
		defer f.Client.Del(ctx, list)
		expires := f.Client.PExpireTime(ctx, number).Val()

		a := f.fresh(t)
		a.Queue("rpush", list, "c")
		a.Queue("incrby", number, 3)
		a.Queue("del", number)
		a.Queue("set", fresh, "1")
		a.Queue("rpush", list, "d")
		a.Queue("incr", text)
		a.Queue("rpush", list, "e")
		err := a.Complete(ctx, resp)
		if err == nil || errors.Is(err, idempotency.ErrInDoubt) || errors.Is(err, idempotency.ErrSuperseded) || !strings.Contains(err.Error(), "not an integer") {
			t.Errorf("Complete = %v, want the command's error", err)
		}
		if got := f.Client.LRange(ctx, list, 0, -1).Val(); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("list = %q, want it as it was", got)
		}
		if ttl := f.Client.PTTL(ctx, list).Val(); ttl != -1 {
			t.Errorf("list expires in %v, want never, as before", ttl)
		}
		if got, at := f.Client.Get(ctx, number).Val(), f.Client.PExpireTime(ctx, number).Val(); got != "7" || at != expires {
			t.Errorf("number = %s until %v, want 7 until %v", got, at, expires)
		}
		if n := f.Client.Exists(ctx, fresh).Val(); n != 0 {
			t.Error("the key that was not there is there")
		}
		f.wantOutcome(t, other, idempotency.Fresh)
	})

	t.Run("WordsOfAllKinds", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		a := f.fresh(t)
		a.Queue("hset", a.Key("h"), "n", 1, "b", []byte("\x00\xff\r\n"), "s", "", "t", true)
		a.Queue("pexpire", a.Key("h"), 60_000)
		f.complete(t, a)
		want := map[string]string{"n": "1", "b": "\x00\xff\r\n", "s": "", "t": "1"}
		if diff := cmp.Diff(want, f.Client.HGetAll(t.Context(), a.Key("h")).Val()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})

	t.Run("TooManyArgs", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, longLease)
		a := f.fresh(t)
		a.Queue("rpush", a.Key("l"), make([]any, 4001)...)
		if err := a.Complete(t.Context(), resp); err == nil || !strings.Contains(err.Error(), "4001 args") {
			t.Errorf("Complete = %v, want that there are too many", err)
		}
		f.wantOutcome(t, other, idempotency.Fresh)

		b := over(t, f.DB, longLease)
		c, err := b.store.Claim(t.Context(), idempotency.ID{Scope: "s", Key: "most"}, fp)
		if err != nil {
			t.Fatal(err)
		}
		most, _ := redisidem.FromContext(c.Attempt.Bind(t.Context()))
		words := make([]any, 4000)
		for i := range words {
			words[i] = fmt.Sprint(i)
		}
		most.Queue("rpush", most.Key("l"), words...)
		most.Queue("pexpire", most.Key("l"), 60_000)
		f.complete(t, most)
		if n := f.Client.LLen(t.Context(), most.Key("l")).Val(); n != 4000 {
			t.Errorf("%d of 4000 args arrived", n)
		}
	})
}

// TestStore_Foreign: what somebody else left under a name is an error, and stays.
func TestStore_Foreign(t *testing.T) {
	t.Parallel()
	f := newFixture(t, longLease)
	f.fresh(t)
	name := f.Keys(t)[0]
	far := time.Now().Add(time.Hour).UnixMicro()
	for what, set := range map[string]func(){
		"a text":                     func() { f.Client.Set(t.Context(), name, "x", time.Hour) },
		"a record without an answer": func() { f.Client.HSet(t.Context(), name, "fingerprint", "x", "since", 1, "expires", far) },
		"a fingerprint that is none": func() {
			f.Client.HSet(t.Context(), name, "fingerprint", "x", "since", 1, "expires", far, "status", 200, "header", "{}", "body", "")
		},
		"a header that is none": func() {
			f.Client.HSet(t.Context(), name, "fingerprint", fp[:], "since", 1, "expires", far, "status", 200, "header", "x", "body", "")
		},
	} {
		f.Client.Del(t.Context(), name)
		set()
		f.Client.Expire(t.Context(), name, time.Hour)
		if c, err := f.store.Claim(t.Context(), id, fp); err == nil {
			t.Errorf("%s: claim = %+v, want an error", what, c)
		}
		if rec, running, err := f.store.Lookup(t.Context(), id); err == nil {
			t.Errorf("%s: Lookup = %+v, %t; want an error", what, rec, running)
		}
		if n := f.Client.Exists(t.Context(), name).Val(); n != 1 {
			t.Errorf("%s is gone", what)
		}
	}
}

// layer is the middleware over a store, with a handler that counts its runs.
func layer(store idempotency.Store, ran *atomic.Int64) http.Handler {
	return idempotency.Middleware(store, idempotency.Options{
		Scope: func(*http.Request) string { return "m" },
	})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		ran.Add(1)
		w.WriteHeader(http.StatusCreated)
	}))
}

func post(h http.Handler, key string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/things", nil)
	r.Header.Set("Idempotency-Key", key)
	h.ServeHTTP(w, r)
	return w
}

// TestStore_WorkElsewhere: what a handler wrote in another place stays, whatever
// becomes of its attempt, and the retry writes it again. Each is counted.
func TestStore_WorkElsewhere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault  func(t *testing.T, f *fixture, r *http.Request)
		status int
	}{
		"Panic": {func(*testing.T, *fixture, *http.Request) { panic("after the work") }, http.StatusInternalServerError},
		"Withheld": {func(_ *testing.T, _ *fixture, r *http.Request) {
			idempotency.Withhold(r.Context(), errors.New("passing"))
		}, http.StatusServiceUnavailable},
		"Superseded": {func(t *testing.T, f *fixture, _ *http.Request) {
			f.shift(t, "until", longLease, true)
		}, http.StatusConflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, longLease)
			elsewhere := 0
			h := idempotency.Middleware(f.store, idempotency.Options{
				Scope: func(*http.Request) string { return "m" },
			})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				elsewhere++
				a, _ := redisidem.FromContext(r.Context())
				a.Queue("incr", a.Key("n"))
				a.Queue("pexpire", a.Key("n"), 60_000)
				w.WriteHeader(http.StatusCreated)
				if elsewhere == 1 {
					c.fault(t, f, r)
				}
			}))
			if w := post(h, "K"); w.Code != c.status || w.Header().Get("Retry-After") != "1" {
				t.Errorf("first: %d, Retry-After %q; want %d and 1: %s", w.Code, w.Header().Get("Retry-After"), c.status, w.Body)
			}
			if w := post(h, "K"); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "" {
				t.Errorf("retry: %d %v, want 201 for the first time", w.Code, w.Header())
			}
			if elsewhere != 2 {
				t.Errorf("the work elsewhere was done %d times, want 2", elsewhere)
			}
			done := 0
			for _, key := range f.Keys(t) {
				if strings.HasSuffix(key, ":n") {
					done, _ = f.Client.Get(t.Context(), key).Int()
				}
			}
			if done != 1 {
				t.Errorf("the queued work was done %d times, want once", done)
			}
		})
	}
}

// TestStore_NoMemory: what is in a server whose memory is full can be looked up
// and freed, and nothing is added.
func TestStore_NoMemory(t *testing.T) {
	t.Parallel()
	server := redistest.Run(t, redistest.Options{})
	f := over(t, redistest.On(t, server.URL()), longLease)
	a := f.fresh(t)
	if err := f.Client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, running, err := f.store.Lookup(t.Context(), id); err != nil || !running {
		t.Errorf("Lookup = %t, %v; want running", running, err)
	}
	if err := a.Complete(t.Context(), resp); !errors.Is(err, idempotency.ErrInDoubt) {
		t.Errorf("Complete = %v, want ErrInDoubt", err)
	}
	if err := a.Abandon(t.Context()); err != nil {
		t.Errorf("Abandon: %v", err)
	}
	if rec, running, err := f.store.Lookup(t.Context(), id); err != nil || running || rec != nil {
		t.Errorf("Lookup = %v, %t, %v; want nothing", rec, running, err)
	}
}

// TestStore_ServerAway: whatever keeps the server from answering, nothing runs,
// and the client is told to try again.
func TestStore_ServerAway(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct {
		begin, end func(t *testing.T, s *redistest.Server, db *redistest.DB)
	}{
		"Down": {
			func(_ *testing.T, s *redistest.Server, _ *redistest.DB) { s.Kill() },
			func(t *testing.T, s *redistest.Server, _ *redistest.DB) {
				if err := s.Start(); err != nil {
					t.Fatal(err)
				}
			},
		},
		"Silent": {
			func(_ *testing.T, s *redistest.Server, _ *redistest.DB) { _ = s.Signal(syscall.SIGSTOP) },
			func(_ *testing.T, s *redistest.Server, _ *redistest.DB) { _ = s.Signal(syscall.SIGCONT) },
		},
		"Replica": { // of a primary that is not there, and before the link is known to be down
			func(t *testing.T, _ *redistest.Server, db *redistest.DB) {
				if err := db.Client.ReplicaOf(t.Context(), "127.0.0.1", "1").Err(); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, _ *redistest.Server, db *redistest.DB) {
				if err := db.Client.ReplicaOf(t.Context(), "no", "one").Err(); err != nil {
					t.Fatal(err)
				}
			},
		},
		"NoMemory": {
			func(t *testing.T, _ *redistest.Server, db *redistest.DB) {
				if err := db.Client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
					t.Fatal(err)
				}
			},
			func(t *testing.T, _ *redistest.Server, db *redistest.DB) {
				if err := db.Client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Run(t, redistest.Durable)
			f := over(t, redistest.On(t, server.URL()), longLease)
			var ran atomic.Int64
			h := layer(f.store, &ran)
			if w := post(h, "before"); w.Code != http.StatusCreated {
				t.Fatalf("before: %d %s", w.Code, w.Body)
			}
			fault.begin(t, server, f.DB)
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					if w := post(h, fmt.Sprint("meanwhile-", i)); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" {
						t.Errorf("meanwhile: %d, Retry-After %q; want 503 and 1: %s", w.Code, w.Header().Get("Retry-After"), w.Body)
					}
				})
			}
			wg.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := f.store.Ready(ctx); err == nil {
				t.Error("Ready says nothing")
			}
			if n := ran.Load(); n != 1 {
				t.Errorf("the handler ran %d times, want once", n)
			}
			fault.end(t, server, f.DB)
			eventually(t, "it does not serve", func() bool { return post(h, "after").Code == http.StatusCreated })
			if w := post(h, "before"); w.Code != http.StatusCreated || w.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("what was recorded before: %d, %v", w.Code, w.Header())
			}
		})
	}
}
