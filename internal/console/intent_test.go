package console_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"intentd/internal/intent"
)

func TestConsole_Intent(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, f *fixture) {
		const evil = `<script>alert(1)</script>`
		id := f.create(t, merchantKey, `,"reference":"`+evil+`","metadata":{"`+evil+`":"\"><img src=x onerror=y>","a":"b"}`)
		f.settle(t, id)
		in, err := f.intents.Get(t.Context(), "shop-1", id)
		if err != nil {
			t.Fatal(err)
		}
		trail, _, err := f.intents.Transitions(t.Context(), "shop-1", id, 0, 100)
		if err != nil || len(trail) != 6 {
			t.Fatal(trail, err)
		}
		const form = "2006-01-02T15:04:05.000000Z"
		a := f.wantPage(t, pathOf("shop-1", id), http.StatusOK,
			id.String(), "version 7", "evm:31337", in.Token, in.Payer, in.Merchant, "100000000", in.TxHash,
			`<time datetime="`+in.CreatedAt.Format(form)+`">`+in.CreatedAt.Format(form)+`</time>`, in.ExpiresAt.Format(form), "counts only while it is created",
			"&lt;script&gt;alert(1)&lt;/script&gt;", "&#34;&gt;&lt;img src=x onerror=y&gt;",
			"by relayer", "by listener", "by api", "from authorized", "block 1234 is no longer there",
			`href="/console/find?as=tx_hash&amp;q=`+txHash+`"`,
			`href="/console/find?as=reference&amp;q=%3cscript%3ealert%281%29%3c%2fscript%3e"`)
		for _, bad := range []string{"<script", "<img", "There are later steps", "past its time", "in 14 min"} {
			if strings.Contains(a.body, bad) {
				t.Errorf("the page has %s", bad)
			}
		}
		// Each step, in its order, the creation first.
		rest := a.body[strings.Index(a.body, `<ol class="timeline">`):]
		for _, step := range append([]intent.Transition{{To: intent.Created, At: in.CreatedAt, Version: 1}}, trail...) {
			for _, text := range []string{"<b>" + string(step.To) + "</b>", step.At.Format(form), fmt.Sprint("version ", step.Version)} {
				_, after, ok := strings.Cut(rest, text)
				if !ok {
					t.Fatalf("no %s in the rest of the timeline: %s", text, rest)
				}
				rest = after
			}
		}
		// A part of it.
		a = f.wantPage(t, pathOf("shop-1", id)+"?after=5", http.StatusOK, "From the beginning", "version 6", "version 7")
		if strings.Contains(a.body, "<b>created</b>") || strings.Contains(a.body, "block 1234") {
			t.Errorf("steps that were not asked for: %s", a.body)
		}
		f.wantPage(t, pathOf("shop-1", id)+"?after=7", http.StatusOK, "No later steps.")
		f.wantPage(t, pathOf("shop-1", id)+"?after=x", http.StatusBadRequest, "after must be a version, an integer from 0.")
		f.wantPage(t, pathOf("shop-1", id)+"?after=-1", http.StatusBadRequest, "after must be")

		bare := f.create(t, otherKey, "")
		f.wantPage(t, pathOf("shop-2", bare), http.StatusOK, "none given", "none on record", "<p class=\"empty\">None.</p>", `</time> <span class="note">in 14 min 59 s</span>`)
		for _, path := range []string{pathOf("shop-1", bare), pathOf("shop-3", id), "/console/intents/shop-1/pi_12", "/console/intents/test:shop-1/" + id.String(), "/console/intents/%3Cb%3E/" + id.String()} {
			a := f.wantPage(t, path, http.StatusNotFound)
			if strings.Contains(a.body, "<b>/") || strings.Contains(a.body, "100000000") {
				t.Errorf("%s: %s", path, a.body)
			}
		}
	})
}

// A trail of more steps than a page has.
func TestConsole_Intent_LongTrail(t *testing.T) {
	t.Parallel()
	f := loggedIn(t, memory())
	id := f.create(t, merchantKey, "")
	f.move(t, merchantKey, id, `{"to":"authorized"}`)
	f.move(t, relayerKey, id, `{"to":"settling"}`)
	for range 50 {
		f.move(t, relayerKey, id, `{"to":"confirming","tx_hash":"`+txHash+`"}`)
		f.move(t, listenerKey, id, `{"to":"settling","reason":"reorg"}`)
	}
	a := f.wantPage(t, pathOf("shop-1", id), http.StatusOK, "There are later steps.", "?after=101")
	if n := strings.Count(a.body, "<li class="); n != 101 { // and the creation
		t.Errorf("%d steps", n)
	}
	a = f.wantPage(t, pathOf("shop-1", id)+"?after=101", http.StatusOK, "version 102", "version 103")
	if n := strings.Count(a.body, "<li class="); n != 2 || strings.Contains(a.body, "There are later steps.") {
		t.Errorf("%d steps", n)
	}
}
