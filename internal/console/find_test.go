package console_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"intentd/internal/idempotency"
	"intentd/internal/intent"
)

// both runs test on a console over PostgreSQL and on one over memory.
func both(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	for name, open := range map[string]func(t testing.TB) store{
		"Memory":   func(testing.TB) store { return memory() },
		"Postgres": postgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, loggedIn(t, open(t)))
		})
	}
}

func finding(q, as, merchant string) string {
	return "/console/find?" + url.Values{"q": {q}, "as": {as}, "merchant": {merchant}}.Encode()
}

func pathOf(merchant string, id intent.ID) string {
	return "/console/intents/" + merchant + "/" + id.String()
}

// wantLinks checks which intents a page has links to.
func wantLinks(t testing.TB, a answer, want ...string) {
	t.Helper()
	for _, path := range want {
		if !strings.Contains(a.body, `href="`+path+`"`) {
			t.Errorf("no link to %s in:\n%s", path, a.body)
		}
	}
	if n := strings.Count(a.body, `href="/console/intents/`); n != len(want) {
		t.Errorf("%d links to intents, want %d:\n%s", n, len(want), a.body)
	}
}

func TestConsole_Find_Intents(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, f *fixture) {
		one := f.create(t, merchantKey, `,"reference":"order-1"`)
		two := f.create(t, otherKey, `,"reference":"order-1"`)
		hidden := f.create(t, testKey, `,"reference":"order-1"`)
		f.create(t, merchantKey, `,"reference":"order-11"`)
		f.settle(t, one)

		for _, as := range []string{"", "reference"} {
			a := f.wantPage(t, finding(" order-1 ", as, ""), http.StatusOK, "Intents with this reference", "shop-1", "shop-2", "settled", "100000000",
				"Amount, in smallest units", "units of <span class=\"mono\" title=\"0x5FbDB2315678afecb367f032d93F642f64180aa3\">0x5FbD…0aa3</span> on <span class=\"mono\">evm:31337</span>")
			wantLinks(t, a, pathOf("shop-1", one), pathOf("shop-2", two))
			if strings.Contains(a.body, `id="keys"`) != (as == "") {
				t.Errorf("as %q: %s", as, a.body)
			}
		}
		wantLinks(t, f.wantPage(t, finding("order-1", "", "shop-2"), http.StatusOK), pathOf("shop-2", two))
		wantLinks(t, f.wantPage(t, finding("order-1", "reference", "shop-3"), http.StatusOK, "No intent of shop-3 has this reference."))
		wantLinks(t, f.wantPage(t, finding("order", "reference", ""), http.StatusOK, "No intent has this reference."))

		// One that is known by its id is where the search leads.
		for _, as := range []string{"", "id"} {
			for merchant, id := range map[string]intent.ID{"shop-1": one, "shop-2": two} {
				if a := f.get(finding(id.String(), as, "")); a.status != http.StatusSeeOther || a.header.Get("Location") != pathOf(merchant, id) {
					t.Errorf("%s: %d to %q", id, a.status, a.header.Get("Location"))
				}
			}
		}
		f.wantPage(t, finding(one.String(), "", "shop-2"), http.StatusOK, "No intent of shop-2 has this id.")
		f.wantPage(t, finding(hidden.String(), "", ""), http.StatusOK, "No intent has this id.")

		// The hash on record, the one that was, and any case.
		for _, hash := range []string{txHash, strings.Replace(txHash, "aa", "bb", 1), strings.Replace(txHash, "aa", "AA", 1)} {
			wantLinks(t, f.wantPage(t, finding(hash, "", ""), http.StatusOK, "Intents with this transaction hash"), pathOf("shop-1", one))
			wantLinks(t, f.wantPage(t, finding(hash, "tx_hash", "shop-1"), http.StatusOK), pathOf("shop-1", one))
		}
		f.wantPage(t, finding(strings.Replace(txHash, "aa", "cc", 1), "", ""), http.StatusOK, "No intent has this transaction hash")

		// A test key's operator sees the other half.
		f.cookie = nil
		f.logIn(t, testOperatorKey)
		wantLinks(t, f.wantPage(t, finding("order-1", "", ""), http.StatusOK, "test payments"), pathOf("shop-1", hidden))
		if a := f.get(finding(hidden.String(), "", "")); a.header.Get("Location") != pathOf("shop-1", hidden) {
			t.Errorf("to %q", a.header.Get("Location"))
		}
		f.wantPage(t, pathOf("shop-1", hidden), http.StatusOK, "order-1")
		f.wantPage(t, pathOf("shop-1", one), http.StatusNotFound)
		f.wantPage(t, finding(one.String(), "", ""), http.StatusOK, "No intent has this id.")
		f.wantPage(t, finding(txHash, "", ""), http.StatusOK, "No intent has this transaction hash")
	})
}

