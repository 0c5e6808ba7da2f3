package console_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"intentd/internal/apikey"
	"intentd/internal/console"
	"intentd/internal/secret"
)

func TestConsole_Login(t *testing.T) {
	t.Parallel()

	t.Run("Operator", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, memory())
		a := f.tryLogIn("  " + operatorKey + "\n") // as it is pasted
		if a.status != http.StatusSeeOther || a.header.Get("Location") != "/console" {
			t.Errorf("%d to %q", a.status, a.header.Get("Location"))
		}
		c := cookieOf(t, a)
		if len(c.Value) != 43 || c.Name != "intentd_console_9090" || c.Path != "/console" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Domain != "" || c.MaxAge != 0 {
			t.Errorf("cookie %+v", c)
		}
		f.cookie = c
		f.wantPage(t, "/console", http.StatusOK, "<h1>Overview</h1>", "desk", "machine-1, 127.0.0.1:8080", "v1.2.3")
		if a := f.get("/console/login?next=/console/find"); a.status != http.StatusSeeOther || a.header.Get("Location") != "/console/find" {
			t.Errorf("the form, for who is in: %d to %q", a.status, a.header.Get("Location"))
		}
	})

	t.Run("Refused", func(t *testing.T) {
		t.Parallel()
		for name, tt := range map[string]struct {
			key    string
			status int
			says   string
		}{
			"Unknown":  {"no-such-secret-token", http.StatusUnauthorized, "There is no such API key"},
			"Merchant": {merchantKey, http.StatusForbidden, "This key is of role api. The console is open to keys of role operator only."},
			"Relayer":  {relayerKey, http.StatusForbidden, "This key is of role relayer."},
			"Listener": {listenerKey, http.StatusForbidden, "This key is of role listener."},
			"None":     {"", http.StatusBadRequest, "Enter an API key"},
			"Markup":   {"<b>secret-token</b>", http.StatusUnauthorized, "There is no such API key"},
			"TooLong":  {strings.Repeat("x", 5000), http.StatusBadRequest, "The form could not be read."},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t, memory())
				a := f.tryLogIn(tt.key)
				if a.status != tt.status || !strings.Contains(a.body, tt.says) || a.header.Get("Set-Cookie") != "" || f.console.Sessions() != 0 {
					t.Errorf("%d, cookie %q: %s", a.status, a.header.Get("Set-Cookie"), a.body)
				}
				if (a.header.Get("WWW-Authenticate") != "") != (tt.status == http.StatusUnauthorized) {
					t.Errorf("WWW-Authenticate: %q", a.header.Get("WWW-Authenticate"))
				}
				if strings.Contains(a.body+f.log.String(), "secret-token") {
					t.Errorf("the key is told: %s\n%s", a.body, f.log)
				}
			})
		}
	})

	t.Run("CanNotTell", func(t *testing.T) {
		t.Parallel()
		s := memory()
		s.auth = failing{}
		f := newFixture(t, s)
		if a := f.tryLogIn(operatorKey); a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1" || strings.Contains(a.body, "cause") {
			t.Errorf("%d: %s", a.status, a.body)
		}
		if !strings.Contains(f.log.String(), "the cause") || strings.Contains(f.log.String(), operatorKey) {
			t.Errorf("log: %s", f.log)
		}
	})

	// Where it leads is within the console, whatever is asked for.
	t.Run("Next", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, memory())
		for next, want := range map[string]string{
			"/console/find?q=a%20b&as=":                   "/console/find?q=a%20b&as=",
			"/console/intents/shop-1/pi_00":               "/console/intents/shop-1/pi_00",
			"/console?refresh=on":                         "/console?refresh=on",
			"":                                            "/console",
			"https://evil.example/console":                "/console",
			"//evil.example/console/find":                 "/console",
			"/\\evil.example/console/find":                "/console",
			"/console/find\\..\\x":                        "/console",
			"/console/intents/../../metrics":              "/console",
			"/console/intents/%2e%2e/%2e%2e/debug/pprof/": "/console",
			"/console/login":                              "/console",
			"/console/logout":                             "/console",
			"/metrics":                                    "/console",
			"/consolex":                                   "/console",
			"javascript:alert(1)":                         "/console",
			"console/find":                                "/console",
			"/console/find\r\nX: y":                       "/console",
			"%zz":                                         "/console",
		} {
			a := f.ask(http.MethodPost, "/console/login", url.Values{"key": {operatorKey}, "next": {next}}.Encode())
			if got := a.header.Get("Location"); a.status != http.StatusSeeOther || got != want {
				t.Errorf("next %q: %d to %q, want %q", next, a.status, got, want)
			}
		}
	})

	// A session that somebody was made to use before is not the one that he gets.
	t.Run("NotFixed", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		mine := f.cookie
		a := f.tryLogIn(operatorKey)
		if again := cookieOf(t, a); again.Value == mine.Value {
			t.Error("the session has the name that was sent")
		}
		if f.get("/console").status == http.StatusOK || f.console.Sessions() != 1 {
			t.Error("the session before lives")
		}
		f.cookie = &http.Cookie{Name: mine.Name, Value: "chosen"}
		if again := cookieOf(t, f.tryLogIn(operatorKey)); again.Value == "chosen" {
			t.Error("the session has the name that was sent")
		}
	})

	t.Run("Secure", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, memory())
		if !cookieOf(t, f.tryLogIn(operatorKey, "X-Forwarded-Proto: https")).Secure {
			t.Error("behind a proxy with TLS the cookie is not Secure")
		}
		f.host = "admin.example"
		if name := cookieOf(t, f.tryLogIn(operatorKey)).Name; name != "intentd_console" {
			t.Errorf("cookie %s", name)
		}
	})

	t.Run("CrossOrigin", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, memory())
		for _, header := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: https://evil.example", "Origin: null"} {
			a := f.tryLogIn(operatorKey, header)
			if a.status != http.StatusForbidden || !strings.Contains(a.body, "another site") || a.header.Get("Set-Cookie") != "" {
				t.Errorf("%s: %d", header, a.status)
			}
		}
		for _, header := range []string{"Sec-Fetch-Site: same-origin", "Origin: http://127.0.0.1:9090"} {
			if a := f.tryLogIn(operatorKey, header); a.status != http.StatusSeeOther {
				t.Errorf("%s: %d", header, a.status)
			}
		}
		f.logIn(t, operatorKey)
		if a := f.ask(http.MethodPost, "/console/logout", "", "Sec-Fetch-Site: cross-site"); a.status != http.StatusForbidden || f.get("/console").status != http.StatusOK {
			t.Errorf("another site logs out: %d", a.status)
		}
	})

	t.Run("Bounded", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		first := f.cookie
		f.cookie = nil
		f.logIn(t, operatorKey)
		second := f.cookie
		for range console.MostSessions - 2 {
			f.cookie = nil
			f.logIn(t, operatorKey)
		}
		f.cookie = first // so that the second is used least recently
		f.wantPage(t, "/console", http.StatusOK)
		f.cookie = nil
		f.logIn(t, operatorKey)
		if n := f.console.Sessions(); n != console.MostSessions {
			t.Errorf("%d sessions", n)
		}
		f.cookie = first
		f.wantPage(t, "/console", http.StatusOK)
		f.cookie = second
		f.wantPage(t, "/console", http.StatusSeeOther)
	})
}

