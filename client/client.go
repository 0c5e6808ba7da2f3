package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"intentd/client/internal/wire"
)

// Client calls the service for one holder of a token. It is safe for concurrent
// use; its copies for merchants (ForMerchant) share its connections.
type Client struct {
	server         string            // ends with a slash, which the generated calls build on
	authorize      func(http.Header) // a func, so that no printing of a Client shows the token
	merchant       *string           // nil: the token's own
	http           *http.Client
	attempts       int
	attemptTimeout time.Duration
	backoff        time.Duration
	maxBackoff     time.Duration
	jitter         func(time.Duration) time.Duration
}

// Option changes a Client that is being made.
type Option func(*Client) error

// New returns a client of the service at baseURL (http or https; a path in it is
// kept, so the service may stand below one). The error names what of the
// arguments is wrong; nothing is sent.
//
// Without options a call makes up to 20 attempts, waits up to 35 s for each
// answer, and backs off between them for a random time of up to 200 ms, doubled
// with every attempt up to 10 s, on top of what Retry-After asks for. Where all
// attempts are answered at once that is 71 s of waiting on average (143 s at most),
// and 90 s where each answer asks for one second, as it does while the key is in
// flight: at least 19 s, and less than 40 s once in ten million calls. It outlasts a
// restart of the service, and a key that a dead process holds for its lease of 30 s
// (IDEMPOTENCY_STORE=redis). Whoever can not wait that long says so by ctx.
func New(baseURL, token string, opts ...Option) (*Client, error) {
	u, err := url.Parse(baseURL)
	switch {
	case err != nil:
		return nil, errors.New("client: the base URL can not be read") // the error could hold a password
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return nil, errors.New("client: the base URL must be http://host or https://host")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("client: the base URL must have no query and no fragment")
	case !graphic(token):
		return nil, errors.New("client: the token must be printable ASCII without blanks")
	}
	c := &Client{
		server:    strings.TrimSuffix(u.String(), "/") + "/",
		authorize: func(h http.Header) { h.Set("Authorization", "Bearer "+token) },
		http:      &http.Client{},
		attempts:  20,
		// A request may run for 30 s (the service's lease); a client that gives up
		// before it has to ask again for what is on its way.
		attemptTimeout: 35 * time.Second,
		backoff:        200 * time.Millisecond,
		maxBackoff:     10 * time.Second,
		jitter:         func(d time.Duration) time.Duration { return rand.N(d + 1) }, //nolint:gosec // G404: it spreads load, and hides nothing
	}
	for _, opt := range opts {
		if err := opt(c); err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
	}
	// Following a redirect makes a GET of a POST (301, 302, 303), or sends the
	// payment to another place: no answer of this API is one.
	own := *c.http
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &own
	return c, nil
}

// WithHTTPClient sends through h: its transport, cookies and timeout are used,
// its CheckRedirect is not, since redirects are never followed. A timeout of its
// own bounds each attempt, beside WithAttemptTimeout.
func WithHTTPClient(h *http.Client) Option {
	return func(c *Client) error {
		if h == nil {
			return errors.New("WithHTTPClient needs a client")
		}
		c.http = h
		return nil
	}
}

// WithAttempts bounds how often one call sends its request, 1 for never again. A
// request that finds a pooled connection dead counts as sent.
//
// That is exact for a call with a key. One that only reads (Get, a page of a list,
// LookupKey) may be sent again by net/http within an attempt, where a pooled
// connection died; it changes nothing.
func WithAttempts(n int) Option {
	return func(c *Client) error {
		if n < 1 {
			return fmt.Errorf("WithAttempts must be at least 1, got %d", n)
		}
		c.attempts = n
		return nil
	}
}

// WithAttemptTimeout bounds the wait for one whole answer. An attempt that takes
// longer counts as unanswered, and the next one follows.
func WithAttemptTimeout(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("WithAttemptTimeout must be positive, got %v", d)
		}
		c.attemptTimeout = d
		return nil
	}
}

