package apikey

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sync/semaphore"

	"intentd/internal/secret"
)

const (
	// oldest is the age at which an answer of the store's is no longer used, so
	// that a key that was revoked is refused within 5 s wherever it is shown. An
	// answer's age counts from before its question was sent.
	oldest = 4 * time.Second

	// refreshAge is the age at which an answer is asked for again in the
	// background, and refreshTimeout how long that may take: a refresh that hears
	// nothing leaves the time for one more before the answer is too old.
	refreshAge     = time.Second
	refreshTimeout = time.Second

	// round is how often the directory looks what is to be refreshed.
	round = 500 * time.Millisecond

	// touchRetry is how long what could not be written waits to be tried again.
	touchRetry = time.Minute

	// keptFor is how long after its last use a key is still refreshed: a merchant
	// with a payment every few minutes finds its key there each time.
	keptFor = 10 * time.Minute

	// batch is how many keys one question names.
	batch = 500

	// lookupTimeout is how long a request may wait for the store to be asked.
	lookupTimeout = 2 * time.Second

	// lookups is how many tokens may be asked for at once. Anybody can make up
	// tokens with a right checksum; they must not take every connection.
	lookups = 4
)

// How many keys and how many tokens that nobody has are remembered.
const (
	mostKnown   = 10_000
	mostUnknown = 10_000
)

// errClosed is what a lookup ends with when the Directory does.
var errClosed = errors.New("the directory of API keys is closed")

// Directory is an Authenticator over a Store. It remembers answers for up to 4 s,
// those that a token is nobody's included, so that a key that is revoked is
// refused on every replica within 5 s, and one that is made works at once: its
// token was never asked for before.
//
// A key that was used in the last ten minutes is asked for again in the
// background before its answer is too old, many keys in one question. So a
// request waits for the store only where its key has not been used here for
// long; all that come with one token then wait for one question, for up to 2 s.
// Where the store can not be reached, keys work for as long as their answers do,
// and then Authenticate returns errors until it can.
//
// It keeps the day of a key's last use on record, by the store's calendar: one
// write for each key and day, soon after the key's first use on it, and another
// a minute later where it fails. No request waits for it or hears of it.
type Directory struct {
	store Store
	log   *slog.Logger

	observe func(Lookup) // of Observed; never nil

	slots *semaphore.Weighted
	ctx   context.Context // ends with Close
	end   context.CancelFunc
	busy  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	known   *simplelru.LRU[Digest, *entry]
	unknown *simplelru.LRU[Digest, time.Time] // when it was asked
	flights map[Digest]*flight

	// The loop's own.
	failing    bool      // the last refresh failed
	touchAfter time.Time // not before
}

// Lookup is how a Directory came to its answer about a token.
type Lookup uint8

// The ways. What is no token at all is Refused.
const (
	Cached  Lookup = iota + 1 // a key in force, as it was remembered
	Asked                     // a key in force, as the store said while the request waited
	Refused                   // nobody's token, or one that was revoked, remembered or asked for
	Failed                    // it could not be told
)

// String returns the way as it stands in metrics.
func (l Lookup) String() string {
	switch l {
	case Cached:
		return "cached"
	case Asked:
		return "asked"
	case Refused:
		return "refused"
	case Failed:
		return "failed"
	default:
		return "none"
	}
}

// entry is a key in force.
type entry struct {
	key   Key
	asked time.Time // before the question was sent that it answers
	used  time.Time // last
	// recorded is a time up to which every use is on record, or was on another
	// day; usedToday says that those since need no record either.
	recorded  time.Time
	usedToday bool
}

// flight is a question for one token, and afterwards its answer.
type flight struct {
	done   chan struct{}
	holder Holder
	found  bool
	err    error
}

// NewDirectory returns a Directory over store, whose work in the background goes
// on until Close. The log gets a line when that begins to fail, and one when it
// succeeds again; nothing in it tells a token.
func NewDirectory(store Store, log *slog.Logger) *Directory {
	return newDirectory(store, log, mostKnown, mostUnknown)
}

