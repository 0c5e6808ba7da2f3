package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// check is one thing that must hold. It looks at a history alone, and says where
// it does not hold.
type check struct {
	name string
	find func(h *History) []string
}

// checks are all of them. The number is that of the list.
var checks = []check{
	{"1 one intent", oneIntent},
	{"1 same bytes", sameBytes},
	{"2 nothing lost", nothingLost},
	{"2 in pairs", inPairs},
	{"3 not stuck", notStuck},
	{"4 good answers", goodAnswers},
	{"4 nothing left", nothingLeft},
	{"5 canceled once", canceledOnce},
	{"6 linearizable", linearizable},
}

// violation is where a check does not hold.
type violation struct {
	Check string `json:"check"`
	Text  string `json:"text"`
}

// judge runs every check.
func judge(h *History) []violation {
	var all []violation
	for _, c := range checks {
		for _, text := range c.find(h) {
			all = append(all, violation{c.name, text})
		}
	}
	for _, text := range h.End.Seen {
		all = append(all, violation{"while it ran", text})
	}
	return all
}

// name is what a key is to everybody: equal keys of two merchants never meet.
type name struct{ scope, key string }

func (n name) String() string { return n.scope + "/" + n.key }

func (r Request) name() name { return name{r.Scope, r.Key} }

// creates returns the requests that could make an intent, by key and in the
// order in which they were sent.
func creates(h *History) map[name][]Request {
	byKey := make(map[name][]Request)
	for _, r := range h.Requests {
		if r.Op != opRead {
			byKey[r.name()] = append(byKey[r.name()], r)
		}
	}
	for _, rs := range byKey {
		slices.SortStableFunc(rs, func(a, b Request) int { return cmp.Compare(a.Call, b.Call) })
	}
	return byKey
}

// each calls find for each key, in a fixed order.
func each[V any](m map[name]V, find func(name, V)) {
	keys := make([]name, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.scope, b.scope), cmp.Compare(a.key, b.key))
	})
	for _, k := range keys {
		find(k, m[k])
	}
}

// oneIntent: a key makes one intent, and another only when its lifetime is over
// by the database's clock; see explained for records that are apart.
func oneIntent(h *History) (bad []string) {
	if h.Setup.Apart {
		return explained(h)
	}
	byKey := make(map[name][]Intent)
	for _, i := range h.Intents {
		n := name{i.Scope, i.Reference}
		byKey[n] = append(byKey[n], i)
	}
	each(byKey, func(n name, all []Intent) {
		slices.SortFunc(all, func(a, b Intent) int { return cmp.Compare(a.Created, b.Created) })
		for i := 1; i < len(all); i++ {
			if apart := all[i].Created - all[i-1].Created; apart < h.Setup.TTL.Microseconds() {
				bad = append(bad, fmt.Sprintf("%s: intents %s and %s, %d us apart", n, all[i-1].ID, all[i].ID, apart))
			}
		}
	})
	return bad
}

// sameBytes: whatever acknowledges an intent says the same, and at most one
// answer says it for the first time. Within one lifetime of the key all of them
// are about one intent.
func sameBytes(h *History) (bad []string) {
	each(creates(h), func(n name, rs []Request) {
		type seen struct {
			digest string
			fresh  int
		}
		byID := make(map[string]*seen)
		var first *Request
		for i, r := range rs {
			if !r.OK() {
				continue
			}
			s := byID[r.ID]
			if s == nil {
				s = &seen{digest: r.Digest}
				byID[r.ID] = s
			}
			if s.digest != r.Digest {
				bad = append(bad, fmt.Sprintf("%s: two answers about %s differ", n, r.ID))
			}
			if !r.Replayed {
				if s.fresh++; s.fresh == 2 {
					bad = append(bad, fmt.Sprintf("%s: %s was answered as new twice", n, r.ID))
				}
			}
			switch {
			case first == nil:
				first = &rs[i]
			case first.ID != r.ID && abs(first.Created-r.Created) < h.Setup.TTL.Microseconds():
				bad = append(bad, fmt.Sprintf("%s: answers about %s and about %s", n, first.ID, r.ID))
			}
		}
	})
	return bad
}

