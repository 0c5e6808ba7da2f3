package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"intentd/client"
)

// customer is a merchant that pays through package client, whose rule it has to
// be that makes each payment once: it settles nothing by itself but calls that
// ended open, as the package says.
type customer struct {
	m     *merchant
	scope map[string]*client.Client
}

// libraryMerchants is how many of them a scenario has, beside its own.
func (s scenario) libraryMerchants() int { return max(2, s.clients/6) }

func newCustomer(t *trial, stream uint64) (*customer, error) {
	c := &customer{m: &merchant{t: t, rng: rand.New(rand.NewPCG(t.seed, stream))}, scope: make(map[string]*client.Client)}
	for _, scope := range merchants {
		var err error
		// The address is the transport's business.
		c.scope[scope], err = client.New("http://replica", token+scope,
			client.WithHTTPClient(&http.Client{Transport: &recording{t: t, scope: scope, rng: rand.New(rand.NewPCG(t.seed, stream+1<<32))}}),
			client.WithAttempts(4), client.WithAttemptTimeout(1500*time.Millisecond), client.WithBackoff(20*time.Millisecond, time.Second))
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// work pays until ctx ends; the payment that runs then is brought to its end.
func (c *customer) work(ctx context.Context) {
	for ctx.Err() == nil {
		p := c.m.newPayment()
		request := client.PaymentIntentRequest{
			Chain: "evm:31337", Token: fmt.Sprintf("0x%040x", 0xaaaa), Payer: fmt.Sprintf("0x%040x", 0xbbbb), Merchant: fmt.Sprintf("0x%040x", 0xcccc),
			Amount: strconv.Itoa(1 + c.m.rng.IntN(1_000_000)), ExpiresInSeconds: int64(c.m.t.s.expiresIn), Reference: p.key,
		}
		// What the package is known to send: the trial asks about the key in the end.
		var err error
		if p.bodies[0], err = json.Marshal(request); err != nil {
			panic(err) // it holds nothing that has no JSON
		}
		c.m.t.remember(p)
		c.pay(p, request)
		pause(ctx, c.m.upTo(c.m.t.s.think))
	}
}

// pay calls until the outcome is settled, or patience is at its end.
func (c *customer) pay(p payment, request client.PaymentIntentRequest) {
	t := c.m.t
	ctx, cancel := context.WithTimeout(context.Background(), time.Second+c.m.upTo(5*time.Second))
	defer cancel()
	t.count.add("package client: payments", 1)
	for {
		made, err := c.scope[p.scope].CreatePaymentIntent(ctx, request, client.WithKey(p.key))
		var failed *client.Error
		switch {
		case err == nil && made.Reference != p.key:
			t.rec.seen("%s/%s: package client was told of %s's intent", p.scope, p.key, made.Reference)
			return
		case err == nil:
			return
		case !errors.As(err, &failed):
			t.rec.seen("%s/%s: package client sent nothing: %v", p.scope, p.key, err)
			return
		case !failed.Retryable():
			t.rec.seen("%s/%s: package client was refused: %v", p.scope, p.key, err)
			return
		case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
			t.count.add("package client: patience at its end", 1)
			return
		}
		t.count.add("package client: calls again that ended open", 1)
	}
}

// recording is a transport that writes each exchange into the history, and
// spreads the attempts over the replicas as a balancer does.
type recording struct {
	t     *trial
	scope string

	mu  sync.Mutex
	rng *rand.Rand
}

// RoundTrip implements [http.RoundTripper]. An answer that did not come whole is
// none, to the history and to the client.
func (c *recording) RoundTrip(asked *http.Request) (*http.Response, error) {
	c.mu.Lock()
	replica := c.rng.IntN(len(c.t.replicas))
	c.mu.Unlock()
	raw, err := io.ReadAll(asked.Body)
	if err != nil {
		return nil, err
	}
	_ = asked.Body.Close()
	req := asked.Clone(asked.Context())
	req.URL.Host, req.Host = c.t.replicas[replica].addr, ""
	// As in send: nothing that net/http could send again unseen.
	req.Body, req.GetBody = io.NopCloser(bytes.NewReader(raw)), nil
	r := Request{Op: opCreate, Scope: c.scope, Key: asked.Header.Get("Idempotency-Key"), Replica: replica}
	resp, err := c.t.exchange(req, &r)
	if r.OK() {
		c.t.compare(r)
	}
	return resp, err
}