func newDirectory(store Store, log *slog.Logger, known, unknown int) *Directory {
	d := &Directory{store: store, log: log, observe: func(Lookup) {}, slots: semaphore.NewWeighted(lookups), flights: make(map[Digest]*flight)}
	// Both fail for sizes below 1 only.
	d.known, _ = simplelru.NewLRU[Digest, *entry](known, nil)
	d.unknown, _ = simplelru.NewLRU[Digest, time.Time](unknown, nil)
	d.ctx, d.end = context.WithCancel(context.Background())
	d.busy.Go(d.loop)
	return d
}

// Observed has observe told of each call of Authenticate, once it has its answer.
// observe must be quick and safe for concurrent use. Call it before Authenticate.
func (d *Directory) Observed(observe func(Lookup)) { d.observe = observe }

// Close ends the work in the background, running lookups included, and returns
// when nothing of it is left. Afterwards only what is remembered is answered.
func (d *Directory) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.end()
	d.busy.Wait()
}

// Authenticate implements Authenticator. It waits for the store no longer than
// ctx lasts; who else waits for the same answer is not disturbed by that.
func (d *Directory) Authenticate(ctx context.Context, token secret.Text) (Holder, bool, error) {
	holder, how, err := d.authenticate(ctx, token)
	d.observe(how)
	return holder, how == Cached || how == Asked, err
}

func (d *Directory) authenticate(ctx context.Context, token secret.Text) (Holder, Lookup, error) {
	if _, ok := ParseToken(token); !ok {
		return Holder{}, Refused, nil
	}
	digest := DigestOf(token)
	now := time.Now()

	d.mu.Lock()
	if e, ok := d.known.Get(digest); ok && now.Sub(e.asked) < oldest {
		e.used = now
		holder := e.key.Holder
		d.mu.Unlock()
		return holder, Cached, nil
	}
	if asked, ok := d.unknown.Get(digest); ok && now.Sub(asked) < oldest {
		d.mu.Unlock()
		return Holder{}, Refused, nil
	}
	f := d.lookup(digest)
	d.mu.Unlock()

	select {
	case <-f.done:
		switch {
		case f.err != nil:
			return Holder{}, Failed, f.err
		case !f.found:
			return Holder{}, Refused, nil
		default:
			return f.holder, Asked, nil
		}
	case <-ctx.Done():
		return Holder{}, Failed, fmt.Errorf("look up an API key: %w", context.Cause(ctx))
	}
}

// lookup returns the question for a token, which it asks if nobody does. The
// caller holds d.mu: so nobody asks between another's answer and its being
// remembered.
func (d *Directory) lookup(digest Digest) *flight {
	if f, ok := d.flights[digest]; ok {
		return f
	}
	f := &flight{done: make(chan struct{})}
	if d.closed {
		f.err = errClosed
		close(f.done)
		return f
	}
	d.flights[digest] = f
	d.busy.Go(func() {
		ctx, cancel := context.WithTimeoutCause(d.ctx, lookupTimeout, errors.New("the store of API keys did not answer within "+lookupTimeout.String()))
		defer cancel()
		asked, found, err := d.ask(ctx, digest)

		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.flights, digest)
		defer close(f.done)
		if err != nil {
			f.err = fmt.Errorf("look up an API key: %w", err)
			return
		}
		if len(found) == 0 || found[0].Revoked() {
			d.known.Remove(digest)
			d.unknown.Add(digest, asked)
			return
		}
		f.holder, f.found = found[0].Holder, true
		d.unknown.Remove(digest)
		e := &entry{used: time.Now()}
		e.update(found[0], asked)
		d.known.Add(digest, e)
	})
	return f
}

// ask asks the store for one token, when there is a place among the lookups.
func (d *Directory) ask(ctx context.Context, digest Digest) (asked time.Time, found []Found, err error) {
	if err := d.slots.Acquire(ctx, 1); err != nil {
		return time.Time{}, nil, context.Cause(ctx)
	}
	defer d.slots.Release(1)
	asked = time.Now()
	found, err = d.store.Find(ctx, []Digest{digest})
	return asked, found, err
}

