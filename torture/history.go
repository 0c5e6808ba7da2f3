package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// History is all that the checks judge: what was asked and answered, and what
// the database held in the end. It is complete in itself, so that a recorded one
// can be judged again.
type History struct {
	Setup    Setup
	Requests []Request
	Faults   []Fault
	Intents  []Intent
	Records  []Record
	Moves    []Move
	End      End
}

// Setup is what the replicas were told. Durations are in nanoseconds.
type Setup struct {
	Scenario string        `json:"scenario"`
	Seed     uint64        `json:"seed"`
	Lease    time.Duration `json:"lease"`
	TTL      time.Duration `json:"ttl"`
	Sweep    time.Duration `json:"sweep"`
	// Steady says that no fault kept the sweeper from its work, so that it can
	// be held to its time.
	Steady bool `json:"steady,omitempty"`
	// Apart says that records and intents are not one transaction: the records
	// are in Redis.
	Apart bool `json:"apart,omitempty"`
}

// The kinds of request.
const (
	opCreate = "create" // a merchant's payment, first try or retry
	opRead   = "read"   // GET of an intent that was acknowledged
	opProbe  = "probe"  // the question after a kill -9 whether its keys are free
	opFinal  = "final"  // the question in the end whether a key is stuck
)

// Request is one exchange with a replica. Times are nanoseconds since the
// scenario began, on the trial's monotonic clock.
type Request struct {
	Op       string `json:"op"`
	Scope    string `json:"scope"`
	Key      string `json:"key"`
	Variant  int    `json:"variant,omitempty"` // 1: another body, sent by mistake
	Replica  int    `json:"replica"`
	Call     int64  `json:"call"`
	Return   int64  `json:"return"`
	Since    int64  `json:"since,omitempty"` // what the answer's time counts from, for probes
	Status   int    `json:"status,omitempty"`
	Replayed bool   `json:"replayed,omitempty"`
	Retry    string `json:"retry,omitempty"` // Retry-After
	Code     string `json:"code,omitempty"`  // an error's
	Known    bool   `json:"known,omitempty"` // a 422 that names the request on record
	ID       string `json:"id,omitempty"`
	Created  int64  `json:"created,omitempty"` // created_at in microseconds, by the database's clock
	Digest   string `json:"digest,omitempty"`  // of status, headers and body
	Body     string `json:"body,omitempty"`    // digest of the body alone
	Err      string `json:"err,omitempty"`     // why there was no answer
}

// Answered says whether the client got a whole answer.
func (r Request) Answered() bool { return r.Status != 0 }

// OK says whether the answer acknowledges a payment.
func (r Request) OK() bool { return r.Op != opRead && r.Status >= 200 && r.Status < 300 }

// Final follows the contract's one rule for clients: whether the answer settles
// the request.
func (r Request) Final() bool {
	switch {
	case !r.Answered(), r.Status == 409 && r.Retry != "", r.Status == 429, r.Status >= 500 && !r.Replayed:
		return false
	default:
		return true
	}
}

// Fault is one thing that the nemesis did, and until when.
type Fault struct {
	Name  string `json:"name"`
	Begin int64  `json:"begin"`
	End   int64  `json:"end"`
}

// Intent is a row of payment_intents. Times of rows are microseconds since 1970,
// by the database's clock.
type Intent struct {
	Scope     string `json:"scope"`
	ID        string `json:"id"`
	Reference string `json:"reference"` // the key that it was asked for under
	State     string `json:"state"`
	Version   int64  `json:"version"`
	Created   int64  `json:"created"`
	Expires   int64  `json:"expires"`
}

// Record is a row of idempotency_keys.
type Record struct {
	Scope   string `json:"scope"`
	Key     string `json:"key"`
	Status  int    `json:"status"`
	ID      string `json:"id"` // of the intent that its body is about
	Body    string `json:"body"`
	Created int64  `json:"created"`
	Expires int64  `json:"expires"`
}

// Move is a row of intent_transitions.
type Move struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`
	From    string `json:"from"`
	To      string `json:"to"`
	Actor   string `json:"actor"`
	Reason  string `json:"reason"`
	At      int64  `json:"at"`
}

// End is how things stood once nothing was asked any more.
type End struct {
	Now         int64    `json:"now"`   // the database's clock when the rows were read
	Locks       int      `json:"locks"` // advisory locks, once idle
	Idle        int      `json:"idle"`  // sessions idle in transaction, once idle
	Connections int      `json:"connections"`
	Goroutines  []string `json:"goroutines,omitempty"` // that still serve a request, once idle
	Exits       []string `json:"exits,omitempty"`      // replicas that did not end cleanly
	Findings    []string `json:"findings,omitempty"`   // panics, data races and errors in replicas' logs
	Seen        []string `json:"seen,omitempty"`       // violations that were seen while the trial ran
}

// line is one line of a history's file: exactly one member is set.
type line struct {
	Setup   *Setup   `json:"setup,omitempty"`
	Request *Request `json:"request,omitempty"`
	Fault   *Fault   `json:"fault,omitempty"`
	Intent  *Intent  `json:"intent,omitempty"`
	Record  *Record  `json:"record,omitempty"`
	Move    *Move    `json:"move,omitempty"`
	End     *End     `json:"end,omitempty"`
}

// Write writes the history as JSON lines.
func (h *History) Write(w io.Writer) error {
	buf := bufio.NewWriter(w)
	enc := json.NewEncoder(buf)
	lines := []line{{Setup: &h.Setup}}
	for i := range h.Requests {
		lines = append(lines, line{Request: &h.Requests[i]})
	}
	for i := range h.Faults {
		lines = append(lines, line{Fault: &h.Faults[i]})
	}
	for i := range h.Intents {
		lines = append(lines, line{Intent: &h.Intents[i]})
	}
	for i := range h.Records {
		lines = append(lines, line{Record: &h.Records[i]})
	}
	for i := range h.Moves {
		lines = append(lines, line{Move: &h.Moves[i]})
	}
	for _, l := range append(lines, line{End: &h.End}) {
		if err := enc.Encode(l); err != nil {
			return err
		}
	}
	return buf.Flush()
}

// readHistory reads what Write wrote. A history without its end was cut short
// and is an error.
func readHistory(path string) (*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := new(History)
	ended := false
	for dec := json.NewDecoder(f); ; {
		var l line
		switch err := dec.Decode(&l); {
		case err == io.EOF && ended:
			return h, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		switch {
		case l.Setup != nil:
			h.Setup = *l.Setup
		case l.Request != nil:
			h.Requests = append(h.Requests, *l.Request)
		case l.Fault != nil:
			h.Faults = append(h.Faults, *l.Fault)
		case l.Intent != nil:
			h.Intents = append(h.Intents, *l.Intent)
		case l.Record != nil:
			h.Records = append(h.Records, *l.Record)
		case l.Move != nil:
			h.Moves = append(h.Moves, *l.Move)
		case l.End != nil:
			h.End, ended = *l.End, true
		}
	}
}

// recorder collects a history from many goroutines.
type recorder struct {
	start time.Time

	mu sync.Mutex
	h  History
}

// now is the time since the scenario began.
func (r *recorder) now() int64 { return int64(time.Since(r.start)) }

func (r *recorder) request(q Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Requests = append(r.h.Requests, q)
}

func (r *recorder) fault(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.h.Faults = append(r.h.Faults, f)
}

// seen notes a violation that shows at once; each text is kept once.
func (r *recorder) seen(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range r.h.End.Seen {
		if known == text {
			return
		}
	}
	if len(r.h.End.Seen) < 100 {
		r.h.End.Seen = append(r.h.End.Seen, text)
	}
}
