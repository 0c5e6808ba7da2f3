package client_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
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
	"intentd/internal/secret"
	"intentd/internal/secret/secrettest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	ttl   = 24 * time.Hour
	lease = 30 * time.Second
)

// The tokens of those who also have one of make api-run, which is their name: that
// can not be told from the name in a log.
const (
	merchantToken = "merchants-" + secrettest.Word
	relayerToken  = "relayers-" + secrettest.Word
	listenerToken = "listeners-" + secrettest.Word
)

// holders are those of make api-run, and their other tokens.
func holders() map[apikey.Digest]apikey.Holder {
	byDigest := make(map[apikey.Digest]apikey.Holder)
	for holder, tokens := range map[apikey.Holder][]string{
		{Merchant: "merchant-demo", Role: apikey.API, Mode: apikey.Live}: {"merchant-demo", merchantToken},
		{Merchant: "chain-1", Role: apikey.Relayer, Mode: apikey.Live}:   {"relayer-demo", relayerToken},
		{Merchant: "chain-1", Role: apikey.Listener, Mode: apikey.Live}:  {"listener-demo", listenerToken},
		{Merchant: "desk", Role: apikey.Operator, Mode: apikey.Live}:     {"operator-demo"},
	} {
		for _, token := range tokens {
			byDigest[apikey.DigestOf(secret.New(token))] = holder
		}
	}
	return byDigest
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
		Authenticator: apikey.NewStatic(holders()),
		Ready:         func(context.Context) error { return nil },
		Log:           slog.New(slog.NewTextHandler(loud{}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		RateLimit:     limit,
	})
}

// loud writes where go test -v, and so tests/tokens, can read the service's log. It
// is not a test's own output, since examples have none.
type loud struct{}

func (loud) Write(p []byte) (int, error) {
	if testing.Verbose() {
		return os.Stderr.Write(p)
	}
	return len(p), nil
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
