package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
)

// payment is what a merchant wants: one intent, whatever happens on the way.
type payment struct {
	scope, key string
	bodies     [2][]byte // what is meant, and what is sent by mistake
}

// manners are how the merchants of a scenario behave.
type manners struct {
	clients   int
	think     time.Duration // longest pause between two payments
	expiresIn int           // seconds
	hangUp    float64       // how often a client goes after 0 to 30 ms
	trickle   float64       // how often a body comes byte by byte
	again     float64       // how often an acknowledged payment is sent once more later
}

// merchant is one client: it pays, one payment after the other.
type merchant struct {
	t   *trial
	rng *rand.Rand
}

// newPayment makes a payment under a key of its own.
func (m *merchant) newPayment() payment {
	var id uuid.UUID
	for i := range id {
		id[i] = byte(m.rng.Uint32())
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // a UUIDv4
	p := payment{scope: merchants[m.rng.IntN(len(merchants))], key: id.String()}
	amount := 1 + m.rng.IntN(1_000_000)
	for i := range p.bodies {
		p.bodies[i] = fmt.Appendf(nil, `{"chain":"evm:31337","token":"0x%040x","payer":"0x%040x","merchant":"0x%040x",`+
			`"amount":"%d","expires_in_seconds":%d,"reference":"%s"}`,
			0xaaaa, 0xbbbb, 0xcccc, amount+i, m.t.s.expiresIn, p.key)
	}
	return p
}

// chance is true so often.
func (m *merchant) chance(p float64) bool { return m.rng.Float64() < p }

// upTo is a random duration.
func (m *merchant) upTo(d time.Duration) time.Duration {
	return time.Duration(m.rng.Int64N(int64(d) + 1))
}

// work pays until ctx ends; the payment that runs then is brought to its end.
func (m *merchant) work(ctx context.Context) {
	for ctx.Err() == nil {
		p := m.newPayment()
		m.t.remember(p)
		if m.pay(p) && m.chance(m.t.s.again) {
			m.t.send(p, m.replica(), how{op: opCreate, timeout: 3 * time.Second})
		}
		pause(ctx, m.upTo(m.t.s.think))
	}
}

func (m *merchant) replica() int { return m.rng.IntN(len(m.t.replicas)) }

// pay sends the payment until it is answered finally, or patience is at its end.
func (m *merchant) pay(p payment) bool {
	patience := time.Now().Add(time.Second + m.upTo(5*time.Second))
	replica := m.replica()
	for attempt := 0; ; attempt++ {
		if attempt > 0 {
			m.t.count.add("retries", 1)
			if m.chance(0.3) {
				replica = m.replica()
			}
		}
		if attempt > 0 && m.chance(0.04) || m.chance(0.01) {
			m.t.count.add("client: another body", 1)
			m.t.send(p, m.replica(), how{op: opCreate, variant: 1, timeout: time.Second})
		}
		final, wait := m.try(p, replica)
		if final != nil {
			if final.OK() && m.chance(0.2) {
				m.t.read(p.scope, p.key, final.ID, m.replica())
			}
			return final.OK()
		}
		backoff := m.upTo(min(20*time.Millisecond<<attempt, time.Second))
		if wait > 0 && m.chance(0.5) { // the others are impatient
			backoff += wait
		}
		if time.Now().Add(backoff).After(patience) {
			return false
		}
		time.Sleep(backoff)
	}
}

// try sends the payment once, or in three copies at once, and returns the answer
// that settles it, or how long the service asks to wait.
func (m *merchant) try(p payment, replica int) (*Request, time.Duration) {
	copies := 1
	if m.chance(0.1) {
		copies = 3
		m.t.count.add("client: three copies at once", 1)
	}
	answers := make([]Request, copies)
	var wg sync.WaitGroup
	for i := range copies {
		h := how{op: opCreate, timeout: 200*time.Millisecond + m.upTo(2*time.Second)}
		switch {
		case m.chance(m.t.s.hangUp):
			h.timeout = m.upTo(30 * time.Millisecond)
			m.t.count.add("client: hangs up at 0 to 30 ms", 1)
		case m.chance(m.t.s.trickle):
			h.trickle = time.Millisecond + m.upTo(4*time.Millisecond)
			h.timeout = 5 * time.Second
			m.t.count.add("client: body trickles", 1)
		}
		to := (replica + i) % len(m.t.replicas)
		wg.Go(func() { answers[i] = m.t.send(p, to, h) })
	}
	wg.Wait()
	var wait time.Duration
	for i, a := range answers {
		if a.Final() {
			return &answers[i], 0
		}
		if s, err := strconv.Atoi(a.Retry); err == nil {
			wait = time.Duration(s) * time.Second
		}
	}
	return nil, wait
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// how is the manner of one request.
type how struct {
	op      string
	variant int
	timeout time.Duration
	trickle time.Duration // between two bytes of the body
	since   int64
}

// send sends a payment once and records what came of it.
func (t *trial) send(p payment, replica int, h how) Request {
	r := Request{Op: h.op, Scope: p.scope, Key: p.key, Variant: h.variant, Replica: replica, Since: h.since}
	ctx, cancel := context.WithTimeout(context.Background(), h.timeout)
	defer cancel()
	// Not a reader that net/http could rewind: it takes the header for leave to
	// send the request again by itself, and the history would not show it.
	body := io.MultiReader(bytes.NewReader(p.bodies[h.variant]))
	if h.trickle > 0 {
		body = &trickle{rest: p.bodies[h.variant], every: h.trickle}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+t.replicas[replica].addr+"/v1/payment_intents", body)
	if err != nil {
		panic(err) // the address is ours
	}
	req.ContentLength = int64(len(p.bodies[h.variant]))
	req.Header.Set("Idempotency-Key", p.key)
	_, _ = t.exchange(req, &r)
	if r.OK() {
		t.compare(r)
	}
	return r
}

// read reads an intent that was acknowledged.
func (t *trial) read(scope, key, id string, replica int) Request {
	r := Request{Op: opRead, Scope: scope, Key: key, Replica: replica}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.replicas[replica].addr+"/v1/payment_intents/"+id, nil)
	if err != nil {
		panic(err) // the address is ours
	}
	_, _ = t.exchange(req, &r)
	r.ID = id
	if r.Status == http.StatusNotFound {
		t.rec.seen("%s: %s was acknowledged, and read as 404", r.name(), id)
	}
	return r
}

// exchange sends one request and fills in r, which is recorded. The answer is
// there for those who want more of it, with its body read.
func (t *trial) exchange(req *http.Request, r *Request) (*http.Response, error) {
	req.Header.Set("Authorization", "Bearer "+token+r.Scope)
	r.Call = t.rec.now()
	resp, err := t.roundTrip(req, r)
	r.Return = t.rec.now()
	if err != nil {
		r.Status, r.Err = 0, reason(err)
	}
	t.rec.request(*r)
	return resp, err
}

// reason is the kind of an error, without its addresses.
func reason(err error) string {
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}

func (t *trial) roundTrip(req *http.Request, r *Request) (*http.Response, error) {
	resp, err := t.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(raw))
	r.Status = resp.StatusCode
	r.Retry = resp.Header.Get("Retry-After")
	r.Replayed = resp.Header.Get("Idempotent-Replayed") == "true"
	if len(resp.Header.Values("Idempotent-Replayed")) > 1 {
		r.Code = "Idempotent-Replayed more than once"
	}
	var body struct {
		ID      string    `json:"id"`
		Error   string    `json:"error"`
		Detail  string    `json:"detail"`
		Created time.Time `json:"created_at"`
	}
	if err := json.Unmarshal(raw, &body); err != nil {
		r.Code = "not JSON"
		return resp, nil
	}
	if r.Status >= 300 {
		r.Code = body.Error
		r.Known = bytes.Contains(raw, []byte("(fingerprint "))
		return resp, nil
	}
	r.ID, r.Created = body.ID, body.Created.UnixMicro()
	r.Body = digest(raw)
	r.Digest = digest([]byte(strconv.Itoa(r.Status)), []byte(resp.Header.Get("Content-Type")),
		[]byte(resp.Header.Get("Location")), raw)
	return resp, nil
}

// digest is enough of SHA-256 to tell answers apart.
func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
		if len(parts) > 1 {
			h.Write([]byte{0})
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// trickle is a body that comes byte by byte.
type trickle struct {
	rest  []byte
	every time.Duration
}

// Read implements io.Reader.
func (b *trickle) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, io.EOF
	}
	time.Sleep(b.every)
	n := copy(p[:1], b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// compare judges an acknowledgement at once, against those before it. Where keys
// live shorter than the trial, the checks in the end know more.
func (t *trial) compare(r Request) {
	if t.s.ttl < time.Minute {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch known, ok := t.acknowledged[r.name()]; {
	case !ok:
		t.acknowledged[r.name()] = r
	case known.Digest != r.Digest:
		t.rec.seen("%s: answers about %s and %s differ", r.name(), known.ID, r.ID)
	case !known.Replayed && !r.Replayed:
		t.rec.seen("%s: %s was answered as new twice", r.name(), r.ID)
	case !r.Replayed:
		t.acknowledged[r.name()] = r
	}
}
