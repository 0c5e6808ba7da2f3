package main

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// kept is what stands under a key in the model: nothing, or the answer to one
// request. An id that is not known yet is that of a request whose outcome is
// unknown; the first answer about it tells.
type kept struct {
	exists  bool
	variant int
	id      string
	created int64 // microseconds, 0 while the id is not known
}

// model says what one key may do: one create, then replays, and a refusal for
// any other body. A key whose lifetime is over is as good as new.
func model(ttl time.Duration) porcupine.Model {
	nothing := kept{}
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{nothing} },
		Step: func(state, input, _ any) []any {
			s, r := state.(kept), input.(Request)
			made := kept{true, r.Variant, r.ID, r.Created}
			unknown := s.exists && s.id == "" // and when it was made
			switch {
			case !r.Answered() || r.Status == 503: // it happened, or it did not
				return []any{s, kept{exists: true, variant: r.Variant}}
			case r.OK() && !r.Replayed:
				if !s.exists || unknown || r.Created-s.created >= ttl.Microseconds() {
					return []any{made}
				}
			case r.OK():
				// From nothing: a request whose COMMIT lost its answer found its
				// own record, which the service tells as a replay.
				if !s.exists || s.variant == r.Variant && (s.id == r.ID || unknown) {
					return []any{made}
				}
			case r.Status == 422:
				if s.exists && s.variant != r.Variant {
					return []any{s}
				}
			}
			return nil
		},
		Equal: func(a, b any) bool { return a == b },
	}).ToModel()
}

// linearizable: the answers about a key are those of one key that does one thing
// at a time, each at some instant between its request and its answer.
func linearizable(h *History) (bad []string) {
	m := model(h.Setup.TTL)
	each(creates(h), func(n name, rs []Request) {
		var ops []porcupine.Operation
		for i, r := range rs {
			end := r.Return
			switch {
			case r.Status == 409, r.Status == 422 && !r.Known:
				continue // says that somebody runs, and does nothing
			case !r.Answered(), r.Status == 503:
				end = math.MaxInt64 // it may still happen
			case !r.OK() && r.Status != 422:
				continue // goodAnswers says so
			}
			ops = append(ops, porcupine.Operation{ClientId: i, Input: r, Call: r.Call, Return: end})
		}
		switch porcupine.CheckOperationsTimeout(m, ops, 10*time.Second) {
		case porcupine.Illegal:
			bad = append(bad, fmt.Sprintf("%s: %d answers have no order in which one was new and the others replays", n, len(ops)))
		case porcupine.Unknown:
			bad = append(bad, fmt.Sprintf("%s: could not be decided in 10 s", n))
		}
	})
	return bad
}
