//go:build browser

package console_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"intentd/internal/idempotency"
	"intentd/internal/metrics"
)

// patience is how long a browser may take for what it does in a moment.
const patience = 30 * time.Second

// browser is a headless Chromium, which takes commands through a pipe: the Chrome
// DevTools Protocol (https://chromedevtools.github.io/devtools-protocol/), each
// message JSON and a NUL.
type browser struct {
	in *os.File

	mu      sync.Mutex
	last    int
	waiting map[int]chan reply
	events  chan event
	closed  chan struct{}
}

type reply struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

type event struct {
	SessionID string
	Method    string
	Params    json.RawMessage
}

// startBrowser runs Debian's Chromium, or the one that CHROMIUM names. Where there
// is none the test fails: who asks for these tests has it.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	program := os.Getenv("CHROMIUM")
	if program == "" {
		program = "chromium"
	}
	toBrowser, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, fromBrowser, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--hide-scrollbars", "--user-data-dir="+t.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // descriptors 3 and 4
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("these tests need Chromium (apt-get install chromium), or its path in CHROMIUM: %v", err)
	}
	_ = toBrowser.Close()
	_ = fromBrowser.Close()
	b := &browser{in: in, waiting: make(map[int]chan reply), events: make(chan event, 1000), closed: make(chan struct{})}
	t.Cleanup(func() {
		// It closes itself, its helpers and its profile in order; the pipe's end
		// would have it do the same.
		_, _ = in.WriteString(`{"id":1000000,"method":"Browser.close"}` + "\x00")
		select {
		case <-b.closed:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
		}
		_ = cmd.Wait()
		_ = in.Close()
		_ = out.Close()
	})
	go b.read(out)
	return b
}

func (b *browser) read(out *os.File) {
	defer close(b.closed)
	r := bufio.NewReader(out)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID int
			event
			reply
		}
		if json.Unmarshal(bytes.TrimRight(text, "\x00"), &m) != nil {
			continue
		}
		if m.ID == 0 {
			b.events <- m.event
			continue
		}
		b.mu.Lock()
		waiting, ok := b.waiting[m.ID]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		if ok {
			waiting <- m.reply
		}
	}
}

// call sends a command and decodes its result.
func (b *browser) call(t *testing.T, session, method string, params any, result any) {
	t.Helper()
	answered := make(chan reply, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.waiting[id] = answered
	b.mu.Unlock()
	message := map[string]any{"id": id, "method": method, "params": params}
	if session != "" {
		message["sessionId"] = session
	}
	text, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-answered:
		if r.Error != nil {
			t.Fatalf("%s: %s", method, r.Error.Message)
		}
		if result != nil {
			if err := json.Unmarshal(r.Result, result); err != nil {
				t.Fatalf("%s: %v", method, err)
			}
		}
	case <-b.closed:
		t.Fatalf("%s: the browser has ended", method)
	case <-time.After(patience):
		t.Fatalf("%s: no answer", method)
	}
}

// tab is a page of the browser's, with cookies of its own.
type tab struct {
	*browser
	session string
}

func (b *browser) newTab(t *testing.T) *tab {
	t.Helper()
	var of struct{ BrowserContextID, TargetID, SessionID string }
	b.call(t, "", "Target.createBrowserContext", map[string]any{}, &of)
	b.call(t, "", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": of.BrowserContextID}, &of)
	b.call(t, "", "Target.attachToTarget", map[string]any{"targetId": of.TargetID, "flatten": true}, &of)
	p := &tab{b, of.SessionID}
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		p.do(t, domain+".enable", map[string]any{})
	}
	return p
}

func (p *tab) do(t *testing.T, method string, params map[string]any) {
	t.Helper()
	p.call(t, p.session, method, params, nil)
}

