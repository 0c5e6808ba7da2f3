package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"intentd/internal/apikey"
	"intentd/internal/localpg"
	"intentd/internal/pgtest"
	"intentd/internal/secret"
	"intentd/internal/secret/secrettest"
	"intentd/migrations"
)

// call runs one of the program's commands in this process.
func call(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, diag bytes.Buffer
	err := run(t.Context(), args, environ, &out, &diag, func(net.Addr) { t.Error("listens") })
	code = exitCode(&diag, err)
	// Not what stands on standard output: a new key's token is to be there.
	t.Logf("standard error, exit code %d:\n%s", code, &diag)
	return code, out.String(), diag.String()
}

func TestRun_Commands(t *testing.T) {
	t.Parallel()
	t.Run("Help", func(t *testing.T) {
		t.Parallel()
		for _, flag := range []string{"-h", "-help", "--help", "help"} {
			code, out, _ := call(t, nil, flag)
			if code != 0 {
				t.Errorf("%s: exit code %d", flag, code)
			}
			for _, want := range []string{
				"API_ADDR", "127.0.0.1:8080", "ADMIN_ADDR", "127.0.0.1:9090", "DATABASE_URL", "API_STORE", "IDEMPOTENCY_STORE", "REDIS_URL", "API_DEMO_KEYS", "IDEMPOTENCY_TTL", "24h", "IDEMPOTENCY_LEASE", "30s", "IDEMPOTENCY_COMMITTERS",
				"SWEEP_INTERVAL", "SWEEP_BATCH", "500", "DB_MAX_CONNS", "SHUTDOWN_TIMEOUT", "15s", "LOG_FORMAT", "LOG_LEVEL", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER", "OTEL_SDK_DISABLED", "migrate", "version", "api keys create|list|revoke", "merchant=token:role",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("%s does not tell of %s", flag, want)
				}
			}
		}
	})

	t.Run("Version", func(t *testing.T) {
		t.Parallel()
		if code, out, _ := call(t, nil, "version"); code != 0 || strings.TrimSpace(out) == "" {
			t.Errorf("version: exit code %d, %q", code, out)
		}
	})

	t.Run("Unknown", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{"serve"}, {"migrate"}, {"migrate", "sideways"}, {"migrate", "up", "now"}, {"version", "x"}, {"-x"}} {
			if code, _, diag := call(t, nil, args...); code != 2 || !strings.Contains(diag, "api -h") {
				t.Errorf("%q: exit code %d, %q", args, code, diag)
			}
		}
	})

	t.Run("EveryMistakeAtOnce", func(t *testing.T) {
		t.Parallel()
		const secret = secrettest.Word
		code, _, diag := call(t, []string{
			"API_ADDR=" + secret, "ADMIN_ADDR=" + secret, "DATABASE_URL=postgres://u:" + secret + "@[bad", "API_STORE=" + secret, "API_DEMO_KEYS=m=" + secret + " x",
			"IDEMPOTENCY_TTL=24", "IDEMPOTENCY_LEASE=" + secret, "IDEMPOTENCY_COMMITTERS=-1", "SWEEP_INTERVAL=0s", "SWEEP_BATCH=0", "DB_MAX_CONNS=many", "SHUTDOWN_TIMEOUT=-1s",
			"LOG_FORMAT=xml", "LOG_LEVEL=loud", "RATE_LIMIT=" + secret, "DOCS_URL=ftp://" + secret,
			"IDEMPOTENCY_STORE=" + secret, "REDIS_URL=redis://u:" + secret + "@[bad",
			"OTEL_EXPORTER_OTLP_ENDPOINT=" + secret, "OTEL_TRACES_SAMPLER=" + secret,
		})
		if code != 2 {
			t.Errorf("exit code %d, want 2", code)
		}
		for _, name := range []string{
			"API_ADDR", "ADMIN_ADDR", "DATABASE_URL", "API_STORE", "API_DEMO_KEYS", "IDEMPOTENCY_TTL", "IDEMPOTENCY_LEASE", "IDEMPOTENCY_COMMITTERS", "SWEEP_INTERVAL", "SWEEP_BATCH",
			"DB_MAX_CONNS", "SHUTDOWN_TIMEOUT", "LOG_FORMAT", "LOG_LEVEL", "RATE_LIMIT", "DOCS_URL", "IDEMPOTENCY_STORE", "REDIS_URL",
			"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_SAMPLER",
		} {
			if n := strings.Count(diag, name+":"); n != 1 {
				t.Errorf("%s is reported %d times, want once", name, n)
			}
		}
		if strings.Contains(diag, secret) {
			t.Errorf("a value is shown:\n%s", diag)
		}
	})

	t.Run("AddressInUse", func(t *testing.T) {
		t.Parallel()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		code, _, diag := call(t, []string{"API_STORE=memory", "API_ADDR=" + ln.Addr().String()})
		if code != 1 || !strings.Contains(diag, "API_ADDR") {
			t.Errorf("exit code %d, %q", code, diag)
		}
	})

	t.Run("Migrate", func(t *testing.T) {
		t.Parallel()
		db := pgtest.Empty(t)
		environ := []string{"DATABASE_URL=" + db.URL}
		latest := migrations.Latest()
		for _, step := range []struct{ command, want string }{
			{"version", fmt.Sprintf("schema version 0 of %d, clean\n", latest)},
			{"up", fmt.Sprintf("schema version %d of %d, clean\n", latest, latest)},
			{"up", fmt.Sprintf("schema version %d of %d, clean\n", latest, latest)},
			{"down", fmt.Sprintf("schema version 0 of %d, clean\n", latest)},
			{"up", fmt.Sprintf("schema version %d of %d, clean\n", latest, latest)},
		} {
			if code, out, diag := call(t, environ, "migrate", step.command); code != 0 || out != step.want {
				t.Errorf("migrate %s: exit code %d, %q %q; want %q", step.command, code, out, diag, step.want)
			}
		}
	})
}