// update takes in a newer answer.
func (e *entry) update(f Found, asked time.Time) {
	e.key, e.asked, e.usedToday = f.Key, asked, f.UsedToday
	if f.UsedToday {
		e.recorded = asked
	}
}

// unrecorded tells whether the key was used on a day for which that is not on
// record, as far as is known.
func (e *entry) unrecorded() bool {
	return !e.usedToday && e.used.After(e.recorded)
}

// loop does the work in the background.
func (d *Directory) loop() {
	ticker := time.NewTicker(round)
	defer ticker.Stop()
	for {
		select {
		case <-d.ctx.Done():
			return
		case <-ticker.C:
		}
		err := d.refresh()
		if d.ctx.Err() != nil {
			return
		}
		if err != nil && !d.failing {
			d.log.Warn("API keys can not be refreshed, will be tried again", "error", err)
		}
		if err == nil && d.failing {
			d.log.Info("API keys are refreshed again")
		}
		d.failing = err != nil

		if now := time.Now(); !now.Before(d.touchAfter) {
			if err := d.touch(now); err != nil && d.ctx.Err() == nil {
				d.touchAfter = now.Add(touchRetry)
				d.log.Warn("last use of API keys can not be recorded, will be tried again", "in", touchRetry, "error", err)
			}
		}
	}
}

// touch keeps on record which keys were used today.
func (d *Directory) touch(now time.Time) error {
	var ids []ID
	var used []Digest
	d.each(func(digest Digest, e *entry) {
		if e.unrecorded() {
			ids = append(ids, e.key.ID)
			used = append(used, digest)
		}
	})
	for len(ids) > 0 {
		n := min(len(ids), batch)
		err := d.within(refreshTimeout, func(ctx context.Context) error { return d.store.Touch(ctx, ids[:n]) })
		if err != nil {
			return err
		}
		d.mu.Lock()
		for _, digest := range used[:n] {
			if e, ok := d.known.Peek(digest); ok {
				e.recorded, e.usedToday = now, true
			}
		}
		d.mu.Unlock()
		ids, used = ids[n:], used[n:]
	}
	return nil
}

// refresh asks again for the keys that are in use and whose answers grow old.
func (d *Directory) refresh() error {
	now := time.Now()
	var due []Digest
	d.each(func(digest Digest, e *entry) {
		if now.Sub(e.asked) >= refreshAge && now.Sub(e.used) < keptFor {
			due = append(due, digest)
		}
	})
	for len(due) > 0 {
		n := min(len(due), batch)
		asked := time.Now()
		var found []Found
		err := d.within(refreshTimeout, func(ctx context.Context) (err error) {
			found, err = d.store.Find(ctx, due[:n])
			return err
		})
		if err != nil {
			return err
		}
		inForce := make(map[Digest]Found, len(found))
		for _, f := range found {
			if !f.Revoked() {
				inForce[f.Digest] = f
			}
		}
		d.mu.Lock()
		for _, digest := range due[:n] {
			// What a lookup has removed meanwhile must not come back: its answer
			// was newer.
			e, ok := d.known.Peek(digest)
			if !ok {
				continue
			}
			if f, ok := inForce[digest]; ok {
				e.update(f, asked)
				continue
			}
			d.known.Remove(digest)
			d.unknown.Add(digest, asked)
		}
		d.mu.Unlock()
		due = due[n:]
	}
	return nil
}

// each calls do with every key that is remembered, and leaves their order alone.
func (d *Directory) each(do func(Digest, *entry)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, digest := range d.known.Keys() {
		if e, ok := d.known.Peek(digest); ok {
			do(digest, e)
		}
	}
}

func (d *Directory) within(timeout time.Duration, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(d.ctx, timeout)
	defer cancel()
	return do(ctx)
}
