package console

import (
	"time"

	"intentd/internal/metrics"
)

// Remember puts figures into the history, as Run does.
func (c *Console) Remember(s metrics.Snapshot) { c.history.add(s) }

// Began sets since when the process counts.
func (c *Console) Began(at time.Time) { c.history.began = at }

// Kept is how many figures the history holds.
func (c *Console) Kept() int { return len(c.history.since(time.Time{})) }

// Sessions is how many there are.
func (c *Console) Sessions() int {
	c.sessions.mu.Lock()
	defer c.sessions.mu.Unlock()
	return len(c.sessions.all)
}

// Occupy takes every turn to ask the stores, until release is called.
func (c *Console) Occupy() (release func()) {
	if !c.slots.TryAcquire(questions) {
		panic("a turn is taken")
	}
	return func() { c.slots.Release(questions) }
}

// MostSessions is how many there may be.
const MostSessions = mostSessions

// What is written for people.
var (
	Number   = number
	Ceiling  = ceiling
	Duration = duration
	Count    = count
	ASecond  = aSecond
	Short    = short
	Reason   = reason
)