// look sets how wide the window is, and whether its reader likes it dark.
func (p *tab) look(t *testing.T, wide int, scheme string) {
	t.Helper()
	p.do(t, "Emulation.setDeviceMetricsOverride", map[string]any{"width": wide, "height": 800, "deviceScaleFactor": 1, "mobile": wide < 500})
	p.do(t, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
}

// loads runs do and waits for the page that it leads to. Everything that the
// browser complains of meanwhile fails the test.
func (p *tab) loads(t *testing.T, do func()) {
	t.Helper()
	do()
	deadline := time.After(patience)
	for {
		select {
		case e := <-p.events:
			switch {
			case e.SessionID != p.session:
			case e.Method == "Page.loadEventFired":
				return
			case e.Method == "Log.entryAdded" && bytes.Contains(e.Params, []byte("status of 400")): // what is asked for
			case e.Method == "Log.entryAdded", e.Method == "Runtime.exceptionThrown", e.Method == "Runtime.consoleAPICalled",
				e.Method == "Network.loadingFailed":
				t.Errorf("the browser complains: %s %s", e.Method, e.Params)
			}
		case <-p.closed:
			t.Fatal("the browser has ended")
		case <-deadline:
			t.Fatal("the page does not load")
		}
	}
}

func (p *tab) open(t *testing.T, url string) {
	t.Helper()
	p.loads(t, func() { p.do(t, "Page.navigate", map[string]any{"url": url}) })
}

// eval returns the value of an expression, which the browser and not the page
// computes: the page has no script, and may have none.
func eval[T any](t *testing.T, p *tab, expression string) T {
	t.Helper()
	var r struct {
		Result           struct{ Value T }
		ExceptionDetails *struct{ Text string }
	}
	p.call(t, p.session, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		t.Fatalf("%s: %s", expression, r.ExceptionDetails.Text)
	}
	return r.Result.Value
}

// submit fills in fields and sends the form that the button belongs to.
func (p *tab) submit(t *testing.T, button string, fields map[string]string) {
	t.Helper()
	for selector, value := range fields {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		eval[any](t, p, fmt.Sprintf("void(document.querySelector(%q).value = %s)", selector, text))
	}
	p.loads(t, func() { eval[any](t, p, fmt.Sprintf("document.querySelector(%q).click()", button)) })
}

// shot keeps a picture of the whole page where SCREENSHOTS names a directory.
func (p *tab) shot(t *testing.T, name string) {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return
	}
	var r struct{ Data string }
	p.call(t, p.session, "Page.captureScreenshot", map[string]any{"captureBeyondViewport": true}, &r)
	data, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, name+".png"), data, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// pastHour is a made-up hour: a day's rise, a burst of errors, and a gap.
func pastHour(f *fixture) {
	random := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	f.console.Began(now.Add(-26 * time.Hour))
	s := metrics.Snapshot{
		Requests: map[string]float64{}, Claims: map[string]float64{}, Undone: map[string]float64{}, Moved: map[string]float64{},
		Ready: true,
	}
	bounds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, math.Inf(1)}
	for i := range 241 {
		minute := float64(i) / 4
		rate := 40 + 25*math.Sin(minute/14) + 6*random.Float64()
		n := rate * 15
		grow := func(of map[string]float64, name string, by float64) map[string]float64 {
			next := make(map[string]float64)
			for k, v := range of {
				next[k] = v
			}
			next[name] += math.Round(by)
			return next
		}
		bad := 0.0
		if minute > 31 && minute < 35 {
			bad = .12
		}
		s.At = now.Add(time.Duration(i-240) * 15 * time.Second)
		s.Requests = grow(grow(grow(s.Requests, "2xx", n*(.95-bad)), "4xx", n*.05), "5xx", n*bad)
		s.Claims = grow(grow(grow(grow(s.Claims, "fresh", n*.6), "replay", n*.06), "in_flight", n*.01), "error", n*bad)
		s.Moved = grow(grow(grow(grow(s.Moved, "created", n*.5), "authorized", n*.4), "settled", n*.38), "canceled", n*.05)
		s.Undone = grow(grow(s.Undone, "store", n*bad/9), "superseded", bad*random.Float64()*9)
		h := metrics.Histogram{Count: s.Creates.Count + n*.5, Buckets: make([]metrics.Bucket, len(bounds))}
		for j, bound := range bounds {
			share := math.Min(1, math.Pow(float64(j+1)/9, 3-bad*12))
			if math.IsInf(bound, 1) {
				share = 1
			}
			h.Buckets[j] = metrics.Bucket{Bound: bound, Count: n * .5 * share}
			if j < len(s.Creates.Buckets) {
				h.Buckets[j].Count += s.Creates.Buckets[j].Count
			}
		}
		s.Creates = h
		lag := time.Duration(max(0, 2+2*math.Sin(minute/3)+random.Float64()) * float64(time.Second))
		if i%3 == 0 {
			lag = 0
		}
		s.Lag = map[string]time.Duration{"cancel_expired_intents": lag, "delete_expired_idempotency_keys": lag / 3}
		used := math.Round(3 + rate/12 + bad*90*random.Float64())
		old := metrics.Pool{}
		if s.Pool != nil {
			old = *s.Pool
		}
		s.Pool = &metrics.Pool{Acquired: math.Min(20, used), Idle: 20 - math.Min(20, used), Max: 20, Acquires: old.Acquires + n,
			Waits: old.Waits + math.Round(bad*60), Wait: old.Wait + time.Duration(bad*60)*7*time.Millisecond}
		s.Limited += math.Round(bad * 20)
		s.Groups = metrics.Histogram{Count: s.Groups.Count + n/9, Sum: s.Groups.Sum + n*.6, Buckets: []metrics.Bucket{{Bound: 1, Count: 1}}}
		if i < 70 || i > 76 {
			f.console.Remember(s)
		}
	}
	f.present = func() (metrics.Snapshot, error) {
		now := s
		now.At = time.Now()
		if f.away.Load() {
			now.Ready, now.Lag, now.Why = false, nil, errors.New("failed to connect to `user=intentd_service database=intentd`:\n"+
				"\t10.20.30.40:5432 (db1.payments.example): dial error: dial tcp 10.20.30.40:5432: connect: connection refused\n"+strings.Repeat("and_so_on", 30))
		}
		return now, nil
	}
}

