package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/intent"
	"intentd/internal/secret"
)

const (
	unauthorizedDetail = "this request needs one Authorization header with a valid bearer token"
	keyRequiredDetail  = "this request needs an Idempotency-Key header: a value of your own for each operation, the same for each retry of it"
	undecidedDetail    = "the service can not decide about this request now; send it again with the same key"
	undoneDetail       = "the request failed and was undone; send it again with the same key"
)

// TestContract_Routing: routing comes first, with or without a credential.
func TestContract_Routing(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		for _, credential := range [][]string{nil, {"-Authorization"}, {"-Authorization", "Authorization: Bearer nobody-" + mark}} {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO", "get"} {
				for _, path := range []string{"/", "/v1", "/v1/", "/v1/payment_intents/", "/v1/payment_intents/a/b", "//v1/payment_intents", "/v1/Payment_intents",
					"/v1/payment%5Fintents", "/v2/payment_intents", "/healthz/", "/openapi.json", "/debug/pprof/", "/metrics"} {
					a := s.do(t, call{method: method, path: path, header: credential})
					if method == "HEAD" {
						if a.status != http.StatusNotFound {
							t.Errorf("HEAD %s = %d", path, a.status)
						}
						continue
					}
					a.wantProblem(t, http.StatusNotFound, "not_found", "there is nothing at this path")
				}
				for path, allow := range map[string]string{
					"/v1/payment_intents":      "GET, HEAD, POST",
					"/v1/payment_intents?a=b":  "GET, HEAD, POST",
					"/v1/payment_intents/x":    "GET, HEAD",
					"/v1/payment_intents/%20x": "GET, HEAD",
					"/healthz":                 "GET, HEAD",
					"/readyz":                  "GET, HEAD",
					"/openapi.yaml":            "GET, HEAD",
					"/docs":                    "GET, HEAD",
					"/docs/errors":             "GET, HEAD",
					"/docs/swagger-ui.css":     "GET, HEAD",
				} {
					if slices.Contains(strings.Split(allow, ", "), method) {
						continue
					}
					a := s.do(t, call{method: method, path: path, header: credential})
					if got := a.header.Get("Allow"); a.status != http.StatusMethodNotAllowed || got != allow {
						t.Errorf("%s %s = %d, Allow %q, want 405, %q", method, path, a.status, got, allow)
					}
					if method != "HEAD" {
						a.wantProblem(t, http.StatusMethodNotAllowed, "method_not_allowed", fmt.Sprintf("%q is not allowed here, use %s", method, allow))
					}
				}
			}
		}
	})
}

// TestContract_Credential is row 1, before all that could be wrong besides.
func TestContract_Credential(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		for name, lines := range map[string][]string{
			"None":         {"-Authorization"},
			"Unknown":      {"-Authorization", "Authorization: Bearer nobody-" + mark},
			"Empty":        {"-Authorization", "Authorization: "},
			"NoToken":      {"-Authorization", "Authorization: Bearer"},
			"BareToken":    {"-Authorization", "Authorization: " + alice},
			"OtherScheme":  {"-Authorization", "Authorization: Basic " + alice},
			"InTheCase":    {"-Authorization", "Authorization: Bearer " + strings.ToUpper(alice)},
			"Prefix":       {"-Authorization", "Authorization: Bearer " + alice[:len(alice)-1]},
			"Longer":       {"-Authorization", "Authorization: Bearer " + alice + "x"},
			"TwoTokens":    {"-Authorization", "Authorization: Bearer " + alice + " " + alice},
			"TwoInOneLine": {"-Authorization", "Authorization: Bearer " + alice + ", Bearer " + alice},
			"TwoLines":     {"Authorization: Bearer " + bob},
			"TheSameTwice": {"Authorization: Bearer " + alice},
			"MerchantName": {"-Authorization", "Authorization: Bearer alice"},
		} {
			for _, c := range []call{
				{},
				{header: []string{"-Idempotency-Key"}},
				{key: "a b", body: strings.Repeat("x", 70_000), header: []string{"Content-Encoding: gzip"}},
				{method: http.MethodGet, path: "/v1/payment_intents/x"},
			} {
				c.header = append(slices.Clone(lines), c.header...)
				a := s.do(t, c)
				if a.status != http.StatusUnauthorized {
					t.Errorf("%s: %s = %d %s", name, a.method, a.status, a.body)
					continue
				}
				a.wantProblem(t, http.StatusUnauthorized, "unauthorized", unauthorizedDetail)
				if got := a.header.Get("WWW-Authenticate"); got != "Bearer" {
					t.Errorf("%s: WWW-Authenticate = %q", name, got)
				}
			}
		}
		for _, scheme := range []string{"bearer", "BEARER", "Bearer  "} {
			s.created(t, call{header: []string{"-Authorization", "Authorization: " + scheme + " " + alice}})
		}

		// A 401 has left the key alone.
		key := newKey()
		s.do(t, call{key: key, token: "nobody-" + mark}).want(t, http.StatusUnauthorized, "unauthorized")
		s.created(t, call{key: key})
		// Not even a replay is for those without a credential.
		s.do(t, call{key: key, token: "nobody-" + mark}).want(t, http.StatusUnauthorized, "unauthorized")
	})
}