func TestParseConfig(t *testing.T) {
	t.Parallel()

	t.Run("Defaults", func(t *testing.T) {
		t.Parallel()
		// Set to nothing is unset, as compose files do it.
		c, err := parseConfig([]string{"API_ADDR=", "IDEMPOTENCY_LEASE=", "HOME=/"})
		if err != nil {
			t.Fatal(err)
		}
		if c.Addr != "127.0.0.1:8080" || c.AdminAddr != "127.0.0.1:9090" || c.Store != "postgres" || c.Records != "postgres" || !c.RedisURL.Empty() || !c.DatabaseURL.Empty() || len(c.DemoKeys) != 0 || c.TTL != 24*time.Hour ||
			c.Lease != 30*time.Second || c.Committers != 2 || c.SweepInterval != 5*time.Second || c.SweepBatch != 500 || c.MaxConns != 20 ||
			c.ShutdownTimeout != 15*time.Second || c.LogFormat != "text" || c.LogLevel != 0 ||
			c.RateLimit != (rateLimit{}) || c.DocsURL != "/docs" || c.Traces != nil {
			t.Errorf("defaults: %+v", c)
		}
	})

	t.Run("ShowsNoSecret", func(t *testing.T) {
		t.Parallel()
		c, err := parseConfig([]string{
			"DATABASE_URL=postgres://u:s3cr3t@h/d", "IDEMPOTENCY_STORE=redis", "REDIS_URL=redis://:s3cr3t@h", "API_DEMO_KEYS=shop=s3cr3t",
		})
		if err != nil {
			t.Fatal(err)
		}
		var shown strings.Builder
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			fmt.Fprintf(&shown, verb+verb+verb, c, &c, database{url: c.DatabaseURL})
		}
		for _, format := range []string{formatText, formatJSON} {
			newLogger(config{LogFormat: format}, &shown).Info("config", "config", c, "url", c.DatabaseURL)
		}
		other := c
		other.DatabaseURL, other.RedisURL = secret.New("s3cr3t"), secret.New("s3cr3t")
		shown.WriteString(cmp.Diff(c, other))
		for _, form := range []string{"s3cr3t", fmt.Sprintf("%x", "s3cr3t")} {
			if strings.Contains(shown.String(), form) {
				t.Errorf("a secret is shown:\n%s", shown.String())
			}
		}
		if !strings.Contains(shown.String(), secret.Mark) {
			t.Errorf("no secret is marked:\n%s", shown.String())
		}
	})

	t.Run("DemoKeys", func(t *testing.T) {
		t.Parallel()
		c, err := parseConfig([]string{"API_DEMO_KEYS=merchant-demo, shop=tok==,shop=second:api,chainwatch:listener,fast=relay+:relayer,me=op:operator,shop=second"})
		if err != nil {
			t.Fatal(err)
		}
		holder := func(merchant string, role apikey.Role) apikey.Holder {
			return apikey.Holder{Merchant: merchant, Role: role, Mode: apikey.Live}
		}
		digestOf := func(token string) apikey.Digest { return apikey.DigestOf(secret.New(token)) }
		want := demoKeys{
			digestOf("merchant-demo"): holder("merchant-demo", apikey.API),
			digestOf("tok=="):         holder("shop", apikey.API),
			digestOf("second"):        holder("shop", apikey.API),
			digestOf("chainwatch"):    holder("chainwatch", apikey.Listener),
			digestOf("relay+"):        holder("fast", apikey.Relayer),
			digestOf("op"):            holder("me", apikey.Operator),
		}
		if diff := cmp.Diff(want, c.DemoKeys); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		for bad, rule := range map[string]string{
			"a,,b": "entry 2: its merchant must", "=s3cr3t": "entry 1: its merchant must", "a=": "entry 1: its token must",
			"a b": "entry 1: its merchant must", "a=s3cr3t c": "entry 1: its token must",
			"a=s3cr3t,b=s3cr3t": "entry 2: its token is another", "a=s3cr3t,a=s3cr3t:operator": "entry 2: its token is another",
			"s3cr3t x,b,a=s3cr3t:": "entry 1: its merchant must be 1 to 64 letters, digits, dots, dashes or underscores; entry 1: its token must be letters, digits or any of . _ ~ + / - as in RFC 6750; entry 3: its role must",
			"a=x:s3cr3t":           "entry 1: its role must", "a=x:": "entry 1: its role must", "a=x:API": "entry 1: its role must", "a=s3cr3t:api:api": "entry 1: its role must",
			strings.Repeat("m", 65): "entry 1: its merchant must",
		} {
			var usage usageError
			if _, err := parseConfig([]string{"API_DEMO_KEYS=" + bad}); !errors.As(err, &usage) || !strings.Contains(err.Error(), rule) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("API_DEMO_KEYS=%s: %v, want %q", bad, err, rule)
			}
		}
	})

	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		for _, good := range []string{"redis://localhost", "redis://:s3cr3t@localhost:6379/1", "rediss://u:s3cr3t@h:1/0?pool_size=5", "unix:///run/redis.sock?db=2"} {
			if c, err := parseConfig([]string{"IDEMPOTENCY_STORE=redis", "REDIS_URL=" + good}); err != nil || c.RedisURL.Reveal() != good {
				t.Errorf("REDIS_URL=%s: %v", good, err)
			}
		}
		for _, bad := range []struct{ rule, environ string }{
			{"REDIS_URL: must be set for IDEMPOTENCY_STORE=redis", "IDEMPOTENCY_STORE=redis"},
			{"REDIS_URL: must be redis://", "IDEMPOTENCY_STORE=redis REDIS_URL=http://u:s3cr3t@h"},
			{"REDIS_URL: must be redis://", "IDEMPOTENCY_STORE=redis REDIS_URL=s3cr3t"},
			{"REDIS_URL: must be redis://", "IDEMPOTENCY_STORE=redis REDIS_URL=redis://u:s3cr3t@h/zero"},
			{"REDIS_URL: must be redis://", "REDIS_URL=redis://u:s3cr3t@h?no=such"}, // not used, and a mistake all the same
			{"IDEMPOTENCY_STORE: must be postgres or redis", "IDEMPOTENCY_STORE=memory"},
			{"IDEMPOTENCY_STORE: must not be redis with API_STORE=memory", "API_STORE=memory IDEMPOTENCY_STORE=redis REDIS_URL=redis://:s3cr3t@h"},
		} {
			var usage usageError
			if _, err := parseConfig(strings.Fields(bad.environ)); !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), bad.rule) || strings.Contains(err.Error(), "s3cr3t") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want %q alone", bad.environ, err, bad.rule)
			}
		}
	})

	t.Run("RateLimit", func(t *testing.T) {
		t.Parallel()
		for text, want := range map[string]rateLimit{
			"50": {PerSecond: 50, Burst: 50}, "0.5": {PerSecond: 0.5, Burst: 1}, "2.5": {PerSecond: 2.5, Burst: 3},
			"50:200": {PerSecond: 50, Burst: 200}, "0.1:7": {PerSecond: 0.1, Burst: 7}, "1000000:1": {PerSecond: 1_000_000, Burst: 1},
		} {
			if c, err := parseConfig([]string{"RATE_LIMIT=" + text}); err != nil || c.RateLimit != want {
				t.Errorf("RATE_LIMIT=%s: %+v, %v, want %+v", text, c.RateLimit, err, want)
			}
		}
		for _, bad := range []string{"0", "0.0009", "1e-300", "-1", "NaN", "Inf", "1000001", "x", ":5", "5:", "5:0", "5:-1", "5:1.5", "5:1000001", "50/s", "5:5:5", " 5"} {
			if _, err := parseConfig([]string{"RATE_LIMIT=" + bad}); err == nil || !strings.Contains(err.Error(), "RATE_LIMIT: must ") {
				t.Errorf("RATE_LIMIT=%s: %v", bad, err)
			}
		}
	})

	t.Run("DocsURL", func(t *testing.T) {
		t.Parallel()
		for _, good := range []string{"/docs", "/a/b/", "https://example.com", "https://example.com/", "http://example.com:8080/docs"} {
			if _, err := parseConfig([]string{"DOCS_URL=" + good}); err != nil {
				t.Errorf("DOCS_URL=%s: %v", good, err)
			}
		}
		for _, bad := range []string{"/", "docs", "ftp://example.com", "https://", "https:///x", "https://example.com/?a=b", "/docs#x", "/docs>", "/do cs", "https://exa\"mple.com", "//example.com"} {
			if _, err := parseConfig([]string{"DOCS_URL=" + bad}); err == nil || !strings.Contains(err.Error(), "DOCS_URL: must ") {
				t.Errorf("DOCS_URL=%s: %v", bad, err)
			}
		}
	})

	t.Run("Bounds", func(t *testing.T) {
		t.Parallel()
		for _, good := range []string{"IDEMPOTENCY_LEASE=100ms", "IDEMPOTENCY_COMMITTERS=0", "SHUTDOWN_TIMEOUT=0s", "API_ADDR=:0", "API_ADDR=[::1]:80", "ADMIN_ADDR=off", "ADMIN_ADDR=:0", "DB_MAX_CONNS=1", "LOG_LEVEL=DEBUG",
			"DATABASE_URL=host=a,b user=u target_session_attrs=read-write", "DATABASE_URL=postgres://a:1,b:2/d?pool_max_conns=3"} {
			if _, err := parseConfig([]string{good}); err != nil {
				t.Errorf("%s: %v", good, err)
			}
		}
		for _, bad := range []string{"IDEMPOTENCY_LEASE=99ms", "IDEMPOTENCY_LEASE=61m", "IDEMPOTENCY_TTL=29s", "IDEMPOTENCY_TTL=9000h", "IDEMPOTENCY_COMMITTERS=101", "IDEMPOTENCY_COMMITTERS=two", "SWEEP_INTERVAL=9ms",
			"SWEEP_BATCH=-1", "SWEEP_BATCH=1.5", "DB_MAX_CONNS=0", "DB_MAX_CONNS=4294967297", "API_ADDR=8080", "API_ADDR=127.0.0.1:99999", "API_ADDR=:no-such-service", "ADMIN_ADDR=9090", "ADMIN_ADDR=127.0.0.1:99999", "ADMIN_ADDR=none", "API_STORE=redis"} {
			if _, err := parseConfig([]string{bad}); err == nil {
				t.Errorf("%s is taken", bad)
			}
		}
	})
}