// WithBackoff sets how long a call waits before its second attempt at most, and
// before any. The bound doubles with each attempt, and the wait is a random part
// of it (full jitter), on top of what the service asks for by Retry-After.
func WithBackoff(first, longest time.Duration) Option {
	return func(c *Client) error {
		if first <= 0 || longest < first {
			return fmt.Errorf("WithBackoff needs 0 < first <= longest, got %v and %v", first, longest)
		}
		c.backoff, c.maxBackoff = first, longest
		return nil
	}
}

// ForMerchant returns a client for the payment intents of this merchant. Tokens
// of role relayer, listener and operator act for one merchant with each request
// and need it; those of a merchant need not say so. The keys that such a token
// uses for two merchants never meet.
func (c *Client) ForMerchant(merchant string) *Client {
	other := *c
	other.merchant = &merchant
	return &other
}

// NewKey returns a new idempotency key, a random UUID (version 4). It is for
// callers that keep the key before they call, see WithKey.
func NewKey() string { return uuid.NewString() }

// CallOption changes one call.
type CallOption func(*keyed)

// keyed is a call that has a key.
type keyed struct {
	key     string
	version *int64
}

// WithKey makes the call with this idempotency key instead of a new one: 1 to
// 255 bytes of printable ASCII without blanks. One that begins with a double quote
// is a string as structured fields have it (RFC 9651): it has to end with one, its
// only escapes are \" and \\, and it names the same key as its content without
// the quotes; any other is refused with [CodeIdempotencyKeyInvalid].
//
// Whoever wrote the key down before
// calling can call again after a crash, with the same key and the same arguments,
// and gets the answer of the first call, if there was one. That holds for 24
// hours from the first call (the service's IDEMPOTENCY_TTL); later the key is as
// good as new, and a second payment would be made.
//
// One key is for one request. For another one, a corrected one too, it is
// refused with [CodeIdempotencyKeyReused].
func WithKey(key string) CallOption { return func(k *keyed) { k.key = key } }

// IfVersion takes a step (Move, Cancel) only if the payment intent is still at
// this version, else the error's code is [CodeVersionConflict]. Creating knows no
// versions and refuses it.
func IfVersion(version int64) CallOption { return func(k *keyed) { k.version = &version } }

// Result is what a call with a key was answered.
type Result struct {
	// PaymentIntent is the payment intent as it was when the answer was recorded;
	// [Client.Get] tells the present state.
	PaymentIntent
	// Key is the one that the call was made with.
	Key string
	// Replayed says that the answer is the recorded one of an earlier request:
	// of an earlier attempt of this call, or of a call before it.
	Replayed bool
	// Attempts is how often this call sent its request.
	Attempts int
	// RequestID names the exchange in the service's log.
	RequestID string
}

// CreatePaymentIntent creates a payment intent, once, however often the request
// has to be sent. The error is an [Error] once anything was sent.
func (c *Client) CreatePaymentIntent(ctx context.Context, params PaymentIntentRequest, opts ...CallOption) (*Result, error) {
	return c.post(ctx, "create payment intent", http.StatusCreated, params, opts, func(k keyed, body []byte) (*http.Request, error) {
		if k.version != nil {
			return nil, errors.New("IfVersion has no meaning for a payment intent that is not there yet")
		}
		return wire.NewCreatePaymentIntentRequestWithBody(c.server, &wire.CreatePaymentIntentParams{
			IdempotencyKey: k.key, IntentMerchant: c.merchant,
		}, jsonType, bytes.NewReader(body))
	})
}

// Cancel closes a payment intent that is created or authorized, and says why: 1
// to 500 characters. One that is canceled already is no error.
func (c *Client) Cancel(ctx context.Context, id, reason string, opts ...CallOption) (*Result, error) {
	return c.post(ctx, "cancel payment intent", http.StatusOK, cancelRequest{Reason: reason}, opts, func(k keyed, body []byte) (*http.Request, error) {
		if err := checkID(id); err != nil {
			return nil, err
		}
		return wire.NewCancelPaymentIntentRequestWithBody(c.server, id, &wire.CancelPaymentIntentParams{
			IdempotencyKey: k.key, IntentMerchant: c.merchant, IfMatch: k.ifMatch(),
		}, jsonType, bytes.NewReader(body))
	})
}