// TestContract_Refusals is rows 3 to 5: each request is at fault in all that
// comes after its own fault too, and the body's own fault comes last.
func TestContract_Refusals(t *testing.T) {
	t.Parallel()
	const (
		gzip   = "Content-Encoding: gzip"
		coding = "the body must be sent without a Content-Encoding, or with identity"
		large  = "the body must be at most 65536 bytes long"
		twice  = "Idempotency-Key must be sent once, got more than one header line"
	)
	long := strings.Repeat("x", 65_537)
	eachStore(t, func(t *testing.T, s *service) {
		for _, tt := range []struct {
			c            call
			status       int
			code, detail string
		}{
			{call{body: long, header: []string{"-Idempotency-Key", gzip}}, 400, "idempotency_key_required", keyRequiredDetail},
			{call{body: long, key: "a b", header: []string{gzip}}, 400, "idempotency_key_invalid",
				"Idempotency-Key must be printable ASCII without blanks, got byte 0x20 at position 2"},
			{call{body: long, header: []string{"Idempotency-Key: " + newKey(), gzip}}, 400, "idempotency_key_invalid", twice},
			{call{body: long, header: []string{gzip}}, 415, "unsupported_content_encoding", coding},
			{call{body: long, header: []string{"Content-Encoding: identity, deflate"}}, 415, "unsupported_content_encoding", coding},
			{call{body: long}, 413, "body_too_large", large},
			{call{body: "x"}, 400, "invalid_json", "the body is not valid JSON in UTF-8, from byte 0 on"},
		} {
			tt.c.key = cmpOrNew(tt.c.key)
			for range 2 {
				a := s.do(t, tt.c)
				a.wantProblem(t, tt.status, tt.code, tt.detail)
				if tt.code != "invalid_json" {
					a.wantReplayed(t, false)
				}
			}
			// The key is as it was, where it is one.
			if tt.status > 400 {
				s.created(t, call{key: tt.c.key})
			}
		}
		s.created(t, call{header: []string{"Content-Encoding: identity"}})
	})
}

func cmpOrNew(key string) string {
	if key == "" {
		return newKey()
	}
	return key
}

// TestContract_ContentType: curl -d sends a form's, and it is not looked at.
func TestContract_ContentType(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		key := newKey()
		a := s.created(t, call{key: key, header: []string{"Content-Type: application/x-www-form-urlencoded"}})
		s.replayed(t, call{key: key, header: []string{"Content-Type: text/plain", "Accept: text/html"}}, a)
		s.replayed(t, call{key: key}, a)
	})
}

// TestContract_BodySize: 64 KiB and not a byte more, announced or not.
func TestContract_BodySize(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		longest := exampleBody + strings.Repeat(" ", 65_536-len(exampleBody))
		key := newKey()
		a := s.created(t, call{key: key, body: longest})
		chunked := func(body string) string {
			return head("Idempotency-Key: "+key, "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		}
		again := s.raw(t, chunked(longest), false)
		again.wantReplayed(t, true)
		if again.body != a.body {
			t.Errorf("in chunks = %s, at once %s", again.body, a.body)
		}

		key = newKey()
		s.do(t, call{key: key, body: longest + " "}).want(t, 413, "body_too_large")
		s.raw(t, chunked(longest+" "), false).want(t, 413, "body_too_large")
		s.raw(t, head("Idempotency-Key: "+key, "Content-Length: 9223372036854775807"), false).want(t, 413, "body_too_large")
		s.created(t, call{key: key})
	})
}

// deadlines is a ResponseWriter that remembers its read deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}

// TestContract_BodyDeadline: the layer's 15 s for a body reach the connection
// through all that stands between. What passes then is the layer's own test.
func TestContract_BodyDeadline(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{})
	r := httptest.NewRequest(http.MethodPost, intentsPath, strings.NewReader(exampleBody))
	r.Header.Set("Authorization", "Bearer "+alice)
	r.Header.Set("Idempotency-Key", newKey())
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	start := time.Now()
	s.handler.ServeHTTP(w, r)
	s.receive(t, w.Result(), r).want(t, http.StatusCreated, "")
	if len(w.set) == 0 || w.set[0].Before(start.Add(15*time.Second)) || w.set[0].After(time.Now().Add(15*time.Second)) {
		t.Errorf("read deadlines %v, want one 15 s after %v", w.set, start)
	}
}

// TestContract_BodyCutShort: a body that did not arrive whole is not run.
func TestContract_BodyCutShort(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		key := newKey()
		for _, text := range []string{
			head("Idempotency-Key: "+key, "Content-Length: 999") + exampleBody,
			head("Idempotency-Key: "+key, "Content-Length: 999"),
			head("Idempotency-Key: "+key, "Transfer-Encoding: chunked") + fmt.Sprintf("%x\r\n%s\r\n", len(exampleBody), exampleBody),
			head("Idempotency-Key: "+key, "Transfer-Encoding: chunked") + "zz\r\n" + exampleBody,
		} {
			a := s.raw(t, text, true)
			a.wantProblem(t, http.StatusBadRequest, "body_unreadable", "the body was cut short or could not be read")
		}
		s.created(t, call{key: key})
	})
}

