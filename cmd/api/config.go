package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/secret"
	"intentd/internal/tracing"
)

// The values of API_STORE, IDEMPOTENCY_STORE and LOG_FORMAT.
const (
	storePostgres = "postgres"
	storeMemory   = "memory"
	storeRedis    = "redis" // of IDEMPOTENCY_STORE alone
	formatText    = "text"
	formatJSON    = "json"
)

// config is the environment as the service reads it. The tags are its
// documentation too: usage prints them.
type config struct {
	Addr            string        `env:"API_ADDR" envDefault:"127.0.0.1:8080" help:"host:port to listen on"`
	AdminAddr       string        `env:"ADMIN_ADDR" envDefault:"127.0.0.1:9090" help:"host:port of /console, /metrics, /debug/pprof and health, for operators only; off: none"`
	DatabaseURL     secret.Text   `env:"DATABASE_URL" help:"PostgreSQL URL or DSN; unset: a private server under .data/"`
	Store           string        `env:"API_STORE" envDefault:"postgres" help:"postgres, or memory: nothing survives the process"`
	Records         string        `env:"IDEMPOTENCY_STORE" envDefault:"postgres" help:"where the answers are kept: postgres (memory, if API_STORE is), or redis: then not in one transaction with the intents"`
	RedisURL        secret.Text   `env:"REDIS_URL" help:"redis://user:password@host:port/database, rediss:// with TLS, or unix:///path; for IDEMPOTENCY_STORE=redis"`
	DemoKeys        demoKeys      `env:"API_DEMO_KEYS" help:"comma-separated merchant=token:role; a bare word is merchant and token, no role is api; they work beside those of api keys"`
	TTL             time.Duration `env:"IDEMPOTENCY_TTL" envDefault:"24h" help:"how long an answer is replayed, from its claim"`
	Lease           time.Duration `env:"IDEMPOTENCY_LEASE" envDefault:"30s" help:"how long a request may run and hold its key"`
	Committers      int           `env:"IDEMPOTENCY_COMMITTERS" envDefault:"2" help:"how many transactions at a time gather requests that arrive together; 0: each request its own"`
	SweepInterval   time.Duration `env:"SWEEP_INTERVAL" envDefault:"5s" help:"from one round of the sweeper to the next, a tenth more or less"`
	SweepBatch      int           `env:"SWEEP_BATCH" envDefault:"500" help:"rows that one statement of the sweeper takes"`
	MaxConns        int32         `env:"DB_MAX_CONNS" envDefault:"20" help:"most connections to the database; a request that runs alone costs one"`
	RateLimit       rateLimit     `env:"RATE_LIMIT" help:"requests a second for each holder of keys and process, as in 50, or 50:200 with up to 200 at once; unset: no limit"`
	DocsURL         string        `env:"DOCS_URL" envDefault:"/docs" help:"where the documentation is found that errors link to"`
	ShutdownTimeout time.Duration `env:"SHUTDOWN_TIMEOUT" envDefault:"15s" help:"how long running requests may take to end"`
	LogFormat       string        `env:"LOG_FORMAT" envDefault:"text" help:"text or json"`
	LogLevel        slog.Level    `env:"LOG_LEVEL" envDefault:"info" help:"debug, info, warn or error"`

	// Traces is nil where none are wanted. Its variables are OpenTelemetry's.
	Traces *tracing.Config `env:"-"`
}

// demoKeys are holders by the digests of their tokens, which are kept nowhere.
type demoKeys map[apikey.Digest]apikey.Holder

// RFC 6750, section 2.1: what a bearer token is made of. There is no colon in it.
var tokenPattern = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)

// UnmarshalText implements encoding.TextUnmarshaler. Its errors do not hold the
// text, which is secret.
func (k *demoKeys) UnmarshalText(text []byte) error {
	*k = make(demoKeys)
	var mistakes []string
	wrong := func(entry int, what string) {
		mistakes = append(mistakes, fmt.Sprintf("entry %d: its %s", entry+1, what))
	}
	for i, entry := range strings.Split(string(text), ",") {
		pair, role, hasRole := strings.Cut(strings.TrimSpace(entry), ":")
		if !hasRole {
			role = string(apikey.API)
		}
		merchant, token, ok := strings.Cut(pair, "=")
		if !ok {
			token = merchant
		}
		holder := apikey.Holder{Merchant: merchant, Role: apikey.Role(role), Mode: apikey.Live}
		for _, broken := range apikey.Check(holder, "") {
			wrong(i, broken.Error())
		}
		if !tokenPattern.MatchString(token) {
			wrong(i, "token must be letters, digits or any of . _ ~ + / - as in RFC 6750")
		}
		digest := apikey.DigestOf(secret.New(token))
		if other, taken := (*k)[digest]; taken && other != holder {
			wrong(i, "token is another holder's already")
		}
		(*k)[digest] = holder
	}
	if len(mistakes) > 0 {
		return errors.New(strings.Join(mistakes, "; "))
	}
	return nil
}

