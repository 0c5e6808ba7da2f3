package api

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"intentd/internal/intent"
)

// intentBody is a payment intent as it is answered, its members in this order.
type intentBody struct {
	ID        string            `json:"id"`
	Chain     string            `json:"chain"`
	Token     string            `json:"token"`
	Payer     string            `json:"payer"`
	Merchant  string            `json:"merchant"`
	Amount    string            `json:"amount"`
	State     intent.State      `json:"state"`
	Version   int64             `json:"version"`
	Reference string            `json:"reference,omitzero"`
	Metadata  map[string]string `json:"metadata,omitzero"`
	TxHash    string            `json:"tx_hash,omitzero"`
	CreatedAt string            `json:"created_at"`
	UpdatedAt string            `json:"updated_at"`
	ExpiresAt string            `json:"expires_at"`

	Transitions *trailBody `json:"transitions,omitzero"` // only where it was asked for
}

func bodyOf(in intent.Intent) intentBody {
	return intentBody{
		ID:        in.ID.String(),
		Chain:     in.Chain,
		Token:     in.Token,
		Payer:     in.Payer,
		Merchant:  in.Merchant,
		Amount:    in.Amount,
		State:     in.State,
		Version:   in.Version,
		Reference: in.Reference,
		Metadata:  in.Metadata,
		TxHash:    in.TxHash,
		CreatedAt: timestamp(in.CreatedAt),
		UpdatedAt: timestamp(in.UpdatedAt),
		ExpiresAt: timestamp(in.ExpiresAt),
	}
}

// listBody is a page of a merchant's payment intents.
type listBody struct {
	Data    []intentBody `json:"data"`
	HasMore bool         `json:"has_more"`
}

const (
	// pageSize is how many a list has where the client does not say.
	pageSize = 20
	// maxTrail is how many steps come with an expanded intent.
	maxTrail = 100
)

// createIntent serves POST /v1/payment_intents.
func (s *server) createIntent(r *http.Request) (answer, error) {
	p, err := decodeParams(r)
	if err != nil {
		return answer{}, err
	}
	in, err := s.Intents.Create(r.Context(), callerOf(r).account, p)
	if err != nil {
		return answer{}, err
	}
	return answer{
		status:   http.StatusCreated,
		location: "/v1/payment_intents/" + in.ID.String(),
		etag:     etagOf(in.Version),
		body:     bodyOf(in),
	}, nil
}

// getIntent serves GET /v1/payment_intents/{id}.
func (s *server) getIntent(r *http.Request) (answer, error) {
	id, err := intent.ParseID(chi.URLParam(r, "id"))
	if err != nil {
		return answer{}, err
	}
	q, err := queryOf(r, "expand")
	if err != nil {
		return answer{}, err
	}
	expand, expanded := q["expand"]
	if expanded && expand != "transitions" {
		return answer{}, invalidRequest("expand must be transitions")
	}
	in, err := s.Intents.Get(r.Context(), callerOf(r).account, id)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: http.StatusOK, etag: etagOf(in.Version)}
	if noneMatch(r, a.etag) {
		a.status = http.StatusNotModified
		return a, nil
	}
	body := bodyOf(in)
	if expanded {
		if body.Transitions, err = s.trail(r, id, 0, maxTrail); err != nil {
			return answer{}, err
		}
		// Steps that were taken after the intent was read are of a later version
		// than the answer's.
		body.Transitions.Data = slices.DeleteFunc(body.Transitions.Data, func(t transitionBody) bool {
			return t.Version > in.Version
		})
	}
	a.body = body
	return a, nil
}

// listIntents serves GET /v1/payment_intents.
func (s *server) listIntents(r *http.Request) (answer, error) {
	selected, err := decodeQuery(r)
	if err != nil {
		return answer{}, err
	}
	page, more, err := s.Intents.List(r.Context(), callerOf(r).account, selected)
	if err != nil {
		return answer{}, err
	}
	body := listBody{Data: make([]intentBody, len(page)), HasMore: more}
	for i, in := range page {
		body.Data[i] = bodyOf(in)
	}
	return answer{status: http.StatusOK, body: body}, nil
}

// decodeQuery reads what a list is asked for.
func decodeQuery(r *http.Request) (out intent.Query, err error) {
	q, err := queryOf(r, "limit", "starting_after", "ending_before", "state", "reference", "created_gte", "created_lt")
	if err != nil {
		return out, err
	}
	out.Limit = q.limit(pageSize)
	if out.After, err = q.id("starting_after"); err != nil {
		return out, err
	}
	if out.Before, err = q.id("ending_before"); err != nil {
		return out, err
	}
	state, err := q.text("state")
	if err != nil {
		return out, err
	}
	out.State = intent.State(state)
	if out.Reference, err = q.text("reference"); err != nil {
		return out, err
	}
	if out.CreatedFrom, err = q.time("created_gte"); err != nil {
		return out, err
	}
	out.CreatedBefore, err = q.time("created_lt")
	return out, err
}

// paramNames are the members of a create request.
var paramNames = []string{
	"chain", "token", "payer", "merchant", "amount", "expires_in_seconds", "reference", "metadata",
}

// decodeParams reads a create request. It judges types and names; what the
// values may be is the domain's to say.
func decodeParams(r *http.Request) (p intent.Params, err error) {
	m, err := decodeMembers(r.Body, "a payment intent request", paramNames)
	if err != nil {
		return p, err
	}
	for _, f := range []struct {
		name string
		to   *string
	}{
		{"chain", &p.Chain},
		{"token", &p.Token},
		{"payer", &p.Payer},
		{"merchant", &p.Merchant},
		{"amount", &p.Amount},
	} {
		if *f.to, err = m.text(f.name); err != nil {
			return p, err
		}
	}
	if p.ExpiresIn, err = m.optionalInteger("expires_in_seconds"); err != nil {
		return p, err
	}
	if p.Reference, err = m.optionalText("reference"); err != nil {
		return p, err
	}
	p.Metadata, err = m.optionalTexts("metadata")
	return p, err
}
