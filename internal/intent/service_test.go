package intent_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/intent"
	"intentd/internal/intent/memintent"
)

const (
	token    = "0x5FbDB2315678afecb367f032d93F642f64180aa3"
	payer    = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
	merchant = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
	max256   = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
)

func params(change func(p *intent.Params)) intent.Params {
	p := intent.Params{Chain: "evm:31337", Token: token, Payer: payer, Merchant: merchant, Amount: "1500000"}
	if change != nil {
		change(&p)
	}
	return p
}

func service() *intent.Service {
	return intent.New(memintent.New(time.Now, nil))
}

// members returns n metadata members.
func members(n int) map[string]string {
	m := make(map[string]string)
	for i := range n {
		m[fmt.Sprint("k", i)] = "v"
	}
	return m
}

// controls are the ends of both ranges of control characters, and what is no
// text at all.
var controls = []string{"\x00", "\t", "\n", "\x1f", "\x7f", "\u0080", "\u009f", "\xff", "a\xc3", "\xed\xa0\x80"}

func TestService_Create(t *testing.T) {
	t.Parallel()

	t.Run("Defaults", func(t *testing.T) {
		t.Parallel()
		svc := service()
		in, err := svc.Create(t.Context(), "m-1", params(nil))
		if err != nil {
			t.Fatal(err)
		}
		want := intent.Intent{
			MerchantID: "m-1", ID: in.ID, Chain: "evm:31337", Token: token, Payer: payer, Merchant: merchant,
			Amount: "1500000", State: intent.Created, Version: 1,
			CreatedAt: in.CreatedAt, UpdatedAt: in.CreatedAt, ExpiresAt: in.CreatedAt.Add(15 * time.Minute),
		}
		if diff := cmp.Diff(want, in); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
		if _, err := intent.ParseID(in.ID.String()); err != nil {
			t.Fatal(err)
		}
		if _, err := svc.Get(t.Context(), "m-2", in.ID); !errors.Is(err, intent.ErrNotFound) {
			t.Fatalf("another merchant's Get: %v", err)
		}
	})

	t.Run("AddressesInEIP55Form", func(t *testing.T) {
		t.Parallel()
		in, err := service().Create(t.Context(), "m-1", params(func(p *intent.Params) {
			p.Token, p.Payer, p.Merchant = strings.ToLower(token), "0x"+strings.ToUpper(payer[2:]), strings.ToLower(merchant)
		}))
		if err != nil || in.Token != token || in.Payer != payer || in.Merchant != merchant {
			t.Fatalf("%+v, %v", in, err)
		}
	})

	t.Run("Accepted", func(t *testing.T) {
		t.Parallel()
		svc := service()
		for name, change := range map[string]func(p *intent.Params){
			"AmountOne":        func(p *intent.Params) { p.Amount = "1" },
			"AmountMax":        func(p *intent.Params) { p.Amount = max256 },
			"AmountShorter":    func(p *intent.Params) { p.Amount = strings.Repeat("9", 77) },
			"AmountPast53Bits": func(p *intent.Params) { p.Amount = "9007199254740993" },
			"ExpiresMin":       func(p *intent.Params) { p.ExpiresIn = new(int64(1)) },
			"ExpiresMax":       func(p *intent.Params) { p.ExpiresIn = new(int64(2_592_000)) },
			"ReferenceShort":   func(p *intent.Params) { p.Reference = new("x") },
			"ReferenceLong":    func(p *intent.Params) { p.Reference = new(strings.Repeat("💶", 255)) },
			"ReferenceOdd":     func(p *intent.Params) { p.Reference = new(" \u00a0\u2028\ufeff\ufffd'\"\\") },
			"MetadataEmpty":    func(p *intent.Params) { p.Metadata = map[string]string{} },
			"MetadataMany":     func(p *intent.Params) { p.Metadata = members(50) },
			"MetadataLong": func(p *intent.Params) {
				p.Metadata = map[string]string{strings.Repeat("é", 40): strings.Repeat("💶", 500)}
			},
			"MetadataNoValue": func(p *intent.Params) { p.Metadata = map[string]string{"k": ""} },
		} {
			p := params(change)
			in, err := svc.Create(t.Context(), "m-1", p)
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if in.Amount != p.Amount || !maps.Equal(in.Metadata, p.Metadata) || (in.Metadata == nil) != (p.Metadata == nil) {
				t.Errorf("%s: %+v", name, in)
			}
			if p.Reference != nil && in.Reference != *p.Reference {
				t.Errorf("%s: reference %q", name, in.Reference)
			}
			if p.ExpiresIn != nil && in.ExpiresAt.Sub(in.CreatedAt) != time.Duration(*p.ExpiresIn)*time.Second {
				t.Errorf("%s: lives %s", name, in.ExpiresAt.Sub(in.CreatedAt))
			}
		}
	})

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		const (
			amount    = "amount must be a decimal integer string from 1 to 2^256-1"
			expires   = "expires_in_seconds must be an integer from 1 to 2592000"
			reference = "reference must be 1 to 255 characters, none of them a control character"
			text      = "characters, none of them a control character"
		)
		type refusal struct {
			change func(p *intent.Params)
			want   string
		}
		refusals := []refusal{
			{func(p *intent.Params) { p.Chain = "" }, "chain must be namespace:reference, such as evm:31337"},
			{func(p *intent.Params) { p.Chain = "solana:x" }, "chain has an unknown namespace, known is evm"},
			{func(p *intent.Params) { p.Chain = "evm:0" }, "chain must be evm: and a decimal chain id from 1 to 2^63-1 without a leading zero"},
			{func(p *intent.Params) { p.Token = "" }, "token must be 0x and 40 hex digits"},
			{func(p *intent.Params) { p.Payer = payer + "0" }, "payer must be 0x and 40 hex digits"},
			{func(p *intent.Params) { p.Merchant = "0x70997970c51812dc3A010C7d01b50e0d17dc79C8" }, "merchant has a wrong EIP-55 checksum"},
			{func(p *intent.Params) { p.Token = "0x" + strings.Repeat("0", 40) }, "token must not be the zero address"},
			{func(p *intent.Params) { p.Payer = merchant }, "payer must differ from merchant"},
			{func(p *intent.Params) { p.Payer = strings.ToLower(merchant) }, "payer must differ from merchant"},
			{func(p *intent.Params) { p.Metadata = members(51) }, "metadata must have at most 50 members"},
			{func(p *intent.Params) { p.Metadata = map[string]string{"": "v"} }, `metadata name "" must be 1 to 40 ` + text},
			{func(p *intent.Params) { p.Metadata = map[string]string{strings.Repeat("é", 41): "v"} },
				`metadata name "` + strings.Repeat("é", 40) + `" must be 1 to 40 ` + text},
			{func(p *intent.Params) { p.Metadata = map[string]string{strings.Repeat("k", 1e6): "v"} },
				`metadata name "` + strings.Repeat("k", 40) + `" must be 1 to 40 ` + text},
			{func(p *intent.Params) { p.Metadata = map[string]string{"k": strings.Repeat("é", 501)} }, `metadata value of "k" must be at most 500 ` + text},
			{func(p *intent.Params) { p.Metadata = map[string]string{"z": "\x00", "b\x00": "", "a": "", "c": "\n"} },
				`metadata name "b\x00" must be 1 to 40 ` + text},
			// The documented order decides, not the order of the map or of the code.
			{func(p *intent.Params) { *p = intent.Params{} }, "chain must be namespace:reference, such as evm:31337"},
			{func(p *intent.Params) { p.Token, p.Payer, p.Merchant = "", "", "" }, "token must be 0x and 40 hex digits"},
			{func(p *intent.Params) { p.Payer, p.Amount = merchant, "" }, "payer must differ from merchant"},
			{func(p *intent.Params) { p.Amount, p.ExpiresIn = "", new(int64(0)) }, amount},
			{func(p *intent.Params) { p.ExpiresIn, p.Reference = new(int64(0)), new("") }, expires},
			{func(p *intent.Params) { p.Reference, p.Metadata = new(""), members(51) }, reference},
		}
		for _, a := range []string{
			"", "0", "00", "-0", "-1", "+5", "0100", "0x10", "1_000", "1,000", "1e18", "1E3", "1.0", "1.", ".5", " 1", "1 ", "1\n", "1\x00", "１",
			"null", "NaN", "Infinity", "abc", "\xff",
			"115792089237316195423570985008687907853269984665640564039457584007913129639936",
			"115792089237316195423570985008687907853269984665640564039457584007913129639940",
			strings.Repeat("9", 78), "1" + strings.Repeat("0", 78), strings.Repeat("9", 60_000),
		} {
			refusals = append(refusals, refusal{func(p *intent.Params) { p.Amount = a }, amount})
		}
		for _, s := range []int64{0, -1, 2_592_001, 9_223_372_037, 18_446_744_975, 1<<63 - 1, -1 << 63} {
			refusals = append(refusals, refusal{func(p *intent.Params) { p.ExpiresIn = &s }, expires})
		}
		for _, s := range append([]string{"", strings.Repeat("é", 256)}, controls...) {
			refusals = append(refusals, refusal{func(p *intent.Params) { p.Reference = &s }, reference})
		}
		for _, s := range controls {
			refusals = append(refusals,
				refusal{func(p *intent.Params) { p.Metadata = map[string]string{s: "v"} }, fmt.Sprintf("metadata name %q must be 1 to 40 %s", s, text)},
				refusal{func(p *intent.Params) { p.Metadata = map[string]string{"k": s} }, `metadata value of "k" must be at most 500 ` + text},
				refusal{func(p *intent.Params) { p.Chain += s }, "chain must be evm: and a decimal chain id from 1 to 2^63-1 without a leading zero"},
				refusal{func(p *intent.Params) { p.Token += s }, "token must be 0x and 40 hex digits"},
			)
		}

		svc := service()
		for _, r := range refusals {
			_, err := svc.Create(t.Context(), "m-1", params(r.change))
			var invalid *intent.InvalidError
			if !errors.As(err, &invalid) || err.Error() != r.want {
				t.Errorf("error %.300v, want %s", err, r.want)
				continue
			}
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("%q is not one line", err)
			}
		}
		if n, err := svc.CancelDue(t.Context(), 1000); n != 0 || err != nil {
			t.Errorf("CancelDue = %d, %v", n, err)
		}
	})
}

