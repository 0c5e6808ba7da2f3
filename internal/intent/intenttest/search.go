package intenttest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"intentd/internal/intent"
)

// search asks as the operators do, through what checks the question.
func search(t *testing.T, h Harness, q intent.Search, limit int) ([]intent.Intent, bool) {
	t.Helper()
	found, more, err := intent.SearchFor(t.Context(), searcher(t, h), q, limit)
	if err != nil {
		t.Fatalf("Search(%+v): %v", q, err)
	}
	return found, more
}

func searcher(t *testing.T, h Harness) intent.Searcher {
	t.Helper()
	s, ok := h.Store.(intent.Searcher)
	if !ok {
		t.Fatalf("%T is no Searcher", h.Store)
	}
	return s
}

// of stores an intent of that merchant's with that reference.
func of(t *testing.T, h Harness, merchantID, reference string) intent.Intent {
	t.Helper()
	p := params()
	if reference != "" {
		p.Reference = &reference
	}
	p.Metadata = map[string]string{"of": merchantID}
	in, err := intent.New(h.Store).Create(t.Context(), merchantID, p)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func moveOf(t *testing.T, h Harness, in intent.Intent, step intent.Step) intent.Intent {
	t.Helper()
	in, err := intent.New(h.Store).Move(t.Context(), in.MerchantID, in.ID, step)
	if err != nil {
		t.Fatalf("Move to %s: %v", step.To, err)
	}
	return in
}

// searchAgreesWithNaive: every question about few merchants' few references has
// the answer that looking at each intent has.
func searchAgreesWithNaive(t *testing.T, h Harness) {
	merchants := []string{"a", "a-b", "b", "test:a", "Z", "_"}
	var all []intent.Intent
	for i := range 60 {
		reference := ""
		if n := rand.IntN(4); n > 0 {
			reference = fmt.Sprint("order-", n)
		}
		all = append(all, of(t, h, merchants[i%len(merchants)], reference))
	}
	for _, reference := range []string{"order-1", "order-2", "order", "order-11", "ORDER-1"} {
		for _, merchantID := range append(merchants, "", "nobody") {
			for _, has := range [][2]string{{"", ""}, {":", ""}, {"", ":"}, {"a", "-"}} {
				q := intent.Search{Reference: reference, Merchant: merchantID, With: has[0], Without: has[1]}
				var want []intent.Intent
				for _, in := range all {
					if q.Selects(in, nil) {
						want = append(want, in)
					}
				}
				intent.SortFound(want)
				got, more := search(t, h, q, 100)
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" || more {
					t.Errorf("%+v: more %t, (-want +got):\n%s", q, more, diff)
				}
			}
		}
	}
	found, _ := search(t, h, intent.Search{Reference: "order-1"}, 100)
	if len(found) < 2 || !slices.IsSortedFunc(found, newestFirst) {
		t.Errorf("not the newest first, or none: %v", ids(found))
	}
}

// searchSameID: an ID names an intent together with the merchant only.
func searchSameID(t *testing.T, h Harness) {
	in := of(t, h, merchant, "")
	twin := in
	twin.MerchantID, twin.Metadata = stranger, nil
	if err := h.Insert(t.Context(), twin); err != nil {
		t.Fatal(err)
	}
	of(t, h, merchant, "")
	found, more := search(t, h, intent.Search{ID: &in.ID}, 100)
	equal(t, "found", found, []intent.Intent{in, twin})
	equal(t, "more", more, false)
	found, more = search(t, h, intent.Search{ID: &in.ID}, 1)
	if len(found) != 1 || !more {
		t.Errorf("one of two: %v, more %t", found, more)
	}
	found, _ = search(t, h, intent.Search{ID: &in.ID, Merchant: stranger}, 100)
	equal(t, "the stranger's", found, []intent.Intent{twin})
	nobodys := intent.FirstID(in.CreatedAt.Add(time.Hour))
	if found, more := search(t, h, intent.Search{ID: &nobodys}, 100); len(found) != 0 || more {
		t.Errorf("nobody's id: %v, more %t", found, more)
	}
}