// TestRun_WrongURLs: whatever is wrong with a URL, what the program says of it has
// no part of its password. Nobody listens where they lead to.
func TestRun_WrongURLs(t *testing.T) {
	t.Parallel()
	const refused, away = 2, 1
	for url, want := range map[string]int{
		"postgres://u:s3cr3t@127.0.0.1:1/d":                   away,
		"postgres://:s3cr3t@127.0.0.1:1/d":                    away,
		"postgres://u:s3cr3t:x@127.0.0.1:1/d":                 away,
		"postgres://127.0.0.1:1/d?user=u&password=s3cr3t":     away,
		"postgres://u:x@127.0.0.1:1/d?password=p@s3cr3t":      away,
		"host=127.0.0.1 port=1 user=u password=s3cr3t":        away,
		"host=127.0.0.1 port=1 user=u password=a://b@s3cr3t/": away,
		"s3cr3t":                                                          refused,
		"postgres://u:s3cr3t/x@127.0.0.1:1/d":                             refused,
		"postgres://u:1/s3cr3t@127.0.0.1/d":                               refused,
		"postgres://u:1?s3cr3t@127.0.0.1/d":                               refused,
		"postgres://u:1?a=s3cr3t@127.0.0.1/d":                             refused,
		"postgres://u:1#s3cr3t@127.0.0.1/d":                               refused,
		"postgres://u:s3cr3t%zz@127.0.0.1:1/d":                            refused,
		"postgres://u:p@s3cr3t@127.0.0.1:1/d":                             refused,
		"postgres://u:@s3cr3t@127.0.0.1:1/d?sslmode=disable":              refused,
		"postgres://u:p@127.0.0.1:1,s3cr3t@h/d":                           refused,
		"postgres://u:p s3cr3t@127.0.0.1:1/d":                             refused,
		"postgres://u:s3cr3t@[bad":                                        refused,
		"postgres://u:s3cr3t@127.0.0.1:99999/d":                           refused,
		"postgres://u:s3cr3t@127.0.0.1:1:1/d":                             refused,
		"postgres://u:x@127.0.0.1:1/d?sslmode=s3cr3t":                     refused,
		"postgres://u:x@127.0.0.1:1/d?sslrootcert=/s3cr3t":                refused,
		"postgres://u:x@127.0.0.1:1/d?connect_timeout=s3cr3t":             refused,
		"postgres://u:x@127.0.0.1:1/d?default_query_exec_mode=s3cr3t":     refused,
		"postgres://u:x@127.0.0.1:1/d?service=s3cr3t":                     refused,
		"postgres:u:s3cr3t@127.0.0.1:1/d":                                 refused,
		"http://u:s3cr3t@127.0.0.1:1/d":                                   refused,
		"jdbc:postgresql://u:s3cr3t@127.0.0.1:1/d?sslmode=disable":        refused,
		`"postgres://u:s3cr3t@127.0.0.1:1/d?sslmode=disable"`:             refused,
		"host=127.0.0.1 port=1 password='s3cr3t":                          refused,
		"host=127.0.0.1 port=1 password=x s3cr3t":                         refused,
		"host=127.0.0.1 port=s3cr3t":                                      refused,
		"host=127.0.0.1 port=1 password=x sslmode=s3cr3t user=u dbname=d": refused,
	} {
		for _, command := range [][]string{{"migrate", "version"}, {"keys", "list"}} {
			code, out, diag := call(t, []string{"DATABASE_URL=" + url}, command...)
			if code != want || secrettest.Known(out+diag) {
				t.Errorf("%q with DATABASE_URL=%s: exit code %d, want %d: %s%s", command, url, code, want, out, diag)
			}
		}
	}
	for _, url := range []string{
		"s3cr3t", "u:s3cr3t@h", "http://u:s3cr3t@h", "redis://:s3cr3t/x@h", "redis://:1/s3cr3t@h", "redis://:1?s3cr3t@h", "redis://:1?db=s3cr3t@h", "redis://:1#s3cr3t@h", "redis://:1@s3cr3t@h",
		"redis://:s3cr3t%zz@h", "redis://:s3cr3t@[bad", "redis://:x@h/s3cr3t", "redis://:x@h?db=s3cr3t", "unix://u:s3cr3t/x@/none.sock", `"redis://:s3cr3t@h"`,
	} {
		if code, _, diag := call(t, []string{"REDIS_URL=" + url, "DATABASE_URL=postgres://127.0.0.1:1/"}, "migrate", "version"); code != refused || secrettest.Known(diag) {
			t.Errorf("REDIS_URL=%s: exit code %d: %s", url, code, diag)
		}
	}
	for _, args := range [][]string{{"postgres://u:s3cr3t@h/d"}, {"migrate", "postgres://u:s3cr3t@h/d"}, {"migrate", "up", "s3cr3t"}, {"keys", "s3cr3t"}, {"keys", "revoke", "s3cr3t"}, {"keys", "list", "s3cr3t"}} {
		if code, _, diag := call(t, []string{"API_STORE=memory"}, args...); code != refused || secrettest.Known(diag) {
			t.Errorf("%q: exit code %d: %s", args, code, diag)
		}
	}
}

