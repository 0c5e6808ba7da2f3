package pgintent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/internal/intent"
	"intentd/internal/pgtest"
)

// hold has all reads wait, until release.
func hold(r *reader) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy += atOnce
	return func() {
		for range atOnce {
			r.next()
		}
	}
}

func (r *reader) state() (waiting, busy int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting), r.busy
}

// eventually waits for what another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatal(what)
		case <-time.After(time.Millisecond):
		}
	}
}

// statements keeps what is sent to the database.
type statements struct {
	mu  sync.Mutex
	sql []string
}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sql = append(s.sql, d.SQL)
	return ctx
}

func (s *statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// reads returns how many statements read intents, alone and together.
func (s *statements) reads() (alone, together int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sql := range s.sql {
		switch {
		case sql == selectIntents:
			together++
		case strings.HasPrefix(sql, selectIntent):
			alone++
		}
	}
	return alone, together
}

// gathering returns a store of conns connections whose reads have patience, and
// what it sends.
func gathering(t *testing.T, db *pgtest.DB, conns int32) (*Store, *statements) {
	t.Helper()
	c, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := new(statements)
	c.ConnConfig.Tracer, c.MaxConns = s, conns
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store := New(pool, nil)
	store.reader.patience = time.Hour
	return store, s
}

// wanted is a read, and what it must come to.
type wanted struct {
	merchantID string
	id         intent.ID
	in         intent.Intent
	err        error
}

// together begins all reads while others are under way, and returns what waits
// for them to be what they must.
func together(t *testing.T, s *Store, reads []wanted) (check func()) {
	t.Helper()
	var wg sync.WaitGroup
	got, errs := make([]intent.Intent, len(reads)), make([]error, len(reads))
	for i, w := range reads {
		wg.Go(func() { got[i], errs[i] = s.Get(t.Context(), w.merchantID, w.id) })
	}
	return func() {
		t.Helper()
		wg.Wait()
		for i, w := range reads {
			if diff := cmp.Diff(w.in, got[i]); diff != "" || !errors.Is(errs[i], w.err) {
				t.Errorf("read %d: %v, want %v; (-want +got):\n%s", i, errs[i], w.err, diff)
			}
		}
	}
}

func TestStore_Get_Gathered(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	writer := New(db.Pool, nil)
	made := func(merchantID string) wanted {
		p := params()
		reference := "of " + merchantID
		p.Reference = &reference
		in, err := intent.New(writer).Create(t.Context(), merchantID, p)
		if err != nil {
			t.Fatal(err)
		}
		return wanted{merchantID: merchantID, id: in.ID, in: in}
	}
	first, second, others := made(merchant), made(merchant), made("m-2")
	theirs := wanted{merchantID: merchant, id: others.id, err: intent.ErrNotFound}
	nobodys := wanted{merchantID: merchant, id: intent.ID{15: 1}, err: intent.ErrNotFound}
	all := []wanted{first, second, theirs, others, nobodys, first}

	t.Run("OneStatement", func(t *testing.T) {
		t.Parallel()
		s, sent := gathering(t, db, 2)
		release := hold(&s.reader)
		check := together(t, s, all)
		eventually(t, "not all wait", func() bool { n, _ := s.reader.state(); return n == len(all) })
		release()
		check()
		if alone, together := sent.reads(); alone != 0 || together != 1 {
			t.Errorf("%d statements for one and %d for many, want one for all", alone, together)
		}
		eventually(t, "something is left", func() bool { n, busy := s.reader.state(); return n == 0 && busy == 0 })
	})

	t.Run("AloneWhereFewCome", func(t *testing.T) {
		t.Parallel()
		s, sent := gathering(t, db, 2)
		for _, w := range all {
			together(t, s, []wanted{w})()
		}
		if alone, together := sent.reads(); alone != len(all) || together != 0 {
			t.Errorf("%d statements for one and %d for many, want one for each", alone, together)
		}
	})

	t.Run("Bound", func(t *testing.T) {
		t.Parallel()
		s, sent := gathering(t, db, 4)
		release := hold(&s.reader)
		many := slices.Repeat([]wanted{first}, 2*mostGathered+1)
		check := together(t, s, many)
		eventually(t, "not all wait", func() bool { n, _ := s.reader.state(); return n == len(many) })
		release()
		check()
		if alone, together := sent.reads(); alone != 1 || together != 2 {
			t.Errorf("%d statements for one and %d for many, want 1 and 2", alone, together)
		}
	})

	// A statement that hangs is not waited for.
	t.Run("Patience", func(t *testing.T) {
		t.Parallel()
		s, _ := gathering(t, db, 2)
		s.reader.patience = time.Millisecond
		release := hold(&s.reader)
		together(t, s, []wanted{first, theirs})()
		if n, _ := s.reader.state(); n != 0 {
			t.Errorf("%d still wait", n)
		}
		release()
	})

	t.Run("GivesUp", func(t *testing.T) {
		t.Parallel()
		s, _ := gathering(t, db, 2)
		release := hold(&s.reader)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Get(ctx, first.merchantID, first.id); !errors.Is(err, intent.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("Get = %v, want its context's error", err)
		}
		if n, _ := s.reader.state(); n != 0 {
			t.Errorf("%d still wait", n)
		}
		release()
	})

	// One that has been taken along may give up too, and the others do not notice.
	t.Run("OneGivesUp", func(t *testing.T) {
		t.Parallel()
		s, _ := gathering(t, db, 1)
		only, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release := hold(&s.reader)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := s.Get(ctx, first.merchantID, first.id)
			gone <- err
		}()
		eventually(t, "it does not wait", func() bool { n, _ := s.reader.state(); return n == 1 })
		check := together(t, s, []wanted{second, others})
		eventually(t, "not all wait", func() bool { n, _ := s.reader.state(); return n == 3 })
		release()
		cancel()
		if err := <-gone; !errors.Is(err, intent.ErrUnavailable) {
			t.Errorf("Get = %v, want ErrUnavailable", err)
		}
		only.Release()
		check()
	})

	// The connection of the shared statement is lost: each reads for itself.
	t.Run("Lost", func(t *testing.T) {
		t.Parallel()
		s, sent := gathering(t, db, 1)
		only, err := s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		release := hold(&s.reader)
		check := together(t, s, all)
		eventually(t, "not all wait", func() bool { n, _ := s.reader.state(); return n == len(all) })
		release()
		db.Exec(t, "select pg_terminate_backend($1, 10000)", only.Conn().PgConn().PID())
		only.Release() // it does not know yet
		check()
		if alone, _ := sent.reads(); alone != len(all) {
			t.Errorf("%d statements for one, want %d", alone, len(all))
		}
	})
}
