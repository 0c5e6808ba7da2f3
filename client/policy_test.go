package client_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"intentd"
	"intentd/client"
)

// order is a payment that is wanted.
func order(reference string) client.PaymentIntentRequest {
	return client.PaymentIntentRequest{
		Chain:            "evm:31337",
		Token:            "0x5FbDB2315678afecb367f032d93F642f64180aa3",
		Payer:            "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
		Merchant:         "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
		Amount:           "100000000",
		ExpiresInSeconds: 900,
		Reference:        reference,
	}
}

// sent is one attempt, as the transport got it.
type sent struct {
	at     time.Duration // since the script began
	method string
	path   string
	header http.Header
	body   string
}

// step is what one attempt comes to.
type step func(*http.Request) (*http.Response, error)

// script is a transport that answers the attempts of a test one by one. It stands
// for what the real service can not be made to say: what is between it and the
// client, and its own bad days.
type script struct {
	t     *testing.T
	begin time.Time
	steps []step
	sent  []sent
}

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			s.t.Error(err)
		}
		_ = r.Body.Close()
	}
	s.sent = append(s.sent, sent{time.Since(s.begin), r.Method, r.URL.RequestURI(), r.Header.Clone(), string(body)})
	if len(s.sent) > len(s.steps) {
		s.t.Errorf("attempt %d was not to be made", len(s.sent))
		return nil, errors.New("the script is at its end")
	}
	return s.steps[len(s.sent)-1](r)
}

// play returns a client that talks to a script, with waits that are as long as
// they can be.
func play(t *testing.T, steps []step, opts ...client.Option) (*client.Client, *script) {
	t.Helper()
	s := &script{t: t, begin: time.Now(), steps: steps}
	opts = append([]client.Option{
		client.WithHTTPClient(&http.Client{Transport: s}),
		client.WithJitter(func(d time.Duration) time.Duration { return d }),
	}, opts...)
	c, err := client.New("http://service.example", merchantToken, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// says is a whole answer. Header lines are such as "Retry-After: 1".
func says(status int, body string, lines ...string) step {
	return func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		for _, line := range lines {
			name, value, _ := strings.Cut(line, ": ")
			w.Header().Add(name, value)
		}
		w.WriteHeader(status)
		_, _ = w.WriteString(body)
		resp := w.Result()
		resp.Request = r
		return resp, nil
	}
}

const (
	intentBody = `{"id":"pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f","chain":"evm:31337","state":"created","version":1,"created_at":"2026-03-01T12:00:00.123456Z"}`
	recorded   = "Idempotency-Key-Expires: Mon, 02 Mar 2026 12:00:00 GMT"
)

// Answers, each with the code that the service gives it.
var (
	done        = says(201, intentBody, "X-Request-Id: r-done", recorded)
	inFlight    = says(409, `{"error":"idempotency_key_in_flight","detail":"d"}`, "Retry-After: 1")
	superseded  = says(409, `{"error":"idempotency_attempt_superseded","detail":"d"}`, "Retry-After: 1")
	limited     = says(429, `{"error":"rate_limited","detail":"d"}`, "Retry-After: 1")
	internal    = says(500, `{"error":"internal","detail":"d"}`, "Retry-After: 1")
	unavailable = says(503, `{"error":"unavailable","detail":"d"}`, "Retry-After: 1")
	reused      = says(422, `{"error":"idempotency_key_reused","detail":"d"}`)
	revoked     = says(401, `{"error":"unauthorized","detail":"d"}`, "X-Request-Id: r-1")
	invalid     = says(400, `{"error":"invalid_request","detail":"d"}`, recorded)
)

// errLine is of a connection that fell.
var errLine = errors.New("connection reset by peer")

func broken(*http.Request) (*http.Response, error) { return nil, errLine }

// silent never answers.
func silent(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// unreachable is what a dialer says.
func unreachable(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
}

// untrusted is what a TLS handshake with a stranger comes to.
func untrusted(*http.Request) (*http.Response, error) {
	return nil, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
}

// cut ends in the middle of the answer's body.
func cut(r *http.Request) (*http.Response, error) {
	resp, err := done(r)
	resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(intentBody[:20]), errReader{}))
	return resp, err
}

