package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"intentd/internal/idempotency"
	"intentd/internal/intent"
)

// problem is an error as a client sees it. It never holds SQL, driver text or a
// stack.
type problem struct {
	status int
	code   string // stable, for programs
	detail string // one sentence, for people
	retry  bool   // the same request may succeed in a second
	allow  []string
}

// Error implements error.
func (p *problem) Error() string { return p.code + ": " + p.detail }

// The problems that the surface itself finds.
var (
	errUnauthorized = &problem{
		status: http.StatusUnauthorized, code: "unauthorized",
		detail: "this request needs one Authorization header with a valid bearer token",
	}
	errNoRoute = &problem{
		status: http.StatusNotFound, code: "not_found",
		detail: "there is nothing at this path",
	}
	errPanicked = errors.New("handler panicked")
)

func methodNotAllowed(method string, allow []string) *problem {
	return &problem{
		status: http.StatusMethodNotAllowed, code: "method_not_allowed", allow: allow,
		detail: fmt.Sprintf("%.20q is not allowed here, use %s", method, strings.Join(allow, ", ")),
	}
}

func invalidJSON(detail string) *problem {
	return &problem{status: http.StatusBadRequest, code: "invalid_json", detail: detail}
}

func invalidRequest(detail string) *problem {
	return &problem{status: http.StatusBadRequest, code: "invalid_request", detail: detail}
}

func notReady(detail string) *problem {
	return &problem{status: http.StatusServiceUnavailable, code: "unavailable", detail: detail, retry: true}
}

// problemOf is the one table from error to answer. What it does not know is a
// fault of ours, and tells the client nothing.
func problemOf(err error) *problem {
	var (
		p       *problem
		refusal *idempotency.Refusal
		invalid *intent.InvalidError
	)
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &refusal):
		return &problem{status: refusal.Status, code: refusal.Code, detail: refusal.Detail, retry: refusal.Retry}
	case errors.As(err, &invalid):
		return invalidRequest(invalid.Error())
	case errors.Is(err, intent.ErrNotFound):
		return &problem{status: http.StatusNotFound, code: "not_found", detail: "there is no payment intent with this id"}
	case errors.Is(err, intent.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return notReady("the service can not reach its data now; try again")
	default:
		return &problem{status: http.StatusInternalServerError, code: "internal", detail: "the request failed", retry: true}
	}
}

// fail answers with what err means. A failure of ours inside an idempotent
// attempt is no answer: the attempt is undone, and the layer answers.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.status >= http.StatusInternalServerError {
		entryOf(r).fail(err)
		if idempotency.Withhold(r.Context(), err) {
			return
		}
	}
	h := w.Header()
	if entryOf(r).unread {
		h.Set("Connection", "close") // or net/http would wait for the rest before it answers
	}
	if p.retry {
		h.Set("Retry-After", "1")
	}
	if p.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer") // RFC 9110, section 11.6.1
	}
	if p.allow != nil {
		h.Set("Allow", strings.Join(p.allow, ", "))
	}
	writeJSON(w, p.status, struct {
		Error  string `json:"error"`
		Detail string `json:"detail"`
	}{p.code, p.detail})
}