// pastMinutes is a process that has just begun, where little happens.
func pastMinutes(f *fixture) {
	now := time.Now()
	f.console.Began(now.Add(-7 * time.Minute))
	for i := range 28 {
		n := float64(i)
		s := metrics.Snapshot{
			At: now.Add(time.Duration(i-27) * 15 * time.Second), Ready: true,
			Requests: map[string]float64{"2xx": 3 * n, "5xx": math.Floor(n / 9)},
			Claims:   map[string]float64{"fresh": 40 * n, "error": math.Floor(n / 9)},
			Creates:  metrics.Histogram{Count: n, Buckets: []metrics.Bucket{{Bound: 5, Count: math.Floor(n * .9)}, {Bound: 10, Count: n}, {Bound: math.Inf(1), Count: n}}},
		}
		if i < 10 {
			s.Lag = map[string]time.Duration{"cancel_expired_intents": 0}
		}
		f.console.Remember(s)
		f.present = func() (metrics.Snapshot, error) { return s, nil }
	}
}

// TestConsole_Browser goes through the console as an operator does, in a wide
// window and in a narrow one, by day and by night. The pictures, which
// SCREENSHOTS=directory keeps, are for people to look at.
func TestConsole_Browser(t *testing.T) {
	t.Parallel()
	f := newFixture(t, postgres(t))
	pastHour(f)
	const evil = `<script>alert('x')</script>`
	id := f.create(t, merchantKey, `,"reference":"order-1001","metadata":{"cart":"7","note":"<b>bold</b> & 'quoted'"}`, "Idempotency-Key: order-1001")
	f.settle(t, id)
	f.create(t, otherKey, `,"reference":"order-1001"`, "Idempotency-Key: order-1001")
	f.create(t, merchantKey, `,"reference":"order-1001"`)
	evilID := f.create(t, merchantKey, `,"reference":"`+evil+`","metadata":{"`+evil+`":"<img src=x onerror=alert(1)>","long":"`+strings.Repeat("no-blank", 60)+`"}`)
	server := httptest.NewServer(f.console)
	t.Cleanup(server.Close)
	g := newFixture(t, memory())
	pastMinutes(g)
	young := httptest.NewServer(g.console)
	t.Cleanup(young.Close)
	claim, err := f.keys.Claim(t.Context(), idempotency.ID{Scope: "shop-1", Key: "refused"}, idempotency.Fingerprint{1})
	if err != nil {
		t.Fatal(err)
	}
	if err := claim.Attempt.Complete(t.Context(), idempotency.Response{Status: 409, Body: []byte(`{"error":"invalid_transition"}`)}); err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t)

	for _, wide := range []int{1280, 375} {
		for _, scheme := range []string{"light", "dark"} {
			name := fmt.Sprintf("%d-%s", wide, scheme)
			p := b.newTab(t)
			p.look(t, wide, scheme)
			see := func(what string, texts ...string) {
				t.Helper()
				text := eval[string](t, p, "document.body.innerText")
				for _, want := range texts {
					if !strings.Contains(text, want) {
						t.Errorf("%s, %s: no %q in %q", name, what, want, text)
					}
				}
				judgePage(t, p, name+", "+what, wide)
				p.shot(t, name+"-"+what)
			}
			p.open(t, server.URL+"/console/find?q=order-1001")
			see("login", "Log in", "API key")
			p.submit(t, "main button", map[string]string{"#key": operatorKey})
			see("found", "Intents with this reference", id.String(), "shop-2", "What this idempotency key has produced")
			p.open(t, server.URL+"/console")
			see("overview", "Overview", "Requests by status", "Sweeper lag", "ready", "machine-1")
			f.away.Store(true)
			p.open(t, server.URL+"/console")
			f.away.Store(false)
			see("away", "not ready", "dial tcp 10.20.30.40:5432: connect: connection refused", "unknown")
			p.open(t, young.URL+"/console")
			p.submit(t, "main button", map[string]string{"#key": operatorKey})
			see("young", "The last 7 min", "requests a minute", "over 5000", "None where it was told.")
			p.open(t, server.URL+"/console/find")
			see("find", "Look for")
			p.submit(t, "main button", map[string]string{"#q": "pi_12"})
			see("hint", "Not looked for as an id")
			p.submit(t, "main button", map[string]string{"#q": "pi_12", "#as": "id"})
			see("wrong", "This is no id")
			p.submit(t, "main button", map[string]string{"#q": id.String(), "#as": ""})
			see("intent", "Timeline", "block 1234 is no longer there", "order-1001", "settled")
			p.open(t, server.URL+"/console/intents/shop-1/"+evilID.String())
			see("evil", evil, "<img src=x onerror=alert(1)>")
			p.open(t, server.URL+"/console/find?as=key&q=nobody")
			see("nothing", "No record lives under this key")
			p.open(t, server.URL+"/console/find?as=key&q=refused")
			see("refused", "the record does not tell which")
			p.submit(t, ".who button", nil)
			see("logged-out", "Log in")
		}
	}
}

