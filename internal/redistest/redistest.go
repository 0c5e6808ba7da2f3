// Package redistest gives each test a place of its own in Redis.
//
// The server behind them is the one that TEST_REDIS_URL names, else a private
// server from the programs on the machine (redis-server or valkey-server, in
// PATH). It is started once for each test process, when the first test asks, and
// ends with the process, however that ends. Where none can be had, the test fails.
package redistest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// adminTimeout bounds each thing done to the server.
const adminTimeout = 10 * time.Second

// DB is a place that belongs to one test: the keys whose names begin with Prefix.
type DB struct {
	URL    string // of the server, as REDIS_URL is written
	Prefix string
	Client *redis.Client // closed when the test ends
}

// Main runs the tests of a package and exits, as TestMain; before that it ends
// the server if one was started.
func Main(m *testing.M) {
	logging.Disable() // what failed is in the error
	code := m.Run()
	if err := shared.close(); err != nil {
		fmt.Fprintln(os.Stderr, "redistest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// New returns a fresh place on the process's server. What is left in it when the
// test ends is deleted. It must all expire: a key that does not fails the test.
func New(t testing.TB) *DB {
	t.Helper()
	url, err := shared.get()
	if err != nil {
		t.Fatal("redistest:", err)
	}
	db := On(t, url)
	t.Cleanup(func() {
		for _, key := range db.Keys(t) {
			if ttl, err := db.Client.PTTL(context.Background(), key).Result(); err != nil || ttl == -1 {
				t.Errorf("redistest: %s is left and does not expire: %v", key, err)
			}
			db.Client.Del(context.Background(), key)
		}
	})
	return db
}

// On returns a fresh place on the server at url, which the test started, and
// nothing is checked in the end.
func On(t testing.TB, url string) *DB {
	t.Helper()
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal("redistest: the server's URL can not be read")
	}
	db := &DB{URL: url, Prefix: "test-" + strings.ToLower(rand.Text()[:16]) + ":", Client: redis.NewClient(o)}
	t.Cleanup(func() { _ = db.Client.Close() })
	return db
}

// Keys returns the names of all keys of the place.
func (db *DB) Keys(t testing.TB) (keys []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	it := db.Client.Scan(ctx, 0, db.Prefix+"*", 1000).Iterator()
	for it.Next(ctx) {
		keys = append(keys, it.Val())
	}
	if err := it.Err(); err != nil {
		t.Fatal("redistest:", err)
	}
	return keys
}

// Run starts a private server for one test, to be killed, stopped and started as
// it likes, and ends it with the test.
func Run(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Start(o)
	if err != nil {
		t.Fatal("redistest:", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error("redistest:", err)
		}
	})
	return s
}

// shared is the server of this process.
var shared lazyServer

type lazyServer struct {
	mu     sync.Mutex
	url    string
	server *Server // nil where it is someone else's
	err    error
}

func (l *lazyServer) get() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.url != "" || l.err != nil {
		return l.url, l.err
	}
	if l.url = os.Getenv("TEST_REDIS_URL"); l.url != "" {
		return l.url, nil
	}
	if l.server, l.err = Start(Options{}); l.err != nil {
		l.err = fmt.Errorf("no Redis server to test with: set TEST_REDIS_URL, or mend: %w", l.err)
		return "", l.err
	}
	l.url = l.server.URL()
	return l.url, nil
}

func (l *lazyServer) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server == nil {
		return nil
	}
	return l.server.Close()
}

// ErrNoProgram says that the machine has no server's program.
var ErrNoProgram = errors.New("neither redis-server nor valkey-server in PATH (Debian: apt-get install redis-server)")
