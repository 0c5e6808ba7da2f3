package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Options of Middleware. Only Scope is required.
type Options struct {
	// Scope returns who the request's key belongs to; an empty scope is a
	// mistake in mounting and panics. Authentication comes before this layer.
	Scope func(*http.Request) string

	// Route says what a key names one request of. nil: the whole scope, so that
	// a key used on one route is refused on every other. Otherwise a key is
	// claimed under RouteScope of the scope and what Route returns, and is
	// another key on each route. That must be a name of the route (its pattern,
	// say), since the path is part of the fingerprint: a key that comes with
	// another path of its route is still refused. An empty route panics, as an
	// empty scope does.
	Route func(*http.Request) string

	// Interactive says that the handler needs answers from within its attempt,
	// as one that reads before it writes. A store that tells such attempts from
	// others has a method Interactive() Store; the others are not asked.
	Interactive bool

	MaxBody      int64         // longest body, in bytes; 0: 64 KiB
	BodyTimeout  time.Duration // for reading the body; 0: 15 s
	StoreTimeout time.Duration // for a claim, and for ending an attempt that failed; 0: storeTimeout

	// Refuse writes the answers that are the middleware's own; nil:
	// WriteRefusal.
	Refuse func(http.ResponseWriter, *http.Request, *Refusal)

	// Observe is told once for each request that carried a good key and body,
	// before it is answered; nil: nobody is.
	Observe func(*http.Request, Event)
}

// storeTimeout is for one question to the store.
const storeTimeout = 5 * time.Second

// Event is what became of one request.
type Event struct {
	Outcome     Outcome // the zero Outcome: the store could not decide
	Fingerprint Fingerprint
	// Undone is why the request's attempt came to nothing; the zero Undone where
	// it did not, or there was none. An attempt that is answered from the record
	// has both, Replay or Mismatch and what Complete had said of it.
	Undone Undone
	// Err is why nothing was kept: the store's error, what Withhold was told,
	// ErrSuperseded, or a *PanicError. It may hold SQL: for the log only.
	Err error
}

// Undone is why an attempt came to nothing.
type Undone uint8

// The reasons for which an attempt is undone.
const (
	// UndonePanic: the handler panicked.
	UndonePanic Undone = iota + 1
	// UndoneWithheld: the handler had no answer; see Withhold.
	UndoneWithheld
	// UndoneSuperseded: it outlived its lease.
	UndoneSuperseded
	// UndoneTaken: another record stood under the key.
	UndoneTaken
	// UndoneInDoubt: the store did not say whether it kept the attempt. It may
	// have; then the request is answered from the record.
	UndoneInDoubt
	// UndoneStore: the store failed to keep it.
	UndoneStore
)

// String returns the reason as it stands in logs and metrics.
func (u Undone) String() string {
	switch u {
	case UndonePanic:
		return "panic"
	case UndoneWithheld:
		return "withheld"
	case UndoneSuperseded:
		return "superseded"
	case UndoneTaken:
		return "taken"
	case UndoneInDoubt:
		return "in_doubt"
	case UndoneStore:
		return "store"
	default:
		return "none"
	}
}

// PanicError is a handler's panic.
type PanicError struct {
	Value any
	Stack []byte
}

// Error implements error.
func (e *PanicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.Value) }

// Middleware lets each request run once for each (scope, key), by the decisions
// of store. GET, HEAD and OPTIONS pass through. It panics if the store or
// Options.Scope is missing.
//
// Once a record stands under the key, each answer says until when, in
// Idempotency-Key-Expires: the first, its replays, and the refusal of another
// request under the key.
//
// A client that hangs up does not undo a run that has begun: the handler's
// context keeps the request's values but not its cancellation, and has the end
// of the lease as its deadline.
func Middleware(store Store, o Options) func(http.Handler) http.Handler {
	if store == nil || o.Scope == nil {
		panic("idempotency: Middleware needs a store and Options.Scope")
	}
	if s, ok := store.(interface{ Interactive() Store }); ok && o.Interactive {
		store = s.Interactive()
	}
	o.MaxBody = cmp.Or(o.MaxBody, 64<<10)
	o.BodyTimeout = cmp.Or(o.BodyTimeout, 15*time.Second)
	o.StoreTimeout = cmp.Or(o.StoreTimeout, storeTimeout)
	if o.Refuse == nil {
		o.Refuse = WriteRefusal
	}
	if o.Observe == nil {
		o.Observe = func(*http.Request, Event) {}
	}
	return func(next http.Handler) http.Handler {
		return &layer{next: next, store: store, Options: o}
	}
}

type layer struct {
	next  http.Handler
	store Store
	Options
}

// ServeHTTP follows the contract's table from its second row on, in its order.
func (l *layer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		l.next.ServeHTTP(w, r)
		return
	}
	req, refusal := l.read(w, r)
	if refusal != nil {
		l.Refuse(w, r, refusal)
		return
	}
	l.serve(w, r, req)
}

// request is what the layer knows of a request that carried a good key.
type request struct {
	id   ID
	fp   Fingerprint
	body []byte
}

