package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"intentd/internal/intent"
)

// transitionBody is a step of a trail as it is answered.
type transitionBody struct {
	Version int64        `json:"version"`
	From    intent.State `json:"from"`
	To      intent.State `json:"to"`
	Actor   intent.Actor `json:"actor"`
	Reason  string       `json:"reason,omitzero"`
	TxHash  string       `json:"tx_hash,omitzero"`
	At      string       `json:"at"`
}

// trailBody is a trail, or a page of it.
type trailBody struct {
	Data    []transitionBody `json:"data"`
	HasMore bool             `json:"has_more"`
}

// cancelNames and stepNames are the members of the requests that move an intent.
var (
	cancelNames = []string{"reason"}
	stepNames   = []string{"to", "tx_hash", "reason"}
)

// cancelIntent serves POST /v1/payment_intents/{id}/cancel.
func (s *server) cancelIntent(r *http.Request) (answer, error) {
	m, err := decodeMembers(r.Body, "a cancel request", cancelNames)
	if err != nil {
		return answer{}, err
	}
	reason, err := m.text("reason")
	if err != nil {
		return answer{}, err
	}
	return s.move(r, intent.Step{To: intent.Canceled}, &reason, nil)
}

// moveIntent serves POST /v1/payment_intents/{id}/transitions.
func (s *server) moveIntent(r *http.Request) (answer, error) {
	m, err := decodeMembers(r.Body, "a transition request", stepNames)
	if err != nil {
		return answer{}, err
	}
	to, err := m.text("to")
	if err != nil {
		return answer{}, err
	}
	hash, err := m.optionalText("tx_hash")
	if err != nil {
		return answer{}, err
	}
	reason, err := m.optionalText("reason")
	if err != nil {
		return answer{}, err
	}
	return s.move(r, intent.Step{To: intent.State(to)}, reason, hash)
}

// move takes a step in the caller's name. The domain has no word for a reason or
// a hash that is there and empty.
func (s *server) move(r *http.Request, step intent.Step, reason, hash *string) (answer, error) {
	id, err := intent.ParseID(chi.URLParam(r, "id"))
	if err != nil {
		return answer{}, err
	}
	for _, m := range []struct {
		name  string
		given *string
		to    *string
	}{
		{"reason", reason, &step.Reason},
		{"tx_hash", hash, &step.TxHash},
	} {
		if m.given == nil {
			continue
		}
		if *m.given == "" {
			return answer{}, invalidRequest(m.name + " must not be empty")
		}
		*m.to = *m.given
	}
	if step.IfVersion, err = ifMatch(r); err != nil {
		return answer{}, err
	}
	c := callerOf(r)
	step.Actor = c.actor()
	in, err := s.Intents.Move(r.Context(), c.account, id, step)
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, etag: etagOf(in.Version), body: bodyOf(in)}, nil
}

// listTransitions serves GET /v1/payment_intents/{id}/transitions.
func (s *server) listTransitions(r *http.Request) (answer, error) {
	id, err := intent.ParseID(chi.URLParam(r, "id"))
	if err != nil {
		return answer{}, err
	}
	q, err := queryOf(r, "limit", "starting_after")
	if err != nil {
		return answer{}, err
	}
	after, err := q.version("starting_after")
	if err != nil {
		return answer{}, err
	}
	trail, err := s.trail(r, id, after, q.limit(pageSize))
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: trail}, nil
}

// trail reads a part of an intent's trail.
func (s *server) trail(r *http.Request, id intent.ID, after int64, limit int) (*trailBody, error) {
	steps, more, err := s.Intents.Transitions(r.Context(), callerOf(r).account, id, after, limit)
	if err != nil {
		return nil, err
	}
	body := &trailBody{Data: make([]transitionBody, len(steps)), HasMore: more}
	for i, t := range steps {
		body.Data[i] = transitionBody{
			Version: t.Version,
			From:    t.From,
			To:      t.To,
			Actor:   t.Actor,
			Reason:  t.Reason,
			TxHash:  t.TxHash,
			At:      timestamp(t.At),
		}
	}
	return body, nil
}
