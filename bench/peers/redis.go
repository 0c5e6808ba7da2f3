package peers

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"intentd/internal/idempotency"
)

// redisStore keeps keys in Redis, and nothing of them in the database.
//
// It is not exactly once, and can not be: a crash between the INSERT and the SET
// of the answer leaves an intent without a record, and the retry makes a second
// one when the claim has run out. With appendfsync everysec, the last second of
// records is lost with the machine.
type redisStore struct {
	unasked
	client     *redis.Client
	pool       *pgxpool.Pool
	ttl, lease time.Duration
}

// entry is a key's value. One without a status is a claim whose request runs.
type entry struct {
	Fingerprint []byte      `json:"f"`
	Claimant    string      `json:"c,omitempty"`
	Status      int         `json:"s,omitempty"`
	Header      http.Header `json:"h,omitempty"`
	Body        []byte      `json:"b,omitempty"`
	CreatedAt   int64       `json:"t"` // microseconds since 1970
}

// redisKey is scope and key in one. A scope is a merchant's id, which has no
// colon.
func redisKey(id idempotency.ID) string { return "idempotency:" + id.Scope + ":" + id.Key }

// Claim implements idempotency.Store. SET with NX and GET, of Redis 7, sets a key
// that is not there and tells what is, in one round trip.
func (s *redisStore) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	now := time.Now()
	claim := entry{Fingerprint: fp[:], Claimant: rand.Text(), CreatedAt: now.UnixMicro()}
	value, err := json.Marshal(claim)
	if err != nil {
		return idempotency.Claim{}, err
	}
	there, err := s.client.SetArgs(ctx, redisKey(id), value, redis.SetArgs{Mode: "NX", Get: true, TTL: s.lease}).Bytes()
	if errors.Is(err, redis.Nil) {
		a := &redisAttempt{store: s, id: id, claim: claim, now: now.UTC(), work: work{db: s.pool, now: now.UTC().Truncate(time.Microsecond)}}
		return idempotency.Claim{Outcome: idempotency.Fresh, Attempt: a}, nil
	}
	if err != nil {
		return idempotency.Claim{}, err
	}
	var found entry
	if err := json.Unmarshal(there, &found); err != nil {
		return idempotency.Claim{}, err
	}
	rec := idempotency.Record{
		Response:  idempotency.Response{Status: found.Status, Header: found.Header, Body: found.Body},
		CreatedAt: time.UnixMicro(found.CreatedAt).UTC(),
	}
	rec.ExpiresAt = rec.CreatedAt.Add(s.ttl)
	copy(rec.Fingerprint[:], found.Fingerprint)
	return rival(rec, found.Status != 0, fp), nil
}

// Lease implements idempotency.Store.
func (s *redisStore) Lease() time.Duration { return s.lease }

// TTL implements idempotency.Store.
func (s *redisStore) TTL() time.Duration { return s.ttl }

// DeleteExpired implements idempotency.Store: Redis does that.
func (s *redisStore) DeleteExpired(context.Context, int) (int, error) { return 0, nil }

type redisAttempt struct {
	work
	store *redisStore
	id    idempotency.ID
	claim entry
	now   time.Time
	ended bool
}

// Time implements idempotency.Attempt, by this process's clock.
func (a *redisAttempt) Time() time.Time { return a.now }

// Bind implements idempotency.Attempt.
func (a *redisAttempt) Bind(ctx context.Context) context.Context { return a.bind(ctx) }

// Complete implements idempotency.Attempt. The intent is there already; only the
// answer is put beside it.
func (a *redisAttempt) Complete(ctx context.Context, resp idempotency.Response) error {
	if a.err != nil {
		return a.err
	}
	done := a.claim
	done.Claimant, done.Status, done.Header, done.Body = "", resp.Status, resp.Header, resp.Body
	value, err := json.Marshal(done)
	if err != nil {
		return err
	}
	a.ended = true
	if err := a.store.client.Set(ctx, redisKey(a.id), value, a.store.ttl).Err(); err != nil {
		return errors.Join(idempotency.ErrInDoubt, err)
	}
	return nil
}

// Abandon implements idempotency.Attempt. An intent that was inserted stays.
func (a *redisAttempt) Abandon(ctx context.Context) error {
	if a.ended {
		return nil
	}
	a.ended = true
	return a.store.client.Del(ctx, redisKey(a.id)).Err()
}

// EmptyRedis takes away all that is in the Redis server at socket.
func EmptyRedis(ctx context.Context, socket string) error {
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer client.Close()
	return client.FlushAll(ctx).Err()
}

// FillRedis puts n answers on record in the Redis server at socket, under the
// keys that key names from 1 on. They live for ttl.
func FillRedis(ctx context.Context, socket, scope string, n int, key func(int) string, fp idempotency.Fingerprint, resp idempotency.Response, ttl time.Duration) error {
	const batch = 1000
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket})
	defer client.Close()
	value, err := json.Marshal(entry{
		Fingerprint: fp[:], Status: resp.Status, Header: resp.Header, Body: resp.Body, CreatedAt: time.Now().UnixMicro(),
	})
	if err != nil {
		return err
	}
	for from := 1; from <= n; from += batch {
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := from; i < min(from+batch, n+1); i++ {
				p.Set(ctx, redisKey(idempotency.ID{Scope: scope, Key: key(i)}), value, ttl)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
