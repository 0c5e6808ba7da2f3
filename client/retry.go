package client

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"
)

const (
	// maxAnswer is more than any answer of the service is long. What is longer is
	// somebody else's.
	maxAnswer = 64 << 20
	// maxRetryAfter is the longest wait that is worth a call's while. Whoever asks
	// for more is told apart: the error has it as RetryAfter.
	maxRetryAfter = 2 * time.Minute
)

// call is one call, through all of its attempts.
type call struct {
	op      string
	key     string
	settles bool               // it changes something, so its outcome matters
	want    int                // the status of success
	read    func([]byte) error // takes the body of success; an error: it is none
}

// answer is a response, read to its end.
type answer struct {
	status     int
	header     http.Header
	body       []byte
	replayed   bool
	requestID  string
	retryAfter time.Duration
	attempts   int
}

// send sends the request until an answer is final, the context ends or the
// attempts are used up. build is asked once; each attempt sends a copy of what it
// made.
func (c *Client) send(ctx context.Context, what call, build func() (*http.Request, error)) (*answer, error) {
	if c.merchant != nil && !graphic(*c.merchant) {
		return nil, fmt.Errorf("client: %s: a merchant's name must be printable ASCII without blanks", what.op)
	}
	req, err := build()
	if err != nil {
		return nil, fmt.Errorf("client: %s: %w", what.op, err)
	}
	c.authorize(req.Header)
	req.Header.Set("Accept", jsonType)
	req.Header.Set("User-Agent", "intentd-client")
	// net/http takes an Idempotency-Key for leave to send a request again by itself
	// when a pooled connection dies, as often as it has such connections, if it can
	// have the body anew. Only the policy may: it waits, counts and ends.
	body := req.GetBody
	req.GetBody = nil

	e := &Error{Op: what.op, Key: what.key, again: true}
	if e.Err = ended(ctx); e.Err != nil {
		return nil, e // nothing was sent
	}
	waits := &waits{client: c}
	waits.deadline, _ = ctx.Deadline()
	a, err := backoff.Retry(ctx, func() (*answer, error) {
		e.Attempts++
		a, err := c.attempt(ctx, req, body)
		waits.least = 0
		if err == nil {
			waits.least = a.retryAfter
			err = what.judge(a)
		}
		e.last(what, a, err)
		if err != nil && (!e.again || ctx.Err() != nil) {
			return nil, backoff.Permanent(err)
		}
		return a, err
	}, backoff.WithBackOff(waits), backoff.WithMaxTries(uint(c.attempts)), backoff.WithMaxElapsedTime(0))
	if err == nil {
		a.attempts = e.Attempts
		return a, nil
	}
	if !e.again {
		return nil, e
	}
	// Of the two reasons the context's is the one that ended the call.
	why := ended(ctx)
	switch {
	case why != nil && (errors.Is(e.Err, ctx.Err()) || errors.Is(e.Err, context.Cause(ctx))):
		e.Err = why
		return nil, e
	case why != nil:
	case waits.tooLong:
		e.ended = fmt.Sprintf("no call waits longer than the %v that Retry-After may ask for", maxRetryAfter)
	case waits.tooLate:
		why = context.DeadlineExceeded
		e.ended = "the next attempt would come after the deadline"
	}
	switch {
	case why != nil && e.Err != nil:
		e.Err = fmt.Errorf("%w: %w", why, e.Err)
	case why != nil:
		e.Err = why
	}
	return nil, e
}

// ended is why ctx is over, as both [context.Context.Err] and [context.Cause]
// have it; nil: it is not.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if err == nil || errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// errRefused is of an answer that is no success. What it says is in the Error.
var errRefused = errors.New("refused")

// judge reads an answer. The error is errRefused for a whole answer that is not
// success; any other means that there is none that could be read.
func (what call) judge(a *answer) error {
	if a.status < 200 || a.status > 299 {
		return errRefused
	}
	// A success that the service does not speak of was said by something in
	// between, or was cut where neither length nor chunks tell. The request is open,
	// and may be sent again like any that was not answered.
	if a.status != what.want {
		return fmt.Errorf("answer is a %d, not a %d", a.status, what.want)
	}
	return what.read(a.body)
}

// reading returns what reads the body of a success into v. A body is only taken
// if it is whole: JSON of somebody else's reads without an error, too, and leaves
// the members that it lacks empty. v is as it was where the error is not nil, so
// that nothing of one attempt's answer gets into the next one's.
func reading[T any](v *T, whole func(T) bool) func([]byte) error {
	return func(body []byte) error {
		var got T
		if err := json.Unmarshal(body, &got); err != nil {
			return fmt.Errorf("answer can not be read: %w", err)
		}
		if !whole(got) {
			return errors.New("answer lacks what the service always says")
		}
		*v = got
		return nil
	}
}

func (pi PaymentIntent) whole() bool { return pi.ID != "" }

func (r KeyRecord) whole() bool {
	return r.Status != 0 && r.Fingerprint != "" && !r.CreatedAt.IsZero() && !r.ExpiresAt.IsZero()
}

