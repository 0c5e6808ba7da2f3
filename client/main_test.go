package client_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"intentd/client"
	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/idempotency/memidem"
	"intentd/internal/idempotency/pgidem"
	"intentd/internal/intent"
	"intentd/internal/intent/memintent"
	"intentd/internal/intent/pgintent"
	"intentd/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	ttl   = 24 * time.Hour
	lease = 30 * time.Second
)

// holders are those of make api-run.
var holders = map[string]apikey.Holder{
	"merchant-demo": {Merchant: "merchant-demo", Role: apikey.API, Mode: apikey.Live},
	"relayer-demo":  {Merchant: "chain-1", Role: apikey.Relayer, Mode: apikey.Live},
	"listener-demo": {Merchant: "chain-1", Role: apikey.Listener, Mode: apikey.Live},
	"operator-demo": {Merchant: "desk", Role: apikey.Operator, Mode: apikey.Live},
}

// inMemory is the service as API_STORE=memory has it.
func inMemory(limit api.RateLimit) http.Handler {
	return handler(limit,
		memintent.New(time.Now, func(ctx context.Context) (memintent.Joined, bool) { return memidem.FromContext(ctx) }),
		memidem.New(ttl, lease, time.Now))
}

// onPostgres is the service over a database.
func onPostgres(t *testing.T, url string) http.Handler {
	t.Helper()
	c, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns = 8
	pgidem.Configure(c)
	pool, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return handler(api.RateLimit{},
		pgintent.New(pool, func(ctx context.Context) (pgintent.Tx, bool) { return pgidem.FromContext(ctx) }),
		pgidem.New(pool, ttl, lease))
}

func handler(limit api.RateLimit, intents intent.Store, keys idempotency.Store) http.Handler {
	return api.New(api.Config{
		Intents:       intent.New(intents),
		Idempotency:   keys,
		Authenticator: apikey.NewStatic(holders),
		Ready:         func(context.Context) error { return nil },
		Log:           slog.New(slog.DiscardHandler),
		RateLimit:     limit,
	})
}

// serve returns the address of a service of the test's own.
func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func newClient(t *testing.T, baseURL, token string, opts ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(baseURL, token, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