// cutRefusal is final, but for its end: what it said is not known.
func cutRefusal(r *http.Request) (*http.Response, error) {
	resp, err := invalid(r)
	resp.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"error":"inv`), errReader{}))
	return resp, err
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

var uuidV4 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestClient_SendsAgain(t *testing.T) {
	t.Parallel()
	replayed := "Idempotent-Replayed: true"
	for name, c := range map[string]struct {
		first step
		again bool
	}{
		"NoAnswer":              {broken, true},
		"Silence":               {silent, true},
		"Unreachable":           {unreachable, true},
		"CutBody":               {cut, true},
		"CutRefusal":            {cutRefusal, true},
		"CutUnseen":             {says(201, intentBody[:40]), true},
		"NotTheServices":        {says(201, `<html>welcome to the hotel</html>`), true},
		"EmptyObject":           {says(201, `{}`), true},
		"AnotherSuccess":        {says(200, intentBody), true},
		"InFlight":              {inFlight, true},
		"Superseded":            {superseded, true},
		"RateLimited":           {limited, true},
		"RateLimitedBare":       {says(429, ``), true},
		"Internal":              {internal, true},
		"Unavailable":           {unavailable, true},
		"BadGateway":            {says(502, `<html>`), true},
		"GatewayTimeout":        {says(504, ``), true},
		"FailureReplayed":       {says(500, `{"error":"internal","detail":"d"}`, "Retry-After: 1", replayed), false},
		"ConflictBare":          {says(409, `{"error":"invalid_transition","detail":"d"}`), false},
		"ConflictReplayed":      {says(409, `{"error":"invalid_transition","detail":"d"}`, "Retry-After: 1", replayed), false},
		"KeyReused":             {reused, false},
		"KeyReusedRetryAfter":   {says(422, `{"error":"idempotency_key_reused","detail":"d"}`, "Retry-After: 1"), false},
		"Invalid":               {invalid, false},
		"Unauthorized":          {revoked, false},
		"Forbidden":             {says(403, `{"error":"forbidden_actor","detail":"d"}`), false},
		"NotFound":              {says(404, `{"error":"not_found","detail":"d"}`), false},
		"NotFoundRetryAfter":    {says(404, `<html>`, "Retry-After: 1"), false},
		"RequestTimeout":        {says(408, `<html>`), false},
		"VersionConflict":       {says(412, `{"error":"version_conflict","detail":"d"}`, recorded), false},
		"TooLarge":              {says(413, `{"error":"body_too_large","detail":"d"}`), false},
		"MovedPermanently":      {says(301, ``, "Location: http://elsewhere.example/"), false},
		"SeeOther":              {says(303, ``, "Location: /v1/payment_intents"), false},
		"TemporaryRedirect":     {says(307, ``, "Location: http://elsewhere.example/"), false},
		"UntrustedByItsPartner": {untrusted, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				steps := []step{c.first}
				if c.again {
					// Twice, so that the second attempt is no special case.
					steps = []step{c.first, c.first, done}
				}
				cl, s := play(t, steps)
				r, err := cl.CreatePaymentIntent(t.Context(), order("order-1"))
				var e *client.Error
				switch {
				case c.again && err != nil:
					t.Fatal(err)
				case c.again && (r.ID != "pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f" || r.Attempts != 3 || r.Key != s.sent[0].header.Get("Idempotency-Key") || r.RequestID != "r-done"):
					t.Errorf("result %+v", r)
				case !c.again && !errors.As(err, &e):
					t.Fatalf("%+v, %v", r, err)
				case !c.again && (e.Retryable() || e.Open || e.Attempts != 1 || e.Key != s.sent[0].header.Get("Idempotency-Key")):
					t.Errorf("error %+v", e)
				}
				if len(s.sent) != len(steps) {
					t.Fatalf("%d attempts, want %d", len(s.sent), len(steps))
				}
				for _, a := range s.sent {
					if a.body != s.sent[0].body || a.path != "/v1/payment_intents" || a.method != http.MethodPost {
						t.Errorf("another request was sent: %+v", a)
					}
					if diff := cmp.Diff(s.sent[0].header, a.header); diff != "" {
						t.Errorf("headers of a retry (-first +retry):\n%s", diff)
					}
					if keys := a.header["Idempotency-Key"]; len(keys) != 1 || !uuidV4.MatchString(keys[0]) {
						t.Errorf("Idempotency-Key: %q", keys)
					}
				}
			})
		})
	}

	t.Run("Reading", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cl, s := play(t, []step{cut, unavailable, limited, silent, says(200, intentBody)})
			if _, err := cl.Get(t.Context(), "pi_1"); err != nil {
				t.Error(err)
			}
			for _, a := range s.sent {
				if a.header["Idempotency-Key"] != nil || a.method != http.MethodGet || a.path != "/v1/payment_intents/pi_1" {
					t.Errorf("%+v", a)
				}
			}
		})
	})

	// Each is followed by the whole one, in which nothing of the first is left.
	for name, c := range map[string]struct {
		read  func(context.Context, *client.Client) (any, error)
		whole string
		want  any
		not   []string
	}{
		"ReadingARecord": {
			read: func(ctx context.Context, c *client.Client) (any, error) {
				r, err := c.LookupKey(ctx, "order-1")
				if err != nil {
					return nil, err
				}
				return fmt.Sprint(r.Status, r.Fingerprint, r.Resource), nil
			},
			whole: `{"status":422,"fingerprint":"ff","created_at":"2026-03-01T12:00:00Z","expires_at":"2026-03-02T12:00:00Z"}`,
			want:  "422ff",
			not: []string{`{}`, `null`, `[]`,
				`{"fingerprint":"ff","resource":"/x","created_at":"2026-03-01T12:00:00Z","expires_at":"2026-03-02T12:00:00Z"}`,
				`{"status":201,"resource":"/x","created_at":"2026-03-01T12:00:00Z","expires_at":"2026-03-02T12:00:00Z"}`,
				`{"status":201,"resource":"/x","fingerprint":"ff","expires_at":"2026-03-02T12:00:00Z"}`,
				`{"status":201,"resource":"/x","fingerprint":"ff","created_at":"2026-03-01T12:00:00Z"}`,
			},
		},
		"ReadingAnIntent": {
			read: func(ctx context.Context, c *client.Client) (any, error) {
				pi, err := c.Get(ctx, "pi_1")
				if err != nil {
					return nil, err
				}
				return pi.ID + pi.Reference, nil
			},
			whole: `{"id":"pi_1"}`,
			want:  "pi_1",
			not:   []string{`{"reference":"x"}`, `{"reference":"x","id":7}`, `null`},
		},
		"ReadingAList": {
			read: func(ctx context.Context, c *client.Client) (any, error) {
				ids := ""
				for pi, err := range c.List(ctx, client.Filter{}) {
					if err != nil {
						return nil, err
					}
					ids += pi.ID + pi.Reference
				}
				return ids, nil
			},
			whole: `{"data":[{"id":"pi_1"}],"has_more":false}`,
			want:  "pi_1",
			not:   []string{`{}`, `{"has_more":false}`, `{"data":null}`, `{"data":[],"has_more":true}`, `{"data":[{"reference":"x"}]}`},
		},
		"ReadingATrail": {
			read: func(ctx context.Context, c *client.Client) (any, error) {
				versions := ""
				for step, err := range c.Transitions(ctx, "pi_1") {
					if err != nil {
						return nil, err
					}
					versions += fmt.Sprint(step.Version)
				}
				return versions, nil
			},
			whole: `{"data":[{"version":2}],"has_more":false}`,
			want:  "2",
			not:   []string{`{}`, `{"data":[],"has_more":true}`, `{"data":[{"reason":"x"}]}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, not := range c.not {
				synctest.Test(t, func(t *testing.T) {
					cl, s := play(t, []step{says(200, not), says(200, c.whole)})
					got, err := c.read(t.Context(), cl)
					if err != nil || got != c.want || len(s.sent) != 2 {
						t.Errorf("after %s: %v, %v, %d attempts", not, got, err, len(s.sent))
					}
					cl, _ = play(t, []step{says(200, not)}, client.WithAttempts(1))
					_, err = c.read(t.Context(), cl)
					var e *client.Error
					if !errors.As(err, &e) || e.Status != 0 || e.Open || !e.Retryable() {
						t.Errorf("%s: %+v", not, err)
					}
				})
			}
		})
	}

	t.Run("ReadingAPage", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			const page = `{"data":[{"id":"pi_1"}],"has_more":false}`
			cl, _ := play(t, []step{says(200, page[:20]), says(200, page)})
			n := 0
			for _, err := range cl.List(t.Context(), client.Filter{}) {
				if err != nil {
					t.Error(err)
				}
				n++
			}
			if n != 1 {
				t.Errorf("%d payment intents, want 1", n)
			}
		})
	})

	t.Run("ANewKeyForEachCall", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cl, s := play(t, []step{broken, done, done})
			for range 2 {
				if _, err := cl.CreatePaymentIntent(t.Context(), order("")); err != nil {
					t.Fatal(err)
				}
			}
			if first, second := s.sent[1].header.Get("Idempotency-Key"), s.sent[2].header.Get("Idempotency-Key"); first == second {
				t.Errorf("two calls have the key %s", first)
			}
		})
	})

	t.Run("TheCallersKey", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cl, s := play(t, []step{broken, done})
			r, err := cl.CreatePaymentIntent(t.Context(), order(""), client.WithKey("order-1001"))
			if err != nil || r.Key != "order-1001" {
				t.Errorf("%+v, %v", r, err)
			}
			for _, a := range s.sent {
				if got := a.header["Idempotency-Key"]; !slices.Equal(got, []string{"order-1001"}) {
					t.Errorf("Idempotency-Key: %q", got)
				}
			}
		})
	})
}

// TestClient_Bytes pins what is sent: a call that is repeated by a later version
// of this package, with a key from before, has to be the same request.
func TestClient_Bytes(t *testing.T) {
	t.Parallel()
	const head = `{"amount":"100000000","chain":"evm:31337","expires_in_seconds":900,"merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",`
	const tail = `"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","reference":"order \u003c1\u003e","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3"}`
	labeled := order("order <1>")
	labeled.Metadata = client.Metadata{"b": "2", "a": "1"}
	for name, c := range map[string]struct {
		do   func(context.Context, *client.Client) (*client.Result, error)
		path string
		body string
	}{
		"Create": {func(ctx context.Context, c *client.Client) (*client.Result, error) {
			return c.CreatePaymentIntent(ctx, order("order <1>"))
		}, "/v1/payment_intents", head + tail},
		"CreateLabeled": {func(ctx context.Context, c *client.Client) (*client.Result, error) {
			return c.CreatePaymentIntent(ctx, labeled)
		}, "/v1/payment_intents", head + `"metadata":{"a":"1","b":"2"},` + tail},
		"Cancel": {func(ctx context.Context, c *client.Client) (*client.Result, error) {
			return c.Cancel(ctx, "pi_1", "no stock")
		}, "/v1/payment_intents/pi_1/cancel", `{"reason":"no stock"}`},
		"Move": {func(ctx context.Context, c *client.Client) (*client.Result, error) {
			return c.Move(ctx, "pi_1", client.TransitionRequest{To: client.StateAuthorized})
		}, "/v1/payment_intents/pi_1/transitions", `{"to":"authorized"}`},
		"MoveWithEvidence": {func(ctx context.Context, c *client.Client) (*client.Result, error) {
			return c.Move(ctx, "pi_1", client.TransitionRequest{To: client.StateSettled, Reason: "r", TxHash: "0x1"})
		}, "/v1/payment_intents/pi_1/transitions", `{"reason":"r","to":"settled","tx_hash":"0x1"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cl, s := play(t, []step{func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "intents") {
					return done(r)
				}
				return says(200, intentBody)(r)
			}})
			if _, err := c.do(t.Context(), cl); err != nil {
				t.Fatal(err)
			}
			if got := s.sent[0]; got.body != c.body || got.path != c.path {
				t.Errorf("sent %s %s\nwant %s %s", got.path, got.body, c.path, c.body)
			}
		})
	}
}

