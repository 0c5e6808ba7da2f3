package idempotency_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"intentd/internal/idempotency"
	"intentd/internal/idempotency/memidem"
)

const (
	ttl   = 24 * time.Hour
	lease = 30 * time.Second
)

func memory() *memidem.Store { return memidem.New(ttl, lease, time.Now) }

// layer is the middleware around a handler of the test's. It counts how often
// the handler ran and what was observed.
type layer struct {
	http.Handler
	mu     sync.Mutex
	runs   int
	events []idempotency.Event
}

func newLayer(store idempotency.Store, o idempotency.Options, h http.HandlerFunc) *layer {
	l := new(layer)
	o.Scope = func(r *http.Request) string { return cmp.Or(r.Header.Get("Scope"), "merchant-a") }
	o.Observe = func(_ *http.Request, ev idempotency.Event) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.events = append(l.events, ev)
	}
	l.Handler = idempotency.Middleware(store, o)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		l.runs++
		l.mu.Unlock()
		h(w, r)
	}))
	return l
}

// ran returns how often the handler ran.
func (l *layer) ran() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.runs
}

// observed returns the events since the last call.
func (l *layer) observed() []idempotency.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	events := l.events
	l.events = nil
	return events
}

func (l *layer) do(r *http.Request) *http.Response {
	rec := httptest.NewRecorder()
	l.ServeHTTP(rec, r)
	return rec.Result()
}

// request returns a POST; lines are header lines such as "Scope: x".
func request(key, body string, lines ...string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/payment_intents", strings.NewReader(body))
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// created answers 201 with a body that is different in each run.
func created() http.HandlerFunc {
	n := 0
	return func(w http.ResponseWriter, _ *http.Request) {
		n++
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Location", fmt.Sprintf("/things/%d", n))
		h.Set("ETag", fmt.Sprintf(`"%d"`, n))
		h.Set("Set-Cookie", "a=b")
		h.Set("X-Request-Id", "one")
		h.Set("Date", "Sun, 01 Mar 2026 12:00:00 GMT")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "{\"id\": %d,", n)
		_, _ = io.WriteString(w, "\"raw\": \"\xff\"}\r\n")
	}
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// wantRefusal checks an answer of the middleware's own.
func wantRefusal(t *testing.T, resp *http.Response, status int, code, detail string) {
	t.Helper()
	var got struct{ Error, Detail string }
	body := read(t, resp)
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Errorf("answer %d %q: %v", resp.StatusCode, body, err)
	}
	if resp.StatusCode != status || got.Error != code || got.Detail != detail {
		t.Errorf("answer = %d %q %q,\nwant     %d %q %q", resp.StatusCode, got.Error, got.Detail, status, code, detail)
	}
	if ct := resp.Header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("Content-Type = %q", ct)
	}
	if _, ok := resp.Header["Idempotent-Replayed"]; ok {
		t.Error("a refusal says that it is replayed")
	}
	// Only the refusal that knows a record tells until when there is one.
	if got, known := resp.Header["Idempotency-Key-Expires"], strings.Contains(detail, "(fingerprint "); (got != nil) != known {
		t.Errorf("Idempotency-Key-Expires = %q of %s %q", got, code, detail)
	}
	retry := ""
	if status == http.StatusConflict || status >= 500 {
		retry = "1"
	}
	if got := resp.Header.Get("Retry-After"); got != retry {
		t.Errorf("Retry-After = %q, want %q", got, retry)
	}
}

func wantStatus(t *testing.T, resp *http.Response, status int, replayed bool) {
	t.Helper()
	if resp.StatusCode != status {
		t.Fatalf("status = %d, want %d: %s", resp.StatusCode, status, read(t, resp))
	}
	var want []string
	if replayed {
		want = []string{"true"}
	}
	if diff := gocmp.Diff(want, resp.Header["Idempotent-Replayed"]); diff != "" {
		t.Errorf("Idempotent-Replayed (-want +got):\n%s", diff)
	}
}

func wantEvents(t *testing.T, l *layer, want ...idempotency.Event) {
	t.Helper()
	ignore := cmpopts.IgnoreFields(idempotency.Event{}, "Fingerprint")
	if diff := gocmp.Diff(want, l.observed(), ignore, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestMiddleware(t *testing.T) {
	t.Parallel()

	t.Run("PanicsWithoutStore", func(t *testing.T) {
		t.Parallel()
		defer wantPanic(t, "needs a store")
		idempotency.Middleware(nil, idempotency.Options{Scope: func(*http.Request) string { return "m" }})
	})

	t.Run("PanicsWithoutScope", func(t *testing.T) {
		t.Parallel()
		defer wantPanic(t, "Options.Scope")
		idempotency.Middleware(memory(), idempotency.Options{})
	})

	t.Run("PanicsOnAnEmptyScope", func(t *testing.T) {
		t.Parallel()
		h := idempotency.Middleware(memory(), idempotency.Options{Scope: func(*http.Request) string { return "" }})(created())
		defer wantPanic(t, "without a scope")
		h.ServeHTTP(httptest.NewRecorder(), request("k", ""))
	})

	t.Run("PassesSafeMethodsThrough", func(t *testing.T) {
		t.Parallel()
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions} {
			var got *http.Request
			l := newLayer(memory(), idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) { got = r })
			for i := range 2 {
				// A key is ignored, be it a bad one.
				r := request("bad key", "")
				r.Method = method
				wantStatus(t, l.do(r), http.StatusOK, false)
				if l.ran() != i+1 || got != r {
					t.Errorf("%s: the handler ran %d times, with %p for %p", method, l.ran(), got, r)
				}
			}
			wantEvents(t, l)
		}
	})

	t.Run("EveryOtherMethodNeedsAKey", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "CONNECT", "TRACE", "FOO", "get"} {
			r := request("", "")
			r.Method = method
			wantRefusal(t, l.do(r), http.StatusBadRequest, "idempotency_key_required", keyRequired)
		}
		if l.ran() != 0 {
			t.Errorf("the handler ran %d times", l.ran())
		}
	})
}