// A page that says that there are more, and has none to go on from, would make
// the list end early.
func (p intentPage) whole() bool {
	return p.Data != nil && (len(p.Data) > 0 || !p.HasMore) && !slices.ContainsFunc(p.Data, func(pi PaymentIntent) bool { return !pi.whole() })
}

func (l TransitionList) whole() bool {
	return l.Data != nil && (len(l.Data) > 0 || !l.HasMore) && !slices.ContainsFunc(l.Data, func(t Transition) bool { return t.Version == 0 })
}

// last takes over what the last attempt came to, by the contract's one rule for
// clients.
func (e *Error) last(what call, a *answer, err error) {
	e.Status, e.Code, e.Detail, e.RequestID, e.Replayed, e.RetryAfter, e.Err = 0, "", "", "", false, 0, nil
	if err == nil {
		return
	}
	if !errors.Is(err, errRefused) {
		e.Err, e.again = err, true
		var untrusted *tls.CertificateVerificationError
		switch {
		case errors.As(err, &untrusted):
			e.again = false // nothing was sent, and nothing will be
		case what.settles && !unsent(err):
			e.Open = true
		}
		return
	}
	e.Status, e.RequestID, e.Replayed, e.RetryAfter = a.status, a.requestID, a.replayed, a.retryAfter
	var body errorBody
	if json.Unmarshal(a.body, &body) == nil {
		e.Code, e.Detail = body.Error, body.Detail
	}
	inFlight := a.status == http.StatusConflict && a.header.Get("Retry-After") != ""
	failed := a.status >= 500
	e.again = !a.replayed && (inFlight || failed || a.status == http.StatusTooManyRequests)
	switch {
	case !what.settles:
	case e.again:
		// A 429 comes before anything else is looked at. It leaves open what was.
		e.Open = e.Open || inFlight || failed
	case a.settled():
		e.Open = false
	}
}

// settled says whether a final answer speaks for all attempts: it is of the
// request's own run, or proves that there was none. A refusal that comes before
// the key is looked at (401, most 400s) tells nothing of earlier attempts.
func (a *answer) settled() bool {
	return a.replayed || a.header.Get("Idempotency-Key-Expires") != "" || a.status == http.StatusUnprocessableEntity
}

// unsent says whether the request can not have reached anybody. In doubt it may
// have.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// attempt sends the request once and reads the answer to its end. An error means
// that there is no whole one.
func (c *Client) attempt(ctx context.Context, req *http.Request, body func() (io.ReadCloser, error)) (*answer, error) {
	bounded, cancel := context.WithTimeout(ctx, c.attemptTimeout)
	defer cancel()
	a, err := c.exchange(bounded, req, body)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		// The caller's deadline has not passed, so that it must not look as if it had.
		return nil, fmt.Errorf("none within %v", c.attemptTimeout)
	}
	return a, err
}

// exchange sends a copy of req, with a body of its own where there is one.
func (c *Client) exchange(ctx context.Context, req *http.Request, body func() (io.ReadCloser, error)) (*answer, error) {
	r := req.Clone(ctx)
	if body != nil {
		var err error
		if r.Body, err = body(); err != nil {
			return nil, err
		}
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	return &answer{
		status: resp.StatusCode, header: resp.Header, body: text,
		replayed:   resp.Header.Get("Idempotent-Replayed") == "true",
		requestID:  resp.Header.Get("X-Request-Id"),
		retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now()),
	}, nil
}

// retryAfter reads the header: seconds, or an HTTP date, which proxies may send
// (RFC 9110, section 10.2.3). 0: there is none that can be understood. Seconds that
// no Duration holds are the longest one.
func retryAfter(value string, now time.Time) time.Duration {
	const longest = math.MaxInt64 / int64(time.Second)
	s, err := strconv.ParseInt(value, 10, 64)
	if err == nil || errors.Is(err, strconv.ErrRange) { // of which s is the nearest
		return time.Duration(min(max(0, s), longest)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// waits is how long one call waits before each further attempt.
type waits struct {
	client   *Client
	deadline time.Time     // of the call; zero: none
	bound    time.Duration // of the last wait
	least    time.Duration // what the service asked for
	tooLong  bool          // the service asked for more than maxRetryAfter
	tooLate  bool          // the next attempt would come after the deadline
}

// Reset implements [backoff.BackOff].
func (w *waits) Reset() { w.bound = 0 }

// NextBackOff implements [backoff.BackOff]: exponential with full jitter, which
// spreads many clients that failed together over the whole of the wait. What the
// service asks for comes on top, so that those who were all told "1" do not come
// back together either. A wait that would outlast the deadline is not begun.
func (w *waits) NextBackOff() time.Duration {
	if w.bound == 0 {
		w.bound = w.client.backoff
	} else {
		w.bound = min(2*w.bound, w.client.maxBackoff)
	}
	if w.least > maxRetryAfter {
		w.tooLong = true
		return backoff.Stop
	}
	wait := w.least + w.client.jitter(w.bound)
	if !w.deadline.IsZero() && !time.Now().Add(wait).Before(w.deadline) {
		w.tooLate = true
		return backoff.Stop
	}
	return wait
}
