package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/client"
	"intentd/internal/api"
	"intentd/internal/pgtest"
)

// eachService runs a test against the real service, over each of its stores.
func eachService(t *testing.T, test func(t *testing.T, baseURL string)) {
	t.Helper()
	t.Run("Memory", func(t *testing.T) {
		t.Parallel()
		test(t, serve(t, inMemory(api.RateLimit{})))
	})
	t.Run("Postgres", func(t *testing.T) {
		t.Parallel()
		test(t, serve(t, onPostgres(t, pgtest.New(t).URL)))
	})
}

// create makes a payment that must be made.
func create(t *testing.T, c *client.Client, reference string, opts ...client.CallOption) *client.Result {
	t.Helper()
	r, err := c.CreatePaymentIntent(t.Context(), order(reference), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// refused checks an error of the service's.
func refused(t *testing.T, err error, status int, code client.Code) client.Error {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || e.Status != status || e.Code != code || e.Detail == "" || e.RequestID == "" || e.Retryable() || e.Open {
		t.Fatalf("%+v, want %d %s", err, status, code)
	}
	return *e
}

const txHash = "0x88df016429689c079f3b2f6ad39fa052532c56795b733da78a91ebe6a713944b"

func TestClient_WholeLife(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, baseURL string) {
		ctx := t.Context()
		merchant := newClient(t, baseURL, merchantToken)
		relayer := newClient(t, baseURL, relayerToken).ForMerchant("merchant-demo")
		listener := newClient(t, baseURL, listenerToken).ForMerchant("merchant-demo")

		made := create(t, merchant, "order-1", client.WithKey("order-1"))
		if made.Replayed || made.State != client.StateCreated || made.Version != 1 || made.Reference != "order-1" || made.Amount != "100000000" ||
			made.ExpiresAt.Sub(made.CreatedAt) != 15*time.Minute || made.RequestID == "" || made.Attempts != 1 || made.Transitions != nil {
			t.Errorf("created %+v", made)
		}
		again := create(t, merchant, "order-1", client.WithKey("order-1"))
		if !again.Replayed {
			t.Error("a replay does not say so")
		}
		if diff := cmp.Diff(made.PaymentIntent, again.PaymentIntent); diff != "" {
			t.Errorf("replay (-first +replay):\n%s", diff)
		}

		record, err := merchant.LookupKey(ctx, "order-1")
		if err != nil {
			t.Fatal(err)
		}
		if record.Status != 201 || record.Resource != "/v1/payment_intents/"+made.ID || record.ExpiresAt.Sub(record.CreatedAt) != ttl {
			t.Errorf("record %+v", record)
		}
		_, err = merchant.LookupKey(ctx, "order-2")
		if e := refused(t, err, 404, client.CodeNotFound); e.Key != "order-2" {
			t.Errorf("the error's key is %q", e.Key)
		}

		for _, s := range []struct {
			c    *client.Client
			step client.TransitionRequest
		}{
			{merchant, client.TransitionRequest{To: client.StateAuthorized}},
			{relayer, client.TransitionRequest{To: client.StateSettling}},
			{relayer, client.TransitionRequest{To: client.StateConfirming, TxHash: txHash}},
			{listener, client.TransitionRequest{To: client.StateSettled, TxHash: txHash}},
		} {
			now, err := s.c.Get(ctx, made.ID)
			if err != nil {
				t.Fatal(err)
			}
			moved, err := s.c.Move(ctx, made.ID, s.step, client.IfVersion(now.Version))
			if err != nil {
				t.Fatal(err)
			}
			if moved.State != s.step.To || moved.Version != now.Version+1 || moved.Replayed {
				t.Errorf("moved %+v", moved)
			}
		}
		var trail []string
		for step, err := range merchant.Transitions(ctx, made.ID) {
			if err != nil {
				t.Fatal(err)
			}
			trail = append(trail, fmt.Sprint(step.Version, step.From, step.To, step.Actor))
		}
		if diff := cmp.Diff([]string{"2createdauthorizedapi", "3authorizedsettlingrelayer", "4settlingconfirmingrelayer", "5confirmingsettledlistener"}, trail); diff != "" {
			t.Errorf("trail (-want +got):\n%s", diff)
		}

		other := create(t, merchant, "order-2")
		closed, err := merchant.Cancel(ctx, other.ID, "the customer changed her mind", client.IfVersion(1))
		if err != nil || closed.State != client.StateCanceled || closed.Version != 2 {
			t.Errorf("canceled %+v, %v", closed, err)
		}
	})
}