// read takes key and body from the request, or says why it can not.
func (l *layer) read(w http.ResponseWriter, r *http.Request) (request, *Refusal) {
	key, refusal := readKey(r.Header, keyRequired)
	if refusal != nil {
		return request{}, refusal
	}
	if !identity(r.Header.Values("Content-Encoding")) {
		return request{}, encodingUnsupported()
	}
	body, refusal := l.readBody(w, r)
	if refusal != nil {
		return request{}, refusal
	}
	scope := mustScope(l.Scope(r))
	if l.Route != nil {
		scope = RouteScope(scope, l.Route(r))
	}
	path := r.URL.EscapedPath()
	if r.URL.RawQuery != "" || r.URL.ForceQuery {
		path += "?" + r.URL.RawQuery
	}
	return request{
		id:   ID{Scope: scope, Key: key},
		fp:   FingerprintOf(r.Method, path, body),
		body: body,
	}, nil
}

// readKey takes the key from a request's header, or says why it can not; missing
// says so where there is none.
func readKey(h http.Header, missing func() *Refusal) (string, *Refusal) {
	values := h.Values("Idempotency-Key")
	switch {
	case len(values) == 0:
		return "", missing()
	case len(values) > 1:
		return "", keyInvalid("Idempotency-Key must be sent once, got more than one header line")
	}
	key, err := ParseKey(values[0])
	if err != nil {
		return "", keyInvalid(err.Error())
	}
	return key, nil
}

// mustScope returns scope. A request without one was let in by nobody.
func mustScope(scope string) string {
	if scope == "" {
		panic("idempotency: request without a scope: authentication must be mounted before this layer")
	}
	return scope
}

// RouteScope returns the scope of the keys that are claimed with Options.Route.
// No two pairs of scope and route share one, and none is a scope that does not
// begin with a double quote. It is printable, whatever the two hold. An empty
// scope or route panics.
func RouteScope(scope, route string) string {
	if route == "" {
		panic("idempotency: request without a route: Options.Route must name one")
	}
	return strconv.Quote(mustScope(scope)) + " " + strconv.Quote(route)
}

// identity says whether no coding was applied to the body.
func identity(encodings []string) bool {
	for _, line := range encodings {
		for coding := range strings.SplitSeq(line, ",") {
			if c := strings.TrimSpace(coding); c != "" && !strings.EqualFold(c, "identity") {
				return false
			}
		}
	}
	return true
}

// readBody reads the body to its end before anything is claimed, so that a slow
// or broken client holds neither a key nor a database connection.
func (l *layer) readBody(w http.ResponseWriter, r *http.Request) ([]byte, *Refusal) {
	if r.ContentLength > l.MaxBody {
		return nil, bodyTooLarge(l.MaxBody)
	}
	// RFC 9112, section 6.1: HTTP/1.0 knows no transfer codings, and net/http
	// drops one silently. Without a length there is no telling what was sent.
	if !r.ProtoAtLeast(1, 1) && r.Header.Get("Content-Length") == "" {
		return nil, bodyUnreadable("a body in HTTP/1.0 needs a Content-Length")
	}
	rc := http.NewResponseController(w)
	// A writer without deadlines (a test's recorder) has no slow client either.
	_ = rc.SetReadDeadline(time.Now().Add(l.BodyTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, l.MaxBody))
	if err == nil {
		_ = rc.SetReadDeadline(time.Time{})
		return body, nil
	}
	// What is left of the body can not be told from a next request. The deadline
	// stays: net/http reads on before it closes, and must not do so for ever.
	w.Header().Set("Connection", "close")
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, bodyTooLarge(l.MaxBody)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, bodyUnreadable(fmt.Sprintf("the body did not arrive within %v", l.BodyTimeout))
	default:
		return nil, bodyUnreadable("the body was cut short or could not be read")
	}
}

// serve claims the request's key and does what the claim says.
func (l *layer) serve(w http.ResponseWriter, r *http.Request, req request) {
	// From here on the client's patience does not count, only the store's and
	// the lease.
	ctx := context.WithoutCancel(r.Context())
	claim, err := l.claim(ctx, req)
	ev := Event{Outcome: claim.Outcome, Fingerprint: req.fp, Err: err}
	switch {
	case err != nil:
		l.refuse(w, r, ev, unavailable())
	case claim.Outcome == Fresh:
		ctx, cancel := context.WithTimeout(ctx, l.store.Lease())
		defer cancel()
		l.run(ctx, w, r, req, claim.Attempt)
	default:
		l.answer(w, r, req, claim, 0)
	}
}

// claim asks the store, which may be silent for so long.
func (l *layer) claim(ctx context.Context, req request) (Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, l.StoreTimeout)
	defer cancel()
	return l.store.Claim(ctx, req.id, req.fp)
}