const keyRequired = "this request needs an Idempotency-Key header: a value of your own for each operation, the same for each retry of it"

func wantPanic(t *testing.T, text string) {
	t.Helper()
	if v := recover(); v == nil || !strings.Contains(fmt.Sprint(v), text) {
		t.Errorf("panic = %v, want one that says %q", v, text)
	}
}

// TestMiddleware_Refuses goes through what is refused before the store is
// asked, in the order of precedence: each row is at fault in what comes after
// its own fault too. None is recorded, and the key stays free.
func TestMiddleware_Refuses(t *testing.T) {
	t.Parallel()
	const (
		twoLines = "Idempotency-Key must be sent once, got more than one header line"
		coding   = "the body must be sent without a Content-Encoding, or with identity"
		tooLarge = "the body must be at most 65536 bytes long"
		cutShort = "the body was cut short or could not be read"
	)
	long := strings.Repeat("x", 64<<10+1)
	broken := func() io.Reader { return io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)) }
	for _, tt := range []struct {
		name    string
		request func() *http.Request
		status  int
		code    string
		detail  string
	}{
		{"NoKey", func() *http.Request { return request("", long, "Content-Encoding: gzip") },
			400, "idempotency_key_required", keyRequired},
		{"BadKey", func() *http.Request { return request("a b", long, "Content-Encoding: gzip") },
			400, "idempotency_key_invalid", "Idempotency-Key must be printable ASCII without blanks, got byte 0x20 at position 2"},
		{"EmptyKey", func() *http.Request { return request("", long, "Idempotency-Key: ", "Content-Encoding: gzip") },
			400, "idempotency_key_invalid", "Idempotency-Key must not be empty"},
		{"TwoKeys", func() *http.Request { return request("k", long, "Idempotency-Key: l", "Content-Encoding: gzip") },
			400, "idempotency_key_invalid", twoLines},
		{"TheSameKeyTwice", func() *http.Request { return request("k", long, "Idempotency-Key: k", "Content-Encoding: gzip") },
			400, "idempotency_key_invalid", twoLines},
		{"Encoding", func() *http.Request { return request("k", long, "Content-Encoding: gzip") },
			415, "unsupported_content_encoding", coding},
		{"EncodingAmongOthers", func() *http.Request { return request("k", long, "Content-Encoding: identity, br") },
			415, "unsupported_content_encoding", coding},
		{"EncodingOnASecondLine", func() *http.Request { return request("k", long, "Content-Encoding: identity", "Content-Encoding: br") },
			415, "unsupported_content_encoding", coding},
		{"TooLarge", func() *http.Request { return request("k", long) },
			413, "body_too_large", tooLarge},
		{"TooLargeUnannounced", func() *http.Request { return stream("k", strings.NewReader(long)) },
			413, "body_too_large", tooLarge},
		{"TooLargeBeforeItBreaks", func() *http.Request { return stream("k", io.MultiReader(strings.NewReader(long), broken())) },
			413, "body_too_large", tooLarge},
		{"Broken", func() *http.Request { return stream("k", broken()) },
			400, "body_unreadable", cutShort},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLayer(memory(), idempotency.Options{}, created())
			for range 2 {
				wantRefusal(t, l.do(tt.request()), tt.status, tt.code, tt.detail)
			}
			wantEvents(t, l)
			if l.ran() != 0 {
				t.Errorf("the handler ran %d times", l.ran())
			}
			wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
		})
	}
}

// stream returns a POST whose length nobody has announced.
func stream(key string, body io.Reader) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/payment_intents", body)
	r.ContentLength = -1
	r.Header.Set("Idempotency-Key", key)
	return r
}

func TestMiddleware_Fresh(t *testing.T) {
	t.Parallel()

	t.Run("HandlerGetsTheWholeRequest", func(t *testing.T) {
		t.Parallel()
		body := strings.Repeat("x", 64<<10) // the longest there is
		for name, r := range map[string]*http.Request{
			"Announced":   request("k", body, "X-Mine: 1"),
			"Unannounced": stream("k", strings.NewReader(body)),
		} {
			var got string
			var length int64
			l := newLayer(memory(), idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				got, length = string(b), r.ContentLength
			})
			wantStatus(t, l.do(r), http.StatusOK, false)
			if got != body || length != int64(len(body)) {
				t.Errorf("%s: the handler got %d bytes of %d, Content-Length %d", name, len(got), len(body), length)
			}
		}
	})

	t.Run("EncodingsThatAreNone", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		for i, value := range []string{"identity", "IDENTITY", "", "identity, identity", " , identity"} {
			wantStatus(t, l.do(request(fmt.Sprint(i), "", "Content-Encoding: "+value)), http.StatusCreated, false)
		}
	})

	t.Run("SendsWhatTheHandlerSet", func(t *testing.T) {
		t.Parallel()
		store := memory()
		l := newLayer(store, idempotency.Options{}, created())
		resp := l.do(request("k", ""))
		wantStatus(t, resp, http.StatusCreated, false)
		want := http.Header{
			"Content-Type": {"application/json"}, "Location": {"/things/1"}, "Etag": {`"1"`},
			"Set-Cookie": {"a=b"}, "X-Request-Id": {"one"}, "Date": {"Sun, 01 Mar 2026 12:00:00 GMT"},
			"Idempotency-Key-Expires": {expiry(t, store, "k")},
		}
		if diff := gocmp.Diff(want, resp.Header); diff != "" {
			t.Errorf("headers (-want +got):\n%s", diff)
		}
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Fresh})
	})

	t.Run("SendsOnlyWhatIsOnRecord", func(t *testing.T) {
		t.Parallel()
		store := memory()
		w := httptest.NewRecorder()
		l := newLayer(&completing{Store: store, before: func() error {
			if w.Flushed || w.Body.Len() > 0 {
				t.Error("the answer was sent before it was on record")
			}
			return nil
		}}, idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "answer")
		})
		l.ServeHTTP(w, request("k", ""))
		if got := w.Body.String(); got != "answer" {
			t.Errorf("body = %q", got)
		}
	})

	t.Run("ContextOutlivesTheClient", func(t *testing.T) {
		t.Parallel()
		type value struct{}
		ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), value{}, "kept"))
		start := time.Now()
		l := newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			hangUp()
			if err := r.Context().Err(); err != nil {
				t.Errorf("the client hung up, and the handler's context has ended: %v", err)
			}
			if deadline, ok := r.Context().Deadline(); !ok || deadline.Before(start.Add(lease)) || deadline.After(time.Now().Add(lease)) {
				t.Errorf("deadline = %v, %t; want the end of the lease", deadline, ok)
			}
			if got := r.Context().Value(value{}); got != "kept" {
				t.Errorf("the context's value = %v", got)
			}
			created()(w, r)
		})
		wantStatus(t, l.do(request("k", "").WithContext(ctx)), http.StatusCreated, false)
		wantStatus(t, l.do(request("k", "")), http.StatusCreated, true)
	})

	t.Run("RunsForAClientThatIsGone", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		ctx, hangUp := context.WithCancel(t.Context())
		hangUp()
		wantStatus(t, l.do(request("k", "").WithContext(ctx)), http.StatusCreated, false)
	})
}

