package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"intentd/client"
	"intentd/internal/api"
)

// baseURL is a service in memory, with the keys of make api-run.
var baseURL = httptest.NewServer(inMemory(api.RateLimit{})).URL

// A payment is one call. What it takes to have it made once, a key and the same
// bytes with each retry, is the client's business.
func Example() {
	ctx := context.Background()
	payments, err := client.New(baseURL, "merchant-demo")
	if err != nil {
		log.Fatal(err)
	}
	made, err := payments.CreatePaymentIntent(ctx, client.PaymentIntentRequest{
		Chain:     "evm:31337",
		Token:     "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:     "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Merchant:  "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
		Amount:    "100000000",
		Reference: "order-1001",
	})
	var failed *client.Error
	switch {
	case errors.As(err, &failed) && failed.Open:
		// It may have been made: never with a new key. Calling again with the same
		// arguments and client.WithKey(failed.Key) finds out, and makes it if it was not.
		log.Fatal(err)
	case err != nil:
		log.Fatal(err)
	}
	fmt.Println(made.State, made.Amount, made.Reference)
	// Output: created 100000000 order-1001
}

// orders stands for a table of the shop's own:
//
//	create table orders (
//	  id text primary key,
//	  payment_key text not null,     -- written with the order, before any call
//	  payment_request json not null, -- what the call is made with, also when it is made again
//	  payment_intent text            -- null: not known to be made
//	);
type orders map[string]*shopOrder

type shopOrder struct {
	paymentKey     string
	paymentRequest client.PaymentIntentRequest
	paymentIntent  string
}

// place is one transaction: insert into orders values (...).
func (o orders) place(id string, request client.PaymentIntentRequest) {
	request.Reference = id
	o[id] = &shopOrder{paymentKey: client.NewKey(), paymentRequest: request}
}

// payAll is what the shop does when it starts, and after each order:
//
//	select id, payment_key, payment_request
//	from orders
//	where payment_intent is null;
//
// and for each of them a call, and
//
//	update orders
//	set payment_intent = ...
//	where id = ...;
func (o orders) payAll(ctx context.Context, payments *client.Client) {
	for id, order := range o {
		if order.paymentIntent != "" {
			continue
		}
		made, err := payments.CreatePaymentIntent(ctx, order.paymentRequest, client.WithKey(order.paymentKey))
		var failed *client.Error
		switch {
		case err == nil:
			order.paymentIntent = made.ID
			fmt.Printf("%s is paid for, replayed: %t\n", id, made.Replayed)
		case errors.As(err, &failed) && (failed.Open || failed.Retryable()):
			fmt.Printf("%s: to be called again, with the same key\n", id)
		default:
			fmt.Printf("%s is refused: %v\n", id, err)
		}
	}
}

// crashing is a connection whose process dies as the answer arrives.
type crashing struct{}

func (crashing) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	_ = resp.Body.Close()
	return nil, errors.New("the answer is lost")
}

// The client makes a key for each call, but a key that only this process knows is
// lost with it. To survive its own crash the caller writes the key down first,
// together with the order, and calls again with what is written there: as often
// as it likes, within 24 hours.
func ExampleWithKey() {
	ctx := context.Background()
	table := make(orders) // outlives the process
	table.place("order-2001", client.PaymentIntentRequest{
		Chain:    "evm:31337",
		Token:    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:    "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Merchant: "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
		Amount:   "100000000",
	})

	// The service makes the payment, and the process does not live to hear of it.
	doomed, err := client.New(baseURL, "merchant-demo",
		client.WithHTTPClient(&http.Client{Transport: crashing{}}), client.WithAttempts(1))
	if err != nil {
		log.Fatal(err)
	}
	table.payAll(ctx, doomed)

	// The next process reads the table.
	payments, err := client.New(baseURL, "merchant-demo")
	if err != nil {
		log.Fatal(err)
	}
	table.payAll(ctx, payments)

	for made, err := range payments.List(ctx, client.Filter{Reference: "order-2001"}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("made:", made.Reference)
	}
	// Output:
	// order-2001: to be called again, with the same key
	// order-2001 is paid for, replayed: true
	// made: order-2001
}

