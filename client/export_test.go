package client

import "time"

// WithJitter makes the random part of a wait the test's own.
func WithJitter(f func(time.Duration) time.Duration) Option {
	return func(c *Client) error {
		c.jitter = f
		return nil
	}
}

// Jitter is what a client draws a wait of up to d with.
func (c *Client) Jitter(d time.Duration) time.Duration { return c.jitter(d) }