func TestConsole_Find_Keys(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, f *fixture) {
		one := f.create(t, merchantKey, "", "Idempotency-Key: key-of-mine")
		two := f.create(t, otherKey, "", "Idempotency-Key: key-of-mine")
		hidden := f.create(t, testKey, "", "Idempotency-Key: key-of-mine")
		f.settle(t, one)

		for _, as := range []string{"", "key"} {
			a := f.wantPage(t, finding(`"key-of-mine"`, as, ""), http.StatusOK, "What this idempotency key has produced", "shop-1", "shop-2", "201", "the merchant", "in 59 min",
				"&#34;amount&#34;:&#34;100000000&#34;")
			wantLinks(t, a, pathOf("shop-1", one), pathOf("shop-2", two))
			wantLinks(t, f.wantPage(t, finding("key-of-mine", as, "shop-2"), http.StatusOK), pathOf("shop-2", two))
		}
		// A step's answer is about its intent too, and whoever asked for it.
		a := f.wantPage(t, finding("relayer-key-"+one.String(), "", ""), http.StatusOK, "relayer chain-1", "shop-1")
		wantLinks(t, a, pathOf("shop-1", one))
		f.wantPage(t, finding("relayer-key-"+one.String(), "key", "shop-1"), http.StatusOK, "What relayers, listeners and operators have used is found without the merchant.")
		wantLinks(t, f.wantPage(t, finding("nobodys", "", ""), http.StatusOK, "No record lives under this key."))

		f.cookie = nil
		f.logIn(t, testOperatorKey)
		for _, merchant := range []string{"", "shop-1"} {
			wantLinks(t, f.wantPage(t, finding("key-of-mine", "key", merchant), http.StatusOK), pathOf("shop-1", hidden))
		}
		wantLinks(t, f.wantPage(t, finding("relayer-key-"+one.String(), "", ""), http.StatusOK, "No record lives"))
	})

	t.Run("Running", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		claim, err := f.keys.Claim(t.Context(), idempotency.ID{Scope: "shop-1", Key: "k"}, idempotency.Fingerprint{})
		if err != nil {
			t.Fatal(err)
		}
		a := f.wantPage(t, finding("k", "key", "shop-1"), http.StatusOK, "A request of shop-1 with this key is running now.")
		if strings.Contains(a.body, "No record") {
			t.Errorf("%s", a.body)
		}
		// An answer that is no intent's, and longer than a page should be.
		long := strings.Repeat("a<b>", 2000)
		if err := claim.Attempt.Complete(t.Context(), idempotency.Response{Status: 500, Body: []byte(long)}); err != nil {
			t.Fatal(err)
		}
		a = f.wantPage(t, finding("k", "key", "shop-1"), http.StatusOK, "500", html.EscapeString("a<b>a<b>"), "(8000 bytes)")
		if strings.Contains(a.body, "a<b>") || len(a.body) > 25_000 {
			t.Errorf("%d bytes: %s", len(a.body), a.body)
		}
	})

	// Which intent an answer is about is in its body or in Location; a refusal is
	// left to the log.
	t.Run("About", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		id := f.create(t, merchantKey, "")
		path := intentsPath + "/" + id.String() + "/cancel"
		fp := idempotency.FingerprintOf(http.MethodPost, path, []byte(`{"reason":"r"}`))
		toLog := "the record does not tell which, if any: the log does, in the <code>path</code> of its line with the fingerprint <code>" + fp.String() + "</code>"
		for name, tt := range map[string]struct {
			resp  idempotency.Response
			knows bool
		}{
			"body":        {idempotency.Response{Status: 200, Body: []byte(`{"id":"` + id.String() + `"}`)}, true},
			"location":    {idempotency.Response{Status: 201, Header: http.Header{"Location": {intentsPath + "/" + id.String()}}, Body: []byte("made")}, true},
			"refusal":     {idempotency.Response{Status: 409, Body: []byte(`{"error":"invalid_transition","detail":"no such transition"}`)}, false},
			"of-no-one":   {idempotency.Response{Status: 201, Header: http.Header{"Location": {"/v1/things/1"}}, Body: []byte(`{"id":"1"}`)}, false},
			"unreadable":  {idempotency.Response{Status: 201, Header: http.Header{"Location": {"%"}}}, false},
			"of-its-part": {idempotency.Response{Status: 201, Header: http.Header{"Location": {path}}}, false},
		} {
			claim, err := f.keys.Claim(t.Context(), idempotency.ID{Scope: "shop-1", Key: name}, fp)
			if err != nil {
				t.Fatal(err)
			}
			if err := claim.Attempt.Complete(t.Context(), tt.resp); err != nil {
				t.Fatal(err)
			}
			a := f.wantPage(t, finding(name, "key", "shop-1"), http.StatusOK)
			if tt.knows {
				wantLinks(t, a, pathOf("shop-1", id))
			} else {
				wantLinks(t, a)
			}
			if strings.Contains(a.body, toLog) == tt.knows {
				t.Errorf("%s: to the log: %t", name, !tt.knows)
			}
		}
	})

	// A store that can not be asked across merchants, as that in Redis.
	t.Run("Closed", func(t *testing.T) {
		t.Parallel()
		s := memory()
		s.keys = struct{ idempotency.Store }{s.keys}
		f := loggedIn(t, s)
		id := f.create(t, merchantKey, "", "Idempotency-Key: key-of-mine")
		f.wantPage(t, finding("key-of-mine", "", ""), http.StatusOK, "The records are kept in Redis")
		wantLinks(t, f.wantPage(t, finding("key-of-mine", "", "shop-1"), http.StatusOK), pathOf("shop-1", id))
	})
}