// TestContract_Keys is case 14 and what lies beside it.
func TestContract_Keys(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		printable := func(n int) string {
			const odd = "!#$%&'()*+,-./0:;<=>?@A[\\]^_`a{|}~\""
			b := []byte(newKey())
			for len(b) < n {
				b = append(b, odd[len(b)%len(odd)])
			}
			return string(b[:n])
		}
		for _, key := range []string{printable(1), printable(255), "!" + mark, "#" + mark, "~" + mark, "~", mark + `"`, mark + `\"`, `'` + mark, mark + ",b"} {
			a := s.created(t, call{key: key})
			s.replayed(t, call{key: key}, a)
			quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
			s.replayed(t, call{key: quoted}, a)
		}

		const length = "Idempotency-Key must be at most 255 bytes long, got "
		const bytes = "Idempotency-Key must be printable ASCII without blanks, got byte "
		for _, tt := range []struct{ key, detail string }{
			{printable(256), length + "256"},
			{printable(3000), length + "3000"},
			{`"` + mark + strings.Repeat("k", 250) + `"`, length + "256"},
			{`""`, "Idempotency-Key must not be empty"},
			{`"` + mark, "Idempotency-Key is a quoted string without its closing quote"},
			{`"` + mark + `"x`, "Idempotency-Key is a quoted string with something after its closing quote"},
			{`"` + mark + `";a=b`, "Idempotency-Key is a quoted string with something after its closing quote"},
			{`"\n` + mark + `"`, `Idempotency-Key is a quoted string with an escape other than \" and \\`},
			{mark + "\xff", bytes + "0xff at position 7"},
			{"\xff", bytes + "0xff at position 1"},
			{"\"" + mark + "\xff\"", bytes + "0xff at position 7"},
			{mark + "\tx", bytes + "0x09 at position 7"},
			{mark + " x", bytes + "0x20 at position 7"},
			{mark + "é", bytes + "0xc3 at position 7"},
		} {
			s.do(t, call{key: tt.key}).wantProblem(t, http.StatusBadRequest, "idempotency_key_invalid", tt.detail)
		}

		// What a client library would not send.
		post := func(lines ...string) *answer {
			return s.raw(t, head(append(lines, fmt.Sprintf("Content-Length: %d", len(exampleBody)))...)+exampleBody, false)
		}
		post().wantProblem(t, http.StatusBadRequest, "idempotency_key_required", keyRequiredDetail)
		for _, blank := range []string{"Idempotency-Key:", "Idempotency-Key: ", "Idempotency-Key: \t ", `Idempotency-Key: ""`} {
			post(blank).wantProblem(t, http.StatusBadRequest, "idempotency_key_invalid", "Idempotency-Key must not be empty")
		}
		key := newKey()
		for _, other := range []string{key, newKey(), ""} {
			post("Idempotency-Key: "+key, "idempotency-key: "+other).wantProblem(t, http.StatusBadRequest, "idempotency_key_invalid",
				"Idempotency-Key must be sent once, got more than one header line")
		}
		// Bytes that are no header's are net/http's to refuse.
		for _, line := range []string{"Idempotency-Key: a\x00b", "Idempotency-Key: a\x7fb", "Idempotency-Key : " + key} {
			if a := post(line); a.status != http.StatusBadRequest || a.header.Get("X-Request-Id") != "" {
				t.Errorf("%q = %d %s", line, a.status, a.body)
			}
		}
		first := post("iDEMPOTENCY-kEY: \t " + key + " \t")
		first.want(t, http.StatusCreated, "")
		s.replayed(t, call{key: key}, first)
	})
}

// TestContract_Replay is case 1 on one replica.
func TestContract_Replay(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		c := call{key: newKey()}
		first := s.created(t, c)
		for range 2 {
			s.replayed(t, c, first)
		}
		// A request id is of one exchange, and the state is that of the record.
		a := s.do(t, c)
		if got := a.header.Get("X-Request-Id"); got == first.header.Get("X-Request-Id") {
			t.Errorf("the request id %s came back", got)
		}
	})
}

// TestContract_Reused is row 7, and case 4.
func TestContract_Reused(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		changed := edit(t, "amount", `"999000000"`)
		key := "order-1001-" + mark
		first := s.created(t, call{key: key})
		a := s.do(t, call{key: key, body: changed})
		a.wantProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused",
			`Idempotency-Key "order-1001-`+mark+`" was already used for a different request (fingerprint ff330e75a93099c4, got 90f56163d6f6ee6b)`)
		a.wantReplayed(t, false)
		for _, c := range []call{
			{path: "/v1/payment_intents?"},
			{path: "/v1/payment_intents?a=b"},
			{body: exampleBody + "\n"},
			{body: strings.Replace(exampleBody, `"chain":"evm:31337",`, "", 1)},
			{body: `{"expires_in_seconds":900,` + edit(t, "expires_in_seconds", "")[1:]}, // reordered
			{body: "not even JSON"},
		} {
			c.key = key
			s.do(t, c).want(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
		}
		s.replayed(t, call{key: key}, first)

		// A refused body has its key for good.
		refusedBody := call{key: newKey(), body: edit(t, "amount", `"abc"`)}
		first = s.do(t, refusedBody)
		first.wantProblem(t, http.StatusBadRequest, "invalid_request", amountRule)
		s.replayed(t, refusedBody, first)
		s.do(t, call{key: refusedBody.key}).want(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
		s.replayed(t, refusedBody, first)

		// On another query it is another request too, the first one.
		c := call{key: newKey(), path: "/v1/payment_intents?a=b"}
		first = s.created(t, c)
		s.replayed(t, c, first)
		s.do(t, call{key: c.key}).want(t, http.StatusUnprocessableEntity, "idempotency_key_reused")
	})
}

// TestContract_TwoMerchants is case 10.
func TestContract_TwoMerchants(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		a := call{key: newKey(), token: alice}
		b := call{key: a.key, token: bob, body: edit(t, "amount", `"999000000"`)}
		ofAlice, ofBob := s.created(t, a), s.created(t, b)
		s.replayed(t, a, ofAlice)
		s.replayed(t, b, ofBob)
		// Each is told of its own fingerprints only.
		a.body = edit(t, "amount", `"5"`)
		if detail := s.do(t, a).problem().Detail; !strings.Contains(detail, "fingerprint ff330e75a93099c4,") {
			t.Errorf("alice is told %q", detail)
		}
		for token, other := range map[string]*answer{alice: ofBob, bob: ofAlice} {
			s.do(t, call{method: http.MethodGet, path: other.header.Get("Location"), token: token}).
				wantProblem(t, http.StatusNotFound, "not_found", "there is no payment intent with this id")
		}
	})
}

