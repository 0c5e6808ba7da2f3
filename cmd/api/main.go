// Command api serves payment intents over HTTP, each of them created once. See
// api -h.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"intentd/internal/api"
	"intentd/internal/apikey"
	"intentd/internal/console"
	"intentd/internal/intent"
	"intentd/internal/metrics"
	"intentd/internal/sweeper"
	"intentd/internal/tracing"
)

// version is set by the linker: -ldflags "-X main.version=...".
var version = ""

// gcPercent is GOGC's default here. Next to nothing lives longer than a request,
// so that Go's own default would collect a heap of a few megabytes dozens of times
// a second.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	ctx, stop := context.WithCancel(context.Background())
	// Both signals are received here: one that came while the default handling
	// was being restored would be lost.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(1) // at once; what was running is undone by its connection's end
	}()
	os.Exit(exitCode(os.Stderr, run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr, func(net.Addr) {})))
}

// exitCode reports err and returns what the process ends with.
func exitCode(stderr io.Writer, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "api: %v\nsee: api -h\n", err)
		return 2
	default:
		fmt.Fprintf(stderr, "api: %v\n", err)
		return 1
	}
}

// run is the whole program. It returns when ctx has ended and everything has
// been put away, or when it can not go on. listening is told the address once
// requests are taken.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer, listening func(net.Addr)) error {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	switch {
	case command == "-h" || command == "-help" || command == "--help" || command == "help":
		_, err := io.WriteString(stdout, usage())
		return err
	case command == "version" && len(args) == 1:
		_, err := fmt.Fprintln(stdout, versionOf())
		return err
	case command == "migrate" && len(args) == 2, command == "healthcheck" && len(args) == 1, command == "":
	case command == "keys":
		return keys(ctx, args[1:], environ, stdout, stderr)
	case command == "migrate":
		return usageError{errors.New("migrate needs one of up, down and version")}
	default:
		return usageError{errors.New("there is no such command")} // which could hold a secret, such as a URL
	}

	c, err := parseConfig(environ)
	if err != nil {
		return err
	}
	if command == "healthcheck" {
		return healthcheck(ctx, c.Addr, stdout)
	}
	log := newLogger(c, stderr)
	if command == "migrate" {
		return migrate(ctx, c, log, args[1], stdout)
	}
	return serve(ctx, c, log, listening)
}

