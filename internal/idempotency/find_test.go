package idempotency_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd/internal/idempotency"
)

func TestFind(t *testing.T) {
	t.Parallel()
	const scope = "merchant-a"
	asking := func(keys ...string) http.Header { return http.Header{"Idempotency-Key": keys} }

	t.Run("RefusesAsTheMiddlewareDoes", func(t *testing.T) {
		t.Parallel()
		const missing = "this request needs an Idempotency-Key header: the key that it asks about"
		for name, tt := range map[string]struct {
			keys   []string
			code   string
			detail string
		}{
			"None":     {nil, "idempotency_key_required", missing},
			"Empty":    {[]string{""}, "idempotency_key_invalid", "Idempotency-Key must not be empty"},
			"Two":      {[]string{"k", "k"}, "idempotency_key_invalid", "Idempotency-Key must be sent once, got more than one header line"},
			"Long":     {[]string{strings.Repeat("k", 256)}, "idempotency_key_invalid", "Idempotency-Key must be at most 255 bytes long, got 256"},
			"Unclosed": {[]string{`"k`}, "idempotency_key_invalid", "Idempotency-Key is a quoted string without its closing quote"},
		} {
			rec, ref, err := idempotency.Find(t.Context(), memory(), scope, asking(tt.keys...))
			want := &idempotency.Refusal{Status: http.StatusBadRequest, Code: tt.code, Detail: tt.detail}
			if diff := cmp.Diff(want, ref); diff != "" || rec != nil || err != nil {
				t.Errorf("%s: Find = %+v, %v; refusal (-want +got):\n%s", name, rec, err, diff)
			}
		}
	})

	t.Run("None", func(t *testing.T) {
		t.Parallel()
		store := memory()
		recordFor(t, store, "") // the key k of merchant-a
		for _, ask := range []struct{ scope, key string }{{scope, "l"}, {"merchant-b", "k"}} {
			if rec, ref, err := idempotency.Find(t.Context(), store, ask.scope, asking(ask.key)); rec != nil || ref != nil || err != nil {
				t.Errorf("Find(%s, %s) = %+v, %v, %v; want nothing", ask.scope, ask.key, rec, ref, err)
			}
		}
	})

	t.Run("Running", func(t *testing.T) {
		t.Parallel()
		store := memory()
		claimFor(t, store, "")
		rec, ref, err := idempotency.Find(t.Context(), store, scope, asking("k"))
		want := &idempotency.Refusal{Status: http.StatusConflict, Code: "idempotency_key_in_flight", Retry: true,
			Detail: `the request with Idempotency-Key "k" is still running`}
		if diff := cmp.Diff(want, ref); diff != "" || rec != nil || err != nil {
			t.Errorf("Find = %+v, %v; refusal (-want +got):\n%s", rec, err, diff)
		}
	})

	t.Run("Record", func(t *testing.T) {
		t.Parallel()
		store := memory()
		recordFor(t, store, "")
		for _, key := range []string{"k", `"k"`} { // one key, as in a request that runs
			rec, ref, err := idempotency.Find(t.Context(), store, scope, asking(key))
			if rec == nil || rec.Response.Status != http.StatusTeapot || rec.Fingerprint != fingerprint("") || ref != nil || err != nil {
				t.Errorf("Find(%s) = %+v, %v, %v; want the record", key, rec, ref, err)
			}
		}
	})

	t.Run("StoreFails", func(t *testing.T) {
		t.Parallel()
		cause := errors.New("connection refused")
		store := lookingUp{memory(), func(context.Context) error { return cause }}
		if rec, ref, err := idempotency.Find(t.Context(), store, scope, asking("k")); rec != nil || ref != nil || !errors.Is(err, cause) {
			t.Errorf("Find = %+v, %v, %v; want the store's error", rec, ref, err)
		}
	})

	t.Run("StoreIsSilent", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			store := lookingUp{memory(), func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
			_, _, err := idempotency.Find(t.Context(), store, scope, asking("k"))
			if took := time.Since(start); took != 5*time.Second || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Find = %v after %v, want the deadline's error after 5 s", err, took)
			}
		})
	})

	t.Run("PanicsOnAnEmptyScope", func(t *testing.T) {
		t.Parallel()
		defer wantPanic(t, "without a scope")
		_, _, _ = idempotency.Find(t.Context(), memory(), "", nil)
	})
}

// lookingUp is a store whose lookups fail as the test says.
type lookingUp struct {
	idempotency.Store
	fail func(ctx context.Context) error
}

func (s lookingUp) Lookup(ctx context.Context, _ idempotency.ID) (*idempotency.Record, bool, error) {
	return nil, false, s.fail(ctx)
}