func TestClient_Refused(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, baseURL string) {
		ctx := t.Context()
		merchant, relayer := newClient(t, baseURL, merchantToken), newClient(t, baseURL, relayerToken)
		made := create(t, merchant, "order-1", client.WithKey("order-1"))

		_, err := merchant.CreatePaymentIntent(ctx, order("order-2"), client.WithKey("order-1"))
		if e := refused(t, err, 422, client.CodeIdempotencyKeyReused); e.Replayed || e.Key != "order-1" {
			t.Errorf("%+v", e)
		}
		bad := order("order-3")
		bad.Amount = "-1"
		_, err = merchant.CreatePaymentIntent(ctx, bad, client.WithKey("order-3"))
		if e := refused(t, err, 400, client.CodeInvalidRequest); e.Replayed || e.Key != "order-3" {
			t.Errorf("%+v", e)
		}
		_, err = merchant.CreatePaymentIntent(ctx, bad, client.WithKey("order-3"))
		if e := refused(t, err, 400, client.CodeInvalidRequest); !e.Replayed {
			t.Error("a replayed refusal does not say so")
		}
		_, err = merchant.Cancel(ctx, made.ID, "r", client.IfVersion(7))
		refused(t, err, 412, client.CodeVersionConflict)
		_, err = merchant.Move(ctx, made.ID, client.TransitionRequest{To: client.StateAuthorized}, client.IfVersion(7))
		refused(t, err, 412, client.CodeVersionConflict)
		_, err = merchant.Move(ctx, made.ID, client.TransitionRequest{To: client.StateSettled, TxHash: txHash})
		refused(t, err, 409, client.CodeInvalidTransition)
		_, err = merchant.Get(ctx, "pi_01a227ad00037e149deb5ac7ce81d7d2")
		refused(t, err, 404, client.CodeNotFound)
		_, err = relayer.ForMerchant("merchant-demo").CreatePaymentIntent(ctx, order(""))
		refused(t, err, 403, client.CodeForbiddenActor)
		_, err = relayer.Get(ctx, made.ID)
		refused(t, err, 400, client.CodeIntentMerchantInvalid)
		_, err = relayer.ForMerchant("another").Get(ctx, made.ID)
		refused(t, err, 404, client.CodeNotFound)
		_, err = newClient(t, baseURL, "nobody").CreatePaymentIntent(ctx, order(""))
		refused(t, err, 401, client.CodeUnauthorized)
		for _, err := range merchant.List(ctx, client.Filter{State: "unheard"}) {
			refused(t, err, 400, client.CodeInvalidRequest)
		}
	})
}

