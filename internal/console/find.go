package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"

	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/intent"
)

// What a search may be for; anything is told by its form.
const (
	asAny       = ""
	asID        = "id"
	asReference = "reference"
	asTxHash    = "tx_hash"
	asKey       = "key"
)

// findPage is the form as it was sent, and what was found.
type findPage struct {
	Query, As, Merchant string
	Asked               bool
	Wrong               string // the rule that was broken; then nothing was asked
	Notes               []string
	Intents             *intentList // nil: was not asked for
	Keys                *keyList    // nil: was not asked for
}

// intentList is what a search for intents has found.
type intentList struct {
	What string // completes "with"
	Rows []intentRow
	More bool
	Most int
}

// intentRow is an intent in a list. Merchant is as the session names it.
type intentRow struct {
	intent.Intent
	Merchant string
	Path     string
}

// keyList is what a search for a key has found.
type keyList struct {
	Key     string
	Rows    []keyRow
	More    bool
	Most    int
	Running bool   // a request is running under the key of the merchant that was named
	Closed  bool   // the records can not be asked across merchants
	Of      string // that merchant, or ""
}

// keyRow is a record.
type keyRow struct {
	Merchant, By string
	Status       int
	Fingerprint  string
	Claimed      time.Time
	Expires      time.Time
	Intent, Path string // the intent that the answer names, or ""
	Answer       string
}

var (
	idForm   = regexp.MustCompile(`^pi_`)
	hashForm = regexp.MustCompile(`^0x[0-9A-Fa-f]*$`)
	hashFull = regexp.MustCompile(`^0x[0-9A-Fa-f]{64}$`)
)

const idRule = "an id is pi_ and 32 lower-case hex digits of a UUIDv7"

