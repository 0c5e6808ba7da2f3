// Package console is what the operators of the service look at: how it has fared
// in the last hour, and what became of a payment intent or an idempotency key,
// whoever its merchant is. It changes nothing.
//
// It is made of pages that are whole when they leave the server: no script, and
// nothing from anywhere else. Only the holder of an API key of role operator gets
// in, and sees what that key can see by the API: a live key live payments, a test
// key those of test keys. A session is one process's; each replica has its own
// console, and its own figures.
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"

	"intentd/internal/apikey"
	"intentd/internal/idempotency"
	"intentd/internal/intent"
	"intentd/internal/metrics"
)

//go:embed pages
var files embed.FS

const (
	// questions is how many requests may ask the stores at a time, so that
	// operators can not take the connections that payments need.
	questions = 2
	// questionTimeout is for all that one request asks, its turn included.
	questionTimeout = 5 * time.Second
	// bodyLimit and bodyTimeout bound a form that is sent.
	bodyLimit   = 4 << 10
	bodyTimeout = 10 * time.Second
	// mostFound is the longest list of intents or keys.
	mostFound = 100
	// mostSteps is how many steps of a trail are on one page.
	mostSteps = 100
)

// Config is what a Console needs. All of it must be set.
type Config struct {
	Authenticator apikey.Authenticator
	Intents       *intent.Service
	Searcher      intent.Searcher
	// Keys is asked across merchants if it is an idempotency.Searcher as well.
	Keys idempotency.Store
	// Snapshot reads the figures of this process.
	Snapshot func() (metrics.Snapshot, error)
	Log      *slog.Logger
	// Replica names this process among several, for people.
	Replica, Version string
}

// Console serves the pages below /console. It is safe for concurrent use.
type Console struct {
	Config
	sessions *sessions
	history  *history
	slots    *semaphore.Weighted
	pages    map[string]*template.Template
	handler  http.Handler
}

// New returns a Console, whose plots stay empty until Run samples the figures.
func New(c Config) *Console {
	con := &Console{
		Config:   c,
		sessions: newSessions(),
		history:  newHistory(time.Now()),
		slots:    semaphore.NewWeighted(questions),
		pages:    make(map[string]*template.Template),
	}
	for _, name := range []string{"login", "overview", "find", "intent", "problem"} {
		con.pages[name] = template.Must(template.New("layout.html").Funcs(functions).
			ParseFS(files, "pages/layout.html", "pages/"+name+".html"))
	}
	con.handler = con.routes()
	return con
}

// ServeHTTP implements http.Handler, for /console and all below it.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.handler.ServeHTTP(w, r) }

// routes is the whole surface.
func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /console/style.css", asset("style.css", "text/css; charset=utf-8"))
	mux.HandleFunc("GET /console/icon.svg", asset("icon.svg", "image/svg+xml"))
	mux.HandleFunc("GET /console/login", c.loginForm)
	mux.HandleFunc("POST /console/login", c.login)
	mux.HandleFunc("POST /console/logout", c.logout)
	mux.Handle("GET /console", c.signedIn(c.overview))
	mux.Handle("GET /console/find", c.signedIn(c.find))
	mux.Handle("GET /console/intents/{merchant}/{id}", c.signedIn(c.intent))
	mux.Handle("GET /console/", c.signedIn(func(w http.ResponseWriter, r *http.Request, s session) {
		c.problem(w, r, &s, http.StatusNotFound, "There is no such page.")
	}))

	// Beside SameSite=Strict, and where a browser keeps no cookie yet: nobody is
	// logged in or out by another site.
	crossOrigin := http.NewCrossOriginProtection()
	crossOrigin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.problem(w, r, nil, http.StatusForbidden, "This form was sent from another site, and nothing was done.")
	}))
	return secured(crossOrigin.Handler(mux))
}

// policy is what a page may do (Content Security Policy, level 3): show its own
// style and pictures and send its own forms. Scripts it has none, so that what is
// taken for one can not run.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secured adds the headers that all answers have. What is shown stays in no cache,
// the back button's of who has logged out included.
func secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cache-Control", "no-store")
		// Not no-referrer, which would have browsers send Origin: null with our own
		// forms (Fetch, "append a request Origin header"). They could not be told
		// from another site's then, where there is no Sec-Fetch-Site: over plain HTTP.
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// asset serves a file that the pages load, to anybody.
func asset(name, contentType string) http.HandlerFunc {
	data, err := files.ReadFile("pages/" + name)
	if err != nil {
		panic(err)
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(data) // an error means that the client is gone
	}
}

// page is what every page is made from.
type page struct {
	Title   string
	Here    string   // the place in the navigation, or ""
	Session *session // nil: nobody is logged in
	Refresh int      // seconds; 0: not by itself
	Replica string
	Version string
	Now     time.Time
	Body    any // the page's own
}

// render answers with a page. It is made before anything is sent, so that a fault
// in making it is a 500.
func (c *Console) render(w http.ResponseWriter, status int, name string, p page) {
	p.Replica, p.Version, p.Now = c.Replica, c.Version, time.Now()
	var b bytes.Buffer
	if err := c.pages[name].Execute(&b, p); err != nil {
		c.Log.Error("console: a page can not be made", "page", name, "error", err)
		http.Error(w, "this page can not be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// problem answers with a page that says what is wrong, in words for people.
func (c *Console) problem(w http.ResponseWriter, r *http.Request, s *session, status int, says string) {
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if s == nil {
		// Who comes with a good cookie keeps the navigation.
		if known, ok := c.sessions.peek(r); ok {
			s = &known
		}
	}
	c.render(w, status, "problem", page{Title: http.StatusText(status), Session: s, Body: says})
}

// fail answers where a store could not.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, s session, err error) {
	if errors.Is(err, errBusy) {
		c.problem(w, r, &s, http.StatusServiceUnavailable, "The console answers "+
			"two questions at a time, and others were first. Try again.")
		return
	}
	if r.Context().Err() == nil {
		c.Log.Warn("console: no answer from the store", "path", r.URL.Path, "error", err)
	}
	c.problem(w, r, &s, http.StatusServiceUnavailable, "The data could not be read: it can not be reached, or the search took longer than "+
		"two seconds and was ended. The log says which. A search that names the merchant is the quickest.")
}

var errBusy = errors.New("other questions are being answered")

// asking calls do when it is its turn to ask the stores, with a context that bounds
// it. Without a turn it returns errBusy.
func (c *Console) asking(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, questionTimeout)
	defer cancel()
	if c.slots.Acquire(ctx, 1) != nil {
		return errBusy
	}
	defer c.slots.Release(1)
	return do(ctx)
}
