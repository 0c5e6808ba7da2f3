package client_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// faults are what the proxy does to a request, each as often as it says, in a
// thousand.
var faults = []struct {
	name  string
	often int
	do    func(p *proxy, x *exchange)
}{
	{"drops the request", 70, func(_ *proxy, x *exchange) { x.hangUp() }},
	{"drops the request in its body", 40, func(p *proxy, x *exchange) {
		// The service waits for the rest until the connection falls.
		p.half(x)
		x.hangUp()
	}},
	{"delays the request past the client's patience", 40, func(p *proxy, x *exchange) {
		// It arrives when the client has long sent it again.
		p.later(x, 2*patience)
		x.silence()
	}},
	{"drops the answer", 70, func(p *proxy, x *exchange) { p.forward(x); x.hangUp() }},
	{"delays the answer past the client's patience", 40, func(p *proxy, x *exchange) { p.forward(x); x.silence() }},
	{"cuts the answer in its header", 50, func(p *proxy, x *exchange) {
		x.raw(p.forward(x), func(head, _ string) string { return head[:len(head)/2] })
	}},
	{"cuts the answer in its body", 50, func(p *proxy, x *exchange) {
		x.raw(p.forward(x), func(head, body string) string {
			return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(body), body[:len(body)/2])
		})
	}},
	{"cuts the answer between two chunks", 50, func(p *proxy, x *exchange) {
		x.raw(p.forward(x), func(head, body string) string {
			return fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", head, len(body)/2, body[:len(body)/2])
		})
	}},
	{"cuts the answer where nothing tells its length", 50, func(p *proxy, x *exchange) {
		x.raw(p.forward(x), func(head, body string) string { return head + "Connection: close\r\n\r\n" + body[:len(body)/2] })
	}},
	{"answers 502 itself", 40, func(_ *proxy, x *exchange) { http.Error(x.w, "<html>bad gateway</html>", http.StatusBadGateway) }},
	{"answers 504 itself, though the service has answered", 40, func(p *proxy, x *exchange) {
		p.forward(x)
		http.Error(x.w, "<html>gateway timeout</html>", http.StatusGatewayTimeout)
	}},
	{"sends the request twice", 10, func(p *proxy, x *exchange) { p.later(x, 0); x.answer(p.forward(x)) }},
}

// patience is how long the client of the trial waits for an answer.
const patience = 250 * time.Millisecond

// proxy stands between the client and the service, and is as bad as a network can
// be. What it does depends on the seed, the payment and how often it has seen it,
// and not on which of them comes first: a seed is a trial that can be repeated.
type proxy struct {
	t       *testing.T
	seed    uint64
	service string // host:port
	http    http.Client

	mu    sync.Mutex
	seen  map[string]int // by reference
	did   map[string]int // by fault
	after sync.WaitGroup // requests that are still on their way
}

func newProxy(t *testing.T, seed uint64, service string) (*proxy, string) {
	t.Helper()
	p := &proxy{t: t, seed: seed, service: service, seen: make(map[string]int), did: make(map[string]int),
		http: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	s := httptest.NewServer(p)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		p.after.Wait()
		p.http.CloseIdleConnections()
	})
	return p, s.URL
}

// exchange is one request on its way through.
type exchange struct {
	w    http.ResponseWriter
	r    *http.Request
	body []byte
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	x := &exchange{w, r, body}
	var payment struct{ Reference string }
	_ = json.Unmarshal(body, &payment) // a GET has none
	p.mu.Lock()
	p.seen[payment.Reference]++
	nth := p.seen[payment.Reference]
	p.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprintf(h, "%s %s %d", r.Method, payment.Reference, nth)
	draw := rand.New(rand.NewPCG(p.seed, h.Sum64())).IntN(1000)
	for _, f := range faults {
		if draw -= f.often; draw < 0 {
			p.mu.Lock()
			p.did[f.name]++
			p.mu.Unlock()
			f.do(p, x)
			return
		}
	}
	x.answer(p.forward(x))
}

// request is x's, for the service.
func (p *proxy) request(x *exchange) *http.Request {
	r, err := http.NewRequest(x.r.Method, "http://"+p.service+x.r.URL.RequestURI(), io.MultiReader(bytes.NewReader(x.body)))
	if err != nil {
		panic(err)
	}
	r.ContentLength = int64(len(x.body))
	r.Header = x.r.Header.Clone()
	return r
}

// reply is an answer of the service's.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// forward sends the request to the service and reads its answer.
func (p *proxy) forward(x *exchange) reply {
	resp, err := p.http.Do(p.request(x))
	if err != nil {
		p.t.Errorf("between proxy and service: %v", err)
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Errorf("between proxy and service: %v", err)
	}
	return reply{resp.StatusCode, resp.Header, body}
}

// later sends the request once more after a while, when nobody waits for it.
func (p *proxy) later(x *exchange, after time.Duration) {
	copied := &exchange{r: x.r.Clone(x.r.Context()), body: x.body}
	p.after.Go(func() {
		time.Sleep(after)
		p.forward(copied)
	})
}

// half sends the beginning of the request to the service and hangs up.
func (p *proxy) half(x *exchange) {
	conn, err := net.Dial("tcp", p.service)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer conn.Close()
	var text bytes.Buffer
	if err := p.request(x).Write(&text); err != nil {
		p.t.Error(err)
	}
	_, _ = conn.Write(text.Bytes()[:text.Len()-len(x.body)/2])
}

func (x *exchange) answer(r reply) {
	maps.Copy(x.w.Header(), r.header)
	x.w.WriteHeader(r.status)
	_, _ = x.w.Write(r.body)
}

// hangUp ends the connection without a word.
func (x *exchange) hangUp() { panic(http.ErrAbortHandler) }

// silence says nothing until the client has gone.
func (x *exchange) silence() {
	<-x.r.Context().Done()
	x.hangUp()
}

// raw writes what is left of an answer, and ends the connection. cut is given the
// answer's head, without what tells its length and its end, and its body.
func (x *exchange) raw(r reply, cut func(head, body string) string) {
	conn, w, err := x.w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	var head strings.Builder
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\n", r.status, http.StatusText(r.status))
	if err := r.header.WriteSubset(&head, map[string]bool{"Content-Length": true}); err != nil {
		panic(err)
	}
	_, _ = w.WriteString(cut(head.String(), string(r.body)))
	_ = w.Flush()
}

// tally is how often the proxy did what.
func (p *proxy) tally(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.did)) {
		t.Logf("%5d times the proxy %s", p.did[name], name)
	}
	for _, f := range faults {
		if p.did[f.name] == 0 {
			t.Errorf("the proxy never %s", f.name)
		}
	}
}
