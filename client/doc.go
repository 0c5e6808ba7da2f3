// Package client calls the payment intents API so that a payment is made once,
// whatever happens between the caller and the service.
//
// The service promises that of all requests with one idempotency key one runs.
// The client keeps the other half: a key for each call, made before the first
// attempt; the same bytes with each further one; and one rule for what is sent
// again:
//
//	No answer, a 409 with Retry-After, a 429, or a 5xx without
//	Idempotent-Replayed: the same request again, with the same key.
//	Any other answer is final for that request.
//
// A call returns when an answer is final, when its context ends, or when its
// attempts are used up. It ends before them where the next attempt could only come
// too late: after the context's deadline (the error is a
// [context.DeadlineExceeded], though the deadline has not passed), or after a
// Retry-After of more than two minutes. Unless an answer was final the payment may
// have been made: the error is an [Error] that says so ([Error.Open]), and carries
// the key to ask with. The same holds for a final refusal that comes before the
// key is looked at, if an earlier attempt had no answer. While a call is open a new
// key is a second payment. The caller's own crash is another matter: a key that only this process
// knew is lost with it. Whoever must survive that makes the key with [NewKey],
// writes it down together with the order, and passes it with [WithKey].
//
// The types of the API are generated from its openapi.yaml.
package client

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config types.yaml ../openapi.yaml
//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2 -config internal/wire/wire.yaml ../openapi.yaml