// Move takes one step of the state machine. An intent that is there already is
// no error. Refusals are recorded like any answer: what is decided anew is
// another call, with a new key.
func (c *Client) Move(ctx context.Context, id string, step TransitionRequest, opts ...CallOption) (*Result, error) {
	return c.post(ctx, "move payment intent", http.StatusOK, step, opts, func(k keyed, body []byte) (*http.Request, error) {
		if err := checkID(id); err != nil {
			return nil, err
		}
		return wire.NewMovePaymentIntentRequestWithBody(c.server, id, &wire.MovePaymentIntentParams{
			IdempotencyKey: k.key, IntentMerchant: c.merchant, IfMatch: k.ifMatch(),
		}, jsonType, bytes.NewReader(body))
	})
}

// Get reads a payment intent as it stands now. The error's code is
// [CodeNotFound] if the merchant has none of this id.
func (c *Client) Get(ctx context.Context, id string) (*PaymentIntent, error) {
	var pi PaymentIntent
	err := c.get(ctx, "get payment intent", "", reading(&pi, PaymentIntent.whole), func() (*http.Request, error) {
		if err := checkID(id); err != nil {
			return nil, err
		}
		return wire.NewGetPaymentIntentRequest(c.server, id, &wire.GetPaymentIntentParams{IntentMerchant: c.merchant})
	})
	if err != nil {
		return nil, err
	}
	return &pi, nil
}

// Filter chooses payment intents. The zero Filter chooses all; its members are
// joined by "and".
type Filter struct {
	// State is the present one.
	State State
	// Reference is the merchant's own order number, exactly.
	Reference string
	// From and Before bound created_at: at From or later, before Before. The
	// service keeps microseconds.
	From, Before time.Time
}

// pageSize is how many a page of a list holds: the most that the service gives.
const pageSize = 100

// List reads the merchant's payment intents, newest first, page by page as the
// loop goes on. Those that are created meanwhile neither shift nor repeat what is
// read. An error ends the loop: it comes with a zero PaymentIntent, last.
func (c *Client) List(ctx context.Context, filter Filter) iter.Seq2[PaymentIntent, error] {
	return func(yield func(PaymentIntent, error) bool) {
		params := wire.ListPaymentIntentsParams{
			IntentMerchant: c.merchant,
			Limit:          new(pageSize),
			State:          unlessZero(wire.State(filter.State)),
			Reference:      unlessZero(filter.Reference),
			CreatedGte:     unlessZero(microseconds(filter.From)),
			CreatedLt:      unlessZero(microseconds(filter.Before)),
		}
		for {
			var page intentPage
			err := c.get(ctx, "list payment intents", "", reading(&page, intentPage.whole), func() (*http.Request, error) {
				return wire.NewListPaymentIntentsRequest(c.server, &params)
			})
			if err != nil {
				yield(PaymentIntent{}, err)
				return
			}
			for _, pi := range page.Data {
				if !yield(pi, nil) {
					return
				}
			}
			if !page.HasMore || len(page.Data) == 0 {
				return
			}
			params.StartingAfter = new(page.Data[len(page.Data)-1].ID)
		}
	}
}

