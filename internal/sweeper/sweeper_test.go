package sweeper_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"intentd/internal/sweeper"
)

func TestSweeper_Run(t *testing.T) {
	t.Parallel()

	// run sweeps for d of the bubble's time, and returns what was logged.
	run := func(t *testing.T, d time.Duration, jobs ...sweeper.Job) string {
		t.Helper()
		var log bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		s := &sweeper.Sweeper{Jobs: jobs, Interval: 10 * time.Second, Batch: 3, Log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
		return log.String()
	}

	t.Run("AtOnceAndThenByInterval", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			var at []time.Duration
			began := time.Now()
			run(t, 1000*time.Second, sweeper.Job{Name: "j", Run: func(context.Context, int) (int, error) {
				at = append(at, time.Since(began))
				time.Sleep(4 * time.Second) // the bubble's: what a round takes is part of the interval
				return 0, nil
			}})
			if len(at) == 0 || at[0] != 0 {
				t.Fatalf("rounds at %v, want one at once", at)
			}
			if len(at) < 91 || len(at) > 112 {
				t.Errorf("%d rounds in 1000 s, want about 100", len(at))
			}
			same := true
			for i := 1; i < len(at); i++ {
				wait := at[i] - at[i-1]
				if wait < 9*time.Second || wait > 11*time.Second {
					t.Errorf("waited %v, want 10 s, a tenth more or less", wait)
				}
				same = same && wait == at[1]-at[0]
			}
			if same {
				t.Error("every wait is the same: replicas would never drift apart")
			}
		})
	})

	t.Run("BatchesUntilAShortOne", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			left := 7
			var batches []int
			log := run(t, time.Second, sweeper.Job{Name: "j", Run: func(_ context.Context, limit int) (int, error) {
				n := min(left, limit)
				left -= n
				batches = append(batches, n)
				return n, nil
			}})
			if !slices.Equal(batches, []int{3, 3, 1}) {
				t.Errorf("batches %v, want 3 3 1", batches)
			}
			if !strings.Contains(log, "count=7") {
				t.Errorf("log does not tell the sum:\n%s", log)
			}
		})
	})

	for name, broken := range map[string]func(context.Context, int) (int, error){
		"FailureIsLoggedAndTheRestGoesOn": func(context.Context, int) (int, error) { return 0, errors.New("out of order") },
		"PanicIsLoggedAndTheRestGoesOn":   func(context.Context, int) (int, error) { panic("out of order") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				tried, rounds := 0, 0
				log := run(t, time.Minute,
					sweeper.Job{Name: "broken", Run: func(ctx context.Context, limit int) (int, error) {
						tried++
						return broken(ctx, limit)
					}},
					sweeper.Job{Name: "good", Run: func(context.Context, int) (int, error) { rounds++; return 0, nil }},
				)
				if tried < 5 || rounds < 5 {
					t.Errorf("broken job tried %d times, good one ran %d times in a minute; want both every 10 s", tried, rounds)
				}
				if !strings.Contains(log, "out of order") || !strings.Contains(log, "job=broken") {
					t.Errorf("log does not tell the failure:\n%s", log)
				}
			})
		})
	}

	t.Run("SilenceIsBoundedAndTheRestGoesOn", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			tried, rounds := 0, 0
			good := sweeper.Job{Name: "good", Run: func(context.Context, int) (int, error) { rounds++; return 0, nil }}
			log := run(t, 5*time.Minute, sweeper.Job{Name: "silent", Run: func(ctx context.Context, _ int) (int, error) {
				tried++
				<-ctx.Done()
				return 0, ctx.Err()
			}}, good)
			if rounds < 25 {
				t.Errorf("beside it a good job ran %d times in 5 minutes, want every 10 s", rounds)
			}
			if tried < 5 || !strings.Contains(log, "job=silent") {
				t.Errorf("a job that hears nothing was tried %d times in 5 minutes, and logged:\n%s", tried, log)
			}
		})
	})

	t.Run("TellsOfEachRound", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			broken := errors.New("out of order")
			batch := func(name string, then func(n int) (int, error)) sweeper.Job {
				n := 0
				return sweeper.Job{Name: name, Run: func(context.Context, int) (int, error) {
					time.Sleep(time.Second)
					n++
					return then(n)
				}}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second) // less than an interval
			defer cancel()
			var mu sync.Mutex
			rounds := map[string][]sweeper.Round{}
			s := &sweeper.Sweeper{Interval: 10 * time.Second, Batch: 3, Log: slog.New(slog.DiscardHandler),
				Jobs: []sweeper.Job{
					batch("good", func(n int) (int, error) { return max(0, 7-3*n), nil }),
					batch("fails", func(n int) (int, error) {
						if n == 3 {
							return 1, broken
						}
						return 3, nil
					}),
					batch("panics", func(int) (int, error) { panic(broken) }),
					{Name: "cut", Run: func(ctx context.Context, _ int) (int, error) { <-ctx.Done(); return 2, ctx.Err() }},
				},
				Observe: func(r sweeper.Round) {
					mu.Lock()
					defer mu.Unlock()
					rounds[r.Job] = append(rounds[r.Job], r)
				},
			}
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
			for _, want := range []sweeper.Round{
				{Job: "good", Done: 4 + 1, Took: 2 * time.Second},
				{Job: "fails", Done: 3 + 3 + 1, Took: 3 * time.Second, Err: broken},
				{Job: "panics", Took: time.Second, Err: errors.New("panic: out of order")},
				{Job: "cut", Done: 2, Took: 8 * time.Second}, // by the end, which is no failure
			} {
				if got := rounds[want.Job]; len(got) != 1 || fmt.Sprint(got[0]) != fmt.Sprint(want) {
					t.Errorf("told %v, want one round %v", got, want)
				}
			}
		})
	})

	// A round's work is done under the context that its beginning was given.
	t.Run("Traced", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			type roundKey struct{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var told []string
			tell := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
			left := 4
			s := &sweeper.Sweeper{
				Interval: time.Hour, Batch: 3, Log: slog.New(slog.DiscardHandler),
				Jobs: []sweeper.Job{{Name: "j", Run: func(ctx context.Context, limit int) (int, error) {
					tell("batch of %v", ctx.Value(roundKey{}))
					time.Sleep(time.Millisecond) // the bubble's
					n := min(left, limit)
					left -= n
					return n, nil
				}}},
				Trace: func(ctx context.Context, job string) (context.Context, func(sweeper.Round)) {
					tell("begins %s", job)
					return context.WithValue(ctx, roundKey{}, job), func(r sweeper.Round) { tell("ends %v", r) }
				},
			}
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
			if want := []string{"begins j", "batch of j", "batch of j", "ends {j 4 2ms <nil>}"}; !slices.Equal(told, want) {
				t.Errorf("told %q, want %q", told, want)
			}
		})
	})

	t.Run("EndsInTheMiddle", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			var log bytes.Buffer
			s := &sweeper.Sweeper{Interval: time.Second, Batch: 1, Log: slog.New(slog.NewTextHandler(&log, nil)), Jobs: []sweeper.Job{
				{Name: "endless", Run: func(ctx context.Context, _ int) (int, error) {
					cancel()
					return 1, ctx.Err()
				}},
			}}
			if err := s.Run(ctx); err != nil {
				t.Errorf("Run = %v", err)
			}
			if strings.Contains(log.String(), "failed") {
				t.Errorf("the end of the sweeper is logged as a failure:\n%s", &log)
			}
		})
	})
}
