package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// readinessTick is from one question of readiness's to the next.
	readinessTick = 5 * time.Second
	// readinessTimeout is for an answer: that of /readyz, so that the two agree.
	readinessTimeout = 2 * time.Second
)

// readiness tells the log when the service can serve no more, and when it can
// again: one line for each change, whoever asks /readyz or nobody. It asks by
// itself, every five seconds, so that a database that comes and goes writes no more
// than that, and a shorter loss may not be told.
type readiness struct {
	ask func(ctx context.Context) error // why the service can not serve, or nil
	log *slog.Logger

	lost time.Time // since when it can not; zero: it can
}

// Run asks until ctx ends, at once for the first time, and returns nil then. It
// takes the service to be ready when it begins.
func (r *readiness) Run(ctx context.Context) error {
	ticker := time.NewTicker(readinessTick)
	defer ticker.Stop()
	for {
		r.runOnce(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (r *readiness) runOnce(ctx context.Context) {
	began := time.Now()
	asking, cancel := context.WithTimeout(ctx, readinessTimeout)
	defer cancel()
	err := r.ask(asking)
	switch {
	case ctx.Err() != nil: // the end of the service, which has its own line
	case err != nil && r.lost.IsZero():
		r.lost = began
		r.log.WarnContext(ctx, "not ready", "error", err)
	case err == nil && !r.lost.IsZero():
		r.log.InfoContext(ctx, "ready again", "after", time.Since(r.lost).Round(time.Millisecond))
		r.lost = time.Time{}
	}
}

// inTime says of err, which is of somebody who was asked and had until a deadline,
// what its text leaves open: who has not answered.
func inTime(who string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%s did not answer in time: %w", who, err)
	}
	return err
}

// acquire takes a connection out of pool. Its error tells a database that does not
// answer from a pool that has none left.
func acquire(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	conn, err := pool.Acquire(ctx)
	if err == nil {
		return conn, nil
	}
	if s := pool.Stat(); errors.Is(err, context.DeadlineExceeded) && s.AcquiredConns() == s.MaxConns() {
		return nil, fmt.Errorf("none of the %d connections to the database was free in time: %w", s.MaxConns(), err)
	}
	return nil, inTime("the database", err)
}