func TestClient_Waits(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		steps []step
		want  []time.Duration // between the attempts
	}{
		"DoubledToItsBound": {[]step{broken, broken, broken, broken, broken, broken, broken, done},
			[]time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 10 * time.Second}},
		// What is asked for is the least, and everybody's: the random part is on top.
		"RetryAfter": {[]step{says(503, ``, "Retry-After: 3"), says(409, ``, "Retry-After: 1"), says(429, ``, "Retry-After: 60"), done},
			[]time.Duration{3200 * ms, 1400 * ms, 60800 * ms}},
		"RetryAfterOnce": {[]step{says(503, ``, "Retry-After: 3"), says(503, ``), broken, done},
			[]time.Duration{3200 * ms, 400 * ms, 800 * ms}},
		"RetryAfterThenNoAnswer": {[]step{says(503, ``, "Retry-After: 3"), broken, done}, []time.Duration{3200 * ms, 400 * ms}},
		"RetryAfterADate": {[]step{func(r *http.Request) (*http.Response, error) {
			return says(503, ``, "Retry-After: "+time.Now().UTC().Add(5*time.Second).Format(http.TimeFormat))(r)
		}, done}, []time.Duration{5200 * ms}},
		"RetryAfterNonsense": {[]step{says(503, ``, "Retry-After: soon"), says(503, ``, "Retry-After: -5"), done},
			[]time.Duration{200 * ms, 400 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cl, s := play(t, c.steps)
				if _, err := cl.CreatePaymentIntent(t.Context(), order("")); err != nil {
					t.Fatal(err)
				}
				var got []time.Duration
				for i := 1; i < len(s.sent); i++ {
					got = append(got, s.sent[i].at-s.sent[i-1].at)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("waits (-want +got):\n%s", diff)
				}
			})
		})
	}

	// A dead process holds its key for a lease of 30 s where the records are in
	// Redis. By default a call outlasts that, also with draws of half the luck.
	t.Run("OutlastsALease", func(t *testing.T) {
		t.Parallel()
		for name, claimed := range map[string]step{"Broken": broken, "InFlight": inFlight} {
			synctest.Test(t, func(t *testing.T) {
				var s *script
				held := func(r *http.Request) (*http.Response, error) {
					if time.Since(s.begin) < 45*time.Second {
						return inFlight(r)
					}
					return done(r)
				}
				steps := []step{claimed}
				for range 19 {
					steps = append(steps, held)
				}
				cl, played := play(t, steps, client.WithJitter(func(d time.Duration) time.Duration { return d / 4 }))
				s = played
				if _, err := cl.CreatePaymentIntent(t.Context(), order("")); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	})

	t.Run("FullJitter", func(t *testing.T) {
		t.Parallel()
		c, err := client.New("http://service.example", merchantToken)
		if err != nil {
			t.Fatal(err)
		}
		// Each tenth of the range is missed by 2000 draws about once in 10^91.
		var tenths [10]int
		for range 2000 {
			d := c.Jitter(time.Second)
			if d < 0 || d > time.Second {
				t.Fatalf("a wait of %v, with a bound of a second", d)
			}
			tenths[min(9, d/(time.Second/10))]++
		}
		if slices.Contains(tenths[:], 0) {
			t.Errorf("the waits are not spread: %v", tenths)
		}
	})

	t.Run("Silence", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cl, s := play(t, []step{silent, done}, client.WithAttemptTimeout(3*time.Second), client.WithBackoff(time.Second, time.Second))
			if _, err := cl.CreatePaymentIntent(t.Context(), order("")); err != nil {
				t.Fatal(err)
			}
			if got := s.sent[1].at; got != 4*time.Second {
				t.Errorf("the second attempt came after %v, want 4s", got)
			}
		})
	})
}

