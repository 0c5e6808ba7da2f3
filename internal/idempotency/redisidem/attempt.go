package redisidem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"intentd/internal/idempotency"
)

// Attempt implements idempotency.Attempt. Work that is in Redis too takes part in
// it by Queue.
type Attempt struct {
	store  *Store
	name   string
	number string
	since  time.Time
	keys   []string // of the queued commands, one for each
	words  []any    // of all of them, as complete.lua reads them
	err    error    // why the queue can not be carried out
	ended  bool
	doubt  bool // it has ended, and how is not known
}

// mostArgs are fewer than Lua has room for on its stack.
const mostArgs = 4000

type attemptKey struct{}

// FromContext returns the attempt that ctx is bound to.
func FromContext(ctx context.Context) (*Attempt, bool) {
	a, ok := ctx.Value(attemptKey{}).(*Attempt)
	return a, ok
}

// Time implements idempotency.Attempt: it is Redis' TIME.
func (a *Attempt) Time() time.Time { return a.since }

// Number is the attempt's, in decimal. Of two attempts of one key the later has
// the greater, unless the server's clock was set back after all was forgotten of
// the earlier; so a place that takes part in the work, and is not in Redis, can
// refuse the one that was superseded by comparing it (a fencing token).
func (a *Attempt) Number() string { return a.number }

// Bind implements idempotency.Attempt: FromContext finds the attempt in what it
// returns.
func (a *Attempt) Bind(ctx context.Context) context.Context {
	return context.WithValue(ctx, attemptKey{}, a)
}

// Key returns the name of a key of the attempt's own, in the slot that its record
// has in a cluster. Attempts of the same (scope, key) share it.
func (a *Attempt) Key(name string) string { return a.name + ":" + name }

// Queue has Redis carry out a command when the attempt completes, in the order of
// the calls and in one step with the record: all of them or none. command is one
// that writes key and no other; args are what follows, as go-redis takes them. Of
// what a command answers, only that it failed is heard: then Complete fails, and
// nothing was kept. What is queued after the end is never carried out.
//
// There are limits. Nothing of it can be read before. In a cluster only keys of
// the attempt's slot can be written (see Key). So that all can be undone,
// Redis copies the values of all keys but the last before it begins: where several
// commands are queued they have to be small ones. A command with more than 4000
// args makes Complete fail.
func (a *Attempt) Queue(command, key string, args ...any) {
	if len(args) > mostArgs {
		a.err = fmt.Errorf("redisidem: a queued command has %d args, more than %d", len(args), mostArgs)
	}
	a.keys = append(a.keys, key)
	a.words = append(append(a.words, 1+len(args), command), args...)
}

// Complete implements idempotency.Attempt, in one round trip. It never says
// ErrTaken: a record that another attempt left has superseded this one.
func (a *Attempt) Complete(ctx context.Context, resp idempotency.Response) error {
	if a.ended {
		return idempotency.ErrSuperseded
	}
	header, err := json.Marshal(resp.Header)
	if err = errors.Join(err, a.err); err != nil {
		return errors.Join(err, a.Abandon(ctx))
	}
	a.ended = true
	keys := append([]string{a.name}, a.keys...)
	args := append([]any{a.number, a.store.ttl.Microseconds(), resp.Status, header, resp.Body}, a.words...)
	answer, err := a.store.run(ctx, completeScript, keys, args...)
	if err != nil {
		// Of all tries the last failed so; one before it may have been carried out.
		a.doubt = true
		return fmt.Errorf("%w: %w", idempotency.ErrInDoubt, err)
	}
	switch {
	case answer[0] == isKept:
		return nil
	case answer[0] == isSuperseded:
		return idempotency.ErrSuperseded
	case answer[0] == isFailed && len(answer) == 2:
		return fmt.Errorf("redisidem: a queued command: %w", errors.New(answer[1]))
	default:
		return errUnexpected
	}
}

// Abandon implements idempotency.Attempt. After an ErrInDoubt it still frees the
// key, where nothing was kept: then nothing will be, however late Complete's
// request comes to be carried out.
func (a *Attempt) Abandon(ctx context.Context) error {
	if a.ended && !a.doubt {
		return nil
	}
	a.ended, a.doubt = true, false
	if _, err := a.store.run(ctx, abandonScript, []string{a.name}, a.number); err != nil {
		return fmt.Errorf("abandon idempotency key: %w", err)
	}
	return nil
}