// searchTxHash finds what a transaction has paid or was once believed to pay, and
// each intent once.
func searchTxHash(t *testing.T, h Harness) {
	settle := func(merchantID string) intent.Intent {
		in := of(t, h, merchantID, "")
		for _, step := range []intent.Step{
			{To: intent.Authorized, Actor: intent.API},
			{To: intent.Settling, Actor: intent.Relayer},
			{To: intent.Confirming, Actor: intent.Relayer, TxHash: hash},
		} {
			in = moveOf(t, h, in, step)
		}
		return in
	}
	settled, reorged, other := settle(merchant), settle(stranger), settle(stranger)
	settled = moveOf(t, h, settled, intent.Step{To: intent.Settled, Actor: intent.Listener, TxHash: hash})
	reorged = moveOf(t, h, reorged, intent.Step{To: intent.Settling, Actor: intent.Listener, Reason: "reorg"})
	reorged = moveOf(t, h, reorged, intent.Step{To: intent.Confirming, Actor: intent.Relayer, TxHash: hash2})
	of(t, h, merchant, "")

	want := []intent.Intent{settled, reorged, other}
	intent.SortFound(want)
	// In any spelling.
	for _, spelling := range []string{hash, hash[:64] + "AA"} {
		found, more := search(t, h, intent.Search{TxHash: spelling}, 3)
		equal(t, "paid by "+spelling, found, want)
		equal(t, "more", more, false)
	}
	if found, more := search(t, h, intent.Search{TxHash: hash}, 2); len(found) != 2 || !more {
		t.Errorf("two of three: %v, more %t", ids(found), more)
	}
	found, _ := search(t, h, intent.Search{TxHash: hash2}, 100)
	equal(t, "paid by the second", found, []intent.Intent{reorged})
	found, _ = search(t, h, intent.Search{TxHash: hash, Merchant: merchant}, 100)
	equal(t, "the merchant's", found, []intent.Intent{settled})
}

// searchIsBounded: with more intents than are asked for, of one merchant or of
// many, there are as many as are asked for, and that there are more is told.
func searchIsBounded(t *testing.T, h Harness) {
	for i := range 30 {
		of(t, h, fmt.Sprint("m-", i%3), "r")
	}
	for _, q := range []intent.Search{{Reference: "r"}, {Reference: "r", Merchant: "m-1"}, {Reference: "r", Without: "-2"}} {
		have := 30
		switch {
		case q.Merchant != "":
			have = 10
		case q.Without != "":
			have = 20
		}
		for _, limit := range []int{1, have - 1, have, have + 1} {
			found, more := search(t, h, q, limit)
			if len(found) != min(limit, have) || more != (limit < have) {
				t.Errorf("%+v, %d of %d: %d found, more %t", q, limit, have, len(found), more)
			}
		}
	}
}

// searchRefuses what no intent can have, before the store is asked.
func searchRefuses(t *testing.T, h Harness) {
	id := of(t, h, merchant, "r").ID
	for _, c := range []struct {
		q      intent.Search
		limit  int
		member string
	}{
		{intent.Search{}, 1, "search"},
		{intent.Search{ID: &id, Reference: "r"}, 1, "search"},
		{intent.Search{Reference: "r", TxHash: hash}, 1, "search"},
		{intent.Search{Reference: "r\n"}, 1, "reference"},
		{intent.Search{TxHash: "0xaa"}, 1, "tx_hash"},
		{intent.Search{Reference: "r"}, 0, "limit"},
		{intent.Search{Reference: "r"}, 101, "limit"},
	} {
		var invalid *intent.InvalidError
		found, _, err := intent.SearchFor(t.Context(), searcher(t, h), c.q, c.limit)
		if !errors.As(err, &invalid) || invalid.Member != c.member || found != nil {
			t.Errorf("%+v: %v, %v; want %s refused", c.q, found, err, c.member)
		}
	}
}
