package idempotency_test

import (
	"crypto/sha256"
	"strings"
	"testing"

	"intentd/internal/idempotency"
)

const exampleBody = `{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3",` +
	`"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",` +
	`"amount":"100000000","expires_in_seconds":900}`

func TestFingerprintOf(t *testing.T) {
	t.Parallel()
	const path = "/v1/payment_intents"

	t.Run("IsTheContracts", func(t *testing.T) {
		t.Parallel()
		other := strings.Replace(exampleBody, "100000000", "999000000", 1)
		for body, want := range map[string]string{exampleBody: "ff330e75a93099c4", other: "90f56163d6f6ee6b"} {
			if got := idempotency.FingerprintOf("POST", path, []byte(body)).String(); got != want {
				t.Errorf("fingerprint of %s = %s, want %s", body, got, want)
			}
		}
	})

	t.Run("IsTheWholeHash", func(t *testing.T) {
		t.Parallel()
		want := idempotency.Fingerprint(sha256.Sum256([]byte("PUT\x00/a%20b?c=d\x00body\x00\xff")))
		if got := idempotency.FingerprintOf("PUT", "/a%20b?c=d", []byte("body\x00\xff")); got != want {
			t.Errorf("fingerprint = %x, want %x", got[:], want[:])
		}
	})

	t.Run("TellsApart", func(t *testing.T) {
		t.Parallel()
		seen := make(map[idempotency.Fingerprint]int)
		for i, r := range [][3]string{
			{"POST", "/a", "b"},
			{"PUT", "/a", "b"},
			{"POST", "/a?", "b"},
			{"POST", "/a?b", "b"},
			{"POST", "/a", ""},
			{"POST", "/ab", ""},
			{"POST", "/a", "b\n"},
			{"POST", "/a", `{"a":1,"b":2}`},
			{"POST", "/a", `{"b":2,"a":1}`},
			{"POST/a", "", "b"},
		} {
			fp := idempotency.FingerprintOf(r[0], r[1], []byte(r[2]))
			if other, ok := seen[fp]; ok {
				t.Errorf("requests %d and %d share a fingerprint", other, i)
			}
			seen[fp] = i
		}
	})
}

func TestOutcome_String(t *testing.T) {
	t.Parallel()
	for o, want := range map[idempotency.Outcome]string{
		0:                    "none",
		idempotency.Fresh:    "fresh",
		idempotency.Replay:   "replay",
		idempotency.InFlight: "in_flight",
		idempotency.Mismatch: "mismatch",
		99:                   "none",
	} {
		if got := o.String(); got != want {
			t.Errorf("Outcome(%d) = %q, want %q", o, got, want)
		}
	}
}