// answer answers a request that does not run, or whose attempt was undone.
func (l *layer) answer(w http.ResponseWriter, r *http.Request, req request, claim Claim, undone Undone) {
	ev := Event{Outcome: claim.Outcome, Fingerprint: req.fp, Undone: undone}
	switch claim.Outcome {
	case Replay:
		l.Observe(r, ev)
		w.Header().Set("Idempotent-Replayed", "true")
		setExpires(w, claim.Record.ExpiresAt)
		write(w, claim.Record.Response)
	case InFlight:
		l.refuse(w, r, ev, inFlight(req.id.Key))
	case Mismatch:
		l.Observe(r, ev)
		if claim.Record != nil {
			setExpires(w, claim.Record.ExpiresAt)
		}
		l.Refuse(w, r, keyReused(req.id.Key, req.fp, claim.Record))
	default:
		panic(fmt.Sprintf("idempotency: store decided %q", claim.Outcome))
	}
}

// run lets the handler answer, and sends its answer once it is on record.
func (l *layer) run(ctx context.Context, w http.ResponseWriter, r *http.Request, req request, attempt Attempt) {
	completed := false
	defer func() {
		if !completed {
			l.abandon(ctx, attempt) // where Goexit ends the handler
		}
	}()

	rec := newRecorder()
	undone := UndoneWithheld
	err := l.handle(attempt.Bind(ctx), rec, r, req.body)
	if err == nil {
		undone = UndoneStore
		resp := rec.response()
		if err = l.complete(ctx, attempt, resp); err == nil {
			completed = true
			l.Observe(r, Event{Outcome: Fresh, Fingerprint: req.fp})
			rec.send(w, resp, attempt.Time().Add(l.store.TTL()))
			return
		}
	}
	// Before the client hears of it: its retry must find the key free.
	l.abandon(ctx, attempt)

	ev := Event{Outcome: Fresh, Fingerprint: req.fp, Undone: undone, Err: err}
	var panicked *PanicError
	switch {
	case errors.As(err, &panicked):
		ev.Undone = UndonePanic
		l.refuse(w, r, ev, internal())
	case errors.Is(err, ErrTaken):
		l.settle(ctx, w, r, req, UndoneTaken, err)
	case errors.Is(err, ErrInDoubt):
		l.settle(ctx, w, r, req, UndoneInDoubt, err)
	case errors.Is(err, ErrSuperseded), ctx.Err() != nil:
		ev.Undone = UndoneSuperseded
		l.refuse(w, r, ev, superseded(req.id.Key))
	default:
		l.refuse(w, r, ev, unavailable())
	}
}

// complete ends an attempt with its answer. The store judges the lease; it is
// given time to say so.
func (l *layer) complete(ctx context.Context, attempt Attempt, resp Response) error {
	deadline, _ := ctx.Deadline()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(l.StoreTimeout))
	defer cancel()
	return attempt.Complete(ctx, resp)
}

// abandon ends an attempt without one, be it past its lease.
func (l *layer) abandon(ctx context.Context, attempt Attempt) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.StoreTimeout)
	defer cancel()
	// An attempt that can not even be undone has lost its store: that undoes it.
	_ = attempt.Abandon(ctx)
}

// handle runs the handler over the whole body. Its error says why the handler
// gave no answer.
func (l *layer) handle(ctx context.Context, rec *recorder, r *http.Request, body []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	var withheld error
	r = r.WithContext(context.WithValue(ctx, withholdKey{}, &withheld))
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	l.next.ServeHTTP(rec, r)
	return withheld
}

// settle asks the store what stands under the key of an attempt whose Complete
// could not tell. It asks once; after that the client's retry is the one to ask.
func (l *layer) settle(ctx context.Context, w http.ResponseWriter, r *http.Request, req request, undone Undone, cause error) {
	late := ctx.Err() != nil
	claim, err := l.claim(context.WithoutCancel(ctx), req)
	ev := Event{Outcome: Fresh, Fingerprint: req.fp, Undone: undone, Err: errors.Join(cause, err)}
	switch {
	case err != nil:
		l.refuse(w, r, ev, unavailable())
	case claim.Outcome == Fresh: // nothing was kept, and nothing runs
		l.abandon(ctx, claim.Attempt)
		if late {
			l.refuse(w, r, ev, superseded(req.id.Key))
			return
		}
		l.refuse(w, r, ev, unavailable())
	case claim.Outcome == Replay, undone == UndoneTaken:
		l.answer(w, r, req, claim, undone)
	default: // somebody runs under the key, maybe the rest of this attempt
		l.refuse(w, r, ev, unavailable())
	}
}

func (l *layer) refuse(w http.ResponseWriter, r *http.Request, ev Event, ref *Refusal) {
	l.Observe(r, ev)
	l.Refuse(w, r, ref)
}

type withholdKey struct{}

// Withhold says that what the handler of ctx's request writes is no answer,
// because of cause: a passing fault, say, that must not be replayed for a day.
// The attempt is abandoned, so that what it wrote is undone and the key is free,
// and the client is told to try again. It reports whether ctx belongs to such a
// request; where it does not (a GET), the handler must answer itself.
func Withhold(ctx context.Context, cause error) bool {
	withheld, ok := ctx.Value(withholdKey{}).(*error)
	if ok {
		*withheld = cause
	}
	return ok
}
