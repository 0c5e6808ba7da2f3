package api

import (
	"context"
	"fmt"
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
	CreatedAt string            `json:"created_at"`
	UpdatedAt string            `json:"updated_at"`
	ExpiresAt string            `json:"expires_at"`
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
		CreatedAt: timestamp(in.CreatedAt),
		UpdatedAt: timestamp(in.UpdatedAt),
		ExpiresAt: timestamp(in.ExpiresAt),
	}
}

// createIntent serves POST /v1/payment_intents.
func (s *server) createIntent(r *http.Request) (answer, error) {
	p, err := decodeParams(r)
	if err != nil {
		return answer{}, err
	}
	in, err := s.Intents.Create(r.Context(), merchantOf(r), p)
	if err != nil {
		return answer{}, err
	}
	return answer{
		status:   http.StatusCreated,
		location: "/v1/payment_intents/" + in.ID.String(),
		body:     bodyOf(in),
	}, nil
}

// getIntent serves GET /v1/payment_intents/{id}.
func (s *server) getIntent(r *http.Request) (answer, error) {
	id, err := intent.ParseID(chi.URLParam(r, "id"))
	if err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	in, err := s.Intents.Get(ctx, merchantOf(r), id)
	if err != nil {
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: bodyOf(in)}, nil
}

// paramNames are the members of a create request.
var paramNames = []string{
	"chain", "token", "payer", "merchant", "amount", "expires_in_seconds", "reference", "metadata",
}

// decodeParams reads a create request. It judges types and names; what the
// values may be is the domain's to say.
func decodeParams(r *http.Request) (p intent.Params, err error) {
	m, names, err := decodeObject(r.Body)
	if err != nil {
		return p, err
	}
	for _, name := range names {
		if !slices.Contains(paramNames, name) {
			return p, invalidRequest(fmt.Sprintf("%.40q is not a member of a payment intent request", name))
		}
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