// TestContract_OddRequests: whatever a client sends, it is not the service that
// has failed.
func TestContract_OddRequests(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		host, credential, length := "Host: x\r\n", "Authorization: Bearer "+alice+"\r\n", fmt.Sprintf("Content-Length: %d\r\n", len(exampleBody))
		for _, text := range []string{
			"GET / HTTP/1.0\r\n\r\n",
			"GET /healthz HTTP/1.0\r\n\r\n",
			"GET http://elsewhere/v1/payment_intents/x?a=b HTTP/1.1\r\n" + host + credential + "\r\n",
			"GET /v1/payment_intents/" + strings.Repeat("%00", 5000) + " HTTP/1.1\r\n" + host + credential + "\r\n",
			"GET /v1/payment_intents/%zz HTTP/1.1\r\n" + host + credential + "\r\n",
			"GET /v1/payment_intents/\xff\xfe HTTP/1.1\r\n" + host + credential + "\r\n",
			"GET /v1/payment_intents/;drop%20table HTTP/1.1\r\n" + host + credential + "\r\n",
			"GET /v1/payment_intents/x?%zz;a=b&&=" + strings.Repeat("a", 9000) + " HTTP/1.1\r\n" + host + credential + "\r\n",
			"GET /v1/payment_intents/x HTTP/1.1\r\n" + host + credential + "Content-Length: 3\r\n\r\nabc",
			"GET /v1/payment_intents/x HTTP/1.1\r\n" + host + credential + strings.Repeat("X: y\r\n", 2000) + "\r\n",
			"GET /v1/payment_intents/x HTTP/1.1\r\n" + host + "Authorization: Bearer \xff\r\n\r\n",
			"GET /v1/payment_intents/x HTTP/1.1\r\n" + host + "Authorization: Bearer " + strings.Repeat("x", 60_000) + "\r\n\r\n",
			"POST /v1/payment_intents?\xff HTTP/1.1\r\n" + host + credential + "Idempotency-Key: " + newKey() + "\r\n" + length + "\r\n" + exampleBody,
			"POST /v1/payment_intents?%00 HTTP/1.1\r\n" + host + credential + "Idempotency-Key: " + newKey() + "\r\n" + length + "\r\n" + exampleBody,
			"POST /v1/payment_intents HTTP/1.0\r\n" + credential + "Idempotency-Key: " + newKey() + "\r\n" + length + "\r\n" + exampleBody,
			"POST /v1/payment_intents HTTP/1.0\r\n" + credential + "Idempotency-Key: " + newKey() + "\r\n\r\n" + exampleBody,
			"POST /v1/payment_intents HTTP/1.1\r\n" + host + credential + "Idempotency-Key: " + newKey() + "\r\nTransfer-Encoding: gzip\r\n\r\n" + exampleBody,
			"POST /v1/payment_intents HTTP/1.1\r\n" + host + credential + "Idempotency-Key: " + newKey() + "\r\n" + length + "Content-Length: 1\r\n\r\n" + exampleBody,
			"POST /v1/payment_intents HTTP/1.1\r\n" + host + credential + "Idempotency-Key: " + newKey() + "\r\nContent-Length: -1\r\n\r\n" + exampleBody,
			"POST /v1/payment_intents HTTP/1.1\r\n" + host + credential + "Idempotency-Key: " + newKey() + "\r\nExpect: nonsense\r\n" + length + "\r\n" + exampleBody,
			"POST /v1/payment_intents HTTP/1.1\r\n" + host + credential + "Idempotency-Key: " + newKey() + "\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n" + length + "\r\n" + exampleBody,
			"CONNECT /v1/payment_intents HTTP/1.1\r\n" + host + credential + "\r\n",
			"OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
			"\x16\x03\x01 HTTP/1.1\r\n\r\n",
		} {
			// Past the document: some of this is no request to it.
			conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(conn, text); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatalf("%.100q: %v", text, err)
			}
			// 501 is net/http's word for a transfer coding that it does not know.
			if resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented {
				t.Errorf("%.100q = %d", text, resp.StatusCode)
			}
			_ = conn.Close()
		}
	})
}

// gate is an intent store at whose door a create waits, or fails, as the test
// says.
type gate struct {
	intent.Store
	mu     sync.Mutex
	create func(context.Context) error // before the store's own; nil: nothing
	get    func(context.Context) error
}

func (g *gate) set(create func(context.Context) error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.create = create
}

func (g *gate) Create(ctx context.Context, in intent.Intent, d time.Duration) (intent.Intent, error) {
	g.mu.Lock()
	before := g.create
	g.mu.Unlock()
	created, err := g.Store.Create(ctx, in, d)
	if err == nil && before != nil {
		err = before(ctx)
	}
	return created, err
}

func (g *gate) Get(ctx context.Context, merchantID string, id intent.ID) (intent.Intent, error) {
	if g.get != nil {
		if err := g.get(ctx); err != nil {
			return intent.Intent{}, err
		}
	}
	return g.Store.Get(ctx, merchantID, id)
}

// eachGate is eachStore with a gate in front of the intents.
func eachGate(t *testing.T, lease time.Duration, test func(*testing.T, *service, *gate)) {
	t.Helper()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := new(gate)
			s := open(t, setup{lease: lease, change: func(p *parts) { g.Store, p.intents = p.intents, g }})
			test(t, s, g)
		})
	}
}