// judgePage holds a page to what can be computed of its looks: it is no wider than
// its window, every text stands out from its ground, and every control has a name
// and is large enough to hit.
func judgePage(t *testing.T, p *tab, what string, wide int) {
	t.Helper()
	if got := eval[int](t, p, "document.documentElement.scrollWidth"); got > wide {
		t.Errorf("%s: %d pixels wide: %s", what, got, eval[string](t, p, `[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.wide')).map(e => e.tagName + '.' + e.className).slice(0, 5).join(' ')`))
	}
	for _, complaint := range eval[[]string](t, p, judgement) {
		t.Errorf("%s: %s", what, complaint)
	}
}

const judgement = `(() => {
  const bad = [];
  const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
  const rgb = s => s.match(/[\d.]+/g).map(Number);
  const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const contrast = (a, b) => { const [x, y] = [light(a.slice(0, 3)), light(b.slice(0, 3))].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    const box = e.getBoundingClientRect();
    if (own && box.width > 1 && !e.closest('svg')) {
      const c = contrast(rgb(getComputedStyle(e).color), ground(e));
      if (c < 4.5) bad.push('contrast ' + c.toFixed(2) + ' of "' + e.textContent.trim().slice(0, 40) + '"');
    }
    if (e.matches('path.line')) {
      const c = contrast(rgb(getComputedStyle(e).stroke), ground(e));
      if (c < 3) bad.push('contrast ' + c.toFixed(2) + ' of the line ' + e.getAttribute('class'));
    }
    if (e.matches('input:not([type=hidden]), select, button, summary') && box.height < 24 && box.height > 0 && !e.matches('summary')) bad.push('small: ' + e.outerHTML.slice(0, 80));
    if (e.matches('input:not([type=hidden]), select') && !e.labels.length) bad.push('no label: ' + e.outerHTML.slice(0, 80));
    if (e.matches('th') && !e.textContent.trim()) bad.push('an empty heading of a table');
    if (e.matches('svg[role=img]') && !e.getAttribute('aria-label')) bad.push('a picture without words');
    if (e.matches('script')) bad.push('a script');
    if (e.matches('.along span')) {
      const text = document.createRange();
      text.selectNodeContents(e);
      const [a, b] = [text.getBoundingClientRect(), e.parentElement.getBoundingClientRect()];
      if (a.left < b.left - 1 || a.right > b.right + 1) bad.push('a label beside its axis: ' + e.textContent);
      const next = e.nextElementSibling;
      if (next) {
        text.selectNodeContents(next);
        if (text.getBoundingClientRect().left < a.right + 2) bad.push('labels that touch: ' + e.textContent + ', ' + next.textContent);
      }
    }
  }
  const heads = [...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1]);
  if (heads.filter(h => h === 1).length !== 1) bad.push(heads.filter(h => h === 1).length + ' headings of the first level');
  heads.reduce((a, b) => { if (b > a + 1) bad.push('a heading of level ' + b + ' below one of ' + a); return b; }, 0);
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  if (new Set(ids).size !== ids.length) bad.push('an id twice');
  if (document.documentElement.lang !== 'en') bad.push('no language');
  return bad;
})()`
