package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"intentd/internal/idempotency/redisidem"
)

// keyPrefix begins the names of our keys in Redis. Every version must have the
// same, or a key that one has seen would be new to the other.
const keyPrefix = "intentd:idempotency:"

// keepInRedis has b's idempotency records in Redis. The intents stay where they
// are, in transactions of their own: no attempt has one that they could join.
func keepInRedis(b *backend, c config, log *slog.Logger) error {
	o, err := redis.ParseURL(c.RedisURL.Reveal())
	if err != nil {
		return errors.New("REDIS_URL can not be read") // the error could hold its password
	}
	log.Warn("IDEMPOTENCY_STORE=redis: a record and its intent are not one transaction; " +
		"a crash between the two leaves an intent that nobody was told of, and the retry makes another; " +
		"the key of a holder that dies is open again after the lease, not at once; " +
		"records are as durable as Redis is told to be")
	logging.Disable() // the client's own, on standard error; what failed is in the error too
	redisidem.Configure(o)
	client := redis.NewClient(o)
	store := redisidem.New(client, keyPrefix, c.TTL, c.Lease)
	b.keys, b.groups = store, nil
	intentsReady, intentsLag, intentsClose := b.ready, b.lag, b.close
	// Redis deletes its own; what the other store may have left is not swept.
	b.lag = func(ctx context.Context) (map[string]time.Duration, error) {
		lags, err := intentsLag(ctx)
		delete(lags, deleteKeys)
		return lags, err
	}
	b.ready = func(ctx context.Context) error {
		if err := intentsReady(ctx); err != nil {
			return err
		}
		return inTime("Redis", store.Ready(ctx))
	}
	b.close = func() {
		_ = client.Close() // says nothing that could be acted on
		intentsClose()
	}
	return nil
}
