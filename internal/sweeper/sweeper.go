// Package sweeper does what has come due, over and over: any number of jobs, each
// in a loop of its own. Any number of replicas may sweep at once, as long as each job's own work
// allows it.
package sweeper

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// Job is one kind of work that comes due.
type Job struct {
	Name string // for the log, such as "cancel expired intents"
	// Run does up to limit pieces of what is due, and returns how many. Fewer
	// than limit means that no more is due, or that somebody else is at it.
	Run func(ctx context.Context, limit int) (int, error)
}

// Round is what became of one round of a job.
type Round struct {
	Job  string        // its name
	Done int           // how many pieces
	Took time.Duration // all batches together
	Err  error         // what ended it before its time, a panic included; nil at the end of the Sweeper
}

// Sweeper runs its jobs at once and then every Interval, until its context ends.
type Sweeper struct {
	Jobs []Job
	// Interval from the start of one round to that of the next, which begins at
	// once where a round took longer. Each is up to a tenth shorter or longer, so
	// that replicas that started together drift apart.
	Interval time.Duration
	Batch    int // the limit given to a job; positive
	Log      *slog.Logger
	// Observe is told of each round when it has ended, those of several jobs at
	// the same time; nil: nobody is.
	Observe func(Round)
	// Trace is told of each round when it begins, and returns the context for its
	// work and what is told when it has ended, as Observe is; nil: nobody is.
	Trace func(ctx context.Context, job string) (context.Context, func(Round))
}

// Run sweeps until ctx ends, and returns nil then. Each job has a loop of its
// own: one that hangs keeps no other from its time. A job that fails or panics is
// logged and tried again in its next round.
func (s *Sweeper) Run(ctx context.Context) error {
	var jobs sync.WaitGroup
	for _, job := range s.Jobs {
		jobs.Go(func() { s.loop(ctx, job) })
	}
	jobs.Wait()
	return nil
}

func (s *Sweeper) loop(ctx context.Context, job Job) {
	for {
		timer := time.NewTimer(jitter(s.Interval))
		s.sweep(ctx, job)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// sweep runs one job, batch by batch, until a short one.
func (s *Sweeper) sweep(ctx context.Context, job Job) {
	began := time.Now()
	round := Round{Job: job.Name}
	ended := func(Round) {}
	if s.Trace != nil {
		ctx, ended = s.Trace(ctx, job.Name)
	}
	for ctx.Err() == nil {
		n, err := s.batch(ctx, job)
		round.Done += n
		if err != nil {
			if ctx.Err() == nil {
				round.Err = err
				s.Log.WarnContext(ctx, "sweep failed, will be tried again", "job", job.Name, "error", err)
			}
			break
		}
		if n < s.Batch {
			break
		}
	}
	if round.Done > 0 {
		s.Log.InfoContext(ctx, "swept", "job", job.Name, "count", round.Done)
	}
	round.Took = time.Since(began)
	ended(round)
	if s.Observe != nil {
		s.Observe(round)
	}
}

// batchTimeout is for a batch that hears nothing: a connection that was lost in
// silence must not end the sweeping.
const batchTimeout = 30 * time.Second

func (s *Sweeper) batch(ctx context.Context, job Job) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return job.Run(ctx, s.Batch)
}

// jitter returns d, up to a tenth shorter or longer.
func jitter(d time.Duration) time.Duration {
	spread := int64(d / 5)
	if spread <= 0 {
		return d
	}
	return d - d/10 + time.Duration(rand.Int64N(spread)) //nolint:gosec // spreads load, hides nothing
}