// TestContract_InFlight is row 8, and 7 while the request runs.
func TestContract_InFlight(t *testing.T) {
	t.Parallel()
	eachGate(t, lease, func(t *testing.T, s *service, g *gate) {
		entered, let := make(chan struct{}), make(chan struct{})
		g.set(func(context.Context) error { close(entered); <-let; return nil })
		c := call{key: "order-1001-" + mark}
		winner := make(chan *answer, 1)
		go func() {
			defer close(winner)
			winner <- s.do(t, c)
		}()
		<-entered
		g.set(nil)
		for range 3 {
			// The winner goes on when this goroutine lets it: who waited for it
			// would wait for ever.
			a := s.do(t, c)
			a.wantProblem(t, http.StatusConflict, "idempotency_key_in_flight", `the request with Idempotency-Key "order-1001-`+mark+`" is still running`)
			a.wantReplayed(t, false)
		}
		other := call{key: c.key, body: edit(t, "amount", `"999000000"`)}
		s.do(t, other).wantProblem(t, http.StatusUnprocessableEntity, "idempotency_key_reused",
			`Idempotency-Key "order-1001-`+mark+`" was already used for a different request (got 90f56163d6f6ee6b)`)
		s.created(t, call{key: c.key, token: bob})
		s.created(t, call{})
		close(let)
		first := <-winner
		first.want(t, http.StatusCreated, "")
		s.replayed(t, c, first)
	})
}

// TestContract_HangUp: a client that hangs up does not undo a run that has
// begun.
func TestContract_HangUp(t *testing.T) {
	t.Parallel()
	eachGate(t, lease, func(t *testing.T, s *service, g *gate) {
		entered, let, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		g.set(func(ctx context.Context) error {
			close(entered)
			<-let
			ended <- ctx.Err()
			return nil
		})
		c := call{key: newKey()}
		conn, err := net.Dial("tcp", s.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(conn, head("Idempotency-Key: "+c.key, fmt.Sprintf("Content-Length: %d", len(exampleBody)))+exampleBody); err != nil {
			t.Fatal(err)
		}
		<-entered
		g.set(nil)
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		close(let)
		if err := <-ended; err != nil {
			t.Errorf("the handler's context has ended: %v", err)
		}
		// The retry may come while the first is being made permanent.
		for deadline := time.Now().Add(patience); ; {
			a := s.do(t, c)
			if a.status != http.StatusConflict {
				a.want(t, http.StatusCreated, "")
				a.wantReplayed(t, true)
				return
			}
			if time.Now().After(deadline) {
				t.Fatal("the run has not ended")
			}
		}
	})
}

// TestContract_NoAnswer is row 10: what the handler did is undone, and the same
// key runs again.
func TestContract_NoAnswer(t *testing.T) {
	t.Parallel()
	cause := errors.New("ERROR: relation payment_intents is away (SQLSTATE 42P01)")
	for name, tt := range map[string]struct {
		fail         func(context.Context) error
		status       int
		code, detail string
		log          string
		level        string
		undone       string
	}{
		"Panic":       {func(context.Context) error { panic("panic: select * from payment_intents") }, 500, "internal", undoneDetail, "handler panicked", "ERROR", "panic"},
		"Unknown":     {func(context.Context) error { return cause }, 503, "unavailable", undecidedDetail, cause.Error(), "ERROR", "withheld"},
		"Unavailable": {func(context.Context) error { return fmt.Errorf("%w: %w", intent.ErrUnavailable, cause) }, 503, "unavailable", undecidedDetail, cause.Error(), "WARN", "withheld"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachGate(t, lease, func(t *testing.T, s *service, g *gate) {
				g.set(tt.fail)
				c := call{key: newKey()}
				var failed []*answer
				for range 2 {
					a := s.do(t, c)
					a.wantProblem(t, tt.status, tt.code, tt.detail)
					a.wantReplayed(t, false)
					failed = append(failed, a)
				}
				g.set(nil)
				first := s.created(t, c)
				s.replayed(t, c, first)

				s.server.Close()
				lines := s.log.lines(t)
				for _, a := range failed {
					line := lines[a.header.Get("X-Request-Id")]
					if line.Level != tt.level || line.Undone != tt.undone || line.Outcome != "fresh" || !strings.Contains(line.Error, tt.log) || (tt.status == 500) != strings.Contains(line.Stack, "ServeHTTP") {
						t.Errorf("log line = %+v", line)
					}
				}
			})
		})
	}
}

// TestContract_Superseded is row 11.
func TestContract_Superseded(t *testing.T) {
	t.Parallel()
	const short = time.Second // long enough for what must end within it, on a slow machine
	eachGate(t, short, func(t *testing.T, s *service, g *gate) {
		for _, give := range []func(context.Context) error{
			// The store's clock for the lease starts a moment after the context's.
			func(context.Context) error { time.Sleep(2 * short); return nil },
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		} {
			g.set(give)
			a := s.do(t, call{key: "late-" + mark})
			a.wantProblem(t, http.StatusConflict, "idempotency_attempt_superseded", `the request with Idempotency-Key "late-`+mark+`" took too long and was undone`)
			a.wantReplayed(t, false)
			g.set(nil)
			s.created(t, call{}) // the pool has lived through it
		}
		// Where the server ended the session, its lock falls a moment after that
		// is known.
		c := call{key: "late-" + mark}
		first := s.do(t, c)
		for begun := time.Now(); first.status == http.StatusConflict && time.Since(begun) < patience; {
			first = s.do(t, c)
		}
		first.want(t, http.StatusCreated, "")
		first.wantReplayed(t, false)
		s.replayed(t, c, first)
	})
}