func TestService_List(t *testing.T) {
	t.Parallel()

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		const (
			limit     = "limit must be an integer from 1 to 100"
			reference = "reference must be 1 to 255 characters, none of them a control character"
			states    = "state must be one of created, authorized, settling, confirming, needs_review, settled, failed, canceled"
		)
		var (
			id  intent.ID
			day = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
		)
		type refusal struct {
			q    intent.Query
			want string
		}
		refusals := []refusal{
			{intent.Query{}, limit},
			{intent.Query{Limit: -1}, limit},
			{intent.Query{Limit: 101}, limit},
			{intent.Query{Limit: 1, After: &id, Before: &id}, "ending_before must not be given together with starting_after"},
			{intent.Query{Limit: 1, State: "Created"}, states},
			{intent.Query{Limit: 1, State: intent.State(strings.Repeat("x", 1e5))}, states},
			{intent.Query{Limit: 1, Reference: strings.Repeat("é", 256)}, reference},
			{intent.Query{Limit: 1, CreatedFrom: time.Unix(-1, 0)}, "created_gte must be in the years 1970 to 9999"},
			{intent.Query{Limit: 1, CreatedBefore: time.Unix(-1, 0)}, "created_lt must be in the years 1970 to 9999"},
			{intent.Query{Limit: 1, CreatedFrom: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}, "created_gte must be in the years 1970 to 9999"},
			{intent.Query{Limit: 1, CreatedBefore: time.Date(9999, 12, 31, 23, 0, 0, 0, time.FixedZone("west", -7200))}, "created_lt must be in the years 1970 to 9999"},
			{intent.Query{Limit: 1, CreatedFrom: day, CreatedBefore: day}, "created_lt must be later than created_gte"},
			{intent.Query{Limit: 1, CreatedFrom: day.Add(1), CreatedBefore: day}, "created_lt must be later than created_gte"},
			// The order of the members, as they are documented, decides.
			{intent.Query{After: &id, Before: &id}, limit},
			{intent.Query{Limit: 1, State: "x", Reference: "\x00"}, states},
			{intent.Query{Limit: 1, Reference: "\x00", CreatedFrom: day, CreatedBefore: day}, reference},
		}
		for _, s := range controls {
			refusals = append(refusals, refusal{intent.Query{Limit: 1, Reference: s}, reference})
		}
		for _, r := range refusals {
			page, more, err := service().List(t.Context(), "m-1", r.q)
			var invalid *intent.InvalidError
			if !errors.As(err, &invalid) || err.Error() != r.want || page != nil || more {
				t.Errorf("List(%.200v) = %v, %t, %.300v, want %s", r.q, page, more, err, r.want)
			}
		}
	})

	t.Run("Accepted", func(t *testing.T) {
		t.Parallel()
		svc := service()
		if _, err := svc.Create(t.Context(), "m-1", params(nil)); err != nil {
			t.Fatal(err)
		}
		queries := []intent.Query{
			{Limit: 1}, {Limit: 100},
			{Limit: 1, CreatedFrom: time.Unix(0, 0), CreatedBefore: time.Date(9999, 12, 31, 23, 59, 59, 999999999, time.UTC)},
		}
		for _, q := range queries {
			if page, more, err := svc.List(t.Context(), "m-1", q); len(page) != 1 || more || err != nil {
				t.Errorf("List(%+v) = %v, %t, %v", q, page, more, err)
			}
		}
		for _, state := range intent.States() {
			if _, _, err := svc.List(t.Context(), "m-1", intent.Query{Limit: 1, State: state, Reference: strings.Repeat("💶", 255)}); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("BelowTheMicrosecond", func(t *testing.T) {
		t.Parallel()
		// What a store is asked is in whole microseconds, and selects the same.
		svc := service()
		in, err := svc.Create(t.Context(), "m-1", params(nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			q    intent.Query
			want int
		}{
			{intent.Query{Limit: 1, CreatedFrom: in.CreatedAt}, 1},
			{intent.Query{Limit: 1, CreatedFrom: in.CreatedAt.Add(1)}, 0},
			{intent.Query{Limit: 1, CreatedFrom: in.CreatedAt.Add(-1)}, 1},
			{intent.Query{Limit: 1, CreatedBefore: in.CreatedAt}, 0},
			{intent.Query{Limit: 1, CreatedBefore: in.CreatedAt.Add(1)}, 1},
			{intent.Query{Limit: 1, CreatedBefore: in.CreatedAt.Add(-1)}, 0},
		} {
			if page, _, err := svc.List(t.Context(), "m-1", c.q); len(page) != c.want || err != nil {
				t.Errorf("List(%+v) = %v, %v, want %d", c.q, page, err, c.want)
			}
		}
	})
}

func TestService_Transitions(t *testing.T) {
	t.Parallel()
	svc := service()
	in, err := svc.Create(t.Context(), "m-1", params(nil))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		after int64
		limit int
		want  string
	}{
		{0, 0, "limit must be an integer from 1 to 100"},
		{0, -1, "limit must be an integer from 1 to 100"},
		{-1, 101, "limit must be an integer from 1 to 100"},
		{-1, 1, "starting_after must be a version, an integer from 0"},
		{0, 1, ""},
		{1<<63 - 1, 100, ""},
	} {
		page, more, err := svc.Transitions(t.Context(), "m-1", in.ID, c.after, c.limit)
		var invalid *intent.InvalidError
		switch {
		case c.want == "" && err == nil:
		case !errors.As(err, &invalid), err.Error() != c.want:
			t.Errorf("Transitions(after %d, limit %d): %v, want %q", c.after, c.limit, err, c.want)
		}
		if len(page) != 0 || more {
			t.Errorf("Transitions(after %d, limit %d) = %v, %t", c.after, c.limit, page, more)
		}
	}
}

func TestService_Observed(t *testing.T) {
	t.Parallel()
	var moved []string
	now := time.Now()
	store := memintent.New(func() time.Time { return now }, nil)
	ctx := context.WithValue(t.Context(), observedKey{}, "the caller's")
	svc := intent.New(store).Observed(func(got context.Context, to intent.State, by intent.Actor, n int) {
		if got.Value(observedKey{}) != "the caller's" {
			t.Error("told with another context")
		}
		moved = append(moved, fmt.Sprintf("%d %s %s", n, to, by))
	})
	create := func() intent.ID {
		t.Helper()
		in, err := svc.Create(ctx, "m-1", params(nil))
		if err != nil {
			t.Fatal(err)
		}
		return in.ID
	}
	id := create()
	_, invalid := svc.Create(ctx, "m-1", intent.Params{})
	step := func(to intent.State, by intent.Actor) error {
		_, err := svc.Move(ctx, "m-1", id, intent.Step{To: to, Actor: by})
		return err
	}
	first, again := step(intent.Authorized, intent.API), step(intent.Authorized, intent.API)
	refused, next := step(intent.Settled, intent.Relayer), step(intent.Settling, intent.Relayer)
	if invalid == nil || first != nil || again != nil || refused == nil || next != nil {
		t.Fatal(invalid, first, again, refused, next)
	}
	lost := intent.New(losing{store}).Observed(func(context.Context, intent.State, intent.Actor, int) {
		t.Error("told of what the store has not kept")
	})
	_, failed := lost.Move(ctx, "m-1", id, intent.Step{To: intent.Failed, Actor: intent.Relayer, Reason: "r"})
	if _, err := lost.Create(ctx, "m-1", params(nil)); failed == nil || err == nil {
		t.Fatal(failed, err)
	}
	create()
	create()
	now = now.Add(time.Hour)
	for range 2 {
		if _, err := svc.CancelDue(ctx, 10); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"1 created api", "1 authorized api", "1 settling relayer", "1 created api", "1 created api", "2 canceled system"}
	if diff := cmp.Diff(want, moved); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

type observedKey struct{}

// losing is a store that keeps nothing.
type losing struct{ intent.Store }

func (losing) Create(context.Context, intent.Intent, time.Duration) (intent.Intent, error) {
	return intent.Intent{}, intent.ErrUnavailable
}

func (s losing) Move(ctx context.Context, merchantID string, id intent.ID, decide func(intent.Intent, time.Time) (*intent.Transition, error)) (intent.Intent, error) {
	in, err := s.Get(ctx, merchantID, id)
	if err == nil {
		_, err = decide(in, time.Now())
	}
	if err == nil {
		err = intent.ErrUnavailable
	}
	return intent.Intent{}, err
}
