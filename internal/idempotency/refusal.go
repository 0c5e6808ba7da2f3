package idempotency

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// Refusal is an answer of the layer itself. It is never recorded.
type Refusal struct {
	Status int
	Code   string // stable, for programs
	Detail string // one sentence, for people
	// Retry says that the same request with the same key may succeed in a
	// second: the answer carries Retry-After: 1.
	Retry bool
}

// Error implements error.
func (ref *Refusal) Error() string { return ref.Code + ": " + ref.Detail }

// WriteRefusal answers with ref as {"error":code,"detail":sentence}.
func WriteRefusal(w http.ResponseWriter, _ *http.Request, ref *Refusal) {
	body, err := json.Marshal(struct {
		Error  string `json:"error"`
		Detail string `json:"detail"`
	}{ref.Code, ref.Detail})
	if err != nil { // two strings always have a JSON form
		panic(err)
	}
	if ref.Retry {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(ref.Status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
}

func keyRequired() *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Code: "idempotency_key_required",
		Detail: "this request needs an Idempotency-Key header: a value of your own for each operation, the same for each retry of it"}
}

func keyToFindRequired() *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Code: "idempotency_key_required",
		Detail: "this request needs an Idempotency-Key header: the key that it asks about"}
}

func keyInvalid(detail string) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Code: "idempotency_key_invalid", Detail: detail}
}

func encodingUnsupported() *Refusal {
	return &Refusal{Status: http.StatusUnsupportedMediaType, Code: "unsupported_content_encoding",
		Detail: "the body must be sent without a Content-Encoding, or with identity"}
}

func bodyTooLarge(limit int64) *Refusal {
	return &Refusal{Status: http.StatusRequestEntityTooLarge, Code: "body_too_large",
		Detail: fmt.Sprintf("the body must be at most %d bytes long", limit)}
}

func bodyUnreadable(detail string) *Refusal {
	return &Refusal{Status: http.StatusBadRequest, Code: "body_unreadable", Detail: detail}
}

func inFlight(key string) *Refusal {
	return &Refusal{Status: http.StatusConflict, Code: "idempotency_key_in_flight", Retry: true,
		Detail: fmt.Sprintf("the request with Idempotency-Key %q is still running", key)}
}

// keyReused tells which request the key belongs to where that is known.
func keyReused(key string, got Fingerprint, rec *Record) *Refusal {
	known := ""
	if rec != nil {
		known = fmt.Sprintf("fingerprint %s, ", rec.Fingerprint)
	}
	return &Refusal{Status: http.StatusUnprocessableEntity, Code: "idempotency_key_reused",
		Detail: fmt.Sprintf("Idempotency-Key %q was already used for a different request (%sgot %s)", key, known, got)}
}

func superseded(key string) *Refusal {
	return &Refusal{Status: http.StatusConflict, Code: "idempotency_attempt_superseded", Retry: true,
		Detail: fmt.Sprintf("the request with Idempotency-Key %q took too long and was undone", key)}
}

func unavailable() *Refusal {
	return &Refusal{Status: http.StatusServiceUnavailable, Code: "unavailable", Retry: true,
		Detail: "the service can not decide about this request now; send it again with the same key"}
}

func internal() *Refusal {
	return &Refusal{Status: http.StatusInternalServerError, Code: "internal", Retry: true,
		Detail: "the request failed and was undone; send it again with the same key"}
}
