package pgintent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/intent"
)

const (
	// atOnce is how many statements read intents for Get at a time: while one is
	// on its way, the answers of another are worked on.
	atOnce = 2

	// mostGathered is how many reads one statement serves.
	mostGathered = 128

	// gatherPatience is how long a read waits for others to end. It is many times
	// what one takes; what takes longer waits for something that this one need
	// not wait for.
	gatherPatience = 50 * time.Millisecond

	// gatheredTimeout is for a statement that serves many. Each of them has its own
	// patience too.
	gatheredTimeout = 5 * time.Second
)

// reader reads single intents. Where few are asked for, each has a statement of
// its own. Those that come while atOnce statements are under way wait for one of
// them to end, and are then read together: a round trip costs as much for a
// hundred as for one. Each sees what was committed before it came, since its
// statement begins later.
type reader struct {
	pool     *pgxpool.Pool
	patience time.Duration // gatherPatience, but in tests

	mu      sync.Mutex
	busy    int // statements that may be followed by one for those that wait
	waiting []*read
}

// read is one that waits for others.
type read struct {
	ctx        context.Context // for its values, and while it is the only one
	merchantID string
	id         intent.ID
	answer     chan reading // of one
}

// reading is what came of a read; alone says that it has to see for itself.
type reading struct {
	in    intent.Intent
	err   error
	alone bool
}

// get returns the intent, or ErrNotFound. Its error is ErrUnavailable too where ctx
// ends while it waits.
func (r *reader) get(ctx context.Context, merchantID string, id intent.ID) (intent.Intent, error) {
	r.mu.Lock()
	if r.busy < atOnce {
		r.busy++
		r.mu.Unlock()
		defer r.next()
		in, _, err := one(ctx, r.pool, merchantID, id)
		return in, err
	}
	w := &read{ctx: ctx, merchantID: merchantID, id: id, answer: make(chan reading, 1)}
	r.waiting = append(r.waiting, w)
	r.mu.Unlock()

	timer := time.NewTimer(r.patience)
	defer timer.Stop()
	var f reading
	select {
	case f = <-w.answer:
	case <-timer.C:
		if f.alone = r.withdraw(w); !f.alone {
			f = w.await()
		}
	case <-ctx.Done():
		r.withdraw(w)
		f.err = w.late()
	}
	if f.alone {
		f.in, _, f.err = one(ctx, r.pool, merchantID, id)
	}
	return f.in, f.err
}

// await waits for the statement that has taken the read along.
func (w *read) await() reading {
	select {
	case f := <-w.answer:
		return f
	case <-w.ctx.Done():
		return reading{err: w.late()}
	}
}

func (w *read) late() error {
	return fmt.Errorf("%w: waiting for other reads: %w", intent.ErrUnavailable, w.ctx.Err())
}

// withdraw takes a read from those that wait. It returns whether it was there.
func (r *reader) withdraw(w *read) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.waiting, w)
	if i < 0 {
		return false
	}
	r.waiting = slices.Delete(r.waiting, i, i+1)
	return true
}

// next has those that wait follow a statement that has ended. Nobody waits for
// it: whose statement that was has his answer.
func (r *reader) next() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.busy--
		return
	}
	reads := slices.Clone(r.waiting[:min(mostGathered, len(r.waiting))])
	r.waiting = slices.Delete(r.waiting, 0, len(reads))
	go func() {
		defer r.next()
		r.together(reads)
	}()
}

// together answers reads from one statement. If that fails, each has to see for
// itself, as it would have: one connection that was lost is no answer to all.
func (r *reader) together(reads []*read) {
	if len(reads) == 1 {
		w := reads[0]
		in, _, err := one(w.ctx, r.pool, w.merchantID, w.id)
		w.answer <- reading{in: in, err: err}
		return
	}
	// The first one's values, for what watches the database; nobody's patience.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(reads[0].ctx), gatheredTimeout)
	defer cancel()
	merchants, ids := make([]string, len(reads)), make([]string, len(reads))
	readings := make([]reading, len(reads))
	for i, w := range reads {
		merchants[i], ids[i] = w.merchantID, dashed(w.id)
		readings[i].err = intent.ErrNotFound
	}
	_, err := collect(ctx, r.pool, func(row pgx.CollectableRow) (n int, err error) {
		in, _, err := scanIntent(row, "", &n)
		if err == nil {
			in.MerchantID = merchants[n-1]
			readings[n-1] = reading{in: in}
		}
		return n, err
	}, selectIntents, merchants, ids)
	for i, w := range reads {
		if err != nil {
			readings[i] = reading{alone: true}
		}
		w.answer <- readings[i]
	}
}