func abs(n int64) int64 { return max(n, -n) }

// nothingLost: what was acknowledged is there in the end, and was there whenever
// somebody read it.
func nothingLost(h *History) (bad []string) {
	intents := make(map[string]bool)
	for _, i := range h.Intents {
		intents[i.ID] = true
	}
	bodies := make(map[string]string)
	for _, r := range h.Records {
		bodies[r.ID] = r.Body
	}
	told := make(map[string]bool)
	tell := func(id, format string, args ...any) {
		if !told[id] {
			told[id] = true
			bad = append(bad, fmt.Sprintf(format, args...))
		}
	}
	for _, r := range h.Requests {
		switch {
		case r.Op == opRead && r.Status == 404:
			tell(r.ID, "%s: %s was acknowledged, and read as 404", r.name(), r.ID)
		case !r.OK():
		case !intents[r.ID]:
			tell(r.ID, "%s: %s was acknowledged, and is not in the database", r.name(), r.ID)
		case bodies[r.ID] != "" && bodies[r.ID] != r.Body:
			tell(r.ID, "%s: what was answered about %s is not what is on record", r.name(), r.ID)
		}
	}
	return bad
}

// inPairs: while a record lives, there is no intent without it and no record
// without its intent.
func inPairs(h *History) (bad []string) {
	intents := make(map[string]Intent)
	for _, i := range h.Intents {
		intents[i.ID] = i
	}
	records := make(map[string]bool)
	for _, r := range h.Records {
		records[r.ID] = true
		if i, ok := intents[r.ID]; r.Status < 300 && (!ok || i.Reference != r.Key || i.Scope != r.Scope) {
			bad = append(bad, fmt.Sprintf("%s/%s: a record of %q, which is no intent of this key", r.Scope, r.Key, r.ID))
		}
	}
	if h.Setup.Apart { // then the intents without one are counted
		return bad
	}
	for _, i := range h.Intents {
		if i.Created+h.Setup.TTL.Microseconds() > h.End.Now && !records[i.ID] {
			bad = append(bad, fmt.Sprintf("%s/%s: intent %s without a record", i.Scope, i.Reference, i.ID))
		}
	}
	return bad
}

// killPatience is how long the keys of a replica that was killed may stay taken.
const killPatience = 2 * time.Second

// notStuck: once nothing disturbs any more, every key is answered finally within
// two leases; after a kill -9 within two seconds.
func notStuck(h *History) (bad []string) {
	type question struct {
		op string
		name
		since int64
	}
	answered := make(map[question]int64)
	last := make(map[question]Request)
	var order []question
	for _, r := range h.Requests {
		if r.Op != opProbe && r.Op != opFinal {
			continue
		}
		q := question{r.Op, r.name(), r.Since}
		if _, ok := last[q]; !ok {
			order = append(order, q)
		}
		last[q] = r
		if r.Final() {
			answered[q] = r.Return
		}
	}
	for _, q := range order {
		patience := 2 * h.Setup.Lease
		if q.op == opProbe {
			patience = killPatience
		}
		at, ok := answered[q]
		switch took := time.Duration(at - q.since); {
		case !ok:
			bad = append(bad, fmt.Sprintf("%s: no final answer after %v, the last was %d %s%s", q.name,
				time.Duration(last[q].Return-q.since).Round(time.Millisecond), last[q].Status, last[q].Code, last[q].Err))
		case took > patience:
			bad = append(bad, fmt.Sprintf("%s: its final answer took %v, more than %v", q.name, took.Round(time.Millisecond), patience))
		}
	}
	return bad
}

