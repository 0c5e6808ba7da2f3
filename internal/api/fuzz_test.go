package api_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/intent"
)

// FuzzCreate: whatever the body says, it is a 201 that keeps the amount digit
// for digit, or a 400; and a replay is what the first answer was.
func FuzzCreate(f *testing.F) {
	for _, seed := range []string{
		exampleBody, exampleBody + "\n", exampleBody + "x", "", "null", "{}", "[]", `{"amount":1}`, "\xff", "\x00",
		edit(f, "amount", `"`+maxAmount+`"`), edit(f, "amount", `"0100"`), edit(f, "amount", `"1e18"`), edit(f, "amount", `"\u0031"`),
		edit(f, "expires_in_seconds", "18446744975"), edit(f, "expires_in_seconds", "1e2"), edit(f, "expires_in_seconds", "null"),
		edit(f, "metadata", `{"a":"b","B":""}`), edit(f, "metadata", `{"a":null}`), edit(f, "metadata", `{"\u0000":"\ud800"}`),
		edit(f, "reference", `"😀\u0085"`), edit(f, "reference", `"\ud83d\ude00"`), edit(f, "chain", `"evm:9223372036854775808"`),
		strings.Replace(exampleBody, "amount", "Amount", 1), strings.Replace(exampleBody, "{", `{"amount":"1",`, 1),
	} {
		f.Add(seed)
	}
	p := memoryParts(lease)
	h := api.New(api.Config{
		Intents: intent.New(p.intents), Idempotency: p.keys,
		Authenticator: apikey.NewStatic(holders),
		Log:           slog.New(slog.DiscardHandler),
	})
	digits := regexp.MustCompile(`^[1-9][0-9]{0,77}$`)
	f.Fuzz(func(t *testing.T, body string) {
		if len(body) > 65_536 {
			return // a 413, before anybody reads it
		}
		key := newKey()
		post := func() *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, intentsPath, strings.NewReader(body))
			r.Header.Set("Authorization", "Bearer "+alice)
			r.Header.Set("Idempotency-Key", key)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w
		}
		first, second := post(), post()
		if second.Code != first.Code || second.Body.String() != first.Body.String() || second.Header().Get("Idempotent-Replayed") != "true" {
			t.Errorf("%q: replay = %d %s, first %d %s", body, second.Code, second.Body, first.Code, first.Body)
		}
		r := httptest.NewRequest(http.MethodPost, intentsPath, nil)
		a := &answer{status: first.Code, header: first.Header(), body: first.Body.String()}
		if err := documentSays(r, a); err != nil {
			t.Errorf("%q: openapi.yaml does not describe %d %s: %v", body, first.Code, first.Body, err)
		}
		switch first.Code {
		case http.StatusBadRequest:
		case http.StatusCreated:
			var sent, answered struct {
				Amount string `json:"amount"`
			}
			if err := json.Unmarshal([]byte(body), &sent); err != nil {
				t.Fatalf("%q was taken, and is no JSON to another reader: %v", body, err)
			}
			if err := json.Unmarshal(first.Body.Bytes(), &answered); err != nil {
				t.Fatal(err)
			}
			if answered.Amount != sent.Amount || !digits.MatchString(answered.Amount) {
				t.Errorf("amount %q is answered as %q", sent.Amount, answered.Amount)
			}
		default:
			t.Errorf("%q = %d %s", body, first.Code, first.Body)
		}
	})
}