// rateLimit is a token bucket as it is written in the environment.
type rateLimit api.RateLimit

// The bounds of a rate, in requests a second.
const (
	fewestRequests = 0.001
	mostRequests   = 1_000_000
)

// UnmarshalText implements encoding.TextUnmarshaler: requests a second, and
// behind a colon how many at once; where that is not said as many as a second
// brings, and one at least.
func (l *rateLimit) UnmarshalText(text []byte) error {
	perSecond, burst, hasBurst := strings.Cut(string(text), ":")
	var err error
	if l.PerSecond, err = strconv.ParseFloat(perSecond, 64); err != nil || !(l.PerSecond >= fewestRequests && l.PerSecond <= mostRequests) {
		return fmt.Errorf("must begin with the requests a second, a number from %v to %d", fewestRequests, mostRequests)
	}
	l.Burst = int(math.Ceil(l.PerSecond))
	if hasBurst {
		if l.Burst, err = strconv.Atoi(burst); err != nil || l.Burst < 1 || l.Burst > mostRequests {
			return fmt.Errorf("must have a whole number from 1 to %d behind the colon", mostRequests)
		}
	}
	return nil
}

// docsPattern is what stands between < and > of a Link header, and is followed by
// /errors#code there.
var docsPattern = regexp.MustCompile(`^(https?://[^/?#<>"\s]+(/[^?#<>"\s]*)?|/[^/?#<>"\s][^?#<>"\s]*)$`)

// usageError is a mistake of who started the program: exit code 2.
type usageError struct{ error }

// parseConfig reads the environment, as os.Environ has it. A variable that is
// set to nothing counts as unset. The error is a usageError that names every
// mistake at once, by variable and rule; no value is ever part of it.
func parseConfig(environ []string) (config, error) {
	vars := make(map[string]string)
	for _, kv := range environ {
		if name, value, _ := strings.Cut(kv, "="); value != "" {
			vars[name] = value
		}
	}
	c, err := env.ParseAsWithOptions[config](env.Options{Environment: vars})
	mistakes, bad := explain(err)
	check := func(field, rule string, ok bool) {
		if name := variable(field); !ok && !bad[name] {
			mistakes = append(mistakes, fmt.Errorf("%s: %s", name, rule))
		}
	}
	check("Addr", "must be host:port, the port from 0 to 65535", isAddr(c.Addr))
	check("AdminAddr", "must be host:port, the port from 0 to 65535, or off", c.AdminAddr == adminOff || isAddr(c.AdminAddr))
	if url := c.DatabaseURL.Reveal(); url != "" {
		pc, urlErr := pgxpool.ParseConfig(url)
		check("DatabaseURL", "must be a PostgreSQL URL (postgres://user:password@host/database"+escaped+") or DSN",
			urlErr == nil && endsItsHost(url) && namesParameters(pc.ConnConfig.RuntimeParams))
	}
	check("Store", "must be postgres or memory", c.Store == storePostgres || c.Store == storeMemory)
	check("Records", "must be postgres or redis", c.Records == storePostgres || c.Records == storeRedis)
	check("Records", "must not be redis with API_STORE=memory: the records would outlive the intents that they name", c.Records != storeRedis || c.Store != storeMemory)
	check("RedisURL", "must be set for IDEMPOTENCY_STORE=redis", !c.RedisURL.Empty() || c.Records != storeRedis)
	if url := c.RedisURL.Reveal(); url != "" {
		_, urlErr := redis.ParseURL(url)
		check("RedisURL", "must be redis://user:password@host:port/database, rediss://... or unix:///path"+escaped, urlErr == nil && endsItsHost(url))
	}
	check("Lease", "must be from 100ms to 1h", c.Lease >= 100*time.Millisecond && c.Lease <= time.Hour)
	check("TTL", "must be from IDEMPOTENCY_LEASE to 8760h (a year)", c.TTL >= c.Lease && c.TTL <= 8760*time.Hour)
	check("Committers", "must be from 0 to 100", c.Committers >= 0 && c.Committers <= 100)
	check("SweepInterval", "must be from 10ms to 1h", c.SweepInterval >= 10*time.Millisecond && c.SweepInterval <= time.Hour)
	check("SweepBatch", "must be from 1 to 100000", c.SweepBatch >= 1 && c.SweepBatch <= 100_000)
	check("MaxConns", "must be from 1 to 10000", c.MaxConns >= 1 && c.MaxConns <= 10_000)
	check("ShutdownTimeout", "must be from 0s to 1h", c.ShutdownTimeout >= 0 && c.ShutdownTimeout <= time.Hour)
	check("DocsURL", "must be a path or an http or https URL, without a query and without < or >", docsPattern.MatchString(c.DocsURL))
	check("LogFormat", "must be text or json", c.LogFormat == formatText || c.LogFormat == formatJSON)
	traces, wrong := tracing.Parse(vars)
	c.Traces = traces
	if mistakes = append(mistakes, wrong...); len(mistakes) > 0 {
		return config{}, usageError{errors.Join(mistakes...)}
	}
	return c, nil
}