func TestClient_List(t *testing.T) {
	t.Parallel()
	eachService(t, func(t *testing.T, baseURL string) {
		ctx := t.Context()
		c := newClient(t, baseURL, merchantToken)
		const n = 230 // three pages
		var made []*client.Result
		for i := range n {
			made = append(made, create(t, c, fmt.Sprintf("order-%d", i)))
		}
		list := func(f client.Filter) (ids []string) {
			t.Helper()
			for pi, err := range c.List(ctx, f) {
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, pi.ID)
			}
			return ids
		}
		ids := func(from, to int) (ids []string) { // newest first
			for i := to - 1; i >= from; i-- {
				ids = append(ids, made[i].ID)
			}
			return ids
		}
		if diff := cmp.Diff(ids(0, n), list(client.Filter{})); diff != "" {
			t.Errorf("list (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(ids(7, 8), list(client.Filter{Reference: "order-7", State: client.StateCreated})); diff != "" {
			t.Errorf("by reference (-want +got):\n%s", diff)
		}
		if got := list(client.Filter{State: client.StateSettled}); got != nil {
			t.Errorf("settled: %v", got)
		}
		// Bounds finer than a microsecond, and in another zone.
		first, last := made[10].CreatedAt, made[20].CreatedAt
		zone := time.FixedZone("", 3600)
		for name, f := range map[string]struct {
			from, before time.Time
			want         []string
		}{
			"AsTheyAre":     {first, last, ids(10, 20)},
			"JustBehind":    {first.Add(1), last.Add(1), ids(11, 21)},
			"JustBefore":    {first.Add(-1), last.Add(-1), ids(10, 20)},
			"InAnotherZone": {first.In(zone), last.In(zone), ids(10, 20)},
		} {
			if diff := cmp.Diff(f.want, list(client.Filter{From: f.from, Before: f.before})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})

	t.Run("ReadsNoFurther", func(t *testing.T) {
		t.Parallel()
		var asked atomic.Int64
		h := inMemory(api.RateLimit{})
		baseURL := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				asked.Add(1)
			}
			h.ServeHTTP(w, r)
		}))
		c := newClient(t, baseURL, merchantToken)
		for i := range 101 {
			create(t, c, fmt.Sprintf("order-%d", i))
		}
		n := 0
		for _, err := range c.List(t.Context(), client.Filter{}) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n == 100 {
				break
			}
		}
		if asked.Load() != 1 {
			t.Errorf("%d pages were read for the first one's intents", asked.Load())
		}
	})

	t.Run("EndsWithItsError", func(t *testing.T) {
		t.Parallel()
		cl, _ := play(t, []step{
			says(200, `{"data":[{"id":"pi_1"},{"id":"pi_2"}],"has_more":true}`),
			says(401, `{"error":"unauthorized","detail":"d"}`),
		})
		var seen []string
		for pi, err := range cl.List(t.Context(), client.Filter{}) {
			seen = append(seen, fmt.Sprint(pi.ID, err != nil))
		}
		if diff := cmp.Diff([]string{"pi_1false", "pi_2false", "true"}, seen); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestClient_Transitions(t *testing.T) {
	t.Parallel()
	cl, s := play(t, []step{
		says(200, `{"data":[{"version":2,"to":"authorized"},{"version":3,"to":"settling"}],"has_more":true}`),
		says(200, `{"data":[{"version":4,"to":"failed"}],"has_more":false}`),
	})
	var versions []int64
	for step, err := range cl.ForMerchant("merchant-demo").Transitions(t.Context(), "pi_1") {
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, step.Version)
	}
	if diff := cmp.Diff([]int64{2, 3, 4}, versions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := s.sent[1].path, "/v1/payment_intents/pi_1/transitions?limit=100&starting_after=3"; got != want {
		t.Errorf("second page: %s, want %s", got, want)
	}
	for _, a := range s.sent {
		if got := a.header.Get("Intent-Merchant"); got != "merchant-demo" {
			t.Errorf("Intent-Merchant: %q", got)
		}
	}
}

// TestClient_RateLimit is against a service that says no, and when to come back.
func TestClient_RateLimit(t *testing.T) {
	t.Parallel()
	c := newClient(t, serve(t, inMemory(api.RateLimit{PerSecond: 1, Burst: 1})), merchantToken)
	first, second := create(t, c, "order-1"), create(t, c, "order-2")
	if first.Attempts != 1 || second.Attempts < 2 || second.Replayed {
		t.Errorf("first %+v\nsecond %+v", first, second)
	}
}

// TestClient_LostAnswer is a caller whose payment was made, and who did not hear of it.
func TestClient_LostAnswer(t *testing.T) {
	t.Parallel()
	h := inMemory(api.RateLimit{})
	var once atomic.Bool
	baseURL := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && once.CompareAndSwap(false, true) {
			// The answer goes nowhere, and the connection falls.
			h.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
			panic(http.ErrAbortHandler)
		}
		h.ServeHTTP(w, r)
	}))
	c := newClient(t, baseURL, merchantToken)
	r := create(t, c, "order-1")
	if !r.Replayed || r.Attempts != 2 {
		t.Errorf("%+v", r)
	}
	n := 0
	for _, err := range c.List(t.Context(), client.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d payment intents", n)
	}
}

// TestClient_DeadConnections is a server, or what stands before it, that closes a
// kept connection when it has read a second request from it. net/http sends such
// a request again by itself if it has leave.
func TestClient_DeadConnections(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var keys []string // of each request, in the order in which they came
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for nth := 1; ; nth++ {
					r, err := http.ReadRequest(in)
					if err != nil {
						return // the client is gone
					}
					if _, err := io.Copy(io.Discard, r.Body); err != nil {
						t.Error(err)
					}
					mu.Lock()
					keys = append(keys, r.Header.Get("Idempotency-Key"))
					mu.Unlock()
					if nth == 2 {
						return
					}
					fmt.Fprintf(conn, "HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n%s", len(intentBody), intentBody)
				}
			})
		}
	})
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	bounded := func(attempts int) *client.Client {
		return newClient(t, "http://"+l.Addr().String(), "t", client.WithHTTPClient(&http.Client{Transport: transport}),
			client.WithAttempts(attempts), client.WithBackoff(time.Millisecond, time.Millisecond))
	}
	seen := func(key string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, k := range keys {
			if k == key {
				n++
			}
		}
		return n
	}

	// The first leaves a connection in the pool, and the second finds it dead.
	create(t, bounded(1), "", client.WithKey("first"))
	_, err = bounded(1).CreatePaymentIntent(t.Context(), order(""), client.WithKey("second"))
	var e *client.Error
	if !errors.As(err, &e) || !e.Open || e.Attempts != 1 || seen("second") != 1 {
		t.Errorf("%+v; it was sent %d times, want once", err, seen("second"))
	}
	create(t, bounded(1), "", client.WithKey("third"))
	if r := create(t, bounded(5), "", client.WithKey("fourth")); r.Attempts != 2 || seen("fourth") != 2 {
		t.Errorf("%d attempts, sent %d times, want twice", r.Attempts, seen("fourth"))
	}
}