func TestMiddleware_Replay(t *testing.T) {
	t.Parallel()

	t.Run("ByteForByte", func(t *testing.T) {
		t.Parallel()
		store := memory()
		l := newLayer(store, idempotency.Options{}, created())
		first := read(t, l.do(request("k", "body")))
		for range 2 {
			resp := l.do(request("k", "body"))
			wantStatus(t, resp, http.StatusCreated, true)
			want := http.Header{
				"Content-Type": {"application/json"}, "Location": {"/things/1"}, "Etag": {`"1"`},
				"Idempotent-Replayed": {"true"}, "Idempotency-Key-Expires": {expiry(t, store, "k")},
			}
			if diff := gocmp.Diff(want, resp.Header); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if got := read(t, resp); got != first {
				t.Errorf("body = %q, want %q", got, first)
			}
		}
		if l.ran() != 1 {
			t.Errorf("the handler ran %d times", l.ran())
		}
		replay := idempotency.Event{Outcome: idempotency.Replay}
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Fresh}, replay, replay)
	})

	t.Run("EveryAnswerOfTheHandlers", func(t *testing.T) {
		t.Parallel()
		for _, status := range []int{200, 204, 303, 400, 404, 409, 422, 429, 500, 503, 599} {
			l := newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
			wantStatus(t, l.do(request("k", "")), status, false)
			wantStatus(t, l.do(request("k", "")), status, true)
			if l.ran() != 1 {
				t.Errorf("%d: the handler ran %d times", status, l.ran())
			}
		}
	})

	t.Run("QuotedAndBareAreOneKey", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		wantStatus(t, l.do(request(`a"\b`, "")), http.StatusCreated, false)
		wantStatus(t, l.do(request(`"a\"\\b"`, "")), http.StatusCreated, true)
	})

	t.Run("ScopesNeverMeet", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		wantStatus(t, l.do(request("k", "", "Scope: a")), http.StatusCreated, false)
		wantStatus(t, l.do(request("k", "", "Scope: b")), http.StatusCreated, false)
		wantStatus(t, l.do(request("k", "other", "Scope: c")), http.StatusCreated, false)
		wantStatus(t, l.do(request("k", "", "Scope: b")), http.StatusCreated, true)
	})
}

func TestMiddleware_Mismatch(t *testing.T) {
	t.Parallel()
	changed := strings.Replace(exampleBody, "100000000", "999000000", 1)

	t.Run("Ended", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		wantStatus(t, l.do(request("order-1001", exampleBody)), http.StatusCreated, false)
		for range 2 {
			wantRefusal(t, l.do(request("order-1001", changed)), 422, "idempotency_key_reused",
				`Idempotency-Key "order-1001" was already used for a different request (fingerprint ff330e75a93099c4, got 90f56163d6f6ee6b)`)
		}
		wantStatus(t, l.do(request("order-1001", exampleBody)), http.StatusCreated, true)
		mismatch := idempotency.Event{Outcome: idempotency.Mismatch}
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Fresh}, mismatch, mismatch, idempotency.Event{Outcome: idempotency.Replay})
	})

	t.Run("Running", func(t *testing.T) {
		t.Parallel()
		l, release := running(t, "order-1001", exampleBody)
		wantRefusal(t, l.do(request("order-1001", changed)), 422, "idempotency_key_reused",
			`Idempotency-Key "order-1001" was already used for a different request (got 90f56163d6f6ee6b)`)
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Mismatch})
		release()
	})

	t.Run("WhatARequestIs", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		at := func(method, target, body string) *http.Request {
			r := httptest.NewRequest(method, target, strings.NewReader(body))
			r.Header.Set("Idempotency-Key", "k")
			return r
		}
		wantStatus(t, l.do(at("POST", "/a%2Fb?c=d", "body")), http.StatusCreated, false)
		for _, r := range []*http.Request{
			at("PUT", "/a%2Fb?c=d", "body"), at("POST", "/a/b?c=d", "body"), at("POST", "/a%2fb?c=d", "body"),
			at("POST", "/a%2Fb", "body"), at("POST", "/a%2Fb?", "body"), at("POST", "/a%2Fb?c=e", "body"),
			at("POST", "/a%2Fb?c=d", "body\n"), at("POST", "/a%2Fb?c=d", ""),
		} {
			wantStatus(t, l.do(r), http.StatusUnprocessableEntity, false)
		}
		// Headers are no part of it.
		r := at("POST", "/a%2Fb?c=d", "body")
		r.Header.Set("Content-Type", "text/plain")
		wantStatus(t, l.do(r), http.StatusCreated, true)
	})

	t.Run("KeyIsQuotedInTheDetail", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		wantStatus(t, l.do(request(`a"\<`, exampleBody)), http.StatusCreated, false)
		wantRefusal(t, l.do(request(`a"\<`, changed)), 422, "idempotency_key_reused",
			`Idempotency-Key "a\"\\<" was already used for a different request (fingerprint ff330e75a93099c4, got 90f56163d6f6ee6b)`)
	})
}