// An error says whether the same call may be made again, and what was said.
func ExampleError() {
	ctx := context.Background()
	payments, err := client.New(baseURL, "merchant-demo")
	if err != nil {
		log.Fatal(err)
	}
	_, err = payments.CreatePaymentIntent(ctx, client.PaymentIntentRequest{
		Chain:    "evm:31337",
		Token:    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:    "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Merchant: "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
		Amount:   "0.5",
	})
	var failed *client.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Status, failed.Code)
		fmt.Println(failed.Detail)
		fmt.Println("retryable:", failed.Retryable(), "open:", failed.Open)
	}
	// Output:
	// 400 invalid_request
	// amount must be a decimal integer string from 1 to 2^256-1
	// retryable: false open: false
}

// Whoever wants to know what became of a call, without making the payment if it
// was not made, asks about its key.
func ExampleClient_LookupKey() {
	ctx := context.Background()
	payments, err := client.New(baseURL, "merchant-demo")
	if err != nil {
		log.Fatal(err)
	}
	made, err := payments.CreatePaymentIntent(ctx, client.PaymentIntentRequest{
		Chain:    "evm:31337",
		Token:    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:    "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Merchant: "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
		Amount:   "100000000",
	})
	if err != nil {
		log.Fatal(err)
	}

	record, err := payments.LookupKey(ctx, made.Key)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(record.Status, record.Resource == "/v1/payment_intents/"+made.ID)

	var failed *client.Error
	if _, err = payments.LookupKey(ctx, "never-used"); errors.As(err, &failed) {
		fmt.Println(failed.Code)
	}
	// Output:
	// 201 true
	// not_found
}

// A relayer acts for one merchant with each call. IfVersion takes the step only
// if nobody was faster.
func ExampleClient_Move() {
	ctx := context.Background()
	merchant, err := client.New(baseURL, "merchant-demo")
	if err != nil {
		log.Fatal(err)
	}
	relayers, err := client.New(baseURL, "relayer-demo")
	if err != nil {
		log.Fatal(err)
	}
	relayer := relayers.ForMerchant("merchant-demo")

	made, err := merchant.CreatePaymentIntent(ctx, client.PaymentIntentRequest{
		Chain:    "evm:31337",
		Token:    "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:    "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Merchant: "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
		Amount:   "100000000",
	})
	if err != nil {
		log.Fatal(err)
	}
	released, err := merchant.Move(ctx, made.ID, client.TransitionRequest{To: client.StateAuthorized})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := relayer.Move(ctx, made.ID, client.TransitionRequest{To: client.StateSettling}, client.IfVersion(released.Version)); err != nil {
		log.Fatal(err)
	}

	// The merchant decides on what it saw, which is no longer so.
	_, err = merchant.Cancel(ctx, made.ID, "out of stock", client.IfVersion(released.Version))
	var failed *client.Error
	if errors.As(err, &failed) {
		fmt.Println(failed.Code)
	}
	for step, err := range merchant.Transitions(ctx, made.ID) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(step.Version, step.Actor, step.From, step.To)
	}
	// Output:
	// version_conflict
	// 2 api created authorized
	// 3 relayer authorized settling
}

// A list is read page by page, as far as the loop goes.
func ExampleClient_List() {
	ctx := context.Background()
	payments, err := client.New(baseURL, "merchant-demo")
	if err != nil {
		log.Fatal(err)
	}
	for _, amount := range []string{"100", "200", "300"} {
		if _, err := payments.CreatePaymentIntent(ctx, client.PaymentIntentRequest{
			Chain:     "evm:31337",
			Token:     "0x5FbDB2315678afecb367f032d93F642f64180aa3",
			Payer:     "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
			Merchant:  "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
			Amount:    amount,
			Reference: "order-3001",
		}); err != nil {
			log.Fatal(err)
		}
	}
	for pi, err := range payments.List(ctx, client.Filter{Reference: "order-3001", State: client.StateCreated}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(pi.Amount)
	}
	// Output:
	// 300
	// 200
	// 100
}
