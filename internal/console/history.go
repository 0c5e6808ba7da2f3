package console

import (
	"context"
	"sync"
	"time"

	"intentd/internal/metrics"
)

const (
	// span is what the plots show, and interval how often the figures are read for
	// them.
	span     = time.Hour
	interval = 15 * time.Second
	// firstAfter lets the start be over before the figures are read, which asks
	// the database.
	firstAfter = time.Second
	// kept is one more than there are intervals: a rate is between two.
	kept = int(span/interval) + 1
)

// history is the figures of the last hour, and no more: what is older is
// overwritten.
type history struct {
	began time.Time

	mu   sync.Mutex
	ring [kept]metrics.Snapshot
	n    int // how many were ever put in
}

func newHistory(began time.Time) *history { return &history{began: began} }

func (h *history) add(s metrics.Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ring[h.n%kept] = s
	h.n++
}

// since returns what was read at from or later, oldest first.
func (h *history) since(from time.Time) []metrics.Snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []metrics.Snapshot
	for i := max(0, h.n-kept); i < h.n; i++ {
		if s := h.ring[i%kept]; !s.At.Before(from) {
			all = append(all, s)
		}
	}
	return all
}

// Run reads the figures every 15 seconds, for the plots, until ctx ends. What can
// not be read is a gap.
func (c *Console) Run(ctx context.Context) error {
	next := time.NewTimer(firstAfter)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		next.Reset(interval)
		s, err := c.Snapshot()
		if err != nil {
			c.Log.Warn("console: the figures can not be read", "error", err)
			continue
		}
		c.history.add(s)
	}
}