// running returns a layer in whose handler a request waits, until release,
// which returns when that request has been answered 201.
func running(t *testing.T, key, body string) (l *layer, release func()) {
	t.Helper()
	entered, let := make(chan struct{}), make(chan struct{})
	l = newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		close(entered)
		<-let
		created()(w, r)
	})
	answer := make(chan *http.Response, 1)
	go func() { answer <- l.do(request(key, body)) }()
	<-entered
	release = sync.OnceFunc(func() {
		close(let)
		wantStatus(t, <-answer, http.StatusCreated, false)
	})
	t.Cleanup(release)
	return l, release
}

func TestMiddleware_InFlight(t *testing.T) {
	t.Parallel()
	l, release := running(t, "order-1001", "body")
	for range 2 {
		// Nothing but this goroutine could let the winner go on: a loser that
		// waited for it would wait for ever.
		wantRefusal(t, l.do(request("order-1001", "body")), 409, "idempotency_key_in_flight",
			`the request with Idempotency-Key "order-1001" is still running`)
	}
	inFlight := idempotency.Event{Outcome: idempotency.InFlight}
	wantEvents(t, l, inFlight, inFlight)
	release()
	wantStatus(t, l.do(request("order-1001", "body")), http.StatusCreated, true)
}

const (
	failedDetail      = "the request failed and was undone; send it again with the same key"
	unavailableDetail = "the service can not decide about this request now; send it again with the same key"
	supersededDetail  = `the request with Idempotency-Key "k" took too long and was undone`
)

// work queues something that is kept only with the attempt.
func work(t *testing.T, r *http.Request, kept *int) {
	a, ok := memidem.FromContext(r.Context())
	if !ok {
		t.Error("the handler's context is bound to no attempt")
		return
	}
	a.Queue(func() (func(), error) { *kept++; return func() { *kept-- }, nil })
}

// TestMiddleware_NoAnswer goes through the ways in which a handler gives no
// answer. Each undoes its work, and leaves the key to the retry, which runs.
func TestMiddleware_NoAnswer(t *testing.T) {
	t.Parallel()
	cause := errors.New("no answer from db: SQLSTATE 57P01")
	for _, tt := range []struct {
		name   string
		fail   func(w http.ResponseWriter, r *http.Request)
		status int
		code   string
		detail string
		err    func(error) bool
		undone idempotency.Undone
	}{
		{"Panic", func(http.ResponseWriter, *http.Request) { panic("oh: secret") }, 500, "internal", failedDetail, panicked("oh: secret"), idempotency.UndonePanic},
		{"PanicWithAnError", func(http.ResponseWriter, *http.Request) { panic(cause) }, 500, "internal", failedDetail, panicked(cause), idempotency.UndonePanic},
		{"PanicToAbort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 500, "internal", failedDetail, panicked(http.ErrAbortHandler), idempotency.UndonePanic},
		{"PanicAfterTheAnswer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/nowhere")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "half an ans")
			panic("oh")
		}, 500, "internal", failedDetail, panicked("oh"), idempotency.UndonePanic},
		{"ImpossibleStatus", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(1000) }, 500, "internal", failedDetail,
			panicked("invalid WriteHeader code 1000"), idempotency.UndonePanic},
		{"Withheld", func(_ http.ResponseWriter, r *http.Request) {
			if !idempotency.Withhold(r.Context(), cause) {
				t.Error("Withhold = false inside an attempt")
			}
		}, 503, "unavailable", unavailableDetail, func(err error) bool { return errors.Is(err, cause) }, idempotency.UndoneWithheld},
		{"WithheldAfterTheAnswer", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "half an ans")
			idempotency.Withhold(r.Context(), cause)
		}, 503, "unavailable", unavailableDetail, func(err error) bool { return errors.Is(err, cause) }, idempotency.UndoneWithheld},
		{"WorkThatCanNotBeKept", func(w http.ResponseWriter, r *http.Request) {
			a, _ := memidem.FromContext(r.Context())
			a.Queue(func() (func(), error) { return nil, cause })
			w.WriteHeader(http.StatusCreated)
		}, 503, "unavailable", unavailableDetail, func(err error) bool { return errors.Is(err, cause) }, idempotency.UndoneStore},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			kept, broken := 0, true
			l := newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				work(t, r, &kept)
				if broken {
					tt.fail(w, r)
					return
				}
				created()(w, r)
			})
			for range 2 {
				resp := l.do(request("k", ""))
				if got := resp.Header.Get("Location"); got != "" {
					t.Errorf("Location = %q", got)
				}
				wantRefusal(t, resp, tt.status, tt.code, tt.detail)
				events := l.observed()
				if len(events) != 1 || events[0].Outcome != idempotency.Fresh || events[0].Undone != tt.undone || !tt.err(events[0].Err) {
					t.Errorf("events = %+v", events)
				}
			}
			if kept != 0 {
				t.Errorf("work was kept %d times", kept)
			}
			// Another request is as free to have the key.
			broken = false
			wantStatus(t, l.do(request("k", "other")), http.StatusCreated, false)
			if kept != 1 || l.ran() != 3 {
				t.Errorf("work was kept %d times in %d runs", kept, l.ran())
			}
		})
	}
}

// The retry of a client that has heard of the failure must find the key free.
func TestMiddleware_FreesTheKeyFirst(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]http.HandlerFunc{
		"Panic":    func(http.ResponseWriter, *http.Request) { panic("oh") },
		"Withheld": func(_ http.ResponseWriter, r *http.Request) { idempotency.Withhold(r.Context(), errors.New("cause")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, answered := memory(), false
			l := newLayer(store, idempotency.Options{
				Refuse: func(http.ResponseWriter, *http.Request, *idempotency.Refusal) {
					answered = true
					claimFor(t, store, "")
				},
			}, handler)
			l.do(request("k", ""))
			if !answered {
				t.Error("no refusal")
			}
		})
	}
}