// failing is an authenticator that can not tell.
type failing struct{}

func (failing) Authenticate(context.Context, secret.Text) (apikey.Holder, bool, error) {
	return apikey.Holder{}, false, errors.New("the cause")
}

// switched is an authenticator whose answer the test sets.
type switched struct {
	holder apikey.Holder
	ok     bool
	err    error
}

func (s *switched) Authenticate(context.Context, secret.Text) (apikey.Holder, bool, error) {
	return s.holder, s.ok, s.err
}

func TestConsole_Session(t *testing.T) {
	t.Parallel()

	t.Run("Nobody", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, memory())
		for path, want := range map[string]string{
			"/console":             "/console/login",
			"/console/find?q=a+b":  "/console/login?next=%2Fconsole%2Ffind%3Fq%3Da%2Bb",
			"/console/nothing":     "/console/login?next=%2Fconsole%2Fnothing",
			"/console/intents/a/b": "/console/login?next=%2Fconsole%2Fintents%2Fa%2Fb",
		} {
			for _, cookie := range []*http.Cookie{nil, {Name: "intentd_console_9090", Value: "x"}, {Name: "intentd_console_9090"}} {
				f.cookie = cookie
				if a := f.get(path); a.status != http.StatusSeeOther || a.header.Get("Location") != want || strings.Contains(a.body, "Overview") {
					t.Errorf("%s: %d to %q", path, a.status, a.header.Get("Location"))
				}
			}
		}
		f.cookie = nil
		f.wantPage(t, "/console/login?next=/console/find", http.StatusOK, `name="next" value="/console/find"`)
		f.wantPage(t, "/console/style.css", http.StatusOK, ":root")
		f.wantPage(t, "/console/icon.svg", http.StatusOK, "<svg")
	})

	t.Run("Logout", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		if a := f.get("/console/logout"); a.status != http.StatusNotFound || f.get("/console").status != http.StatusOK {
			t.Errorf("GET logs out, or answers %d", a.status)
		}
		a := f.ask(http.MethodPost, "/console/logout", "")
		if c := cookieOf(t, a); a.status != http.StatusSeeOther || a.header.Get("Location") != "/console/login" || c.MaxAge != -1 || c.Path != "/console" {
			t.Errorf("%d, cookie %+v", a.status, c)
		}
		f.wantPage(t, "/console", http.StatusSeeOther)
		if f.console.Sessions() != 0 {
			t.Error("the session is kept")
		}
	})

	t.Run("Ends", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := loggedIn(t, memory())
			time.Sleep(time.Hour - time.Second)
			f.wantPage(t, "/console", http.StatusOK)
			time.Sleep(time.Hour)
			f.wantPage(t, "/console", http.StatusSeeOther) // idle for an hour
			f.logIn(t, operatorKey)
			for range 15 {
				time.Sleep(30 * time.Minute)
				f.wantPage(t, "/console", http.StatusOK)
			}
			time.Sleep(30 * time.Minute)
			f.wantPage(t, "/console", http.StatusSeeOther) // 8 hours old
			if f.console.Sessions() != 0 {
				t.Error("a session that is over is kept")
			}
			// A page that calls itself again keeps nothing alive.
			f.logIn(t, operatorKey)
			for range 3 {
				time.Sleep(15 * time.Minute)
				f.wantPage(t, "/console?refresh=on", http.StatusOK)
			}
			time.Sleep(15 * time.Minute)
			f.wantPage(t, "/console?refresh=on", http.StatusSeeOther)
		})
	})

	t.Run("EndsWithItsKey", func(t *testing.T) {
		t.Parallel()
		desk := holders[apikey.DigestOf(secret.New(operatorKey))]
		for name, change := range map[string]func(*switched){
			"Gone":         func(s *switched) { s.ok = false },
			"OtherRole":    func(s *switched) { s.holder.Role = apikey.API },
			"OtherHolder":  func(s *switched) { s.holder.Merchant = "else" },
			"OtherPayment": func(s *switched) { s.holder.Mode = apikey.Test },
		} {
			auth := &switched{holder: desk, ok: true}
			s := memory()
			s.auth = auth
			f := loggedIn(t, s)
			f.wantPage(t, "/console", http.StatusOK)
			change(auth)
			f.wantPage(t, "/console", http.StatusSeeOther)
			if f.console.Sessions() != 0 {
				t.Errorf("%s: the session is kept", name)
			}
		}
	})

	t.Run("CanNotTell", func(t *testing.T) {
		t.Parallel()
		auth := &switched{holder: holders[apikey.DigestOf(secret.New(operatorKey))], ok: true}
		s := memory()
		s.auth = auth
		f := loggedIn(t, s)
		auth.err = errors.New("the cause")
		if a := f.wantPage(t, "/console", http.StatusServiceUnavailable, "can not be checked now"); a.header.Get("Retry-After") != "1" || strings.Contains(a.body, "the cause") {
			t.Errorf("%s", a.body)
		}
		auth.err = nil
		f.wantPage(t, "/console", http.StatusOK)
	})

	// The real directory of keys, on PostgreSQL.
	t.Run("Revoked", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t, postgres(t))
		token, key, err := apikey.Issue(t.Context(), f.dir, holders[apikey.DigestOf(secret.New(operatorKey))], "laptop")
		if err != nil {
			t.Fatal(err)
		}
		f.logIn(t, token.Reveal())
		f.wantPage(t, "/console", http.StatusOK)
		if _, _, err := f.dir.Revoke(t.Context(), key.ID); err != nil {
			t.Fatal(err)
		}
		deadline := time.Now().Add(20 * time.Second)
		for f.get("/console").status == http.StatusOK {
			if time.Now().After(deadline) {
				t.Fatal("the session of a revoked key lives")
			}
			time.Sleep(20 * time.Millisecond) // only the directory knows when
		}
		if a := f.tryLogIn(token.Reveal()); a.status != http.StatusUnauthorized {
			t.Errorf("a revoked key: %d", a.status)
		}
		if strings.Contains(f.log.String(), token.Reveal()) {
			t.Error("the log has the key")
		}
	})
}

