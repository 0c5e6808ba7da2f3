package intent

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"intentd/internal/intent/chain"
)

// Searcher finds intents whoever their merchant is. It is for the operators of
// the service, and no part of Store, so that nothing which serves a merchant can
// reach another's intents by mistake.
type Searcher interface {
	// Search returns up to limit intents that q, which the function Search has
	// checked, selects, in the order that SortFound makes; and whether there are
	// more. Which of those are left out is not said. It never takes part in an
	// attempt.
	//
	// What it costs does not grow with the number of intents, though it may with
	// the number of merchants. A store that has others to serve gives up after
	// two seconds, with ErrUnavailable.
	Search(ctx context.Context, q Search, limit int) (found []Intent, more bool, err error)
}

// Search is a question for a Searcher.
type Search struct {
	// Exactly one is given. The hash is that of a transaction which is on record,
	// or which a step once brought.
	ID        *ID
	Reference string
	TxHash    string

	Merchant string // whose they must be; "": anybody's
	// What the MerchantID must contain, or must not; "": anything goes.
	With, Without string
}

// SearchFor checks q, asks s, and returns up to limit intents, 1 to 100, and
// whether there are more. A member that breaks its rule is an *InvalidError; any
// other error is the store's.
func SearchFor(ctx context.Context, s Searcher, q Search, limit int) (found []Intent, more bool, err error) {
	if err := checkLimit(limit); err != nil {
		return nil, false, err
	}
	if q.Reference != "" {
		if rule := referenceRule(q.Reference); rule != "" {
			return nil, false, &InvalidError{"reference", rule}
		}
	}
	if q.TxHash != "" {
		if q.TxHash, err = chain.AnyTxHash(q.TxHash); err != nil {
			return nil, false, &InvalidError{"tx_hash", err.Error()}
		}
	}
	given := 0
	for _, is := range []bool{q.ID != nil, q.Reference != "", q.TxHash != ""} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, false, &InvalidError{"search", fmt.Sprintf("must be for one of id, reference and tx_hash, not for %d of them", given)}
	}
	return s.Search(ctx, q, limit)
}

// SortFound puts intents of several merchants in the order in which a Searcher
// tells them: newest first, and of one ID by merchant.
func SortFound(found []Intent) {
	slices.SortFunc(found, func(a, b Intent) int {
		if newer := bytes.Compare(b.ID[:], a.ID[:]); newer != 0 {
			return newer
		}
		return strings.Compare(a.MerchantID, b.MerchantID)
	})
}

// Selects says whether q selects an intent of which these hashes were on record,
// for a Searcher that has no index.
func (q Search) Selects(in Intent, hashes []string) bool {
	return (q.ID == nil || in.ID == *q.ID) &&
		(q.Reference == "" || in.Reference == q.Reference) &&
		(q.TxHash == "" || slices.Contains(hashes, q.TxHash)) &&
		(q.Merchant == "" || in.MerchantID == q.Merchant) &&
		(q.With == "" || strings.Contains(in.MerchantID, q.With)) &&
		(q.Without == "" || !strings.Contains(in.MerchantID, q.Without))
}