func TestMiddleware_ObservesFirst(t *testing.T) {
	t.Parallel()
	store := memory()
	w := httptest.NewRecorder()
	l := idempotency.Middleware(store, idempotency.Options{
		Scope: func(*http.Request) string { return "merchant-a" },
		Observe: func(_ *http.Request, ev idempotency.Event) {
			if len(w.Header()) > 0 || w.Body.Len() > 0 {
				t.Errorf("%v was answered before it was observed", ev.Outcome)
			}
			if ev.Fingerprint != fingerprint("") && ev.Fingerprint != fingerprint("other") {
				t.Errorf("%v: fingerprint = %v", ev.Outcome, ev.Fingerprint)
			}
		},
	})(created())
	for _, body := range []string{"", "", "other"} { // fresh, replay, mismatch
		w = httptest.NewRecorder()
		l.ServeHTTP(w, request("k", body))
		if w.Body.Len() == 0 {
			t.Errorf("no answer to %q", body)
		}
	}
}

func panicked(value any) func(error) bool {
	return func(err error) bool {
		var p *idempotency.PanicError
		return errors.As(err, &p) && p.Value == value && strings.Contains(string(p.Stack), "ServeHTTP") &&
			p.Error() == fmt.Sprintf("handler panicked: %v", value)
	}
}

// A goroutine that ends in the handler, as t.FailNow does, must not keep the
// key until its lease ends.
func TestMiddleware_Goexit(t *testing.T) {
	t.Parallel()
	ends := true
	l := newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
		if ends {
			runtime.Goexit()
		}
		created()(w, r)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.do(request("k", ""))
	}()
	<-done
	ends = false
	wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
}

func TestWithhold(t *testing.T) {
	t.Parallel()
	if idempotency.Withhold(t.Context(), errors.New("cause")) {
		t.Error("Withhold = true outside of an attempt")
	}
	l := newLayer(memory(), idempotency.Options{}, func(_ http.ResponseWriter, r *http.Request) {
		if idempotency.Withhold(r.Context(), errors.New("cause")) {
			t.Error("Withhold = true in a GET")
		}
	})
	r := request("k", "")
	r.Method = http.MethodGet
	wantStatus(t, l.do(r), http.StatusOK, false)
}

// TestMiddleware_Superseded runs in a bubble whose clock moves on when all
// wait.
func TestMiddleware_Superseded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		late func(w http.ResponseWriter, r *http.Request)
	}{
		{"AnswersAfterItsDeadline", func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			created()(w, r)
		}},
		{"DoesNotLookAtItsDeadline", func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(2 * lease)
			created()(w, r)
		}},
		{"WithholdsAtItsDeadline", func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			idempotency.Withhold(r.Context(), r.Context().Err())
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				kept, slow, start := 0, true, time.Now()
				l := newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
					work(t, r, &kept)
					if slow {
						tt.late(w, r)
						return
					}
					created()(w, r)
				})
				wantRefusal(t, l.do(request("k", "")), 409, "idempotency_attempt_superseded", supersededDetail)
				if took := time.Since(start); took < lease {
					t.Errorf("answered after %v, before the lease had ended", took)
				}
				events := l.observed()
				if len(events) != 1 || events[0].Outcome != idempotency.Fresh || events[0].Undone != idempotency.UndoneSuperseded || events[0].Err == nil {
					t.Errorf("events = %+v", events)
				}
				slow = false
				wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
				if kept != 1 {
					t.Errorf("work was kept %d times", kept)
				}
			})
		})
	}

	t.Run("TakenOver", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			slow := make(chan struct{}, 1)
			slow <- struct{}{}
			l := newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-slow:
					time.Sleep(2 * lease)
				default:
				}
				created()(w, r)
			})
			first := make(chan *http.Response, 1)
			go func() { first <- l.do(request("k", "")) }()
			synctest.Wait()
			time.Sleep(lease)
			wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
			wantRefusal(t, <-first, 409, "idempotency_attempt_superseded", supersededDetail)
			wantStatus(t, l.do(request("k", "")), http.StatusCreated, true)
		})
	})
}

// expiry returns the expiry of merchant-a's record under the key, as an HTTP date.
func expiry(t *testing.T, store idempotency.Store, key string) string {
	t.Helper()
	rec, _, err := store.Lookup(t.Context(), idempotency.ID{Scope: "merchant-a", Key: key})
	if rec == nil || err != nil {
		t.Fatalf("Lookup = %+v, %v; want a record", rec, err)
	}
	return rec.ExpiresAt.UTC().Truncate(time.Second).Format(http.TimeFormat)
}

// TestMiddleware_Expires runs in a bubble, whose clock begins with the year 2000.
// What no record stands for, or none that is known, wantRefusal looks at.
func TestMiddleware_Expires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memidem.New(time.Hour+300*time.Millisecond, lease, time.Now)
		l := newLayer(store, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(5 * time.Second) // it counts from the claim, not from the answer
			created()(w, r)
		})
		time.Sleep(690 * time.Millisecond)
		const want = "Sat, 01 Jan 2000 01:00:00 GMT" // and 990 ms
		first := l.do(request("k", "one"))
		wantStatus(t, first, http.StatusCreated, false)
		time.Sleep(time.Minute)
		replay := l.do(request("k", "one"))
		wantStatus(t, replay, http.StatusCreated, true)
		mismatch := l.do(request("k", "two"))
		wantStatus(t, mismatch, http.StatusUnprocessableEntity, false)
		for name, resp := range map[string]*http.Response{"first": first, "replay": replay, "mismatch": mismatch} {
			if diff := gocmp.Diff([]string{want}, resp.Header["Idempotency-Key-Expires"]); diff != "" {
				t.Errorf("%s: Idempotency-Key-Expires (-want +got):\n%s", name, diff)
			}
		}
		rec, _, _ := store.Lookup(t.Context(), idempotency.ID{Scope: "merchant-a", Key: "k"})
		if got, ok := rec.Response.Header["Idempotency-Key-Expires"]; ok {
			t.Errorf("Idempotency-Key-Expires %q is on record", got)
		}
	})
}