func TestReplica_Log(t *testing.T) {
	t.Parallel()
	r := startOn(t, pgtest.New(t))
	const key = "a-key-that-must-not-be-logged"
	r.postAs(otherToken, key, example)
	r.postAs(otherToken, key, example)
	r.postAs(otherToken, key, with("amount", `"999000000"`))
	r.postAs("nobodys-"+secrettest.Word, key, example)
	r.get("/v1/payment_intents/nothing?secret=a-query")
	// net/http refuses this one by itself: it has no line, and is nothing to warn of.
	long := r.do(http.MethodGet, "/v1/payment_intents", "", "X-Long", strings.Repeat("x", 100<<10))
	if long.status != http.StatusRequestHeaderFieldsTooLarge || long.header.Get("X-Request-Id") != "" {
		t.Errorf("a header of 100 KiB: %v", long)
	}
	r.stop(t)

	type line struct {
		method, path      string
		status            float64
		merchant, outcome any
	}
	want := []line{
		{"POST", "/v1/payment_intents", 201, "other-merchant", "fresh"},
		{"POST", "/v1/payment_intents", 201, "other-merchant", "replay"},
		{"POST", "/v1/payment_intents", 422, "other-merchant", "mismatch"},
		{"POST", "/v1/payment_intents", 401, nil, nil},
		{"GET", "/v1/payment_intents/nothing", 404, "merchant-demo", nil},
	}
	got := r.log.requests()
	if len(got) != len(want) {
		t.Fatalf("%d lines for %d requests:\n%s", len(got), len(want), r.log)
	}
	ids := map[any]bool{}
	for i, l := range got {
		if g := (line{l["method"].(string), l["path"].(string), l["status"].(float64), l["merchant"], l["outcome"]}); g != want[i] {
			t.Errorf("line %d: %v, want %v", i, g, want[i])
		}
		if d, ok := l["duration"].(float64); !ok || d <= 0 {
			t.Errorf("line %d: duration %v", i, l["duration"])
		}
		if l["level"] != "INFO" {
			t.Errorf("line %d: level %v for what a client did", i, l["level"])
		}
		ids[l["request_id"]] = true
	}
	if len(ids) != len(want) || ids[nil] {
		t.Errorf("request ids: %v", ids)
	}
	for _, line := range r.log.lines() {
		if level := line["level"]; level != "INFO" && level != "DEBUG" {
			t.Errorf("level %v for what clients did: %v", level, line)
		}
	}
	for _, secret := range []string{key, secrettest.Word, "a-query"} {
		if strings.Contains(r.log.String(), secret) {
			t.Errorf("the log holds %q:\n%s", secret, r.log)
		}
	}
}