// TestClient_GivesUp is about what a caller knows whose call ended without a
// final answer.
func TestClient_GivesUp(t *testing.T) {
	t.Parallel()
	again := func(n int, s step) (steps []step) {
		for range n {
			steps = append(steps, s)
		}
		return steps
	}
	for name, c := range map[string]struct {
		steps    []step
		deadline time.Duration
		cancel   time.Duration
		opts     []client.Option

		after    time.Duration
		is       []error
		isNot    error
		text     string // in the error's
		asked    time.Duration
		status   int
		code     client.Code
		open     bool
		attempts int
	}{
		"AttemptsUsedUp": {steps: again(3, unavailable), opts: []client.Option{client.WithAttempts(3)},
			after: 2600 * time.Millisecond, isNot: context.DeadlineExceeded, status: 503, code: client.CodeUnavailable, open: true, attempts: 3},
		"TwentyByDefault": {steps: again(20, says(500, ``)),
			after: 142600 * time.Millisecond, isNot: context.DeadlineExceeded, status: 500, open: true, attempts: 20},
		"NoAnswer": {steps: again(2, broken), opts: []client.Option{client.WithAttempts(2)},
			after: 200 * time.Millisecond, is: []error{errLine}, open: true, attempts: 2},
		"NobodyThere": {steps: again(2, unreachable), opts: []client.Option{client.WithAttempts(2)},
			after: 200 * time.Millisecond, open: false, attempts: 2},
		// Its own patience is not the caller's.
		"Silence": {steps: again(1, silent), opts: []client.Option{client.WithAttempts(1)},
			after: 35 * time.Second, isNot: context.DeadlineExceeded, open: true, attempts: 1},
		"DeadlineWhileItAsks": {steps: again(1, silent), deadline: 2 * time.Second,
			after: 2 * time.Second, is: []error{context.DeadlineExceeded}, open: true, attempts: 1},
		// The third attempt could only come too late: there is nothing to wait for.
		"DeadlineBeforeTheNext": {steps: []step{broken, broken}, deadline: 500 * time.Millisecond,
			after: 200 * time.Millisecond, is: []error{context.DeadlineExceeded, errLine}, text: "the next attempt would come after the deadline", open: true, attempts: 2},
		"DeadlineBeforeRetryAfter": {steps: []step{inFlight}, deadline: time.Second, is: []error{context.DeadlineExceeded},
			text: "the next attempt would come after the deadline (Retry-After: 1s)", asked: time.Second,
			status: 409, code: client.CodeIdempotencyKeyInFlight, open: true, attempts: 1},
		"CanceledWhileItWaits": {steps: []step{limited}, cancel: 700 * time.Millisecond,
			after: 700 * time.Millisecond, is: []error{context.Canceled}, status: 429, code: client.CodeRateLimited, open: false, attempts: 1},
		"CanceledWhileItAsks": {steps: []step{silent}, cancel: 700 * time.Millisecond,
			after: 700 * time.Millisecond, is: []error{context.Canceled}, open: true, attempts: 1},
		"RetryAfterHours": {steps: []step{says(503, ``, "Retry-After: 7200")}, asked: 2 * time.Hour,
			text: "no call waits longer than the 2m0s that Retry-After may ask for (Retry-After: 2h0m0s)", isNot: context.DeadlineExceeded, status: 503, open: true, attempts: 1},
		"RetryAfterJustTooLong": {steps: []step{says(429, ``, "Retry-After: 121")}, asked: 121 * time.Second,
			text: "no call waits longer", status: 429, attempts: 1},
		"RetryAfter32Bits": {steps: []step{says(503, ``, "Retry-After: 2147483648")}, asked: 2147483648 * time.Second,
			text: "no call waits longer", status: 503, open: true, attempts: 1},
		"RetryAfterNoDuration": {steps: []step{says(503, ``, "Retry-After: 9223372037")}, asked: 9223372036 * time.Second,
			text: "no call waits longer", status: 503, open: true, attempts: 1},
		"RetryAfter64Bits": {steps: []step{says(503, ``, "Retry-After: 99999999999999999999")}, asked: 9223372036 * time.Second,
			text: "no call waits longer", status: 503, open: true, attempts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.deadline > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if c.cancel > 0 {
					defer time.AfterFunc(c.cancel, cancel).Stop()
				}
				cl, s := play(t, c.steps, c.opts...)
				_, err := cl.CreatePaymentIntent(ctx, order(""))
				if took := time.Since(s.begin); took != c.after {
					t.Errorf("it took %v, want %v", took, c.after)
				}
				var e *client.Error
				if !errors.As(err, &e) {
					t.Fatal(err)
				}
				if e.Status != c.status || e.Code != c.code || e.Open != c.open || e.Attempts != c.attempts || !e.Retryable() {
					t.Errorf("error %+v", e)
				}
				for _, target := range c.is {
					if !errors.Is(err, target) {
						t.Errorf("%v is not %v", err, target)
					}
				}
				if c.isNot != nil && errors.Is(err, c.isNot) {
					t.Errorf("%v is %v", err, c.isNot)
				}
				if e.Key == "" || e.Key != s.sent[0].header.Get("Idempotency-Key") {
					t.Errorf("the error's key is %q", e.Key)
				}
				if says := strings.Contains(err.Error(), "outcome is open") && strings.Contains(err.Error(), e.Key) && strings.Contains(err.Error(), "LookupKey"); says != c.open {
					t.Errorf("the error says: %v", err)
				}
				if len(s.sent) != c.attempts {
					t.Errorf("%d attempts, want %d", len(s.sent), c.attempts)
				}
				if !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
					t.Errorf("the error says: %v\nwant: %s", err, c.text)
				}
				if c.asked != 0 && e.RetryAfter != c.asked {
					t.Errorf("RetryAfter is %v, want %v", e.RetryAfter, c.asked)
				}
			})
		})
	}

	t.Run("BeforeItBegan", func(t *testing.T) {
		t.Parallel()
		cl, s := play(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := cl.CreatePaymentIntent(ctx, order(""))
		var e *client.Error
		if !errors.As(err, &e) || !errors.Is(err, context.Canceled) || e.Open || e.Attempts != 0 || !e.Retryable() || len(s.sent) != 0 {
			t.Errorf("%+v", err)
		}
	})

	t.Run("ItsCause", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cl, _ := play(t, []step{limited})
			ctx, cancel := context.WithCancelCause(t.Context())
			shutdown := errors.New("shutting down")
			defer time.AfterFunc(time.Millisecond, func() { cancel(shutdown) }).Stop()
			if _, err := cl.CreatePaymentIntent(ctx, order("")); !errors.Is(err, shutdown) || !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	})

	t.Run("ItsCauseOfTime", func(t *testing.T) {
		t.Parallel()
		budget := errors.New("the shop closes")
		for name, c := range map[string]struct {
			steps    []step
			timeout  time.Duration
			attempts int
		}{
			"BeforeItBegan": {nil, 0, 0},
			"WhileItAsks":   {[]step{silent}, time.Second, 1},
			// With another error than the context's, which is told, too.
			"WhileALineFalls": {[]step{func(*http.Request) (*http.Response, error) {
				time.Sleep(2 * time.Second)
				return nil, errLine
			}}, time.Second, 1},
		} {
			synctest.Test(t, func(t *testing.T) {
				cl, s := play(t, c.steps)
				ctx, cancel := context.WithTimeoutCause(t.Context(), c.timeout, budget)
				defer cancel()
				_, err := cl.CreatePaymentIntent(ctx, order(""))
				if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, budget) || strings.Count(err.Error(), budget.Error()) != 1 ||
					strings.Count(err.Error(), context.DeadlineExceeded.Error()) != 1 || errors.Is(err, errLine) != (name == "WhileALineFalls") || len(s.sent) != c.attempts {
					t.Errorf("%s: %v, %d attempts", name, err, len(s.sent))
				}
			})
		}
	})
}

