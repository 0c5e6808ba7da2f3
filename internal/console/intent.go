package console

import (
	"context"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"intentd/internal/intent"
)

// intentPage is an intent and how it came to where it is.
type intentPage struct {
	intentRow
	Names    []string // of the metadata, in order
	Timeline []step
	// Before says that there are steps before the ones that are shown, and After
	// is the version behind which the next page begins, 0 for none.
	Before  bool
	After   int64
	Overdue bool
	// Expiring says that expires_at means something: it is a created intent that
	// the sweeper cancels, and that nobody may authorize any more.
	Expiring bool
}

// step is a row of the timeline. The first of all is the creation, which no row of
// the trail is for.
type step struct {
	intent.Transition
	// Took is the time since the step before; "" for the first one that is shown.
	Took string
}

// intent serves GET /console/intents/{merchant}/{id}.
func (c *Console) intent(w http.ResponseWriter, r *http.Request, s session) {
	merchant := r.PathValue("merchant")
	id, err := intent.ParseID(r.PathValue("id"))
	if err != nil || !isMerchant(merchant) {
		c.problem(w, r, &s, http.StatusNotFound, "There is no such intent: "+idRule+", and the merchant's name stands before it.")
		return
	}
	after := int64(0)
	if text := r.URL.Query().Get("after"); text != "" {
		if after, err = strconv.ParseInt(text, 10, 64); err != nil || after < 0 {
			c.problem(w, r, &s, http.StatusBadRequest, "after must be a version, an integer from 0.")
			return
		}
	}
	var (
		in    intent.Intent
		trail []intent.Transition
		more  bool
	)
	err = c.asking(r.Context(), func(ctx context.Context) (err error) {
		if in, err = c.Intents.Get(ctx, s.account(merchant), id); err != nil {
			return err
		}
		trail, more, err = c.Intents.Transitions(ctx, s.account(merchant), id, after, mostSteps)
		return err
	})
	switch {
	case errors.Is(err, intent.ErrNotFound):
		c.problem(w, r, &s, http.StatusNotFound, fmt.Sprintf("%s has no intent %s among its %s ones.", merchant, id, s.Mode))
		return
	case err != nil:
		c.fail(w, r, s, err)
		return
	}
	body := intentPage{
		intentRow: intentRow{in, merchant, intentPath(merchant, id)},
		Names:     slices.Sorted(maps.Keys(in.Metadata)),
		Before:    after > 0,
		Overdue:   in.State == intent.Created && time.Now().After(in.ExpiresAt),
		Expiring:  in.State == intent.Created,
	}
	if !body.Before {
		body.Timeline = append(body.Timeline, step{Transition: intent.Transition{Version: 1, To: intent.Created, Actor: intent.API, At: in.CreatedAt}})
	}
	for _, t := range trail {
		next := step{Transition: t}
		if n := len(body.Timeline); n > 0 {
			next.Took = duration(t.At.Sub(body.Timeline[n-1].At))
		}
		body.Timeline = append(body.Timeline, next)
	}
	if more {
		body.After = trail[len(trail)-1].Version
	}
	c.render(w, http.StatusOK, "intent", page{Title: "Intent " + id.String(), Here: "find", Session: &s, Body: body})
}

// functions are what the templates know beside what is built in.
var functions = template.FuncMap{
	// ISO 8601, UTC, to the microsecond, as the API writes it.
	"iso":   func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z") },
	"brief": func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05Z") },
	"ago": func(now, t time.Time) string {
		if t.After(now) {
			return "in " + duration(t.Sub(now))
		}
		return duration(now.Sub(t)) + " ago"
	},
	"words": words,
	"short": short,
	// tone is the class of a state's mark.
	"tone": func(s intent.State) string {
		switch s {
		case intent.Settled:
			return "good"
		case intent.Failed:
			return "bad"
		case intent.NeedsReview:
			return "warn"
		case intent.Canceled:
			return "mute"
		default:
			return "open"
		}
	},
}

// short writes a chain's address so that people can tell it from others.
func short(address string) string {
	const first, last = 6, 4
	if len(address) <= first+last {
		return address
	}
	return address[:first] + "…" + address[len(address)-last:]
}
