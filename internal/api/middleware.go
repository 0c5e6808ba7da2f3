package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"

	"intentd/internal/apikey"
	"intentd/internal/idempotency"
)

// entry is what the log will say of one request. The rooms that a request
// passes through write into it. It holds neither keys nor credentials.
type entry struct {
	merchant    string // whose payment intents the request is about
	role        apikey.Role
	outcome     idempotency.Outcome
	fingerprint string
	undone      idempotency.Undone // why the attempt came to nothing; 0: it did not, or there was none
	err         error              // why the answer is a 5xx or nothing was kept
	fault       bool               // that is a fault of ours, and not of what the service stands on
	unread      bool               // a body was announced, and not read to its end
	move        move               // the zero one: no intent was moved
}

// announced is a request's body that tells the entry when it has been read.
type announced struct {
	io.ReadCloser
	e *entry
}

// Read implements io.Reader.
func (b announced) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.e.unread = false
	}
	return n, err
}

type entryKey struct{}

// entryOf returns the request's log entry; one that nobody reads where the
// request is not logged.
func entryOf(r *http.Request) *entry {
	if e, ok := r.Context().Value(entryKey{}).(*entry); ok {
		return e
	}
	return new(entry)
}

// fail notes the first failure.
func (e *entry) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

// statusGone stands in log and figures for the answer to a client that has gone
// and that the service stopped working for: nobody got it. The number is nginx's.
const statusGone = 499

// gone tells whether e failed for no other reason than that the client of ctx's
// request hung up.
func (e *entry) gone(ctx context.Context) bool {
	return ctx.Err() != nil && errors.Is(e.err, context.Canceled)
}

// logged writes one line for each request, gives it an id, and turns a panic
// into a 500. What net/http refuses by itself, as a header that is too long, does
// not come here and has no line.
func (s *server) logged(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		// Not the client's: what it sends could be a secret, and is logged.
		id := uuid.NewString()
		e := new(entry)
		r = r.WithContext(context.WithValue(r.Context(), entryKey{}, e))
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		ww.Header().Set("X-Request-Id", id)
		if r.ContentLength != 0 {
			e.unread = true
			r.Body = announced{r.Body, e}
			// Nothing reads such a body, and net/http would wait for it before it
			// answers, unless the connection ends here.
			if r.Method == http.MethodGet || r.Method == http.MethodHead {
				ww.Header().Set("Connection", "close")
			}
		}

		defer func() {
			status := ww.Status()
			if status == 0 {
				status = http.StatusOK // as net/http does for a handler that wrote nothing
			}
			if e.gone(r.Context()) {
				status, e.err, e.fault = statusGone, nil, false
			}
			took := time.Since(start)
			route := chi.RouteContext(r.Context()).RoutePattern()
			s.log(r, e, route, id, status, took)
			describe(r, route, e)
			s.Observer.Request(route, r.Method, status, took)
		}()
		defer func() {
			if v := recover(); v != nil {
				e.fail(&idempotency.PanicError{Value: v, Stack: debug.Stack()})
				if ww.Status() != 0 {
					panic(http.ErrAbortHandler) // half an answer must not look like a whole one
				}
				s.fail(ww, r, errPanicked)
			}
		}()
		next.ServeHTTP(ww, r)
	})
}

// log writes the line, its members always in this order. What a client did is no
// error of ours, whatever it did: that is told as Info. Warn is for what passes by
// itself and was nobody's mistake, such as a database that is away; Error for what
// somebody has to mend here. A health check that finds all well is told as Debug:
// balancers ask every second, and only a change of the answer is news.
// docs/operations.md describes line and levels.
func (s *server) log(r *http.Request, e *entry, route, id string, status int, took time.Duration) {
	attrs := []slog.Attr{
		slog.String("method", r.Method),
		slog.String("path", r.URL.Path),
		slog.Int("status", status),
		slog.Duration("duration", took.Round(time.Microsecond)),
		slog.String("request_id", id),
	}
	if trace := traceID(r); trace.IsValid() {
		attrs = append(attrs, slog.String("trace_id", trace.String()))
	}
	if e.merchant != "" {
		attrs = append(attrs, slog.String("merchant", e.merchant), slog.String("role", string(e.role)))
	}
	if e.outcome != 0 {
		attrs = append(attrs, slog.String("outcome", e.outcome.String()))
	}
	if e.fingerprint != "" {
		attrs = append(attrs, slog.String("fingerprint", e.fingerprint))
	}
	if e.undone != 0 {
		attrs = append(attrs, slog.String("undone", e.undone.String()))
	}
	level := slog.LevelInfo
	if status == http.StatusOK && (route == healthPath || route == readyPath) {
		level = slog.LevelDebug
	}
	if e.err != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", e.err.Error()))
		var panicked *idempotency.PanicError
		if errors.As(e.err, &panicked) {
			e.fault = true
			attrs = append(attrs, slog.String("stack", string(panicked.Stack)))
		}
	}
	if e.fault {
		level = slog.LevelError // whatever the status: in an attempt it is a 503, and half an answer may have been sent
	}
	s.Log.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
}