// TestConsole_Headers: what every answer has, whoever asks.
func TestConsole_Headers(t *testing.T) {
	t.Parallel()
	f := newFixture(t, memory())
	check := func(what string, a answer) {
		t.Helper()
		for name, want := range map[string]string{
			"Content-Security-Policy":      "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Content-Type-Options":       "nosniff",
			"Cache-Control":                "no-store",
			"Referrer-Policy":              "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := a.header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", what, name, got, want)
			}
		}
		for _, foreign := range []string{"http://", "https://", "<script", "style=", "javascript:"} {
			if strings.Contains(a.body, foreign) && a.header.Get("Content-Type") != "image/svg+xml" {
				t.Errorf("%s has %q", what, foreign)
			}
		}
	}
	for _, path := range []string{"/console", "/console/login", "/console/style.css", "/console/icon.svg"} {
		check(path, f.get(path))
	}
	check("a refused login", f.tryLogIn("x"))
	check("another site's form", f.tryLogIn("x", "Sec-Fetch-Site: cross-site"))
	f.logIn(t, operatorKey)
	for _, path := range []string{"/console", "/console/find", "/console/find?q=x", "/console/intents/a/b", "/console/nothing"} {
		check(path, f.get(path))
	}
	if a := f.ask(http.MethodPost, "/console/find", ""); a.status != http.StatusMethodNotAllowed || a.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("POST /console/find: %d, Allow %q", a.status, a.header.Get("Allow"))
	}
	f.wantPage(t, "/console/nothing", http.StatusNotFound, "There is no such page.", `href="/console/find"`)
}