func TestReplica_Lease(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a, b := startOn(t, db, "IDEMPOTENCY_LEASE=500ms"), startOn(t, db, "IDEMPOTENCY_LEASE=500ms")

	t.Run("AStatementThatHangs", func(t *testing.T) { //nolint:paralleltest // the two share their replicas
		lock := holdTable(t, db)
		if got := a.post("K", example); got.status != 409 || got.code() != "idempotency_attempt_superseded" || got.header.Get("Retry-After") != "1" {
			t.Errorf("a create that hangs: %v", got)
		}
		lock.release()
		if got := b.post("K", example); !got.fresh() {
			t.Errorf("the retry: %v", got)
		}
	})

	t.Run("AProcessThatHangs", func(t *testing.T) { //nolint:paralleltest // the two share their replicas
		lock := holdTable(t, db)
		late := make(chan reply)
		go func() { late <- a.post("L", example) }()
		eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
		a.signal(t, syscall.SIGSTOP)
		defer a.signal(t, syscall.SIGCONT)
		var got reply
		eventually(t, "the key is not free", func() bool { return waiting(t, db, create) == 0 })
		lock.release()
		eventually(t, "the retry does not take over", func() bool {
			got = b.post("L", example)
			return got.status != 409
		})
		if !got.fresh() {
			t.Errorf("the retry: %v", got)
		}
		a.signal(t, syscall.SIGCONT)
		if got := <-late; got.status != 409 || got.code() != "idempotency_attempt_superseded" {
			t.Errorf("the late one: %v", got)
		}
		if again := a.post("L", example); !again.replayed() || again.body != got.body {
			t.Errorf("again: %v", again)
		}
	})
	wantPaired(t, db)
}

func TestReplica_DatabaseAway(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	gate := newGate(t, db)
	r := start(t, "DATABASE_URL="+gate.url)

	away := func() {
		t.Helper()
		if got := r.get("/healthz"); got.status != 200 {
			t.Errorf("/healthz without a database: %v", got)
		}
		for _, got := range []reply{
			r.get("/readyz"), r.post("K", example), r.get("/v1/payment_intents/pi_0190163d8694739b8eb1f4f2b3b8ab00"),
		} {
			if got.status != 503 || got.code() != "unavailable" || got.header.Get("Retry-After") != "1" {
				t.Errorf("without a database: %v", got)
			}
			wantNoSQL(t, got)
		}
		// What needs no database is answered as ever.
		if got := r.postAs("nobody-"+secrettest.Word, "K", example); got.status != 401 {
			t.Errorf("no credential: %v", got)
		}
		if got := r.get("/nothing"); got.status != 404 {
			t.Errorf("no path: %v", got)
		}
	}
	away()
	gate.open()
	// Within five seconds of its return, says the contract; the process may wait
	// two between its attempts.
	eventually(t, "not ready after the database came", func() bool { return r.get("/readyz").status == 200 })
	first := r.post("K", example)
	if !first.fresh() {
		t.Errorf("after the database came: %v", first)
	}
	if strings.Contains(r.log.String(), `"ready again"`) {
		t.Errorf("the start is told as a return:\n%s", r.log)
	}
	gate.shut()
	away()
	lost := r.logged(t, "not ready") // nobody asks any more
	if reason, _ := lost["error"].(string); lost["level"] != "WARN" || reason == "" {
		t.Errorf("the loss is told as %v", lost)
	}
	gate.open()
	if back := r.logged(t, "ready again"); back["level"] != "INFO" || back["after"].(float64) <= 0 {
		t.Errorf("the return is told as %v", back)
	}
	eventually(t, "no replay after the database came back", func() bool {
		got := r.post("K", example)
		return got.replayed() && got.body == first.body
	})
	r.stop(t)
	for _, msg := range []string{`"msg":"not ready"`, `"msg":"ready again"`} {
		if n := strings.Count(r.log.String(), msg); n != 1 {
			t.Errorf("%d lines with %s, want one", n, msg)
		}
	}
	wantPaired(t, db)
}

