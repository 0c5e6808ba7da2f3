package console

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"intentd/internal/apikey"
	"intentd/internal/secret"
)

const (
	// longest is how long a session lasts, and idle how long without a request
	// that somebody made.
	longest = 8 * time.Hour
	idle    = time.Hour
	// mostSessions bounds the memory. Who makes one more ends the one that was
	// used least recently: only who holds a key can.
	mostSessions = 100
	// idBytes is the length of a session's name, of random bits.
	idBytes = 32
)

// session is what is known of who has logged in.
type session struct {
	apikey.Holder
	token secret.Text // asked about again with each request
	since time.Time
	used  time.Time
}

// Test says whether the payments that are shown are those of test keys.
func (s session) Test() bool { return s.Mode == apikey.Test }

// account is what a merchant's payment intents are kept under, as the session may
// see them. No merchant's name has a colon.
func (s session) account(merchant string) string {
	if s.Test() {
		return testPrefix + merchant
	}
	return merchant
}

const testPrefix = "test:"

// with and without are what the names of the accounts that the session may see
// have and have not.
func (s session) with() string {
	if s.Test() {
		return testPrefix
	}
	return ""
}

func (s session) without() string {
	if s.Test() {
		return ""
	}
	return testPrefix
}

// sessions are those of this process, by the digest of the name that the browser
// keeps in its cookie: who reads the memory's keys can not use them.
type sessions struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*session
}

func newSessions() *sessions {
	return &sessions{all: make(map[[sha256.Size]byte]*session)}
}

// begin keeps a new session and returns its name, which is new and random each
// time, so that nobody can log in another into a session that he knows.
func (s *sessions) begin(h apikey.Holder, token secret.Text) (id string) {
	var b [idBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	id = base64.RawURLEncoding.EncodeToString(b[:])
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for digest, old := range s.all {
		if old.over(now) {
			delete(s.all, digest)
		}
	}
	if len(s.all) >= mostSessions {
		var last [sha256.Size]byte
		var oldest *session
		for digest, old := range s.all {
			if oldest == nil || old.used.Before(oldest.used) {
				last, oldest = digest, old
			}
		}
		delete(s.all, last)
	}
	s.all[sha256.Sum256([]byte(id))] = &session{Holder: h, token: token, since: now, used: now}
	return id
}

func (s *session) over(now time.Time) bool {
	return now.Sub(s.since) >= longest || now.Sub(s.used) >= idle
}

// peek returns the session that the request's cookie names, if it lasts, and does
// not count as a use of it.
func (s *sessions) peek(r *http.Request) (session, bool) { return s.get(r, false) }

func (s *sessions) get(r *http.Request, use bool) (session, bool) {
	digest, ok := digestOf(r)
	if !ok {
		return session{}, false
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	found, ok := s.all[digest]
	if !ok {
		return session{}, false
	}
	if found.over(now) {
		delete(s.all, digest)
		return session{}, false
	}
	if use {
		found.used = now
	}
	return *found, true
}

// end ends the session that the request's cookie names.
func (s *sessions) end(r *http.Request) {
	if digest, ok := digestOf(r); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, digest)
	}
}

func digestOf(r *http.Request) ([sha256.Size]byte, bool) {
	cookie, err := r.Cookie(cookieName(r))
	if err != nil {
		return [sha256.Size]byte{}, false
	}
	return sha256.Sum256([]byte(cookie.Value)), true
}

// cookieName has the port that the browser went to. Cookies do not tell ports
// apart (RFC 6265, section 8.5), and of several replicas on one machine each has
// sessions of its own.
func cookieName(r *http.Request) string {
	const name = "intentd_console"
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil || strings.Trim(port, "0123456789") != "" {
		return name
	}
	return name + "_" + port
}

// setCookie gives the browser its session's name, or takes it away where id is
// empty. It forgets it by itself when it is closed.
func setCookie(w http.ResponseWriter, r *http.Request, id string) {
	cookie := &http.Cookie{ //nolint:gosec // Secure depends on how the request came, see below
		Name: cookieName(r), Value: id, Path: "/console",
		HttpOnly: true, SameSite: http.SameSiteStrictMode,
		// A proxy that ends TLS says so. Over plain HTTP a browser would not keep it.
		Secure: r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https"),
	}
	if id == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}