// TestError_Open is about final answers that do not settle what came before them.
func TestError_Open(t *testing.T) {
	t.Parallel()
	replayedInvalid := says(400, `{"error":"invalid_request","detail":"d"}`, "Idempotent-Replayed: true")
	for name, c := range map[string]struct {
		steps []step
		open  bool
	}{
		"ForbiddenMeanwhile":      {[]step{cut, says(403, `{"error":"forbidden_actor","detail":"d"}`)}, true},
		"RefusedAtOnce":           {[]step{revoked}, false},
		"RevokedMeanwhile":        {[]step{cut, revoked}, true},
		"RevokedAfterFailure":     {[]step{unavailable, revoked}, true},
		"RevokedWhileItRan":       {[]step{inFlight, revoked}, true},
		"RevokedAfterRateLimit":   {[]step{limited, revoked}, false},
		"RevokedAfterNobody":      {[]step{unreachable, revoked}, false},
		"RevokedAfterSuccessLost": {[]step{says(200, `{}`), limited, revoked}, true},
		"Recorded":                {[]step{cut, invalid}, false},
		"Replayed":                {[]step{cut, replayedInvalid}, false},
		"AnothersKey":             {[]step{broken, reused}, false},
		"SomethingInBetween":      {[]step{broken, says(404, `<html>`)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cl, _ := play(t, c.steps)
				_, err := cl.CreatePaymentIntent(t.Context(), order(""))
				var e *client.Error
				if !errors.As(err, &e) || e.Open != c.open || e.Retryable() {
					t.Errorf("%+v", err)
				}
				// A caller that takes the refusal for the whole truth pays twice.
				if says := strings.Contains(err.Error(), "once its cause is mended call again with the same key "+e.Key+", never with a new one"); says != c.open {
					t.Errorf("the error says: %v", err)
				}
			})
		})
	}

	t.Run("ReadingLeavesNothingOpen", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			cl, _ := play(t, []step{broken, unavailable}, client.WithAttempts(2))
			_, err := cl.LookupKey(t.Context(), "order-1")
			var e *client.Error
			if !errors.As(err, &e) || e.Open || !e.Retryable() || e.Key != "order-1" || e.Code != client.CodeUnavailable {
				t.Errorf("%+v", err)
			}
		})
	})
}

