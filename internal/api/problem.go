package api

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
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
	// retryAfter is after how many seconds the same request may succeed; 0: it
	// can not.
	retryAfter int
	etag       string // the present version, where it is not the one asked for
	allow      []string
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
	return &problem{status: http.StatusServiceUnavailable, code: "unavailable", detail: detail, retryAfter: 1}
}

// problemOf is the one table from error to answer. What it does not know is a
// fault of ours, and tells the client nothing. What the domain refuses it says
// in words for the client.
func problemOf(err error) *problem {
	var (
		p        *problem
		refusal  *idempotency.Refusal
		invalid  *intent.InvalidError
		conflict *intent.VersionConflictError
	)
	refused := func(status int, code string) *problem {
		return &problem{status: status, code: code, detail: err.Error()}
	}
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &refusal):
		p := &problem{status: refusal.Status, code: refusal.Code, detail: refusal.Detail}
		if refusal.Retry {
			p.retryAfter = 1
		}
		return p
	// Before the domain's refusals, which it may wrap.
	case errors.Is(err, intent.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return notReady("the service can not reach its data now; try again")
	case errors.As(err, &invalid):
		return invalidRequest(invalid.Error())
	case errors.Is(err, intent.ErrNotFound):
		return &problem{status: http.StatusNotFound, code: "not_found", detail: "there is no payment intent with this id"}
	case errors.As(err, &conflict):
		p := refused(http.StatusPreconditionFailed, "version_conflict")
		p.etag = etagOf(conflict.Present)
		return p
	case errors.Is(err, intent.ErrInvalidTransition):
		return refused(http.StatusConflict, "invalid_transition")
	case errors.Is(err, intent.ErrForbiddenActor):
		return refused(http.StatusForbidden, "forbidden_actor")
	case errors.Is(err, intent.ErrEvidenceRequired):
		return refused(http.StatusBadRequest, "evidence_required")
	case errors.Is(err, intent.ErrEvidenceMismatch):
		return refused(http.StatusConflict, "evidence_mismatch")
	case errors.Is(err, intent.ErrExpired):
		return refused(http.StatusConflict, "intent_expired")
	default:
		return &problem{status: http.StatusInternalServerError, code: "internal", detail: "the request failed", retryAfter: 1}
	}
}

// fail answers with what err means. A failure of ours inside an idempotent
// attempt is no answer: the attempt is undone, and the layer answers.
func (s *server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.status >= http.StatusInternalServerError {
		e := entryOf(r)
		e.fail(err)
		e.fault = e.fault || p.status == http.StatusInternalServerError
		if idempotency.Withhold(r.Context(), err) {
			return
		}
	}
	docs := s.DocsURL + "/errors#" + p.code
	h := w.Header()
	h.Set("Link", fmt.Sprintf(`<%s>; rel="describedby"`, docs)) // RFC 8288
	if entryOf(r).unread {
		h.Set("Connection", "close") // or net/http would wait for the rest before it answers
	}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.etag != "" {
		h.Set("ETag", p.etag)
	}
	if p.status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer") // RFC 9110, section 11.6.1
	}
	if p.allow != nil {
		h.Set("Allow", strings.Join(p.allow, ", "))
	}
	if wantsProblem(r) {
		writeJSON(w, p.status, problemType, problemBody{
			Type:   docs,
			Title:  strings.ReplaceAll(p.code, "_", " "),
			Status: p.status,
			Detail: p.detail,
			Error:  p.code,
		})
		return
	}
	writeJSON(w, p.status, "application/json", errorBody{Error: p.code, Detail: p.detail})
}

// errorBody is an error as it is usually answered.
type errorBody struct {
	Error  string `json:"error"`
	Detail string `json:"detail"`
}

// problemBody is an error as RFC 9457 has it, with the code as an extension.
type problemBody struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Error  string `json:"error"`
}

const problemType = "application/problem+json"

// wantsProblem says whether the client asks for RFC 9457's form by name, and for
// nothing rather. Ranges such as */* mean the usual form.
func wantsProblem(r *http.Request) bool {
	var asProblem, asJSON float64
	for _, line := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(line, ",") {
			kind, params, err := mime.ParseMediaType(part)
			if err != nil {
				continue
			}
			q, err := strconv.ParseFloat(params["q"], 64)
			if err != nil {
				q = 1 // RFC 9110, section 12.4.2: the default
			}
			switch kind {
			case problemType:
				asProblem = max(asProblem, q)
			case "application/json":
				asJSON = max(asJSON, q)
			}
		}
	}
	return asProblem > 0 && asProblem >= asJSON
}
