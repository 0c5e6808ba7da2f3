package redistest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"intentd/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv("REDISTEST_CRASH") != "" {
		crash()
	}
	redistest.Main(m)
}

// crash starts a server, says what number its process has, and is killed.
func crash() {
	s, err := redistest.Start(redistest.Options{})
	if err != nil {
		panic(err)
	}
	o, err := redis.ParseURL(s.URL())
	if err != nil {
		panic(err)
	}
	info := redis.NewClient(o).InfoMap(context.Background(), "server").Val()
	if os.Getenv("REDISTEST_CRASH") == "stopped" {
		if err := s.Signal(syscall.SIGSTOP); err != nil {
			panic(err)
		}
	}
	_, _ = os.Stdout.WriteString(info["Server"]["process_id"])
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

func TestNew(t *testing.T) {
	t.Parallel()
	a, b := redistest.New(t), redistest.New(t)
	if a.Prefix == b.Prefix {
		t.Errorf("two places with one prefix, %s", a.Prefix)
	}
	a.Client.Set(t.Context(), a.Prefix+"x", "1", time.Minute)
	if got := a.Keys(t); len(got) != 1 || got[0] != a.Prefix+"x" {
		t.Errorf("keys of the first = %q", got)
	}
	if got := b.Keys(t); len(got) != 0 {
		t.Errorf("keys of the second = %q", got)
	}
}

func TestServer(t *testing.T) {
	t.Parallel()

	t.Run("KeepsItsAddressAndWhatItWrote", func(t *testing.T) {
		t.Parallel()
		s := redistest.Run(t, redistest.Options{TCP: true, Args: redistest.Durable.Args})
		db := redistest.On(t, s.URL())
		for _, end := range []func(){s.Kill, s.Stop} {
			n := db.Client.Incr(t.Context(), "x").Val()
			end()
			if err := db.Client.Ping(t.Context()).Err(); err == nil {
				t.Error("it answers though it has ended")
			}
			if err := s.Start(); err != nil {
				t.Fatal(err)
			}
			if got, err := db.Client.Get(t.Context(), "x").Int64(); got != n {
				t.Errorf("x = %d, %v; want %d", got, err, n)
			}
		}
	})

	// One that is stopped goes on when its parents are gone, and they are told to
	// hang up.
	for _, how := range []string{"running", "stopped"} {
		t.Run("EndsWithTheProcess/"+how, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), "REDISTEST_CRASH="+how)
			out, _ := cmd.Output() // it was killed
			pid, err := strconv.Atoi(string(out))
			if err != nil {
				t.Fatalf("the process said %q", out)
			}
			for deadline := time.Now().Add(10 * time.Second); syscall.Kill(pid, 0) == nil; {
				if time.Now().After(deadline) {
					t.Fatal("the server outlives the process that started it")
				}
				time.Sleep(5 * time.Millisecond) // only the system knows when
			}
		})
	}

	t.Run("BadSettings", func(t *testing.T) {
		t.Parallel()
		if _, err := redistest.Start(redistest.Options{Args: []string{"--no-such-setting", "1"}}); err == nil || !strings.Contains(err.Error(), "ended as it started") {
			t.Errorf("Start = %v, want that it ended as it started", err)
		}
	})
}

func TestStart_NoProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := redistest.Start(redistest.Options{}); !errors.Is(err, redistest.ErrNoProgram) {
		t.Errorf("Start = %v, want ErrNoProgram", err)
	}
}