func TestMiddleware_Expiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLayer(memory(), idempotency.Options{}, created())
		wantStatus(t, l.do(request("k", "one")), http.StatusCreated, false)
		time.Sleep(ttl - time.Microsecond)
		wantStatus(t, l.do(request("k", "one")), http.StatusCreated, true)
		wantStatus(t, l.do(request("k", "two")), http.StatusUnprocessableEntity, false)
		time.Sleep(time.Microsecond)
		wantStatus(t, l.do(request("k", "two")), http.StatusCreated, false)
	})
}

// claiming is a store whose claims the test decides about.
type claiming struct {
	idempotency.Store
	claim func(ctx context.Context) error
}

func (s *claiming) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	if err := s.claim(ctx); err != nil {
		return idempotency.Claim{}, err
	}
	return s.Store.Claim(ctx, id, fp)
}

func TestMiddleware_StoreAway(t *testing.T) {
	t.Parallel()

	t.Run("Fails", func(t *testing.T) {
		t.Parallel()
		cause := errors.New("dial tcp 10.0.0.1:5432: connection refused")
		failing := cause
		l := newLayer(&claiming{memory(), func(context.Context) error { return failing }}, idempotency.Options{}, created())
		wantRefusal(t, l.do(request("k", "")), 503, "unavailable", unavailableDetail)
		wantEvents(t, l, idempotency.Event{Err: cause})
		if l.ran() != 0 {
			t.Errorf("the handler ran %d times", l.ran())
		}
		failing = nil
		wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
	})

	for name, timeout := range map[string]time.Duration{"SilentForTheDefaultTime": 0, "SilentForAnotherTime": time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := newLayer(&claiming{memory(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
					idempotency.Options{StoreTimeout: timeout}, created())
				start := time.Now()
				wantRefusal(t, l.do(request("k", "")), 503, "unavailable", unavailableDetail)
				if took, want := time.Since(start), cmp.Or(timeout, 5*time.Second); took != want {
					t.Errorf("answered after %v, want %v", took, want)
				}
				wantEvents(t, l, idempotency.Event{Err: context.DeadlineExceeded})
				if l.ran() != 0 {
					t.Errorf("the handler ran %d times", l.ran())
				}
			})
		})
	}

	t.Run("UnknownDecision", func(t *testing.T) {
		t.Parallel()
		l := newLayer(deciding{}, idempotency.Options{}, created())
		defer wantPanic(t, `store decided "none"`)
		l.do(request("k", ""))
	})
}

// deciding is a store that forgets to decide.
type deciding struct{ idempotency.Store }

func (deciding) Lease() time.Duration { return lease }

func (deciding) Claim(context.Context, idempotency.ID, idempotency.Fingerprint) (idempotency.Claim, error) {
	return idempotency.Claim{}, nil
}

// completing is a store around which a test says how Complete goes: before is
// called instead of the attempt's own where it returns an error; then the
// attempt is abandoned, or completed all the same where keep is set.
type completing struct {
	idempotency.Store
	before func() error
	keep   bool
	claims int
	again  func(context.Context) error // says how every claim after the first goes; may be nil
}

func (s *completing) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	if s.claims++; s.claims > 1 && s.again != nil {
		if err := s.again(ctx); err != nil {
			return idempotency.Claim{}, err
		}
	}
	c, err := s.Store.Claim(ctx, id, fp)
	if c.Outcome == idempotency.Fresh {
		c.Attempt = &completingAttempt{c.Attempt, s}
	}
	return c, err
}

type completingAttempt struct {
	idempotency.Attempt
	store *completing
}

func (a *completingAttempt) Complete(ctx context.Context, resp idempotency.Response) error {
	err := a.store.before()
	if err == nil {
		return a.Attempt.Complete(ctx, resp)
	}
	if a.store.keep {
		return errors.Join(err, a.Attempt.Complete(ctx, resp))
	}
	return errors.Join(err, a.Abandon(ctx))
}