// TestConsole_Find_Rules: what can not be looked for is answered by the rule, and
// what looks like something else is pointed out.
func TestConsole_Find_Rules(t *testing.T) {
	t.Parallel()
	f := loggedIn(t, memory())
	for _, tt := range []struct {
		q, as, merchant string
		status          int
		says            string
	}{
		{"", "", "", 400, "Enter what to look for."},
		{"  ", "key", "", 400, "Enter what to look for."},
		{"pi_12", "id", "", 400, "This is no id: an id is pi_ and 32 lower-case hex digits of a UUIDv7."},
		{"0xaa", "tx_hash", "", 400, "Tx hash must be 0x and 64 hex digits."},
		{"a b", "key", "", 400, "Idempotency-Key must be printable ASCII without blanks"},
		{strings.Repeat("x", 256), "key", "", 400, "Idempotency-Key must be at most 255 bytes long, got 256."},
		{strings.Repeat("x", 256), "reference", "", 400, "Reference must be 1 to 255 characters"},
		{strings.Repeat("x", 256), "", "", 400, "Idempotency-Key must be at most 255 bytes long"},
		{"a\x00b", "", "", 400, "Idempotency-Key must be printable"},
		{"a", "everything", "", 400, "There is no such kind of search."},
		{"a", "", "shop 1", 400, "The merchant&#39;s name must be 1 to 64 letters"},
		{"a", "", "test:shop-1", 400, "The merchant&#39;s name must be 1 to 64 letters"},
		{"pi_12", "", "", 200, "Not looked for as an id: an id is pi_ and 32 lower-case hex digits"},
		{"0xaa", "", "", 200, "Not looked for as a transaction hash: that is 0x and 64 hex digits."},
		{"a b", "", "", 200, "Not looked for as a key: Idempotency-Key must be printable ASCII without blanks"},
	} {
		a := f.wantPage(t, finding(tt.q, tt.as, tt.merchant), tt.status, tt.says)
		if tt.status == 400 && strings.Contains(a.body, "<section") {
			t.Errorf("%q as %q: something was looked for: %s", tt.q, tt.as, a.body)
		}
	}
	// What was sent is in the form again, and is text there.
	f.wantPage(t, finding(`"><b>x`, "key", `"><i>`), http.StatusBadRequest, `value="&#34;&gt;&lt;b&gt;x"`, `value="&#34;&gt;&lt;i&gt;"`, `<option value="key" selected>`)
	f.wantPage(t, "/console/find", http.StatusOK, "All must match whole.")
}

