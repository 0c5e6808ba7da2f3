package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/redisidem"
	"intentd/internal/redistest"
)

// onRedis is a server of the trial's own for the intents, and one of Redis for
// the records, which loses none of what it answered. (With "appendfsync everysec"
// it does, by a kill alone: seed 22 of this scenario had one acknowledged record
// of 90 keys lost.)
func onRedis(ctx context.Context, t *trial) error {
	logging.Disable() // it would tell of each connection that a fault takes
	if err := onOwn(ctx, t); err != nil {
		return err
	}
	server, err := redistest.Start(redistest.Options{TCP: true, Args: redistest.Durable.Args})
	if err != nil {
		return err
	}
	t.onEnd(func() { _ = server.Close() })
	t.redis = server
	t.env = []string{"IDEMPOTENCY_STORE=redis", "REDIS_URL=" + server.URL()}
	return nil
}

// redisClient is a connection to the records' server past the service's.
func (t *trial) redisClient() (*redis.Client, error) {
	o, err := redis.ParseURL(t.redis.URL())
	if err != nil {
		return nil, err
	}
	redisidem.Configure(o)
	return redis.NewClient(o), nil
}

// recordPrefix is that of the service's keys: cmd/api has it.
const recordPrefix = "intentd:idempotency:"

// redisRecords reads the records of all payments. Names in Redis do not tell
// whose they are, so that each is asked for; one that no payment has is an error.
func (t *trial) redisRecords(ctx context.Context) (records []Record, err error) {
	client, err := t.redisClient()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	store := redisidem.New(client, recordPrefix, t.s.ttl, t.s.lease)
	for _, p := range t.payments {
		rec, _, err := store.Lookup(ctx, idempotency.ID{Scope: p.scope, Key: p.key})
		if err != nil {
			return nil, err
		}
		if rec == nil {
			continue
		}
		var body struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(rec.Response.Body, &body); err != nil {
			return nil, err
		}
		records = append(records, Record{
			Scope: p.scope, Key: p.key, Status: rec.Response.Status, ID: body.ID, Body: digest(rec.Response.Body),
			Created: rec.CreatedAt.UnixMicro(), Expires: rec.ExpiresAt.UnixMicro(),
		})
	}
	n, err := client.DBSize(ctx).Result()
	if err == nil && n != int64(len(records)) {
		t.rec.seen("Redis has %d keys, and %d records are of payments", n, len(records))
	}
	return records, err
}

// killRedis kills the records' server and starts it again, with what it wrote.
func killRedis(ctx context.Context, n *nemesis) error {
	n.t.redis.Kill()
	time.Sleep(n.between(0, 500*time.Millisecond))
	return n.returned(ctx, n.t.redis.Start())
}

// stopRedis makes the records' server silent: for a moment, or for longer than
// the lease and the service's patience for a claim.
func stopRedis(longest time.Duration) fault {
	return func(_ context.Context, n *nemesis) error {
		if err := n.t.redis.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		time.Sleep(n.between(longest/4, longest))
		return n.t.redis.Signal(syscall.SIGCONT)
	}
}

// cutRedis cuts every connection to the records' server, some times in a row, so
// that some lose an answer that is on its way.
func cutRedis(ctx context.Context, n *nemesis) error {
	client, err := n.t.redisClient()
	if err != nil {
		return err
	}
	defer client.Close()
	for range 20 {
		if err := client.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
			return err
		}
		time.Sleep(n.between(time.Millisecond, 20*time.Millisecond))
	}
	return nil
}

// left are the intents that no client was told of and no record names, where
// records and intents are not one transaction: what a crash between the two
// leaves. again is how many of their keys made another.
func left(h *History) (untold []Intent, again int) {
	known := make(map[string]bool)
	for _, r := range h.Requests {
		if r.OK() {
			known[r.ID] = true
		}
	}
	for _, r := range h.Records {
		known[r.ID] = true
	}
	byKey := make(map[name]int)
	for _, i := range h.Intents {
		byKey[name{i.Scope, i.Reference}]++
	}
	for _, i := range h.Intents {
		if !known[i.ID] {
			untold = append(untold, i)
			if byKey[name{i.Scope, i.Reference}] > 1 {
				again++
			}
		}
	}
	return untold, again
}

// explained: where records and intents are not one transaction, a key makes one
// intent, and one more for each request of its own that ended without a final
// answer. An intent that a client was told of has its record. Nobody loses a key
// before the lease has passed.
func explained(h *History) (bad []string) {
	intents := make(map[name]int)
	for _, i := range h.Intents {
		intents[name{i.Scope, i.Reference}]++
	}
	open := make(map[name]int)
	for _, r := range h.Requests {
		if r.Code == "idempotency_attempt_superseded" && r.Return-r.Call < int64(h.Setup.Lease) {
			bad = append(bad, fmt.Sprintf("%s: superseded %v after it was sent", r.name(), time.Duration(r.Return-r.Call)))
		}
		// In flight says that somebody else runs, and makes nothing.
		if r.Op != opRead && !r.Final() && r.Code != "idempotency_key_in_flight" {
			open[r.name()]++
		}
	}
	each(intents, func(n name, made int) {
		if made > 1+open[n] {
			bad = append(bad, fmt.Sprintf("%s: %d intents, and %d requests without a final answer", n, made, open[n]))
		}
	})
	records := make(map[string]bool)
	for _, r := range h.Records {
		records[r.ID] = true
	}
	told := make(map[string]bool)
	for _, r := range h.Requests {
		if r.OK() && !records[r.ID] && !told[r.ID] {
			told[r.ID] = true
			bad = append(bad, fmt.Sprintf("%s: %s was acknowledged, and has no record", r.name(), r.ID))
		}
	}
	return bad
}

// apart says of a history of such a service what its intents came to.
func apart(h *History) string {
	untold, again := left(h)
	var names []string
	for _, i := range untold {
		names = append(names, i.State)
	}
	slices.Sort(names)
	return fmt.Sprintf("intents that nobody was told of: %d of %d (%s); %d of them under a key that made another",
		len(untold), len(h.Intents), strings.Join(slices.Compact(names), ", "), again)
}