// Transitions reads every step that a payment intent has taken, oldest first, as
// List reads. Its creation is none.
func (c *Client) Transitions(ctx context.Context, id string) iter.Seq2[Transition, error] {
	return func(yield func(Transition, error) bool) {
		params := wire.ListTransitionsParams{IntentMerchant: c.merchant, Limit: new(pageSize)}
		for {
			var page TransitionList
			err := c.get(ctx, "list transitions", "", reading(&page, TransitionList.whole), func() (*http.Request, error) {
				if err := checkID(id); err != nil {
					return nil, err
				}
				return wire.NewListTransitionsRequest(c.server, id, &params)
			})
			if err != nil {
				yield(Transition{}, err)
				return
			}
			for _, step := range page.Data {
				if !yield(step, nil) {
					return
				}
			}
			if !page.HasMore || len(page.Data) == 0 {
				return
			}
			params.StartingAfter = new(page.Data[len(page.Data)-1].Version)
		}
	}
}

// LookupKey tells what the request with this key was answered, for a caller that
// wants to know without sending the request again. While the request runs,
// LookupKey waits for it, as long as its attempts last; after that the error's
// code is [CodeIdempotencyKeyInFlight].
//
// [CodeNotFound] means that no record lives and that nothing runs with the key at
// this moment. It does not mean that the request will never run: it may still be
// on its way. Calling again with the same key and the same arguments settles it.
func (c *Client) LookupKey(ctx context.Context, key string) (*KeyRecord, error) {
	var record KeyRecord
	err := c.get(ctx, "look up idempotency key", key, reading(&record, KeyRecord.whole), func() (*http.Request, error) {
		if !graphic(key) {
			return nil, errKey
		}
		return wire.NewFindIdempotencyKeyRequest(c.server, &wire.FindIdempotencyKeyParams{
			IdempotencyKey: key, IntentMerchant: c.merchant,
		})
	})
	if err != nil {
		return nil, err
	}
	return &record, nil
}

const jsonType = "application/json"

// errKey is of what net/http would refuse to send, or quietly trim.
var errKey = errors.New("an idempotency key must be printable ASCII without blanks")

// post makes a call with a key. The key and the body are settled here, before
// the first attempt: a retry has nothing to make anew.
func (c *Client) post(ctx context.Context, op string, want int, body any, opts []CallOption, build func(keyed, []byte) (*http.Request, error)) (*Result, error) {
	k := keyed{key: NewKey()}
	for _, opt := range opts {
		opt(&k)
	}
	if !graphic(k.key) {
		return nil, fmt.Errorf("client: %s: %w", op, errKey)
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("client: %s: %w", op, err)
	}
	r := Result{Key: k.key}
	answer, err := c.send(ctx, call{op: op, key: k.key, settles: true, want: want, read: reading(&r.PaymentIntent, PaymentIntent.whole)}, func() (*http.Request, error) { return build(k, raw) })
	if err != nil {
		return nil, err
	}
	r.Replayed, r.RequestID, r.Attempts = answer.replayed, answer.requestID, answer.attempts
	return &r, nil
}

// get makes a call that changes nothing. key is the one that it asks about, if
// any.
func (c *Client) get(ctx context.Context, op, key string, read func([]byte) error, build func() (*http.Request, error)) error {
	_, err := c.send(ctx, call{op: op, key: key, want: http.StatusOK, read: read}, build)
	return err
}

// ifMatch is the version as the header has it.
func (k keyed) ifMatch() *string {
	if k.version == nil {
		return nil
	}
	return new(`"` + strconv.FormatInt(*k.version, 10) + `"`)
}

// checkID keeps what is no id out of a path, where "" and ".." would name
// another one.
func checkID(id string) error {
	if !strings.HasPrefix(id, "pi_") {
		return fmt.Errorf("%q is no id of a payment intent", id)
	}
	return nil
}

// graphic says whether s can be sent as a header's value, unchanged: bytes 0x21
// to 0x7E, at least one.
func graphic(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return r < 0x21 || r > 0x7E }) < 0
}

// microseconds rounds a bound up to what the service takes. It keeps whole
// microseconds, so that the same intents are chosen.
func microseconds(t time.Time) time.Time {
	if down := t.Truncate(time.Microsecond); down.Before(t) {
		t = down.Add(time.Microsecond)
	}
	return t.UTC()
}

// unlessZero is nil for what was not given.
func unlessZero[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
