package intenttest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"intentd/internal/intent"
)

// list asks for a page as the service does, so that what it does to a query
// before the store sees it is a part of what is tested.
func list(t *testing.T, h Harness, merchantID string, q intent.Query) ([]intent.Intent, bool) {
	t.Helper()
	page, more, err := intent.New(h.Store).List(t.Context(), merchantID, q)
	if err != nil {
		t.Fatalf("List(%+v): %v", q, err)
	}
	return page, more
}

// naive is what List has to answer, from everything there is.
func naive(all []intent.Intent, merchantID string, q intent.Query) (page []intent.Intent, more bool) {
	for _, in := range all {
		if in.MerchantID == merchantID &&
			(q.State == "" || in.State == q.State) &&
			(q.Reference == "" || in.Reference == q.Reference) &&
			(q.CreatedFrom.IsZero() || in.CreatedAt.Compare(q.CreatedFrom) >= 0) &&
			(q.CreatedBefore.IsZero() || in.CreatedAt.Compare(q.CreatedBefore) < 0) &&
			(q.After == nil || bytes.Compare(in.ID[:], q.After[:]) < 0) &&
			(q.Before == nil || bytes.Compare(in.ID[:], q.Before[:]) > 0) {
			page = append(page, in)
		}
	}
	slices.SortFunc(page, newestFirst)
	more = len(page) > q.Limit
	switch {
	case !more:
	case q.Before != nil:
		page = page[len(page)-q.Limit:]
	default:
		page = page[:q.Limit]
	}
	return page, more
}

func newestFirst(a, b intent.Intent) int { return bytes.Compare(b.ID[:], a.ID[:]) }

func ids(page []intent.Intent) []intent.ID {
	all := make([]intent.ID, 0, len(page))
	for _, in := range page {
		all = append(all, in.ID)
	}
	return all
}

