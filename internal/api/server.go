// Package api is the HTTP surface of the service: what comes in as JSON goes to
// the domain as Go values, and back. The rules of payments are package intent's,
// those of retries package idempotency's.
package api

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"time"

	"intentd"
	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/intent"
)

const (
	// readyTimeout is for the whole of a readiness check.
	readyTimeout = 2 * time.Second
	// readTimeout is for reading: what the idempotency layer gives its store
	// where something is written.
	readTimeout = 5 * time.Second
)

// Config is what the surface stands on. All of it is required but the last three.
type Config struct {
	Intents       *intent.Service
	Idempotency   idempotency.Store
	Authenticator apikey.Authenticator
	// Ready says why the service can not serve now, or nil. Its error goes to
	// the log, not to the client.
	Ready func(context.Context) error
	Log   *slog.Logger

	// RateLimit bounds what each merchant may send; the zero one does not.
	RateLimit RateLimit
	// DocsURL is where the documentation is found, without a slash at its end;
	// errors point below it. Empty means /docs, which the service has itself.
	DocsURL string
	// Observer is told what becomes of requests; the zero one is nobody.
	Observer Observer
}

type server struct {
	Config
	limiter *limiter
}

// New returns the handler of the whole API.
func New(c Config) http.Handler {
	c.DocsURL = cmp.Or(c.DocsURL, "/docs")
	c.Observer.complete()
	c.Intents = c.Intents.Observed(noteMoved)
	s := &server{Config: c, limiter: newLimiter(c.RateLimit)}
	return s.routes()
}

// answer is what a handler answers with when all went well.
type answer struct {
	status   int
	location string // "": none
	etag     string // "": none
	body     any    // nil: none
}

// handler answers a request, or says why it can not.
type handler func(*http.Request) (answer, error)

// serve writes what h returns.
func (s *server) serve(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, err := h(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if a.location != "" {
			w.Header().Set("Location", a.location)
		}
		if a.etag != "" {
			w.Header().Set("ETag", a.etag)
		}
		if a.body == nil {
			w.WriteHeader(a.status)
			return
		}
		writeJSON(w, a.status, "application/json", a.body)
	}
}

// read is serve for what only reads: it has no lease, so it has this bound.
func (s *server) read(h handler) http.HandlerFunc {
	return s.serve(func(r *http.Request) (answer, error) {
		ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
		defer cancel()
		return h(r.WithContext(ctx))
	})
}

type statusBody struct {
	Status string `json:"status"`
}

// healthz serves GET /healthz: the process is alive.
func (s *server) healthz(*http.Request) (answer, error) {
	return answer{status: http.StatusOK, body: statusBody{"ok"}}, nil
}

// readyz serves GET /readyz: the process can serve.
func (s *server) readyz(r *http.Request) (answer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		entryOf(r).fail(err)
		return answer{}, notReady("the service can not serve now")
	}
	return answer{status: http.StatusOK, body: statusBody{"ready"}}, nil
}

// openapi serves GET /openapi.yaml, whole: a range that can not be had would be
// answered by net/http, in its own words.
func (s *server) openapi(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml") // RFC 9512
	_, _ = w.Write(intentd.OpenAPI)                    // an error means that the client is gone
}