// TestMiddleware_Settles: where Complete could not tell what stands under the
// key, the store is asked once more.
func TestMiddleware_Settles(t *testing.T) {
	t.Parallel()
	once := func(err error, then func()) func() error {
		done := false
		return func() error {
			if done {
				return nil
			}
			done = true
			if then != nil {
				then()
			}
			return err
		}
	}
	onceMore := func(err error, then func()) func(context.Context) error {
		f := once(err, then)
		return func(context.Context) error { return f() }
	}
	inDoubt := fmt.Errorf("%w: unexpected EOF", idempotency.ErrInDoubt)
	taken := fmt.Errorf("%w: duplicate key", idempotency.ErrTaken)

	t.Run("InDoubtAndKept", func(t *testing.T) {
		t.Parallel()
		l := newLayer(&completing{Store: memory(), before: once(inDoubt, nil), keep: true}, idempotency.Options{}, created())
		resp := l.do(request("k", ""))
		wantStatus(t, resp, http.StatusCreated, true)
		if got := resp.Header.Get("Location"); got != "/things/1" {
			t.Errorf("Location = %q", got)
		}
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Replay, Undone: idempotency.UndoneInDoubt})
		if l.ran() != 1 {
			t.Errorf("the handler ran %d times", l.ran())
		}
	})

	t.Run("InDoubtAndLost", func(t *testing.T) {
		t.Parallel()
		l := newLayer(&completing{Store: memory(), before: once(inDoubt, nil)}, idempotency.Options{}, created())
		wantRefusal(t, l.do(request("k", "")), 503, "unavailable", unavailableDetail)
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Fresh, Undone: idempotency.UndoneInDoubt, Err: idempotency.ErrInDoubt})
		wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
	})

	t.Run("InDoubtAndLostTooLate", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := newLayer(&completing{Store: memory(), before: once(inDoubt, func() { time.Sleep(2 * lease) }), again: context.Context.Err}, idempotency.Options{}, created())
			wantRefusal(t, l.do(request("k", "")), 409, "idempotency_attempt_superseded", supersededDetail)
			wantEvents(t, l, idempotency.Event{Outcome: idempotency.Fresh, Undone: idempotency.UndoneInDoubt, Err: idempotency.ErrInDoubt})
			wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
		})
	})

	t.Run("InDoubtAndStillRunning", func(t *testing.T) {
		t.Parallel()
		// The store took the session for dead before the server did.
		mem := memory()
		s := &completing{Store: mem, before: once(inDoubt, nil)}
		s.again = onceMore(nil, func() { claimFor(t, mem, "") })
		l := newLayer(s, idempotency.Options{}, created())
		wantRefusal(t, l.do(request("k", "")), 503, "unavailable", unavailableDetail)
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Fresh, Undone: idempotency.UndoneInDoubt, Err: idempotency.ErrInDoubt})
	})

	t.Run("InDoubtAndAway", func(t *testing.T) {
		t.Parallel()
		away := errors.New("connection refused")
		l := newLayer(&completing{Store: memory(), before: once(inDoubt, nil), keep: true, again: onceMore(away, nil)}, idempotency.Options{}, created())
		wantRefusal(t, l.do(request("k", "")), 503, "unavailable", unavailableDetail)
		events := l.observed()
		if len(events) != 1 || !errors.Is(events[0].Err, idempotency.ErrInDoubt) || !errors.Is(events[0].Err, away) {
			t.Errorf("events = %+v, want one with both errors", events)
		}
		wantStatus(t, l.do(request("k", "")), http.StatusCreated, true)
	})

	t.Run("TakenByTheSameRequest", func(t *testing.T) {
		t.Parallel()
		mem := memory()
		s := &completing{Store: mem, before: once(taken, nil)}
		s.again = onceMore(nil, func() { recordFor(t, mem, "") })
		l := newLayer(s, idempotency.Options{}, created())
		resp := l.do(request("k", ""))
		wantStatus(t, resp, http.StatusTeapot, true)
		if got, want := resp.Header.Get("Idempotency-Key-Expires"), expiry(t, mem, "k"); got != want {
			t.Errorf("Idempotency-Key-Expires = %q, want %q", got, want)
		}
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Replay, Undone: idempotency.UndoneTaken})
	})

	t.Run("TakenByAnother", func(t *testing.T) {
		t.Parallel()
		mem := memory()
		s := &completing{Store: mem, before: once(taken, nil)}
		s.again = onceMore(nil, func() { recordFor(t, mem, "other") })
		l := newLayer(s, idempotency.Options{}, created())
		got, other := fingerprint(""), fingerprint("other")
		wantRefusal(t, l.do(request("k", "")), 422, "idempotency_key_reused",
			fmt.Sprintf(`Idempotency-Key "k" was already used for a different request (fingerprint %s, got %s)`, other, got))
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Mismatch, Undone: idempotency.UndoneTaken})
	})

	t.Run("Superseded", func(t *testing.T) {
		t.Parallel()
		// The store's clock for the lease is not the context's.
		superseded := fmt.Errorf("%w: SQLSTATE 25P03", idempotency.ErrSuperseded)
		l := newLayer(&completing{Store: memory(), before: once(superseded, nil)}, idempotency.Options{}, created())
		wantRefusal(t, l.do(request("k", "")), 409, "idempotency_attempt_superseded", supersededDetail)
		wantEvents(t, l, idempotency.Event{Outcome: idempotency.Fresh, Undone: idempotency.UndoneSuperseded, Err: idempotency.ErrSuperseded})
		wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
	})

	t.Run("TakenAndFreeAgain", func(t *testing.T) {
		t.Parallel()
		l := newLayer(&completing{Store: memory(), before: once(taken, nil)}, idempotency.Options{}, created())
		wantRefusal(t, l.do(request("k", "")), 503, "unavailable", unavailableDetail)
		wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
	})
}

func fingerprint(body string) idempotency.Fingerprint {
	return idempotency.FingerprintOf(http.MethodPost, "/v1/payment_intents", []byte(body))
}

// claimFor takes the key k for a request of this body, past the layer.
func claimFor(t *testing.T, store idempotency.Store, body string) idempotency.Attempt {
	c, err := store.Claim(context.Background(), idempotency.ID{Scope: "merchant-a", Key: "k"}, fingerprint(body))
	if err != nil || c.Outcome != idempotency.Fresh {
		t.Errorf("claim = %+v, %v", c, err)
	}
	return c.Attempt
}

// recordFor puts an answer under the key k, past the layer.
func recordFor(t *testing.T, store idempotency.Store, body string) {
	err := claimFor(t, store, body).Complete(context.Background(), idempotency.Response{Status: http.StatusTeapot, Header: http.Header{}})
	if err != nil {
		t.Error(err)
	}
}

// ending is a store that tells with which context an attempt was ended.
type ending struct {
	idempotency.Store
	ended func(ctx context.Context, how string)
}

func (s *ending) Claim(ctx context.Context, id idempotency.ID, fp idempotency.Fingerprint) (idempotency.Claim, error) {
	c, err := s.Store.Claim(ctx, id, fp)
	if c.Outcome == idempotency.Fresh {
		c.Attempt = &endingAttempt{c.Attempt, s}
	}
	return c, err
}

type endingAttempt struct {
	idempotency.Attempt
	store *ending
}

func (a *endingAttempt) Complete(ctx context.Context, resp idempotency.Response) error {
	a.store.ended(ctx, "complete")
	return a.Attempt.Complete(ctx, resp)
}

func (a *endingAttempt) Abandon(ctx context.Context) error {
	a.store.ended(ctx, "abandon")
	return a.Attempt.Abandon(ctx)
}