func TestConsole_Find_Bounded(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, f *fixture) {
		for range 101 {
			f.create(t, merchantKey, `,"reference":"popular"`)
		}
		a := f.wantPage(t, finding("popular", "reference", ""), http.StatusOK, "More than 100 exist")
		if n := strings.Count(a.body, `href="/console/intents/`); n != 100 {
			t.Errorf("%d rows", n)
		}
	})
}

// searching is a Searcher whose answer the test gives.
type searching struct {
	intent.Store
	search func(ctx context.Context) ([]intent.Intent, bool, error)
}

func (s searching) Search(ctx context.Context, _ intent.Search, _ int) ([]intent.Intent, bool, error) {
	return s.search(ctx)
}

func TestConsole_Asking(t *testing.T) {
	t.Parallel()
	over := func(search func(ctx context.Context) ([]intent.Intent, bool, error)) *fixture {
		s := memory()
		s.intents = searching{s.intents, search}
		return loggedIn(t, s)
	}

	t.Run("Fails", func(t *testing.T) {
		t.Parallel()
		f := over(func(context.Context) ([]intent.Intent, bool, error) {
			return nil, false, fmt.Errorf("%w: select secret from sql", intent.ErrUnavailable)
		})
		a := f.wantPage(t, finding("a", "", ""), http.StatusServiceUnavailable, "The data could not be read")
		if strings.Contains(a.body, "sql") || a.header.Get("Retry-After") != "1" || !strings.Contains(f.log.String(), "sql") {
			t.Errorf("%s\n%s", a.body, f.log)
		}
	})

	// Two ask, the others wait for their turn, and not for long.
	t.Run("Busy", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := over(func(context.Context) ([]intent.Intent, bool, error) { return nil, false, nil })
			release := f.console.Occupy()
			for _, path := range []string{finding("a", "", ""), pathOf("shop-1", intent.FirstID(time.Now()))} {
				begin := time.Now()
				f.wantPage(t, path, http.StatusServiceUnavailable, "two questions at a time")
				if took := time.Since(begin); took != 5*time.Second {
					t.Errorf("%s: after %v", path, took)
				}
			}
			f.wantPage(t, "/console", http.StatusOK) // which asks no store
			release()
			f.wantPage(t, finding("a", "", ""), http.StatusOK)
		})
	})

	t.Run("NoMoreThanTwo", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			running, most := 0, 0
			turn := make(chan struct{}, 1)
			f := over(func(ctx context.Context) ([]intent.Intent, bool, error) {
				turn <- struct{}{}
				running++
				most = max(most, running)
				<-turn
				time.Sleep(time.Second)
				turn <- struct{}{}
				running--
				<-turn
				if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 5*time.Second {
					return nil, false, errors.New("no deadline")
				}
				return nil, false, nil
			})
			done := make(chan int)
			for range 4 {
				go func() { done <- f.get(finding("a", "reference", "")).status }()
			}
			for range 4 {
				if status := <-done; status != http.StatusOK {
					t.Errorf("status %d", status)
				}
			}
			if most != 2 {
				t.Errorf("%d at a time", most)
			}
		})
	})
}
