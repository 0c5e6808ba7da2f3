package client

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Error is why a call failed. Every error that a call returns once it has begun
// to send is one: use [errors.As]. It unwraps to the context's error, and its
// cause, where the context ended the call, or where its deadline would have passed
// before the next attempt; and to the transport's where the last attempt had no
// answer.
type Error struct {
	// Op is what was called, for people.
	Op string
	// Status, Code and Detail are of the last answer. Status is 0 if no attempt had
	// one. Code is empty if something between the client and the service answered.
	// Programs decide by Code; Detail is a sentence for people and may change.
	Status int
	Code   Code
	Detail string
	// RequestID names the exchange in the service's log, if the service answered.
	RequestID string
	// Key is the idempotency key of the call, also where the client made it; empty
	// where there is none.
	Key string
	// Replayed says that the answer is the recorded one of an earlier request.
	Replayed bool
	// Open says that the outcome is not known: an attempt may have reached the
	// service, and none was answered finally. The payment may have been made, or may
	// be made yet. Call again with the same arguments and WithKey(e.Key), which
	// settles it, or ask LookupKey. A new key would be a second payment.
	//
	// It can be so beside a final answer: a token that is revoked between two
	// attempts makes the second one a 401, and says nothing of the first. Then
	// [Error.Retryable] is false: mend what was refused (the token), and call with the
	// same key.
	Open bool
	// Attempts is how often the request was sent.
	Attempts int
	// RetryAfter is how long the last answer asked to wait; 0: it did not.
	RetryAfter time.Duration
	// Err is the context's error, or the transport's; nil where an answer ended the
	// call.
	Err error

	again bool
	ended string // why there was no further attempt, where neither Err nor Attempts tells
}

// Retryable says whether the same call, with the same key, may have another
// answer as things are: there was no final one. Where it is false something has to
// change first. With Open false that is the request, which then is another one,
// with a new key. With Open true it is never the key: an earlier attempt may have
// made the payment, and the same request with the same key tells, once the cause
// of the refusal is mended.
func (e *Error) Retryable() bool { return e.again }

// Unwrap returns the context's or the transport's error.
func (e *Error) Unwrap() error { return e.Err }

// Error tells what was called, what was answered last and why it ended there,
// and, where the outcome is open, the key and how to ask. It holds no token.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "client: %s: ", e.Op)
	switch {
	case e.Status == 0:
		b.WriteString("no answer")
	case e.Code != "":
		fmt.Fprintf(&b, "%d %s: %s", e.Status, e.Code, e.Detail)
	default:
		b.WriteString(strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, http.StatusText(e.Status))))
	}
	if e.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", e.RequestID)
	}
	if e.Attempts > 1 {
		fmt.Fprintf(&b, ", after %d attempts", e.Attempts)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	if e.ended != "" {
		fmt.Fprintf(&b, "; %s", e.ended)
		if e.RetryAfter > 0 {
			fmt.Fprintf(&b, " (Retry-After: %v)", e.RetryAfter)
		}
	}
	switch {
	case e.Open && e.Status != 0 && !e.again:
		fmt.Fprintf(&b, ": that is of the last attempt, and the outcome of an earlier one is open; once its cause is mended call again with the same key %s, never with a new one, or ask LookupKey", e.Key)
	case e.Open:
		fmt.Fprintf(&b, ": the outcome is open; to settle it call again with the same key %s, never with a new one, or ask LookupKey", e.Key)
	}
	return b.String()
}