func TestReplica_Shutdown(t *testing.T) {
	t.Parallel()

	t.Run("RunningRequestsEnd", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		r := startOn(t, db)
		lock := holdTable(t, db)
		running := make(chan reply)
		go func() { running <- r.post("K", example) }()
		eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
		r.signal(t, syscall.SIGTERM)
		r.logged(t, "shutting down")
		eventually(t, "still accepts connections", func() bool { return r.get("/healthz").status == 0 })
		lock.release()
		if got := <-running; !got.fresh() {
			t.Errorf("the running request: %v", got)
		}
		r.wait(t)
		if r.err != nil {
			t.Errorf("exit: %v", r.err)
		}
		if r := startOn(t, db); !r.post("K", example).replayed() {
			t.Error("what was answered in the shutdown is not on record")
		}
	})

	t.Run("ButNotForEver", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		r := startOn(t, db, "SHUTDOWN_TIMEOUT=200ms")
		lock := holdTable(t, db)
		running := make(chan reply)
		go func() { running <- r.post("K", example) }()
		eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
		r.signal(t, os.Interrupt)
		if got := <-running; got.status != 0 {
			t.Errorf("the running request: %v", got)
		}
		r.wait(t)
		if r.err != nil {
			t.Errorf("exit: %v", r.err)
		}
		lock.release()
		r = startOn(t, db)
		eventually(t, "the retry is not fresh", func() bool { return r.post("K", example).fresh() })
	})

	t.Run("ASecondSignalEndsAtOnce", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		r := startOn(t, db, "SHUTDOWN_TIMEOUT=1h")
		lock := holdTable(t, db)
		go r.post("K", example)
		eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
		r.signal(t, syscall.SIGTERM)
		r.logged(t, "shutting down")
		r.signal(t, syscall.SIGTERM)
		r.wait(t)
		if r.err == nil {
			t.Error("ended as if all were well")
		}
		lock.release()
	})

	// Readiness goes first, so that who watches it sends its requests elsewhere.
	t.Run("NotReadyAndThenNotThere", func(t *testing.T) {
		t.Parallel()
		r := startOn(t, pgtest.New(t), "SHUTDOWN_TIMEOUT=15s")
		if got := r.get("/readyz"); got.status != 200 {
			t.Errorf("before: %v", got)
		}
		r.signal(t, syscall.SIGTERM)
		r.logged(t, "shutting down")
		if got := r.get("/readyz"); got.status != 503 || got.code() != "unavailable" {
			t.Errorf("/readyz after SIGTERM: %v", got)
		}
		if got := r.post("K", example); !got.fresh() {
			t.Errorf("a create from who has not heard: %v", got)
		}
		eventually(t, "still accepts connections", func() bool { return r.get("/readyz").status == 0 })
		r.wait(t)
	})
}

// TestReplica_HostileDefaults is a database whose sessions are made for reading,
// and that spells things in its own way; asked in the query mode that a pooler needs too.
func TestReplica_HostileDefaults(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "exec"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t)
			for _, setting := range []string{
				"default_transaction_read_only = on", "default_transaction_isolation = serializable",
				"datestyle = ''SQL, DMY''", "timezone = ''Asia/Kathmandu''",
			} {
				db.Exec(t, fmt.Sprintf(`do $$ begin execute format('alter database %%I set %s', current_database()); end $$`, setting))
			}
			u, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			q.Set("default_query_exec_mode", mode)
			u.RawQuery = q.Encode()
			r := start(t, "DATABASE_URL="+u.String(), "SWEEP_INTERVAL=20ms")
			eventually(t, "not ready", func() bool { return r.get("/readyz").status == 200 })
			short := r.post("K", with("expires_in_seconds", "1"))
			if !short.fresh() {
				t.Fatalf("create: %v", short)
			}
			if again := r.post("K", with("expires_in_seconds", "1")); !again.replayed() || again.body != short.body {
				t.Errorf("replay: %v, want %v", again, short)
			}
			eventually(t, "the sweeper does not cancel", func() bool {
				return strings.Contains(r.get("/v1/payment_intents/"+short.id(t)).body, `"state":"canceled","version":2`)
			})
			wantPaired(t, db)
		})
	}
}

// TestReplica_ByteaOutput: what the recorded answers could not be read with is told
// by /readyz, and not by the first replay.
func TestReplica_ByteaOutput(t *testing.T) {
	t.Parallel()
	for mode, status := range map[string]int{"cache_statement": 200, "exec": 503, "simple_protocol": 503} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			db.Exec(t, "do $$ begin execute format('alter database %I set bytea_output = escape', current_database()); end $$")
			u, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			q.Set("default_query_exec_mode", mode)
			u.RawQuery = q.Encode()
			r := start(t, "DATABASE_URL="+u.String())
			if got := r.get("/readyz"); got.status != status {
				t.Errorf("/readyz: %v, want %d", got, status)
			}
			if status == 503 {
				eventually(t, "the log does not tell of it", func() bool { return strings.Contains(r.log.String(), "bytea_output = hex") })
			}
		})
	}
}