func newLogger(c config, w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == formatJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// versionOf returns the linker's version, or what the Go tool knows.
func versionOf() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// What the sweeper does, as its log and its figures call it.
const (
	cancelIntents = "cancel expired intents"
	deleteKeys    = "delete expired idempotency keys"
)

// serve binds the addresses first, so that a second copy fails before it touches
// anything. The database is closed when nothing needs it any more, and the admin
// listener after it, so that a shutdown that takes its time can be looked into.
func serve(ctx context.Context, c config, log *slog.Logger, listening func(net.Addr)) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", c.Addr)
	if err != nil {
		return fmt.Errorf("API_ADDR: %w", err)
	}
	defer ln.Close()
	adminLn, err := listenAdmin(ctx, c.AdminAddr)
	if err != nil {
		return err
	}
	stopAdmin := func() {
		if adminLn != nil {
			_ = adminLn.Close() // nobody has been answered yet
		}
	}
	defer func() { stopAdmin() }()

	traces := tracing.New(c.Traces, versionOf(), log)
	backend, err := openBackend(ctx, c, log, traces)
	if err != nil {
		return err
	}
	defer backend.close()
	var authenticator apikey.Authenticator = apikey.NewStatic(c.DemoKeys)
	switch {
	case backend.apiKeys != nil:
		authenticator = apikey.First(authenticator, backend.apiKeys)
	case len(c.DemoKeys) == 0:
		log.Warn("API_DEMO_KEYS is not set: no request will be let in")
	}

	var draining atomic.Bool
	ready := func(ctx context.Context) error {
		if draining.Load() {
			return errors.New("shutting down")
		}
		return backend.ready(ctx)
	}
	figures := metrics.New(versionOf())
	figures.Probe(metrics.Probe{Ready: ready, Lag: backend.lag})
	if backend.pool != nil {
		figures.Pool(backend.pool)
	}
	if backend.groups != nil {
		backend.groups(figures.CommitGroups())
	}
	if backend.lookups != nil {
		backend.lookups(figures.KeyLookup)
	}
	intents := intent.New(backend.intents)
	handler := api.New(api.Config{
		Intents:       intents,
		Idempotency:   traces.Store(backend.keys),
		Authenticator: authenticator,
		Ready:         ready,
		Log:           log,
		RateLimit:     api.RateLimit(c.RateLimit),
		DocsURL:       strings.TrimSuffix(c.DocsURL, "/"),
		Observer: api.Observer{
			Request: figures.Request,
			Claim:   figures.Claim,
			Moved:   func(to intent.State, by intent.Actor) { figures.Moved(to, by, 1) },
			Limited: figures.Limited,
		},
	})
	srv := newServer(c, log, traces.Handler(handler))
	swept := intents.Observed(func(_ context.Context, to intent.State, by intent.Actor, n int) { figures.Moved(to, by, n) })
	sweep := &sweeper.Sweeper{
		Jobs: []sweeper.Job{
			{Name: cancelIntents, Run: swept.CancelDue},
			{Name: deleteKeys, Run: backend.keys.DeleteExpired},
		},
		Interval: c.SweepInterval,
		Batch:    c.SweepBatch,
		Log:      log,
		Observe:  figures.Swept,
		Trace:    traces.Rounds(),
	}
	operators := console.New(console.Config{
		Authenticator: authenticator,
		Intents:       intents,
		Searcher:      backend.intents,
		Keys:          backend.keys,
		Snapshot:      figures.Snapshot,
		Log:           log,
		Replica:       replicaName(ln.Addr()),
		Version:       versionOf(),
	})
	stopAdmin = startAdmin(adminLn, log, adminHandler(handler, figures.Handler(log), operators))

	group, ctx := errgroup.WithContext(ctx)
	if adminLn != nil {
		group.Go(func() error { return operators.Run(ctx) })
	}
	prepared := make(chan struct{})
	group.Go(func() error {
		backend.prepare(ctx)
		close(prepared)
		return sweep.Run(ctx)
	})
	group.Go(func() error {
		// Until then what prepares the store tells why it is not ready.
		select {
		case <-prepared:
		case <-ctx.Done():
			return nil
		}
		return (&readiness{ask: backend.ready, log: log}).Run(ctx)
	})
	group.Go(func() error { return backend.watch(ctx) })
	group.Go(func() error {
		// A database that is there is ready in a moment; one that is away must
		// not keep the health checks waiting.
		select {
		case <-prepared:
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		log.Info("listening", "addr", ln.Addr().String(), "version", versionOf())
		listening(ln.Addr())
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	var end time.Time
	group.Go(func() error {
		<-ctx.Done()
		end = time.Now().Add(c.ShutdownTimeout)
		draining.Store(true)
		log.Info("shutting down", "timeout", c.ShutdownTimeout)
		drain(srv, c.ShutdownTimeout, log)
		return nil
	})
	err = group.Wait()
	traces.Close(end)
	log.Info("stopped")
	return err
}

// drain takes requests for a moment longer, so that who watches /readyz sends no
// more, and then lets running ones end. One that does not is cut: its attempt is
// undone by its connection's end, and its client tries again.
func drain(srv *http.Server, timeout time.Duration, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	<-time.After(min(time.Second, timeout/15))
	if err := srv.Shutdown(ctx); err != nil {
		log.Warn("requests were still running, and are cut", "error", err)
		_ = srv.Close() // says nothing that could be acted on
	}
}

// newServer sets the bounds within which a slow client holds a connection. None
// holds one of the database's: a key is claimed when the whole body is there.
func newServer(c config, log *slog.Logger, h http.Handler) *http.Server {
	const (
		header = 10 * time.Second
		body   = 20 * time.Second // the idempotency layer's own bound is 15 s
		answer = 30 * time.Second // beside the lease: three times the store's 5 s, and the way to the client
	)
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: header,
		ReadTimeout:       header + body,
		WriteTimeout:      header + body + c.Lease + answer,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		// "OPTIONS *" is a path like any other, and there is nothing at it.
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