// find serves GET /console/find.
func (c *Console) find(w http.ResponseWriter, r *http.Request, s session) {
	values := r.URL.Query()
	body := findPage{
		Query: strings.TrimSpace(values.Get("q")), As: values.Get("as"), Merchant: strings.TrimSpace(values.Get("merchant")),
		Asked: values.Has("q"),
	}
	status := http.StatusOK
	if body.Asked {
		var invalid *wrong
		to, err := c.answer(r.Context(), s, &body)
		switch {
		case errors.As(err, &invalid):
			status, body.Wrong = http.StatusBadRequest, invalid.says
		case err != nil:
			c.fail(w, r, s, err)
			return
		case to != "":
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
	}
	c.render(w, status, "find", page{Title: "Find", Here: "find", Session: &s, Body: body})
}

// wrong is a rule that what was asked for breaks.
type wrong struct{ says string }

func (w *wrong) Error() string { return w.says }

// answer looks for what the page asks, and puts it in. Where that is one intent's
// id, it returns where the intent is.
func (c *Console) answer(ctx context.Context, s session, p *findPage) (to string, err error) {
	q := intent.Search{With: s.with(), Without: s.without()}
	if p.Merchant != "" {
		if !isMerchant(p.Merchant) {
			return "", &wrong{"The merchant's name " + apikey.MerchantRule + "."}
		}
		q.Merchant = s.account(p.Merchant)
	}
	what, key := "", false
	switch as := p.form(); as {
	case asID:
		id, err := intent.ParseID(p.Query)
		if err != nil {
			return "", &wrong{"This is no id: " + idRule + "."}
		}
		q.ID, what = &id, "this id"
	case asTxHash:
		q.TxHash, what = p.Query, "this transaction hash, on record now or once"
	case asReference, asAny:
		q.Reference, what = p.Query, "this reference"
		key = as == asAny
		p.hint()
	case asKey:
		key = true
	default:
		return "", &wrong{"There is no such kind of search. Choose one of the list."}
	}
	if p.Query == "" {
		return "", &wrong{"Enter what to look for."}
	}

	err = c.asking(ctx, func(ctx context.Context) error {
		if what != "" {
			if p.Intents, err = c.intentsOf(ctx, q, what); err != nil {
				// What can not be a reference may still be a key.
				var invalid *intent.InvalidError
				if !errors.As(err, &invalid) {
					return err
				}
				says := strings.ToUpper(invalid.Member[:1]) + words(invalid.Member[1:]) + " " + invalid.Rule + "."
				if !key {
					return &wrong{says}
				}
				p.Notes = append(p.Notes, says)
			}
		}
		if !key {
			return nil
		}
		name, err := idempotency.ParseKey(p.Query)
		if err != nil {
			if p.form() == asKey || p.Intents == nil {
				return &wrong{err.Error() + "."}
			}
			p.Notes = append(p.Notes, "Not looked for as a key: "+err.Error()+".")
			return nil
		}
		p.Keys, err = c.recordsOf(ctx, s, name, p.Merchant)
		return err
	})
	if err == nil && q.ID != nil && len(p.Intents.Rows) == 1 {
		return p.Intents.Rows[0].Path, nil
	}
	return "", err
}

// form is what the search is for: what was chosen, or what the text looks like.
func (p *findPage) form() string {
	if p.As != asAny {
		return p.As
	}
	if _, err := intent.ParseID(p.Query); err == nil {
		return asID
	}
	if hashFull.MatchString(p.Query) {
		return asTxHash
	}
	return asAny
}

// hint says why something that begins like an id or a hash was not looked for as
// one.
func (p *findPage) hint() {
	switch {
	case p.As != asAny:
	case idForm.MatchString(p.Query):
		p.Notes = append(p.Notes, "Not looked for as an id: "+idRule+".")
	case hashForm.MatchString(p.Query):
		p.Notes = append(p.Notes, "Not looked for as a transaction hash: that is 0x and 64 hex digits.")
	}
}

func isMerchant(name string) bool {
	return len(apikey.Check(apikey.Holder{Merchant: name, Role: apikey.API, Mode: apikey.Live}, "")) == 0
}

func (c *Console) intentsOf(ctx context.Context, q intent.Search, what string) (*intentList, error) {
	all, more, err := intent.SearchFor(ctx, c.Searcher, q, mostFound)
	if err != nil {
		return nil, err
	}
	list := &intentList{What: what, More: more, Most: mostFound}
	for _, in := range all {
		merchant := strings.TrimPrefix(in.MerchantID, testPrefix)
		list.Rows = append(list.Rows, intentRow{in, merchant, intentPath(merchant, in.ID)})
	}
	return list, nil
}

func intentPath(merchant string, id intent.ID) string {
	return "/console/intents/" + url.PathEscape(merchant) + "/" + id.String()
}

// recordsOf tells what stands under a key: of one merchant's API keys, where it is
// named, and otherwise of everybody who used it.
func (c *Console) recordsOf(ctx context.Context, s session, key, merchant string) (*keyList, error) {
	list := &keyList{Key: key, Of: merchant, Most: mostFound}
	if merchant != "" {
		rec, running, err := c.Keys.Lookup(ctx, idempotency.ID{Scope: s.account(merchant), Key: key})
		if err != nil {
			return nil, err
		}
		list.Running = running
		if rec != nil {
			list.Rows = append(list.Rows, rowOf(s.account(merchant), *rec))
		}
		return list, nil
	}
	across, ok := c.Keys.(idempotency.Searcher)
	if !ok {
		list.Closed = true
		return list, nil
	}
	records, more, err := across.Search(ctx, idempotency.Search{Key: key, With: s.with(), Without: s.without(), Limit: mostFound})
	if err != nil {
		return nil, err
	}
	list.More = more
	for _, f := range records {
		list.Rows = append(list.Rows, rowOf(f.Scope, f.Record))
	}
	return list, nil
}

// subject is the intent that an answer names: in its body, as a create's and a
// step's does, or in Location. A refusal names none.
func subject(resp idempotency.Response) (intent.ID, bool) {
	var about struct {
		ID string `json:"id"`
	}
	if json.Unmarshal(resp.Body, &about) == nil {
		if id, err := intent.ParseID(about.ID); err == nil {
			return id, true
		}
	}
	at, err := url.Parse(resp.Header.Get("Location"))
	if err != nil {
		return intent.ID{}, false
	}
	id, err := intent.ParseID(path.Base(at.Path))
	return id, err == nil
}

// longestAnswer is how much of a recorded answer is shown, in bytes.
const longestAnswer = 4 << 10

// rowOf reads a record. The scope is the account of a merchant whose own key it
// was, and otherwise role, holder and account, between slashes.
func rowOf(scope string, rec idempotency.Record) keyRow {
	account, by := scope, "the merchant"
	if parts := strings.SplitN(scope, "/", 3); len(parts) == 3 {
		by, account = parts[0]+" "+parts[1], parts[2]
	}
	row := keyRow{
		Merchant: strings.TrimPrefix(account, testPrefix), By: by,
		Status: rec.Response.Status, Fingerprint: rec.Fingerprint.String(),
		Claimed: rec.CreatedAt, Expires: rec.ExpiresAt,
	}
	if id, ok := subject(rec.Response); ok {
		row.Intent, row.Path = id.String(), intentPath(row.Merchant, id)
	}
	answer := rec.Response.Body
	if len(answer) > longestAnswer {
		row.Answer = fmt.Sprintf("%s … (%d bytes)", answer[:longestAnswer], len(answer))
	} else {
		row.Answer = string(answer)
	}
	row.Answer = strings.ToValidUTF8(row.Answer, "\uFFFD")
	return row
}
