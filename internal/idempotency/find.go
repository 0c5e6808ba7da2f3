package idempotency

import (
	"context"
	"net/http"
)

// Find tells a handler what became of a key: h is the header of a request that
// asks, with the key where a request that runs has it; scope is whose keys are
// looked at, with Options.Route a RouteScope. Nothing is claimed. It returns one
// of
//   - the record that lives under the key;
//   - a refusal: idempotency_key_required and idempotency_key_invalid as
//     Middleware's, and idempotency_key_in_flight while a request runs;
//   - an error: the store could not tell, be it that it was silent for 5 s;
//   - nothing at all: when the store was asked, no request ran under the key, and
//     none had left a record that lives.
//
// Nothing at all does not say that no request with the key will run: one may be
// on its way, and one that was undone, or whose record has expired, has left
// nothing either. An empty scope panics.
func Find(ctx context.Context, store Store, scope string, h http.Header) (*Record, *Refusal, error) {
	id := ID{Scope: mustScope(scope)}
	key, refusal := readKey(h, keyToFindRequired)
	if refusal != nil {
		return nil, refusal, nil
	}
	id.Key = key
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rec, running, err := store.Lookup(ctx, id)
	switch {
	case err != nil:
		return nil, nil, err
	case rec != nil:
		return rec, nil, nil
	case running:
		return nil, inFlight(key), nil
	default:
		return nil, nil, nil
	}
}
