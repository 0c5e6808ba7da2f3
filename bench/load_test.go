package main

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestFreshKey(t *testing.T) {
	t.Parallel()
	uuidv4 := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	rng, seen := rand.New(rand.NewPCG(1, 2)), make(map[string]bool)
	var key [36]byte
	for range 1000 {
		freshKey(rng, &key)
		if !uuidv4.Match(key[:]) || seen[string(key[:])] {
			t.Fatalf("%s is no UUIDv4, or came before", key)
		}
		seen[string(key[:])] = true
	}
}

// loadOn is a short load on a server.
func loadOn(kind string, srv *httptest.Server) load {
	return load{
		Kind: kind, Addrs: []string{srv.Listener.Addr().String()}, Connections: 3, Warmup: 200 * time.Millisecond, Window: 500 * time.Millisecond,
		Token: "t", Body: []byte("body"), Keys: 5, IDs: []string{"pi_1", "pi_2"},
	}
}

func TestLoad_Run(t *testing.T) {
	t.Parallel()
	t.Run("Create", func(t *testing.T) {
		t.Parallel()
		var mu sync.Mutex
		seen := make(map[string]bool)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var body bytes.Buffer
			_, _ = body.ReadFrom(r.Body)
			key := r.Header.Get("Idempotency-Key")
			mu.Lock()
			defer mu.Unlock()
			if r.Method != http.MethodPost || r.URL.Path != createPath || r.Header.Get("Authorization") != "Bearer t" || body.String() != "body" || seen[key] {
				w.WriteHeader(http.StatusTeapot)
				return
			}
			seen[key] = true
			w.WriteHeader(http.StatusCreated)
		}))
		defer srv.Close()
		var said []message
		warm := 0 // how many were answered before the window
		got, err := loadOn(createFresh, srv).run(func(m message) {
			mu.Lock()
			defer mu.Unlock()
			if said = append(said, m); m.Began {
				warm = len(seen)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		// What is answered in the warm-up or after the window does not count. How
		// many that are is not known here: more are answered before it is said that
		// the window has begun.
		const connections = 3 // each may have an answer on its way
		if got.Requests == 0 || warm <= 2*connections || got.Requests >= len(seen)-connections {
			t.Errorf("%d requests count of %d, of which %d came before the window", got.Requests, len(seen), warm)
		}
		if got.P50 <= 0 || got.P99 < got.P50 || got.Longest < got.P99 {
			t.Errorf("latencies out of order: %+v", got)
		}
		if len(said) != 2 || !said[0].Began || !said[1].Ended {
			t.Errorf("it said %+v", said)
		}
	})
	t.Run("Replay", func(t *testing.T) {
		t.Parallel()
		recorded := make(map[string]bool)
		for n := range 5 {
			recorded[recordedKey(n+1)] = true
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if recorded[r.Header.Get("Idempotency-Key")] {
				w.Header().Set("Idempotent-Replayed", "true")
			}
			w.WriteHeader(http.StatusCreated)
		}))
		defer srv.Close()
		if _, err := loadOn(replayKeys, srv).run(func(message) {}); err != nil {
			t.Error(err)
		}
	})
	t.Run("Get", func(t *testing.T) {
		t.Parallel()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.HasPrefix(r.URL.Path, createPath+"/pi_") {
				w.WriteHeader(http.StatusTeapot)
			}
		}))
		defer srv.Close()
		if _, err := loadOn(getIntents, srv).run(func(message) {}); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		name, kind string
		answer     http.HandlerFunc
		want       string
	}{
		{"VoidByStatus", createFresh, func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no such luck", http.StatusServiceUnavailable)
		}, "answered 503"},
		{"VoidByReplay", createFresh, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Idempotent-Replayed", "true")
			w.WriteHeader(http.StatusCreated)
		}, "Idempotent-Replayed"},
		{"VoidByMissingReplay", replayKeys, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }, "Idempotent-Replayed"},
		{"VoidByClose", createFresh, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusCreated)
		}, "closes"},
		{"VoidByBrokenConnection", createFresh, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "no answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(c.answer)
			defer srv.Close()
			if got, err := loadOn(c.kind, srv).run(func(message) {}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("run = %+v, %v, want an error with %q", got, err, c.want)
			}
		})
	}
}

func TestWork(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	defer srv.Close()
	raw, err := json.Marshal(loadOn(getIntents, srv))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := work(bytes.NewReader(raw), &out); err == nil {
		t.Error("a void load made no error")
	}
	if !strings.Contains(out.String(), `"Void":"get was answered 404`) {
		t.Errorf("it said %s", out.String())
	}
}