// A GET has no lease, and must not wait for a silent store for ever.
func TestGet_Fails(t *testing.T) {
	t.Parallel()
	cause := errors.New("ERROR: relation payment_intents is away (SQLSTATE 42P01)")
	const retry, internal = "the service can not reach its data now; try again", "the request failed"
	for name, tt := range map[string]struct {
		get          func(context.Context) error
		status       int
		code, detail string
	}{
		"Unavailable": {func(context.Context) error { return fmt.Errorf("%w: %w", intent.ErrUnavailable, cause) }, 503, "unavailable", retry},
		"Silent":      {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, 503, "unavailable", retry},
		"Unknown":     {func(context.Context) error { return cause }, 500, "internal", internal},
		"Panic":       {func(context.Context) error { panic(cause) }, 500, "internal", internal},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stores["Memory"](t, setup{change: func(p *parts) { p.intents = &gate{Store: p.intents, get: tt.get} }})
			// In a bubble, where five seconds are nothing.
			synctest.Test(t, func(t *testing.T) {
				r := httptest.NewRequest(http.MethodGet, intentsPath+"/pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f", nil)
				r.Header.Set("Authorization", "Bearer "+alice)
				start := time.Now()
				w := httptest.NewRecorder()
				s.handler.ServeHTTP(w, r)
				s.receive(t, w.Result(), r).wantProblem(t, tt.status, tt.code, tt.detail)
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("answered after %v", took)
				}
			})
			for _, line := range s.log.lines(t) {
				if line.Error == "" || (name != "Silent" && !strings.Contains(line.Error, cause.Error())) || (name == "Panic") != (line.Stack != "") {
					t.Errorf("log line = %+v", line)
				}
			}
		})
	}
}

// failing is an authenticator that can not tell.
type failing struct{}

func (failing) Authenticate(context.Context, secret.Text) (apikey.Holder, bool, error) {
	return apikey.Holder{}, false, errors.New("dial tcp: connection refused")
}

func TestAuthenticator_Fails(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{change: func(p *parts) { p.auth = failing{} }})
	s.do(t, call{}).wantProblem(t, http.StatusServiceUnavailable, "unavailable", "the credential can not be checked now; try again")
	s.do(t, call{method: http.MethodGet, path: intentsPath + "/x"}).want(t, http.StatusServiceUnavailable, "unavailable")
}

func TestProbes(t *testing.T) {
	t.Parallel()

	t.Run("Ready", func(t *testing.T) {
		t.Parallel()
		eachStore(t, func(t *testing.T, s *service) {
			for path, body := range map[string]string{"/healthz": `{"status":"ok"}` + "\n", "/readyz": `{"status":"ready"}` + "\n"} {
				a := s.do(t, call{method: http.MethodGet, path: path, header: []string{"-Authorization"}})
				a.want(t, http.StatusOK, "")
				if a.body != body || a.header.Get("Content-Type") != "application/json" {
					t.Errorf("%s = %s %s", path, a.header.Get("Content-Type"), a.body)
				}
				s.do(t, call{method: http.MethodHead, path: path}).want(t, http.StatusOK, "")
			}
			s.do(t, call{method: http.MethodHead, path: "/openapi.yaml"}).want(t, http.StatusOK, "")
		})
	})

	for name, ready := range map[string]func(context.Context) error{
		"Away":   func(context.Context) error { return errors.New("dial tcp: connection refused") },
		"Silent": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stores["Memory"](t, setup{change: func(p *parts) { p.ready = ready }})
			synctest.Test(t, func(t *testing.T) {
				for path, status := range map[string]int{"/healthz": 200, "/readyz": 503} {
					r := httptest.NewRequest(http.MethodGet, path, nil)
					w := httptest.NewRecorder()
					start := time.Now()
					s.handler.ServeHTTP(w, r)
					a := s.receive(t, w.Result(), r)
					if a.status != status {
						t.Errorf("%s = %d %s", path, a.status, a.body)
					}
					if took := time.Since(start); took > 2*time.Second {
						t.Errorf("%s was answered after %v", path, took)
					}
				}
			})
		})
	}
}

// TestProbes_Gone: a health check that nobody was told the end of is not one that
// found all well.
func TestProbes_Gone(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{change: func(p *parts) { p.ready = func(ctx context.Context) error { return ctx.Err() } }})
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	s.handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
	for _, line := range s.log.lines(t) {
		if line.Status != 499 || line.Level != "INFO" {
			t.Errorf("log line = %+v", line)
		}
	}
}