// TestReplica_StandbyFirst names a standby before the primary, as a URL does
// after a failover.
func TestReplica_StandbyFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	primary, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	dir := openDir(t)
	private := func() *localpg.Server {
		t.Helper()
		s, err := localpg.Start(t.Context(), localpg.Options{DataDir: filepath.Join(dir, "standby")})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Stop(context.Background()) })
		return s
	}
	s := private()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), "create role "+pgx.Identifier{primary.User}.Sanitize()+" superuser login")
	if primary.User != localpg.Name && err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "create database "+pgx.Identifier{primary.Database}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close(t.Context())
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A server that finds this file is a standby, even of nobody.
	if err := os.WriteFile(filepath.Join(dir, "standby", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s = private()
	standby, err := pgx.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, fmt.Sprintf("DATABASE_URL=host=%s,%s port=%d,%d user=%s password=%s dbname=%s sslmode=disable",
		standby.Host, primary.Host, standby.Port, primary.Port, primary.User, quoted(primary.Password), primary.Database))
	eventually(t, "not ready", func() bool { return r.get("/readyz").status == 200 })
	for i := range 20 {
		if got := r.post(fmt.Sprint("K", i), example); !got.fresh() {
			t.Errorf("create: %v", got)
		}
	}
	wantPaired(t, db)
}

// quoted is a value in a keyword DSN.
func quoted(value string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value) + "'"
}

// openDir returns a directory that the user can enter that PostgreSQL runs as,
// which t.TempDir's parents do not allow where the tests are root's.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "api-test-") //nolint:usetesting // t.TempDir is in one that is closed to that user
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestReplica_UnreadBody checks that nobody waits for a body that is not needed:
// these never come.
func TestReplica_UnreadBody(t *testing.T) {
	t.Parallel()
	r := start(t, "API_STORE=memory")
	auth := "Authorization: Bearer " + token + "\r\n"
	for name, c := range map[string]struct{ request, want string }{
		"NoCredential":  {"POST /v1/payment_intents HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n", "401"},
		"NoKey":         {"POST /v1/payment_intents HTTP/1.1\r\nHost: x\r\n" + auth + "Content-Length: 500\r\n\r\n", "400"},
		"TooLarge":      {"POST /v1/payment_intents HTTP/1.1\r\nHost: x\r\n" + auth + "Idempotency-Key: K\r\nContent-Length: 70000\r\n\r\n", "413"},
		"NoRoute":       {"POST /nothing HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "404"},
		"WrongMethod":   {"PUT /v1/payment_intents HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n", "405"},
		"Get":           {"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n", "200"},
		"NoLength":      {"POST /v1/payment_intents HTTP/1.0\r\n" + auth + "Idempotency-Key: K\r\nTransfer-Encoding: chunked\r\n\r\n", "400"},
		"OptionsOfAll":  {"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "404"},
		"ExpectRefused": {"POST /v1/payment_intents HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 500\r\n\r\n", "401"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, r)
			if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil { // the bounds of reading begin at 15 s
				t.Fatal(err)
			}
			fmt.Fprint(conn, c.request)
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil || !strings.HasPrefix(resp.Status, c.want) || !strings.HasPrefix(string(body), "{") || !resp.Close {
				t.Errorf("answer %s %v %q, %v; want %s", resp.Status, resp.Header, body, err, c.want)
			}
		})
	}
	if got := r.post("K", example); !got.fresh() {
		t.Errorf("the key of a body that could not be read: %v", got)
	}
}

// TestReplica_SlowClient checks that who sends slowly holds no connection of the
// database's: there is only one here.
func TestReplica_SlowClient(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := startOn(t, db, "DB_MAX_CONNS=1", "SWEEP_INTERVAL=1h")
	slow := []net.Conn{dial(t, r), dial(t, r), dial(t, r)}
	half := len(example) / 2
	for i, conn := range slow {
		fmt.Fprintf(conn, "POST /v1/payment_intents HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer %s\r\nIdempotency-Key: slow%d\r\nContent-Length: %d\r\n\r\n%s",
			token, i, len(example), example[:half])
	}
	for i := range 3 {
		if got := r.post(fmt.Sprint("K", i), example); !got.fresh() {
			t.Errorf("beside slow clients: %v", got)
		}
	}
	for _, conn := range slow {
		fmt.Fprint(conn, example[half:])
		if answer, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 201") {
			t.Errorf("a slow client: %q, %v", answer, err)
		}
	}
	wantPaired(t, db)
}

// dial opens a connection to the replica, which the test writes to itself.
func dial(t *testing.T, r *replica) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestReplica_Sweeper(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := startOn(t, db)
	intent := first.post("K", with("expires_in_seconds", "1"))
	later := first.post("L", example)
	first.stop(t)
	db.Exec(t, "update payment_intents set created_at = created_at - interval '1 minute', expires_at = expires_at - interval '1 minute' where expires_at < now() + interval '1 minute'")
	db.Exec(t, "update idempotency_keys set created_at = created_at - interval '2 days', expires_at = expires_at - interval '2 days' where key = 'K'")

	// An interval of an hour: only the round at the start can do it.
	r := startOn(t, db, "SWEEP_INTERVAL=1h")
	path := "/v1/payment_intents/" + intent.id(t)
	eventually(t, "what came due while everything was down is not swept", func() bool {
		return strings.Contains(r.get(path).body, `"state":"canceled","version":2`)
	})
	eventually(t, "the expired record is not deleted", func() bool {
		return pgtest.QueryVal[int](t, db, "select count(*) from idempotency_keys where key = 'K'") == 0
	})
	if got := r.get("/v1/payment_intents/" + later.id(t)); got.body != later.body {
		t.Errorf("an intent that is not due: %v", got)
	}
}

