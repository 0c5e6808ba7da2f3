package api

import (
	"net/http"

	"intentd/internal/idempotency"
)

// keyBody is what is on record under an idempotency key.
type keyBody struct {
	Status      int    `json:"status"`
	Fingerprint string `json:"fingerprint"`
	Resource    string `json:"resource,omitzero"`
	CreatedAt   string `json:"created_at"`
	ExpiresAt   string `json:"expires_at"`
}

var errNoRecord = &problem{
	status: http.StatusNotFound, code: "not_found",
	detail: "there is no live record under this Idempotency-Key",
}

// findKey serves GET /v1/idempotency_keys: what became of a key of the caller's.
func (s *server) findKey(r *http.Request) (answer, error) {
	if _, err := queryOf(r); err != nil {
		return answer{}, err
	}
	rec, refusal, err := idempotency.Find(r.Context(), s.Idempotency, callerOf(r).scope(), r.Header)
	switch {
	case err != nil:
		entryOf(r).fail(err)
		return answer{}, notReady("the service can not reach its data now; try again")
	case refusal != nil:
		return answer{}, refusal
	case rec == nil:
		return answer{}, errNoRecord
	}
	return answer{status: http.StatusOK, body: keyBody{
		Status:      rec.Response.Status,
		Fingerprint: rec.Fingerprint.String(),
		Resource:    rec.Response.Header.Get("Location"),
		CreatedAt:   timestamp(rec.CreatedAt),
		ExpiresAt:   timestamp(rec.ExpiresAt),
	}}, nil
}