// escaped completes the rule of a URL that has a password in it.
const escaped = "; with / ? # @ in a password as %2F %3F %23 %40"

// endsItsHost says whether a URL's host ends where who wrote it meant it to. A
// password with a bare slash, question mark or hash ends it early: what follows
// is then a path, say, of which drivers and servers tell in their errors; and with
// a bare at sign it begins within the password. What is no URL has no host to end.
func endsItsHost(text string) bool {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || strings.ContainsAny(scheme, " =") {
		return true
	}
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	path, query, _ := strings.Cut(tail, "?")
	if strings.Contains(path, "@") || strings.Count(authority, "@") > 1 {
		return false
	}
	for pair := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(pair, "=")
		if strings.Contains(name, "@") || strings.Contains(value, "@") && !strings.Contains(authority, "@") {
			return false
		}
	}
	return true
}

// namesParameters says whether these can be the names of parameters of
// PostgreSQL's, which the server repeats where it knows none of that name. A URL in
// quotes, or of another scheme, is read as a DSN with one name: most of the URL.
func namesParameters(params map[string]string) bool {
	for name := range params {
		if !parameterPattern.MatchString(name) {
			return false
		}
	}
	return true
}

var parameterPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// isAddr says whether addr is a host:port to listen on.
func isAddr(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port) // a table, no question to anybody
	}
	return err == nil
}

// explain turns the parser's errors, which speak of Go's fields and may hold
// values, into ours.
func explain(err error) (mistakes []error, bad map[string]bool) {
	bad = make(map[string]bool)
	var all env.AggregateError
	if !errors.As(err, &all) {
		return nil, bad
	}
	for _, err := range all.Errors {
		var parse env.ParseError
		if !errors.As(err, &parse) {
			mistakes = append(mistakes, errors.New("the environment can not be read"))
			continue
		}
		name, rule := variable(parse.Name), ""
		switch parse.Type {
		case reflect.TypeFor[time.Duration]():
			rule = "must be a duration with its unit, such as 300ms, 30s or 24h"
		case reflect.TypeFor[int](), reflect.TypeFor[int32]():
			rule = "must be a whole number"
		case reflect.TypeFor[slog.Level]():
			rule = "must be debug, info, warn or error"
		default:
			rule = parse.Err.Error() // our own parsers'
		}
		bad[name] = true
		mistakes = append(mistakes, fmt.Errorf("%s: %s", name, rule))
	}
	return mistakes, bad
}

// variable returns the name in the environment of one of config's fields.
func variable(field string) string {
	f, ok := reflect.TypeFor[config]().FieldByName(field)
	if !ok {
		panic("config has no field " + field)
	}
	return f.Tag.Get("env")
}

// usage describes the program.
func usage() string {
	var b strings.Builder
	b.WriteString(`api serves payment intents over HTTP, each of them created once.

Usage:
  api                          serve
  api migrate up|version       bring the schema up to date, or tell where it is
  api migrate down             drop every table, and all data with them
  api keys create|list|revoke  make, show and revoke the keys that let clients in: api keys -h
  api healthcheck              ask the service at API_ADDR whether it is ready: exit code 0, or 1
  api version                  tell the version of this program
  api -h                       tell this

It is configured by its environment; durations are written as in 300ms, 30s, 24h:
`)
	for f := range reflect.TypeFor[config]().Fields() {
		if f.Tag.Get("help") == "" {
			continue
		}
		fmt.Fprintf(&b, "  %-22s %s", f.Tag.Get("env"), f.Tag.Get("help"))
		if def, ok := f.Tag.Lookup("envDefault"); ok {
			fmt.Fprintf(&b, " (%s)", def)
		}
		b.WriteString("\n")
	}
	b.WriteString("\nTraces are sent where a collector's endpoint is set, by OpenTelemetry's own variables:\n")
	for _, v := range tracing.Variables() {
		fmt.Fprintf(&b, "  %-39s %s\n", v.Name, v.Help)
	}
	b.WriteString(`
The private server's programs are found in PATH and the usual places, or in PG_BINDIR.
Exit code: 0 after SIGTERM or SIGINT, and for a command that did what it was told; 2 for a mistake in the command or
the environment, 1 for anything else that went wrong.
`)
	return b.String()
}
