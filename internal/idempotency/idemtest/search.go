package idemtest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/idempotency"
)

// RunSearch tests the store that open makes, which is an idempotency.Searcher.
func RunSearch(t *testing.T, open Open) {
	for name, test := range map[string]func(*testing.T, Harness, idempotency.Searcher){
		"AgreesWithNaive": testSearchAgreesWithNaive,
		"Lives":           testSearchLives,
		"IsBounded":       testSearchIsBounded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, longLease)
			searcher, ok := h.Store.(idempotency.Searcher)
			if !ok {
				t.Fatalf("%T is no Searcher", h.Store)
			}
			test(t, h, searcher)
		})
	}
}

func search(t *testing.T, s idempotency.Searcher, q idempotency.Search) ([]idempotency.Found, bool) {
	t.Helper()
	found, more, err := s.Search(t.Context(), q)
	if err != nil {
		t.Fatalf("Search(%+v): %v", q, err)
	}
	return found, more
}

func testSearchAgreesWithNaive(t *testing.T, h Harness, s idempotency.Searcher) {
	scopes := []string{"Z", "a", "a-b", "desk/a", "operator/desk/test:a", "test:a", "_"}
	slices.Sort(scopes)
	all := make(map[string][]idempotency.Found)
	for i, scope := range scopes {
		for _, key := range []string{"k", "K", "kk", "own-" + scope} {
			if key == "kk" && i%2 == 0 {
				continue
			}
			resp := idempotency.Response{Status: 200 + i, Header: http.Header{"Location": {"/" + scope + "/" + key}}, Body: []byte(scope)}
			a := fresh(t, h, idempotency.ID{Scope: scope, Key: key}, fp)
			complete(t, a, resp)
			rec := idempotency.Record{Fingerprint: fp, Response: resp, CreatedAt: a.Time(), ExpiresAt: a.Time().Add(TTL)}
			all[key] = append(all[key], idempotency.Found{Scope: scope, Record: rec})
		}
	}
	for _, key := range []string{"k", "K", "kk", "own-a", "own", ""} {
		for _, has := range [][2]string{{"", ""}, {":", ""}, {"", ":"}, {"a", "/"}, {"nobody", ""}} {
			var want []idempotency.Found
			for _, f := range all[key] {
				if strings.Contains(f.Scope, has[0]) && (has[1] == "" || !strings.Contains(f.Scope, has[1])) {
					want = append(want, f)
				}
			}
			got, more := search(t, s, idempotency.Search{Key: key, With: has[0], Without: has[1], Limit: 100})
			if diff := cmp.Diff(want, got); diff != "" || more {
				t.Errorf("key %q, %q: more %t (-want +got):\n%s", key, has, more, diff)
			}
		}
	}
}

// testSearchLives: what still runs has no record, and what has expired is none.
func testSearchLives(t *testing.T, h Harness, s idempotency.Searcher) {
	q := idempotency.Search{Key: id.Key, Limit: 10}
	a := fresh(t, h, id, fp)
	if found, _ := search(t, s, q); len(found) != 0 {
		t.Errorf("while it runs: %+v", found)
	}
	complete(t, a, resp)
	got, _ := search(t, s, q)
	if len(got) != 1 {
		t.Fatalf("found %d, want 1", len(got))
	}
	// It is the caller's own.
	got[0].Record.Response.Header.Set("Location", "/changed")
	got[0].Record.Response.Body[0] = 'X'
	if diff := cmp.Diff(resp, wantRecord(t, h, id).Response); diff != "" {
		t.Errorf("the record (-want +got):\n%s", diff)
	}
	h.Age(t, TTL)
	if found, _ := search(t, s, q); len(found) != 0 {
		t.Errorf("though it has expired: %+v", found)
	}
}

func testSearchIsBounded(t *testing.T, h Harness, s idempotency.Searcher) {
	for i := range 5 {
		complete(t, fresh(t, h, idempotency.ID{Scope: fmt.Sprint("s", i), Key: id.Key}, fp), resp)
	}
	for limit, more := range map[int]bool{1: true, 4: true, 5: false, 6: false} {
		found, got := search(t, s, idempotency.Search{Key: id.Key, Limit: limit})
		if len(found) != min(limit, 5) || got != more {
			t.Errorf("limit %d: %d found, more %t", limit, len(found), got)
		}
	}
}
