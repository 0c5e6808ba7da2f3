package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"time"
)

// adminOff is the ADMIN_ADDR that opens no admin listener.
const adminOff = "off"

// listenAdmin binds ADMIN_ADDR, or returns nil where it is off.
func listenAdmin(ctx context.Context, addr string) (net.Listener, error) {
	if addr == adminOff {
		return nil, nil
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("ADMIN_ADDR: %w (each service on a machine needs one of its own, or %s)", err, adminOff)
	}
	return ln, nil
}

// adminHandler is what operators are shown. Nobody is asked who he is, except by
// the console: the listener is what keeps others out. public answers the health
// checks, as it does on the public listener. The profiles are mounted one by one,
// since the default mux has whatever any package has put there.
func adminHandler(public, metrics, console http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", http.RedirectHandler("/console", http.StatusSeeOther)) // what people look for here
	mux.Handle("/console", console)
	mux.Handle("/console/", console)
	mux.Handle("GET /metrics", metrics)
	mux.Handle("GET /healthz", public)
	mux.Handle("GET /readyz", public)
	mux.HandleFunc("GET /debug/pprof/", pprof.Index) // and the profiles that it lists
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol) // go tool pprof's way
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// startAdmin serves h on ln, and returns what ends that. A nil ln is none. What
// ends it before its time is logged, and ends nothing else: payments go on.
func startAdmin(ln net.Listener, log *slog.Logger, h http.Handler) (stop func()) {
	if ln == nil {
		log.Info("no admin listener", "ADMIN_ADDR", adminOff)
		return func() {}
	}
	const (
		profile = 5 * time.Minute // the longest that may be asked for
		goodbye = time.Second
	)
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      profile,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Error("the admin listener has ended", "error", err)
		}
	}()
	log.Info("admin listening", "addr", ln.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), goodbye)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close() // a profile that still runs is not worth waiting for
		}
		<-ended
	}
}

// replicaName tells a replica from the others: by its machine, and by where it
// listens there.
func replicaName(addr net.Addr) string {
	host, err := os.Hostname()
	if err != nil {
		return addr.String()
	}
	return host + ", " + addr.String()
}
