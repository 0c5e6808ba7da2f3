package main

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestHealthcheck(t *testing.T) {
	t.Parallel()

	t.Run("OfTheRunningService", func(t *testing.T) {
		t.Parallel()
		for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::]:0", ":0"} {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			listening := make(chan net.Addr, 1)
			ended := make(chan error, 1)
			go func() {
				environ := []string{"API_STORE=memory", "API_ADDR=" + addr, "ADMIN_ADDR=off", "SHUTDOWN_TIMEOUT=1s"}
				ended <- run(ctx, nil, environ, t.Output(), t.Output(), func(a net.Addr) { listening <- a })
			}()
			select {
			case a := <-listening:
				_, port, _ := net.SplitHostPort(a.String())
				host, _, _ := net.SplitHostPort(addr)
				out, code := check(ctx, net.JoinHostPort(host, port))
				if code != 0 || !strings.HasPrefix(out, "ready: ") || strings.Count(out, "\n") != 1 {
					t.Errorf("API_ADDR=%s: exit code %d, output %q; want 0, one line", addr, code, out)
				}
			case err := <-ended:
				t.Fatalf("API_ADDR=%s: run: %v", addr, err)
			}
			stop()
			if err := <-ended; err != nil { // before the test, whose log it writes to
				t.Errorf("API_ADDR=%s: run: %v", addr, err)
			}
		}
	})

	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"NotReady": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }, "answered 503"},
		"Elsewhere": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/lost", http.StatusFound)
		}, "answered 404"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mux := http.NewServeMux()
			mux.HandleFunc("GET /readyz", tt.answer)
			s := httptest.NewServer(mux)
			defer s.Close()
			out, code := check(t.Context(), s.Listener.Addr().String())
			if code != 1 || !strings.Contains(out, tt.want) || strings.Count(out, "\n") != 1 {
				t.Errorf("exit code %d, output %q; want 1, one line with %q", code, out, tt.want)
			}
		})
	}

	t.Run("NobodyListens", func(t *testing.T) {
		t.Parallel()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = ln.Close()
		out, code := check(t.Context(), ln.Addr().String())
		if code != 1 || !strings.Contains(out, "can not be reached") || strings.Count(out, "\n") != 1 {
			t.Errorf("exit code %d, output %q; want 1, one line", code, out)
		}
	})

	t.Run("Silent", func(t *testing.T) {
		t.Parallel()
		ln, err := net.Listen("tcp", "127.0.0.1:0") // takes the connection, and says nothing
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		start := time.Now()
		out, code := check(t.Context(), ln.Addr().String())
		if code != 1 || !strings.Contains(out, "no answer") {
			t.Errorf("exit code %d, output %q; want 1, no answer", code, out)
		}
		if took := time.Since(start); took > healthTimeout+time.Second {
			t.Errorf("took %s", took)
		}
	})

	t.Run("BadAddress", func(t *testing.T) {
		t.Parallel()
		if out, code := check(t.Context(), "8080"); code != 2 || !strings.Contains(out, "API_ADDR") {
			t.Errorf("exit code %d, output %q; want 2, API_ADDR", code, out)
		}
	})
}

// check runs the command as main does, and returns what it says and its exit
// code.
func check(ctx context.Context, addr string) (string, int) {
	var out bytes.Buffer
	err := run(ctx, []string{"healthcheck"}, []string{"API_ADDR=" + addr}, &out, &out, nil)
	code := exitCode(&out, err)
	return out.String(), code
}

func TestLocalAddr(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"127.0.0.1:8080": "127.0.0.1:8080",
		"0.0.0.0:8080":   "127.0.0.1:8080",
		"[::]:8080":      "127.0.0.1:8080",
		":8080":          "127.0.0.1:8080",
		"[::1]:8080":     "[::1]:8080",
		"10.1.2.3:80":    "10.1.2.3:80",
		"api:http":       "api:http",
	} {
		if got, err := localAddr(in); err != nil || got != want {
			t.Errorf("localAddr(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	if got, err := localAddr("nonsense"); err == nil {
		t.Errorf("localAddr(nonsense) = %q, want an error", got)
	}
}