// TestLog: one line for each request, which says what became of it.
func TestLog(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, setup{})
			c := call{key: newKey()}
			changed := c
			changed.body = edit(t, "amount", `"999000000"`)
			fresh := s.created(t, c)
			calls := []struct {
				a    *answer
				want logLine
			}{
				{fresh, logLine{Level: "INFO", Msg: "request", Merchant: "alice", Role: "api", Outcome: "fresh", Fingerprint: "ff330e75a93099c4"}},
				{s.do(t, c), logLine{Level: "INFO", Msg: "request", Merchant: "alice", Role: "api", Outcome: "replay", Fingerprint: "ff330e75a93099c4"}},
				{s.do(t, changed), logLine{Level: "INFO", Msg: "request", Merchant: "alice", Role: "api", Outcome: "mismatch", Fingerprint: "90f56163d6f6ee6b"}},
				{s.do(t, call{token: "nobody-" + mark}), logLine{Level: "INFO", Msg: "request"}},
				{s.do(t, call{key: "a b"}), logLine{Level: "INFO", Msg: "request", Merchant: "alice", Role: "api"}},
				{s.do(t, call{method: "GET", path: fresh.header.Get("Location"), token: bob, key: c.key}), logLine{Level: "INFO", Msg: "request", Merchant: "bob", Role: "api"}},
				{s.do(t, call{method: "GET", path: fresh.header.Get("Location"), token: operatorTest, header: forAlice}), logLine{Level: "INFO", Msg: "request", Merchant: "test:alice", Role: "operator"}},
				{s.do(t, call{method: "GET", path: "/healthz"}), logLine{Level: "DEBUG", Msg: "request"}},
				{s.do(t, call{method: "HEAD", path: "/readyz"}), logLine{Level: "DEBUG", Msg: "request"}},
				{s.do(t, call{method: "DELETE", path: "/readyz"}), logLine{Level: "INFO", Msg: "request"}},
				{s.do(t, call{method: "DELETE", path: "/nowhere?token=" + mark}), logLine{Level: "INFO", Msg: "request"}},
			}
			s.server.Close()
			lines := s.log.lines(t)
			if len(lines) != len(calls) {
				t.Errorf("%d lines for %d requests", len(lines), len(calls))
			}
			for _, c := range calls {
				got := lines[c.a.header.Get("X-Request-Id")]
				if got.Time.IsZero() || got.Duration == nil {
					t.Errorf("line without time or duration: %+v", got)
				}
				c.want.Method, c.want.Path, c.want.Status, c.want.RequestID = c.a.method, c.a.path, c.a.status, c.a.header.Get("X-Request-Id")
				got.Time, got.Duration = time.Time{}, nil
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("line (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestLog_Gone: who hangs up makes no line that somebody is called for, and no
// 5xx in the figures.
func TestLog_Gone(t *testing.T) {
	t.Parallel()
	for name, give := range map[string]func(context.Context) error{
		"Unknown":     func(ctx context.Context) error { return ctx.Err() },
		"Unavailable": func(ctx context.Context) error { return fmt.Errorf("%w: %w", intent.ErrUnavailable, ctx.Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := make(chan struct{})
			statuses := make(chan int, 1)
			s := stores["Memory"](t, setup{
				observer: api.Observer{Request: func(_, _ string, status int, _ time.Duration) { statuses <- status }},
				change: func(p *parts) {
					p.intents = &gate{Store: p.intents, get: func(ctx context.Context) error {
						close(begun)
						<-ctx.Done()
						return give(ctx)
					}}
				},
			})
			ctx, hangUp := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.server.URL+intentsPath+"/pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+alice)
			go func() {
				<-begun
				hangUp()
			}()
			if _, err := s.server.Client().Do(r); !errors.Is(err, context.Canceled) {
				t.Errorf("Do = %v, want context.Canceled", err)
			}
			if got := <-statuses; got != 499 {
				t.Errorf("the status in the figures is %d, want 499", got)
			}
			s.server.Close()
			for _, line := range s.log.lines(t) {
				if line.Status != 499 || line.Level != "INFO" || line.Error != "" {
					t.Errorf("log line = %+v", line)
				}
			}
		})
	}
}

// TestLog_HalfAnAnswer: a panic behind the first byte is told as one, whatever
// status was sent.
func TestLog_HalfAnAnswer(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{})
	broken := httptest.NewRecorder()
	func() {
		defer func() {
			if v := recover(); v != http.ErrAbortHandler { //nolint:errorlint // a panic value, which net/http compares by == too: a wrapped one is not silent
				t.Errorf("panic(%v), want http.ErrAbortHandler", v)
			}
		}()
		s.handler.ServeHTTP(torn{broken}, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	}()
	for _, line := range s.log.lines(t) {
		if line.Status != 200 || line.Level != "ERROR" || !strings.Contains(line.Error, "torn") || line.Stack == "" {
			t.Errorf("log line = %+v", line)
		}
	}
}

// torn is a client that what writes to it panics at.
type torn struct{ http.ResponseWriter }

func (torn) Write([]byte) (int, error) { panic("torn") }

// A request id is the service's own: a client's could be a secret.
func TestLog_RequestID(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{})
	a := s.do(t, call{method: "GET", path: "/healthz", header: []string{"X-Request-Id: " + mark}})
	if got := a.header.Get("X-Request-Id"); strings.Contains(got, mark) {
		t.Errorf("X-Request-Id = %q", got)
	}
}

// TestOpenAPI_Errors: each error that the document shows is one that the
// service gives, word for word.
func TestOpenAPI_Errors(t *testing.T) {
	t.Parallel()
	doc, err := document()
	if err != nil {
		t.Fatal(err)
	}
	g := new(gate)
	s := stores["Memory"](t, setup{change: func(p *parts) { g.Store, p.intents = p.intents, g }})
	// The document's own key: it is no secret, but is not logged either.
	const key = "order-1001"
	s.created(t, call{key: key})
	seen := make(map[string]bool)
	post := doc.Paths.Value(intentsPath).Post
	for name, a := range map[string]*answer{
		"idempotency_key_required":     s.do(t, call{header: []string{"-Idempotency-Key"}}),
		"idempotency_key_invalid":      s.do(t, call{key: strings.Repeat("k", 256)}),
		"body_unreadable":              s.raw(t, head("Idempotency-Key: k", "Content-Length: 9"), true),
		"invalid_json":                 s.do(t, call{body: "{}x"}),
		"invalid_request":              s.do(t, call{body: edit(t, "amount", `"abc"`)}),
		"unauthorized":                 s.do(t, call{token: "x"}),
		"body_too_large":               s.do(t, call{body: strings.Repeat("x", 65_537)}),
		"unsupported_content_encoding": s.do(t, call{header: []string{"Content-Encoding: br"}}),
		"idempotency_key_reused":       s.do(t, call{key: key, body: edit(t, "amount", `"999000000"`)}),
		"unavailable":                  s.failing(t, g, func(context.Context) error { return errors.New("away") }),
		"internal":                     s.failing(t, g, func(context.Context) error { panic("oh") }),
	} {
		seen[name] = true
		if diff := cmp.Diff(exampleOf(t, post, a.status, name), a.problem()); diff != "" {
			t.Errorf("%s (-example +answer):\n%s", name, diff)
		}
	}
	get := doc.Paths.Value(intentsPath + "/{id}").Get
	a := s.do(t, call{method: "GET", path: intentsPath + "/x"})
	if diff := cmp.Diff(exampleOf(t, get, a.status, "not_found"), a.problem()); diff != "" {
		t.Errorf("not_found (-example +answer):\n%s", diff)
	}
	a = s.do(t, call{method: "DELETE", path: "/healthz"})
	if diff := cmp.Diff(exampleOf(t, get, a.status, "method_not_allowed"), a.problem()); diff != "" {
		t.Errorf("method_not_allowed (-example +answer):\n%s", diff)
	}
	seen["not_found"], seen["method_not_allowed"] = true, true
	// Their words are held to the contract's where they can be provoked:
	// TestContract_InFlight and TestContract_Superseded.
	seen["idempotency_key_in_flight"], seen["idempotency_attempt_superseded"] = true, true

	// Those of the other operations.
	item := func(path string) *openapi3.PathItem { return doc.Paths.Value(path) }
	list, steps := item(intentsPath).Get, item(intentsPath+"/{id}/transitions").Post
	location := s.created(t, call{}).header.Get("Location")
	confirming := s.created(t, call{}).header.Get("Location")
	s.moved(t, step(confirming, alice, `{"to":"authorized"}`), "authorized", 2)
	s.moved(t, step(confirming, relayer, `{"to":"settling"}`), "settling", 3)
	noHash := s.do(t, step(confirming, relayer, `{"to":"confirming"}`))
	old := s.do(t, step(confirming, relayer, `{"to":"failed","reason":"r"}`, `If-Match: "2"`))
	s.moved(t, step(confirming, relayer, `{"to":"confirming","tx_hash":"`+hashA+`"}`), "confirming", 4)
	authorized := s.created(t, call{}).header.Get("Location")
	s.moved(t, step(authorized, alice, `{"to":"authorized"}`), "authorized", 2)
	settled := s.created(t, call{}).header.Get("Location")
	s.moved(t, step(settled, alice, `{"to":"authorized"}`), "authorized", 2)
	s.moved(t, step(settled, relayer, `{"to":"settling"}`), "settling", 3)
	s.moved(t, step(settled, relayer, `{"to":"confirming","tx_hash":"`+hashA+`"}`), "confirming", 4)
	s.moved(t, step(settled, listener, `{"to":"settled","tx_hash":"`+hashA+`"}`), "settled", 5)
	limited := stores["Memory"](t, setup{limit: api.RateLimit{PerSecond: 100, Burst: 1}})
	limited.do(t, call{})
	for _, x := range []struct {
		op   *openapi3.Operation
		name string
		a    *answer
	}{
		{list, "invalid_request", s.do(t, call{method: "GET", path: intentsPath + "?limit=0"})},
		{list, "intent_merchant_invalid", s.do(t, call{method: "GET", token: relayer})},
		{list, "rate_limited", limited.untilLimited(t)},
		{post, "forbidden_actor", s.do(t, call{token: relayer, header: forAlice})},
		{steps, "forbidden_actor", s.do(t, step(authorized, alice, `{"to":"settling"}`))},
		{steps, "invalid_request", s.do(t, call{path: location + "/cancel", body: "{}"})},
		{steps, "evidence_required", noHash},
		{steps, "version_conflict", old},
		{steps, "invalid_transition", s.do(t, call{path: settled + "/cancel", body: `{"reason":"r"}`})},
		{steps, "evidence_mismatch", s.do(t, step(confirming, listener, `{"to":"settled","tx_hash":"`+hashB+`"}`))},
		{item(keysPath).Get, "idempotency_key_required", s.do(t, call{method: "GET", path: keysPath})},
		{item(keysPath).Get, "not_found", s.do(t, call{method: "GET", path: keysPath, key: "k"})},
	} {
		seen[x.name] = true
		if diff := cmp.Diff(exampleOf(t, x.op, x.a.status, x.name), x.a.problem()); diff != "" {
			t.Errorf("%s of %s (-example +answer):\n%s", x.name, x.op.OperationID, diff)
		}
	}
	// Its time is different each time: TestTransitions_Expired.
	seen["intent_expired"] = true
	for _, code := range doc.Components.Schemas["Error"].Value.Properties["error"].Value.Enum {
		if !seen[code.(string)] {
			t.Errorf("no test has seen the code %v", code)
		}
	}
}

// untilLimited makes calls until one is refused.
func (s *service) untilLimited(t *testing.T) *answer {
	t.Helper()
	for begun := time.Now(); ; {
		a := s.do(t, call{method: "GET"})
		if a.status == http.StatusTooManyRequests || time.Since(begun) > patience {
			return a
		}
	}
}

// failing makes a call whose create fails.
func (s *service) failing(t *testing.T, g *gate, how func(context.Context) error) *answer {
	t.Helper()
	g.set(how)
	defer g.set(nil)
	return s.do(t, call{})
}

// The store's silence is bounded; 5 s are too long for a test, so that the
// layer's own test of it runs in a bubble. Here the service is held to what it
// does with a store that says no.
func TestContract_StoreAway(t *testing.T) {
	t.Parallel()
	g := new(gate)
	s := stores["Memory"](t, setup{change: func(p *parts) {
		g.Store, p.intents = p.intents, g
		p.keys = away{p.keys}
	}})
	g.set(func(context.Context) error { t.Error("the handler ran"); return nil })
	for range 2 {
		a := s.do(t, call{})
		a.wantProblem(t, http.StatusServiceUnavailable, "unavailable", undecidedDetail)
	}
	s.server.Close()
	for _, line := range s.log.lines(t) {
		if line.Outcome != "" || line.Level != "WARN" || !strings.Contains(line.Error, "connection refused") {
			t.Errorf("log line = %+v", line)
		}
	}
}

// away is an idempotency store that can not be reached.
type away struct{ idempotency.Store }

func (away) Claim(context.Context, idempotency.ID, idempotency.Fingerprint) (idempotency.Claim, error) {
	return idempotency.Claim{}, errors.New("dial tcp: connection refused")
}