// goodAnswers: no fault and no client brings an answer that the contract does not
// have for a well-formed request, and every "try again" says when.
func goodAnswers(h *History) (bad []string) {
	for _, r := range h.Requests {
		switch r.Status {
		case 0, 200, 201, 404: // none; 404 is nothingLost's
		case 422:
			if r.Op == opRead {
				bad = append(bad, fmt.Sprintf("%s: a read was answered 422", r.name()))
			}
		case 409, 503:
			if r.Retry == "" {
				bad = append(bad, fmt.Sprintf("%s: %d %s without Retry-After", r.name(), r.Status, r.Code))
			}
		default:
			bad = append(bad, fmt.Sprintf("%s: %s was answered %d %s", r.name(), r.Op, r.Status, r.Code))
		}
	}
	return bad
}

// nothingLeft: no panic and no data race, and once idle no lock, no transaction,
// no request and no connection.
func nothingLeft(h *History) []string {
	e := h.End
	bad := slices.Concat(e.Findings, e.Exits, e.Goroutines)
	for _, left := range []struct {
		n    int
		what string
	}{
		{e.Locks, "advisory locks, once idle"},
		{e.Idle, "sessions idle in transaction, once idle"},
		{e.Connections, "connections, once the replicas had ended"},
	} {
		if left.n > 0 {
			bad = append(bad, fmt.Sprintf("%d %s", left.n, left.what))
		}
	}
	return bad
}

// canceledOnce: an intent is canceled at most once and never before its time,
// and no later than lateness allows where no fault disturbed the sweeper.
func canceledOnce(h *History) (bad []string) {
	moves := make(map[string][]Move)
	for _, m := range h.Moves {
		moves[m.ID] = append(moves[m.ID], m)
	}
	waits := creating(h)
	for _, i := range h.Intents {
		all := moves[i.ID]
		if int64(len(all)) != i.Version-1 || len(all) > 1 {
			bad = append(bad, fmt.Sprintf("%s: version %d with %d moves", i.ID, i.Version, len(all)))
		}
		for _, m := range all {
			if m.To != "canceled" || m.Actor != "system" || m.Reason != "expired" || i.State != "canceled" {
				bad = append(bad, fmt.Sprintf("%s: %s moved it to %s, it is %s", i.ID, m.Actor, m.To, i.State))
			}
			if m.At < i.Expires {
				bad = append(bad, fmt.Sprintf("%s: canceled %d us before its time", i.ID, i.Expires-m.At))
			}
		}
		if !h.Setup.Steady {
			continue
		}
		switch {
		case i.State == "created" && h.End.Now > i.Expires+2*h.Setup.Sweep.Microseconds()+time.Second.Microseconds():
			bad = append(bad, fmt.Sprintf("%s: not canceled %d us after its time", i.ID, h.End.Now-i.Expires))
		case len(all) > 0 && all[0].At > i.Expires+lateness(h, waits, i.Expires, all[0].At):
			bad = append(bad, fmt.Sprintf("%s: canceled %d us after its time", i.ID, all[0].At-i.Expires))
		}
	}
	return bad
}

// wait is how long a create took that made its intent, in microseconds by the
// database's clock.
type wait struct{ from, to int64 }

// creating returns those waits. A create's transaction begins a moment after its
// call, so that the least such moment tells one clock from the other.
func creating(h *History) (waits []wait) {
	const perMicro = int64(time.Microsecond)
	apart := int64(math.MaxInt64)
	for _, r := range h.Requests {
		if r.OK() && !r.Replayed && r.Created != 0 {
			apart = min(apart, r.Created-r.Call/perMicro)
		}
	}
	for _, r := range h.Requests {
		if r.OK() && !r.Replayed && r.Created != 0 {
			waits = append(waits, wait{apart + r.Call/perMicro, apart + r.Return/perMicro})
		}
	}
	return waits
}

// lateness is how late a cancellation may be, in microseconds: two intervals,
// and what the slowest create took that was running meanwhile. Whatever held it
// up, a disk that stalls above all, holds up the commits of the sweeper as well.
func lateness(h *History, waits []wait, from, to int64) int64 {
	slowest := int64(0)
	for _, w := range waits {
		if w.from < to && from < w.to {
			slowest = max(slowest, w.to-w.from)
		}
	}
	return 2*h.Setup.Sweep.Microseconds() + slowest
}