// TestReplica_SweeperIsHarmless has creates race the sweeper over the same key.
func TestReplica_SweeperIsHarmless(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	env := []string{"SWEEP_INTERVAL=10ms", "SWEEP_BATCH=1", "IDEMPOTENCY_TTL=1s", "IDEMPOTENCY_LEASE=1s"}
	a, b := startOn(t, db, env...), startOn(t, db, env...)
	var wg sync.WaitGroup
	for _, r := range []*replica{a, b} {
		for range 4 {
			wg.Go(func() {
				for i := range 100 {
					got := r.post(fmt.Sprint("K", i%3), with("expires_in_seconds", "1"))
					if got.status != 201 && got.status != 409 {
						t.Errorf("%v", got)
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestReplica_Memory(t *testing.T) {
	t.Parallel()
	r := start(t, "API_STORE=memory", "SWEEP_INTERVAL=10ms")
	if !strings.Contains(r.log.String(), "nothing survives") {
		t.Errorf("the log does not say that nothing survives:\n%s", r.log)
	}
	first, again := r.post("K", example), r.post("K", example)
	if !first.fresh() || !again.replayed() || first.body != again.body {
		t.Errorf("%v, %v", first, again)
	}
	if got := r.post("K", with("amount", `"1"`)); got.status != 422 {
		t.Errorf("another request: %v", got)
	}
	if got := r.get("/v1/payment_intents/" + first.id(t)); got.body != first.body {
		t.Errorf("GET: %v", got)
	}
	if got := r.get("/readyz"); got.status != 200 {
		t.Errorf("/readyz: %v", got)
	}
	short := r.post("L", with("expires_in_seconds", "1"))
	eventually(t, "the sweeper does not cancel", func() bool {
		return strings.Contains(r.get("/v1/payment_intents/"+short.id(t)).body, `"state":"canceled","version":2`)
	})
}

// TestReplica_PrivateServer is make api-run: no database but the one it brings.
func TestReplica_PrivateServer(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	r := start(t, "PWD="+dir)
	first := r.post("K", example)
	if !first.fresh() {
		t.Fatalf("create: %v", first)
	}
	if _, err := os.Stat(filepath.Join(dir, dataDir, "PG_VERSION")); err != nil {
		t.Error(err)
	}
	for _, end := range []os.Signal{os.Interrupt, syscall.SIGKILL, syscall.SIGTERM} {
		r.signal(t, end)
		r.wait(t)
		r = start(t, "PWD="+dir)
		if got := r.post("K", example); !got.replayed() || got.body != first.body {
			t.Errorf("after %v: %v", end, got)
		}
	}
	// A second copy in the same directory would be a second server on one data
	// directory.
	second := launch(t, "PWD="+dir)
	second.wait(t)
	if second.err == nil || !strings.Contains(second.log.String(), "another api is running") {
		t.Errorf("a second copy: %v\n%s", second.err, second.log)
	}
}

func TestReplica_NoPrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := launch(t, "PWD="+dir, "PG_BINDIR="+dir, "PATH="+dir)
	r.wait(t)
	for _, way := range []string{"install PostgreSQL", "docker compose up", "DATABASE_URL", "API_STORE=memory"} {
		if !strings.Contains(r.log.String(), way) {
			t.Errorf("the message does not name the way %q:\n%s", way, r.log)
		}
	}
	if r.err == nil {
		t.Error("ended as if all were well")
	}
}

// TestReplica_ClientHangsUp checks that a run that has begun completes.
func TestReplica_ClientHangsUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	r := startOn(t, db)
	lock := holdTable(t, db)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/payment_intents", strings.NewReader(example))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+token)
			req.Header.Set("Idempotency-Key", "K")
			_, err = client.Do(req)
		}
		gone <- err
	}()
	eventually(t, "the create does not wait for the table", func() bool { return waiting(t, db, create) == 1 })
	cancel()
	if err := <-gone; err == nil {
		t.Error("the client got an answer")
	}
	lock.release()
	eventually(t, "the retry is not given the recorded answer", func() bool { return r.post("K", example).replayed() })
	wantPaired(t, db)
}

// gate is a way to a database's server that can be shut.
type gate struct {
	url     string
	addr    string // where the service connects to
	network string
	target  string

	mu    sync.Mutex
	ln    net.Listener
	conns []net.Conn
}

// newGate returns a gate that is shut.
func newGate(t *testing.T, db *pgtest.DB) *gate {
	t.Helper()
	c, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{}
	g.network, g.target = pgconnAddress(c)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.addr = ln.Addr().String()
	_ = ln.Close()
	g.url = fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=disable", c.User, c.Password, g.addr, c.Database)
	t.Cleanup(g.shut)
	return g
}

func pgconnAddress(c *pgx.ConnConfig) (network, address string) {
	if strings.HasPrefix(c.Host, "/") {
		return "unix", filepath.Join(c.Host, fmt.Sprintf(".s.PGSQL.%d", c.Port))
	}
	return "tcp", net.JoinHostPort(c.Host, fmt.Sprint(c.Port))
}

func (g *gate) open() {
	ln, err := net.Listen("tcp", g.addr)
	if err != nil {
		panic(err)
	}
	g.mu.Lock()
	g.ln = ln
	g.mu.Unlock()
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial(g.network, g.target)
			if err != nil {
				_ = in.Close()
				continue
			}
			g.mu.Lock()
			g.conns = append(g.conns, in, out)
			g.mu.Unlock()
			pipe := func(to, from net.Conn) {
				_, _ = io.Copy(to, from)
				_ = to.Close()
			}
			go pipe(in, out)
			go pipe(out, in)
		}
	}()
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ln != nil {
		_ = g.ln.Close()
	}
	for _, c := range g.conns {
		_ = c.Close()
	}
	g.ln, g.conns = nil, nil
}