func TestError_Error(t *testing.T) {
	t.Parallel()
	for want, e := range map[string]*client.Error{
		"client: get payment intent: 404 not_found: there is none (request r-1)": {
			Op: "get payment intent", Status: 404, Code: client.CodeNotFound, Detail: "there is none", RequestID: "r-1", Attempts: 1},
		"client: list payment intents: 502 Bad Gateway, after 3 attempts": {
			Op: "list payment intents", Status: 502, Attempts: 3},
		"client: get payment intent: 599": {
			Op: "get payment intent", Status: 599, Attempts: 1},
		"client: create payment intent: no answer, after 2 attempts: connection reset by peer: the outcome is open; to settle it call again with the same key k, never with a new one, or ask LookupKey": {
			Op: "create payment intent", Key: "k", Open: true, Attempts: 2, Err: errLine},
	} {
		if got := e.Error(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	t.Run("Refuses", func(t *testing.T) {
		t.Parallel()
		for name, c := range map[string]struct {
			url, token string
			opt        client.Option
			rule       string
		}{
			"NoURL":          {"", "t", nil, "base URL"},
			"NotAURL":        {"http://[", "t", nil, "base URL"},
			"APassword":      {"http://u:s3cr3t/x@h", "t", nil, "base URL"},
			"NoHost":         {"http:///v1", "t", nil, "base URL"},
			"OtherScheme":    {"ftp://h", "t", nil, "base URL"},
			"HostAlone":      {"localhost:8080", "t", nil, "base URL"},
			"Query":          {"http://h?x=1", "t", nil, "query"},
			"NoToken":        {"http://h", "", nil, "token"},
			"TokenWithLine":  {"http://h", "s3cr3t\nX: y", nil, "token"},
			"TokenWithBlank": {"http://h", "s3cr3t y", nil, "token"},
			"NoAttempt":      {"http://h", "t", client.WithAttempts(0), "WithAttempts"},
			"NoTime":         {"http://h", "t", client.WithAttemptTimeout(0), "WithAttemptTimeout"},
			"NoBackoff":      {"http://h", "t", client.WithBackoff(0, time.Second), "WithBackoff"},
			"Shrinking":      {"http://h", "t", client.WithBackoff(time.Second, time.Millisecond), "WithBackoff"},
			"NoClient":       {"http://h", "t", client.WithHTTPClient(nil), "WithHTTPClient"},
		} {
			var opts []client.Option
			if c.opt != nil {
				opts = append(opts, c.opt)
			}
			if _, err := client.New(c.url, c.token, opts...); err == nil || !strings.Contains(err.Error(), c.rule) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})

	t.Run("ShowsNoToken", func(t *testing.T) {
		t.Parallel()
		c, err := client.New("http://h", merchantToken)
		if err != nil {
			t.Fatal(err)
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			for _, shown := range []string{fmt.Sprintf(verb, c), fmt.Sprintf(verb, *c), fmt.Sprintf(verb, c.ForMerchant("m"))} {
				if strings.Contains(shown, "s3cr3t") {
					t.Errorf("%s shows the token: %s", verb, shown)
				}
			}
		}
	})

	t.Run("KeepsThePath", func(t *testing.T) {
		t.Parallel()
		for _, base := range []string{"http://h", "http://h/", "http://h/pay", "http://h/pay/"} {
			s := &script{t: t, begin: time.Now(), steps: []step{says(200, intentBody)}}
			c, err := client.New(base, "t", client.WithHTTPClient(&http.Client{Transport: s}))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Get(t.Context(), "pi_1"); err != nil {
				t.Fatal(err)
			}
			want := strings.TrimSuffix(strings.TrimPrefix(base, "http://h"), "/") + "/v1/payment_intents/pi_1"
			if got := s.sent[0].path; got != want {
				t.Errorf("%s: %s, want %s", base, got, want)
			}
		}
	})

	t.Run("LeavesTheHTTPClientAlone", func(t *testing.T) {
		t.Parallel()
		h := &http.Client{}
		if _, err := client.New("http://h", "t", client.WithHTTPClient(h)); err != nil || h.CheckRedirect != nil {
			t.Errorf("%v; CheckRedirect was set: %t", err, h.CheckRedirect != nil)
		}
	})
}

// TestClient_RefusesToSend is about arguments that would be another request on
// the wire, or none: they are errors at once, and nothing is sent.
func TestClient_RefusesToSend(t *testing.T) {
	t.Parallel()
	cl, s := play(t, nil)
	ctx := t.Context()
	for name, do := range map[string]func() error{
		"EmptyKey":      func() error { _, err := cl.CreatePaymentIntent(ctx, order(""), client.WithKey("")); return err },
		"KeyWithBlank":  func() error { _, err := cl.CreatePaymentIntent(ctx, order(""), client.WithKey(" a")); return err },
		"KeyWithLine":   func() error { _, err := cl.Cancel(ctx, "pi_1", "r", client.WithKey("a\nb")); return err },
		"KeyNotASCII":   func() error { _, err := cl.Cancel(ctx, "pi_1", "r", client.WithKey("ä")); return err },
		"LookupEmpty":   func() error { _, err := cl.LookupKey(ctx, ""); return err },
		"EmptyID":       func() error { _, err := cl.Get(ctx, ""); return err },
		"ParentID":      func() error { _, err := cl.Cancel(ctx, "..", "r"); return err },
		"MoveParent":    func() error { _, err := cl.Move(ctx, "../pi_1", client.TransitionRequest{}); return err },
		"VersionOfNone": func() error { _, err := cl.CreatePaymentIntent(ctx, order(""), client.IfVersion(1)); return err },
		"Merchant":      func() error { _, err := cl.ForMerchant("a\nb").Get(ctx, "pi_1"); return err },
		"Transitions": func() (last error) {
			for _, err := range cl.Transitions(ctx, "x") {
				last = err
			}
			return last
		},
	} {
		var e *client.Error
		if err := do(); err == nil || errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.sent) != 0 {
		t.Errorf("sent: %+v", s.sent)
	}
}

// TestClient_Codes holds the codes to the page that explains them.
func TestClient_Codes(t *testing.T) {
	t.Parallel()
	page := intentd.ErrorDocs
	for _, code := range []client.Code{
		client.CodeIdempotencyKeyInFlight, client.CodeIdempotencyAttemptSuperseded, client.CodeRateLimited, client.CodeInternal, client.CodeUnavailable,
	} {
		if !bytes.Contains(page, []byte("["+string(code)+"](#"+string(code)+") | **yes**")) {
			t.Errorf("docs/errors.md does not say that %s may be sent again", code)
		}
	}
	if n := bytes.Count(page, []byte(" | **yes**")); n != 5 {
		t.Errorf("docs/errors.md says of %d codes that they may be sent again as they are, the client of 5", n)
	}
}