// idsFollowTheClock is what lets the primary key serve lists by time.
func idsFollowTheClock(t *testing.T, h Harness) {
	last := create(t, h, time.Hour)
	later := 0
	for range 50 {
		in := create(t, h, time.Hour)
		if byTime := in.CreatedAt.Compare(last.CreatedAt); byTime != 0 {
			later++
			equal(t, fmt.Sprintf("order of %s at %s and %s at %s", in.ID, in.CreatedAt, last.ID, last.CreatedAt),
				bytes.Compare(in.ID[:], last.ID[:]), byTime)
		}
		first, next := intent.FirstID(in.CreatedAt), intent.FirstID(in.CreatedAt.Add(time.Microsecond))
		if bytes.Compare(in.ID[:], first[:]) < 0 || bytes.Compare(in.ID[:], next[:]) >= 0 {
			t.Fatalf("%s is not of its created_at %s", in.ID, in.CreatedAt)
		}
		last = in
	}
	if later == 0 {
		t.Fatal("the store's clock stood still")
	}

	given := bare(nil)
	given.ID = last.ID
	in, err := h.Store.Create(t.Context(), given, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if in.ID == last.ID {
		t.Fatal("the store took the caller's id")
	}
}

// populate makes n intents of two merchants, in several states, some with a
// reference that others have too, and returns them as they stand.
func populate(t *testing.T, h Harness, random *rand.Rand, n int) []intent.Intent {
	t.Helper()
	svc := intent.New(h.Store)
	all := make([]intent.Intent, 0, n)
	for i := range n {
		p := params()
		if r := random.IntN(4); r > 0 {
			p.Reference = new(fmt.Sprint("order-", r))
		}
		if i%3 == 0 {
			p.Metadata = map[string]string{"n": fmt.Sprint(i)}
		}
		owner := merchant
		if random.IntN(4) == 0 {
			owner = stranger
		}
		in, err := svc.Create(t.Context(), owner, p)
		steps := []intent.Step{
			{To: intent.Authorized, Actor: intent.API},
			{To: intent.Settling, Actor: intent.Relayer},
			{To: intent.Confirming, Actor: intent.Relayer, TxHash: hash},
		}
		for _, step := range steps[:random.IntN(len(steps)+1)] {
			if err == nil {
				in, err = svc.Move(t.Context(), owner, in.ID, step)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, in)
	}
	return all
}

func listAgreesWithNaive(t *testing.T, h Harness) {
	random := rand.New(rand.NewPCG(5, 2))
	all := populate(t, h, random, 200)

	oneOf := func(n int) bool { return random.IntN(n) == 0 }
	moment := func() time.Time {
		at := all[random.IntN(len(all))].CreatedAt
		// To the nanosecond, the microsecond, and off the row.
		return at.Add([]time.Duration{0, 0, 1, -1, time.Microsecond, -time.Microsecond}[random.IntN(6)])
	}
	cursor := func() *intent.ID {
		id := all[random.IntN(len(all))].ID // the other merchant's too
		if oneOf(3) {
			id[15]++ // nobody's
		}
		return &id
	}
	full, more, empty := 0, 0, 0
	for range 400 {
		q := intent.Query{Limit: 1 + random.IntN(12)}
		if oneOf(8) {
			q.Limit = 100
		}
		switch random.IntN(3) {
		case 0:
			q.After = cursor()
		case 1:
			q.Before = cursor()
		}
		if oneOf(3) {
			q.State = []intent.State{intent.Created, intent.Authorized, intent.Confirming, intent.Failed}[random.IntN(4)]
		}
		if oneOf(3) {
			q.Reference = fmt.Sprint("order-", random.IntN(5))
		}
		if oneOf(3) {
			q.CreatedFrom = moment()
		}
		if oneOf(3) {
			q.CreatedBefore = moment()
		}
		if !q.CreatedFrom.IsZero() && !q.CreatedBefore.IsZero() && !q.CreatedFrom.Before(q.CreatedBefore) {
			q.CreatedBefore = q.CreatedFrom.Add(time.Microsecond)
		}
		owner := []string{merchant, stranger, "m-3"}[random.IntN(3)]
		page, hasMore := list(t, h, owner, q)
		want, wantMore := naive(all, owner, q)
		what := fmt.Sprintf("List(%s, %+v)", owner, q)
		equal(t, what+" ids", ids(page), ids(want))
		if len(want) > 0 {
			equal(t, what, page, want)
		}
		equal(t, what+" more", hasMore, wantMore)
		switch {
		case hasMore:
			more++
		case len(page) == q.Limit:
			full++
		case len(page) == 0:
			empty++
		}
	}
	if more == 0 || full == 0 || empty == 0 {
		t.Fatalf("of the pages %d have more behind them, %d are just full, %d empty: the test is too weak", more, full, empty)
	}
}

// createLater stores an intent of a later microsecond than those that are there.
func createLater(t *testing.T, h Harness) intent.Intent {
	t.Helper()
	h.Advance(t, time.Microsecond)
	return create(t, h, time.Hour)
}

// listWhileInserting pages in both directions while new intents come, and others
// change.
func listWhileInserting(t *testing.T, h Harness) {
	var old []intent.ID
	for range 23 {
		old = append(old, createLater(t, h).ID)
	}
	slices.Reverse(old)

	q := intent.Query{Limit: 5}
	var seen []intent.ID
	for more := true; more; {
		var page []intent.Intent
		page, more = list(t, h, merchant, q)
		seen = append(seen, ids(page)...)
		q.After = &seen[len(seen)-1]
		createLater(t, h)
		move(t, h, *q.After, intent.Step{To: intent.Authorized, Actor: intent.API})
	}
	equal(t, "paging to the oldest", seen, old)

	// Back to the newest, which moves on until the paging has come there.
	q = intent.Query{Limit: 5, Before: &old[len(old)-1]}
	seen = []intent.ID{*q.Before}
	var late []intent.ID
	for more := true; more; {
		var page []intent.Intent
		page, more = list(t, h, merchant, q)
		seen = append(ids(page), seen...)
		q.Before = &seen[0]
		if len(late) < 3 {
			late = append(late, createLater(t, h).ID)
		}
	}
	equal(t, "paging back", seen[len(seen)-len(old):], old)
	all, _ := list(t, h, merchant, intent.Query{Limit: 100})
	equal(t, "paging back", seen, ids(all))

	q.Before = &all[0].ID
	if page, more := list(t, h, merchant, q); len(page) != 0 || more {
		t.Fatalf("%d are newer than the newest, more %t", len(page), more)
	}
	newest := createLater(t, h)
	page, more := list(t, h, merchant, q)
	equal(t, "what is new", page, []intent.Intent{newest})
	equal(t, "more", more, false)
}

// listKeepsMerchantsApart uses ids that both have.
func listKeepsMerchantsApart(t *testing.T, h Harness) {
	var mine, theirs []intent.Intent
	for i := range 6 {
		in := create(t, h, time.Hour)
		copied := in
		copied.MerchantID, copied.Amount = stranger, fmt.Sprint(100+i)
		if err := h.Insert(t.Context(), copied); err != nil {
			t.Fatal(err)
		}
		mine, theirs = append(mine, in), append(theirs, copied)
	}
	mine[2] = move(t, h, mine[2].ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	slices.Reverse(mine)
	slices.Reverse(theirs)

	for _, q := range []intent.Query{
		{Limit: 100}, {Limit: 6}, {Limit: 2, After: &mine[1].ID}, {Limit: 2, Before: &mine[4].ID},
		{Limit: 100, State: intent.Created}, {Limit: 100, State: intent.Authorized},
		{Limit: 100, CreatedFrom: mine[3].CreatedAt}, {Limit: 3, CreatedBefore: mine[1].CreatedAt},
	} {
		for owner, all := range map[string][]intent.Intent{merchant: mine, stranger: theirs, "": nil} {
			page, more := list(t, h, owner, q)
			want, wantMore := naive(all, owner, q)
			if len(page)+len(want) > 0 {
				equal(t, fmt.Sprintf("List(%s, %+v)", owner, q), page, want)
			}
			equal(t, "more", more, wantMore)
		}
	}
	page, _ := list(t, h, merchant, intent.Query{Limit: 100, State: intent.Authorized})
	equal(t, "the moved one", page, []intent.Intent{mine[3]})
}

// listAtTheEdge uses the lowest id that a time can have, which chance never
// gives, and ids of earlier builds, made by clocks that were fast and slow.
func listAtTheEdge(t *testing.T, h Harness) {
	at := create(t, h, time.Hour).CreatedAt.Add(-time.Hour)
	put := func(id intent.ID, at time.Time) intent.Intent {
		t.Helper()
		in := bare(nil)
		in.ID, in.State, in.Version = id, intent.Created, 1
		in.CreatedAt, in.UpdatedAt, in.ExpiresAt = at, at, at.Add(time.Hour)
		if err := h.Insert(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		return in
	}
	first := put(intent.FirstID(at), at)
	put(intent.FirstID(at.Add(30*time.Second)), at.Add(-time.Minute))
	put(intent.FirstID(at.Add(-30*time.Second)), at.Add(time.Minute))

	page, _ := list(t, h, merchant, intent.Query{Limit: 100, CreatedFrom: at, CreatedBefore: at.Add(time.Microsecond)})
	equal(t, "its microsecond", page, []intent.Intent{first})
	for _, in := range listed(t, h, intent.Query{Limit: 100, CreatedFrom: at}) {
		if in.CreatedAt.Before(at) {
			t.Errorf("%s is listed from %s", in.CreatedAt, at)
		}
	}
	for _, in := range listed(t, h, intent.Query{Limit: 100, CreatedBefore: at}) {
		if !in.CreatedAt.Before(at) {
			t.Errorf("%s is listed before %s", in.CreatedAt, at)
		}
	}
	equal(t, "all", len(listed(t, h, intent.Query{Limit: 100})), 4)
}

func listed(t *testing.T, h Harness, q intent.Query) []intent.Intent {
	t.Helper()
	page, _ := list(t, h, merchant, q)
	return page
}

// listGivesCopies is for a store that keeps what it answers.
func listGivesCopies(t *testing.T, h Harness) {
	in, err := h.Store.Create(t.Context(), bare(map[string]string{"k": "v"}), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	page, _ := list(t, h, merchant, intent.Query{Limit: 1})
	equal(t, "List", page, []intent.Intent{in})
	page[0].Metadata["k"] = "written to after List"
	page, _ = list(t, h, merchant, intent.Query{Limit: 1})
	equal(t, "List", page, []intent.Intent{in})
}

func transitionsInPages(t *testing.T, h Harness) {
	in, other := create(t, h, time.Hour), create(t, h, time.Hour)
	move(t, h, other.ID, intent.Step{To: intent.Authorized, Actor: intent.API})
	steps := []intent.Step{
		{To: intent.Authorized, Actor: intent.API},
		{To: intent.Settling, Actor: intent.Relayer},
	}
	for range 3 {
		steps = append(steps,
			intent.Step{To: intent.Confirming, Actor: intent.Listener, TxHash: hash},
			intent.Step{To: intent.Settling, Actor: intent.Listener, Reason: "reorg"})
	}
	for _, step := range steps {
		move(t, h, in.ID, step)
	}
	all := trail(t, h, in.ID)
	equal(t, "rows", len(all), len(steps))

	svc := intent.New(h.Store)
	for after := range int64(len(steps) + 4) {
		for limit := 1; limit <= len(steps)+1; limit++ {
			page, more, err := svc.Transitions(t.Context(), merchant, in.ID, after, limit)
			if err != nil {
				t.Fatal(err)
			}
			var want []intent.Transition
			for _, row := range all {
				if row.Version > after {
					want = append(want, row)
				}
			}
			what := fmt.Sprintf("Transitions(after %d, limit %d)", after, limit)
			equal(t, what+" more", more, len(want) > limit)
			want = want[:min(limit, len(want))]
			if len(page)+len(want) > 0 {
				equal(t, what, page, want)
			}
		}
	}

	// Behind its end a trail is empty, and none's is still not found.
	for _, after := range []int64{0, 9, 1<<63 - 1} {
		_, _, err := svc.Transitions(t.Context(), stranger, in.ID, after, 100)
		wantErr(t, err, intent.ErrNotFound)
		if page, more, err := svc.Transitions(t.Context(), merchant, in.ID, max(after, 9), 100); len(page) != 0 || more || err != nil {
			t.Fatalf("after %d: %+v, %t, %v", after, page, more, err)
		}
	}
}