// An attempt is ended with a context that lives, whatever became of the
// handler's, and is bounded.
func TestMiddleware_EndsAttempts(t *testing.T) {
	t.Parallel()
	const bound = 5 * time.Second // from the end of the lease
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    []string
	}{
		{"InTime", created(), []string{"complete"}},
		{"Late", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, []string{"complete", "abandon", "abandon"}},
		{"LateAndPanicked", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done(); panic("oh") }, []string{"abandon", "abandon"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got []string
				end := time.Now().Add(lease)
				store := &ending{memory(), func(ctx context.Context, how string) {
					got = append(got, how)
					if err := ctx.Err(); err != nil {
						t.Errorf("%s with a context that has ended: %v", how, err)
					}
					if deadline, ok := ctx.Deadline(); !ok || deadline.After(end.Add(bound)) {
						t.Errorf("%s with the deadline %v, %t; want one until %v", how, deadline, ok, end.Add(bound))
					}
				}}
				ctx, hangUp := context.WithCancel(t.Context())
				l := newLayer(store, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
					hangUp()
					tt.handler(w, r)
				})
				l.do(request("k", "").WithContext(ctx))
				if diff := gocmp.Diff(tt.want, got); diff != "" {
					t.Errorf("ends (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestOptions_Refuse(t *testing.T) {
	t.Parallel()
	l := newLayer(memory(), idempotency.Options{
		Refuse: func(w http.ResponseWriter, _ *http.Request, ref *idempotency.Refusal) {
			w.WriteHeader(ref.Status)
			_, _ = fmt.Fprintf(w, "%v (%t)", ref, ref.Retry)
		},
	}, created())
	resp := l.do(request("", ""))
	if got, want := read(t, resp), "idempotency_key_required: "+keyRequired+" (false)"; resp.StatusCode != 400 || got != want {
		t.Errorf("answer = %d %q, want 400 %q", resp.StatusCode, got, want)
	}
}

func TestOptions_Route(t *testing.T) {
	t.Parallel()
	at := func(target, body string) *http.Request {
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
		r.Header.Set("Idempotency-Key", "k")
		return r
	}
	byPath := func(r *http.Request) string { return r.URL.Path }

	t.Run("KeyNamesOneRequest", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		wantStatus(t, l.do(at("/a", "")), http.StatusCreated, false)
		wantStatus(t, l.do(at("/b", "")), http.StatusUnprocessableEntity, false)
	})

	t.Run("KeyNamesOneRequestOfARoute", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{Route: byPath}, created())
		wantStatus(t, l.do(at("/a", "")), http.StatusCreated, false)
		wantStatus(t, l.do(at("/b", "")), http.StatusCreated, false)
		wantStatus(t, l.do(at("/a", "")), http.StatusCreated, true)
		wantStatus(t, l.do(at("/a", "other")), http.StatusUnprocessableEntity, false)
	})

	t.Run("ClaimsUnderTheRouteScope", func(t *testing.T) {
		t.Parallel()
		store := memory()
		l := newLayer(store, idempotency.Options{Route: byPath}, created())
		wantStatus(t, l.do(at("/a", "")), http.StatusCreated, false)
		for scope, want := range map[string]bool{
			idempotency.RouteScope("merchant-a", "/a"): true,
			idempotency.RouteScope("merchant-a", "/b"): false,
			"merchant-a": false,
		} {
			rec, _, _ := store.Lookup(t.Context(), idempotency.ID{Scope: scope, Key: "k"})
			if (rec != nil) != want {
				t.Errorf("record under the scope %s: %+v, want one: %t", scope, rec, want)
			}
		}
	})

	t.Run("PanicsOnAnEmptyRoute", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{Route: func(*http.Request) string { return "" }}, created())
		defer wantPanic(t, "without a route")
		l.do(request("k", ""))
	})
}

func TestRouteScope(t *testing.T) {
	t.Parallel()

	t.Run("IsReadable", func(t *testing.T) {
		t.Parallel()
		got, want := idempotency.RouteScope("merchant-a", "POST /things/{id}/cancel"), `"merchant-a" "POST /things/{id}/cancel"`
		if got != want {
			t.Errorf("RouteScope = %s, want %s", got, want)
		}
	})

	t.Run("KeepsPairsApart", func(t *testing.T) {
		t.Parallel()
		seen := make(map[string][2]string)
		parts := []string{"a", "b", "ab", "a b", `a" "b`, `"a"`, `a\`, `a\" "b`, `\`, `\\`, `"`, `" "`, " ", "\x00", `\x00`, "\xff", `\xff`, "\ufffd", "A", "ü"}
		for _, scope := range parts {
			for _, route := range parts {
				joined := idempotency.RouteScope(scope, route)
				if other, ok := seen[joined]; ok {
					t.Errorf("%q and %q are both %s", other, [2]string{scope, route}, joined)
				}
				seen[joined] = [2]string{scope, route}
				if !utf8.ValidString(joined) || strings.ContainsFunc(joined, unicode.IsControl) {
					t.Errorf("RouteScope(%q, %q) = %q, which not every store can keep", scope, route, joined)
				}
			}
		}
	})

	t.Run("PanicsOnAnEmptyScope", func(t *testing.T) {
		t.Parallel()
		defer wantPanic(t, "without a scope")
		idempotency.RouteScope("", "/a")
	})

	t.Run("PanicsOnAnEmptyRoute", func(t *testing.T) {
		t.Parallel()
		defer wantPanic(t, "without a route")
		idempotency.RouteScope("merchant-a", "")
	})
}

func TestOptions_MaxBody(t *testing.T) {
	t.Parallel()
	l := newLayer(memory(), idempotency.Options{MaxBody: 3}, created())
	wantStatus(t, l.do(request("k", "123")), http.StatusCreated, false)
	wantRefusal(t, l.do(request("l", "1234")), 413, "body_too_large", "the body must be at most 3 bytes long")
	wantRefusal(t, l.do(stream("l", strings.NewReader("1234"))), 413, "body_too_large", "the body must be at most 3 bytes long")
}

func TestWriteRefusal(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	idempotency.WriteRefusal(w, nil, &idempotency.Refusal{Status: 409, Code: "c", Detail: `a "b"`, Retry: true})
	if diff := gocmp.Diff("{\"error\":\"c\",\"detail\":\"a \\\"b\\\"\"}\n", w.Body.String()); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
	want := http.Header{"Content-Type": {"application/json"}, "Retry-After": {"1"}}
	if diff := gocmp.Diff(want, w.Header()); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}