// signedIn serves who has a session, and sends the others to log in. The key is
// asked about each time, so that one which is revoked ends its sessions within the
// 5 s that its requests to the API last.
func (c *Console) signedIn(serve func(http.ResponseWriter, *http.Request, session)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// A page that calls itself again does not keep its session alive.
		s, ok := c.sessions.get(r, !r.URL.Query().Has("refresh"))
		if !ok {
			toLogin(w, r)
			return
		}
		holder, ok, err := c.Authenticator.Authenticate(r.Context(), s.token)
		switch {
		case err != nil:
			c.Log.Warn("console: the key can not be checked", "error", err)
			c.problem(w, r, nil, http.StatusServiceUnavailable, "Your key can not be checked now. Try again.")
		case !ok || holder != s.Holder:
			c.Log.Info("console: a session ends with its key", "operator", s.Merchant)
			c.sessions.end(r)
			toLogin(w, r)
		default:
			serve(w, r, s)
		}
	})
}

func toLogin(w http.ResponseWriter, r *http.Request) {
	to := "/console/login"
	if next := r.URL.RequestURI(); next != "/console" {
		to += "?" + url.Values{"next": {next}}.Encode()
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// within returns a page of the console's to go to after the login, whatever is
// asked for: nobody is led elsewhere, nor to the login again.
func within(next string) string {
	const overview = "/console"
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || u.Opaque != "" || strings.ContainsAny(next, "\\\r\n\t") {
		return overview
	}
	if path.Clean(u.Path) != u.Path {
		return overview
	}
	if u.Path == overview || u.Path == overview+"/find" || strings.HasPrefix(u.Path, overview+"/intents/") {
		u.Fragment = ""
		return u.String()
	}
	return overview
}

// loginPage is the form, and what is wrong with the last try.
type loginPage struct{ Next, Wrong string }

// loginForm serves GET /console/login.
func (c *Console) loginForm(w http.ResponseWriter, r *http.Request) {
	next := within(r.URL.Query().Get("next"))
	if _, ok := c.sessions.peek(r); ok {
		http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // within has seen to it that it stays here
		return
	}
	c.render(w, http.StatusOK, "login", page{Title: "Log in", Body: loginPage{Next: next}})
}

// login serves POST /console/login. The key is in the body, and is told to nobody
// but the authenticator.
func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	// Neither fails on a server of net/http's.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
	if err := r.ParseForm(); err != nil {
		c.refuse(w, http.StatusBadRequest, "/console", "The form could not be read.")
		return
	}
	token, next := secret.New(strings.TrimSpace(r.PostForm.Get("key"))), within(r.PostForm.Get("next"))
	if token.Empty() {
		c.refuse(w, http.StatusBadRequest, next, "Enter an API key of role operator.")
		return
	}
	holder, ok, err := c.Authenticator.Authenticate(r.Context(), token)
	switch {
	case err != nil:
		c.Log.Warn("console: a key can not be checked", "error", err)
		w.Header().Set("Retry-After", "1")
		c.refuse(w, http.StatusServiceUnavailable, next, "The key can not be checked now. Try again.")
	case !ok:
		c.Log.Info("console: a login is refused", "reason", "unknown key")
		c.refuse(w, http.StatusUnauthorized, next, "There is no such API key, or it has been revoked.")
	case holder.Role != apikey.Operator:
		c.Log.Info("console: a login is refused", "reason", "role", "merchant", holder.Merchant, "role", string(holder.Role))
		c.refuse(w, http.StatusForbidden, next, "This key is of role "+string(holder.Role)+". The console is open to keys of role operator only.")
	default:
		c.sessions.end(r)
		setCookie(w, r, c.sessions.begin(holder, token))
		c.Log.Info("console: logged in", "operator", holder.Merchant, "mode", string(holder.Mode))
		http.Redirect(w, r, next, http.StatusSeeOther) //nolint:gosec // within has seen to it that it stays here
	}
}

// refuse shows the form again.
func (c *Console) refuse(w http.ResponseWriter, status int, next, wrong string) {
	if status == http.StatusUnauthorized {
		// RFC 9110, section 15.5.2: a 401 must say how to authenticate.
		w.Header().Set("WWW-Authenticate", `Form realm="intentd console"`)
	}
	c.render(w, status, "login", page{Title: "Log in", Body: loginPage{Next: next, Wrong: wrong}})
}

// logout serves POST /console/logout.
func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	if s, ok := c.sessions.peek(r); ok {
		c.Log.Info("console: logged out", "operator", s.Merchant)
	}
	c.sessions.end(r)
	setCookie(w, r, "")
	http.Redirect(w, r, "/console/login", http.StatusSeeOther)
}
