package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// build builds the service's program into dir, as it is or with some files
// replaced, and returns its path.
func build(ctx context.Context, service, dir string, race bool, overlay string) (string, error) {
	bin, err := filepath.Abs(filepath.Join(dir, "api"))
	if err != nil {
		return "", err
	}
	args := []string{"build", "-o", bin}
	if race {
		args = append(args, "-race")
	}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/api")...)
	cmd.Dir = service
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return bin, nil
}

// freePort returns a port below those that the system gives to outgoing
// connections, so that a replica finds it free when it comes back.
func freePort() (int, error) {
	for range 100 {
		port := 12000 + rand.IntN(18000)
		ln, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port)))
		if err == nil {
			return port, ln.Close()
		}
	}
	return 0, errors.New("no free port")
}

const (
	drainTime = 3 * time.Second
	token     = "token-of-"
)

// merchants are who pays; each has a credential of its own.
var merchants = []string{"north", "south"}

// replica is one process of the service. It keeps its address over restarts.
type replica struct {
	n       int
	bin     string
	addr    string
	env     []string
	logPath string

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	exits  []string // how it ended where it should have ended well
}

func newReplica(n int, bin, dir, databaseURL string, s *scenario) (*replica, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	r := &replica{
		n: n, bin: bin, addr: net.JoinHostPort(loopback, strconv.Itoa(port)),
		logPath: filepath.Join(dir, fmt.Sprintf("replica%d.log", n)),
	}
	var keys []string
	for _, m := range merchants {
		keys = append(keys, m+"="+token+m)
	}
	r.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		"GOTRACEBACK=all",
		"API_ADDR=" + r.addr,
		"ADMIN_ADDR=off",
		"DATABASE_URL=" + databaseURL,
		"API_DEMO_KEYS=" + strings.Join(keys, ","),
		"IDEMPOTENCY_LEASE=" + s.lease.String(),
		"IDEMPOTENCY_COMMITTERS=" + strconv.Itoa(s.committersOf(n)),
		"IDEMPOTENCY_TTL=" + s.ttl.String(),
		"SWEEP_INTERVAL=" + s.sweep.String(),
		"DB_MAX_CONNS=" + strconv.Itoa(s.conns),
		"SHUTDOWN_TIMEOUT=" + drainTime.String(),
	}
	return r, nil
}

// start starts the process; it does not wait until it serves.
func (r *replica) start() error {
	log, err := os.OpenFile(r.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.bin)
	cmd.Env, cmd.Dir = r.env, filepath.Dir(r.logPath)
	cmd.Stdout, cmd.Stderr = log, log
	// It ends with the trial.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its state is in cmd
		close(exited)
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cmd, r.exited = cmd, exited
	return nil
}

// process returns what runs now.
func (r *replica) process() (*exec.Cmd, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cmd, r.exited
}

func (r *replica) signal(sig os.Signal) {
	cmd, _ := r.process()
	_ = cmd.Process.Signal(sig) // one that is gone needs none
}

// kill ends the process as a crash does.
func (r *replica) kill() {
	r.signal(syscall.SIGKILL)
	_, exited := r.process()
	<-exited
}

// term ends the process as a rolling restart does: it must drain, and exit with 0.
func (r *replica) term() {
	cmd, exited := r.process()
	r.signal(syscall.SIGTERM)
	// Beside the drain it has two seconds for the database's connections.
	limit := drainTime + 4*time.Second
	select {
	case <-exited:
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			r.note("replica %d: SIGTERM ended it with %v", r.n, cmd.ProcessState)
		}
	case <-time.After(limit):
		r.note("replica %d: it had not ended %v after SIGTERM", r.n, limit)
		r.kill()
	}
}

func (r *replica) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exits = append(r.exits, fmt.Sprintf(format, args...))
}

// awaitReady waits until the replica says that it can serve.
func (r *replica) awaitReady(ctx context.Context) error {
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		_, exited := r.process()
		select {
		case <-exited:
			return fmt.Errorf("replica %d ended while it started; its log ends: %s", r.n, r.logTail())
		case <-ctx.Done():
			return fmt.Errorf("replica %d is not ready: %w; its log ends: %s", r.n, ctx.Err(), r.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r *replica) logTail() []byte {
	raw, _ := os.ReadFile(r.logPath)
	return raw[max(0, len(raw)-1500):]
}

// rss is how much memory the process has, in bytes.
func (r *replica) rss() (int, error) {
	cmd, _ := r.process()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) == 3 && fields[0] == "VmRSS:" {
			kib, err := strconv.Atoi(fields[1])
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmRSS")
}

var (
	findings  = regexp.MustCompile(`(?m)^(.*(WARNING: DATA RACE|^panic: |^fatal error: |level=ERROR|handler panicked).*)$`)
	goroutine = regexp.MustCompile(`(?m)^goroutine \d+ (?:gp=\S+ m=\S+ )?(?:mp=\S+ )?\[`)
)

// findings returns what the log says of panics, data races and errors.
func (r *replica) findings() (found []string) {
	raw, err := os.ReadFile(r.logPath)
	if err != nil {
		return []string{err.Error()}
	}
	for _, m := range findings.FindAll(raw, 10) {
		found = append(found, fmt.Sprintf("replica %d: %.300s", r.n, m))
	}
	return found
}

// goroutines ends the process with SIGQUIT and returns which goroutines still
// served a request: once idle there must be none, nor any beyond a small number.
func (r *replica) goroutines() (left []string) {
	before, err := os.Stat(r.logPath)
	if err != nil {
		return []string{err.Error()}
	}
	r.signal(syscall.SIGQUIT)
	_, exited := r.process()
	<-exited
	raw, err := os.ReadFile(r.logPath)
	if err != nil {
		return []string{err.Error()}
	}
	dump := raw[min(before.Size(), int64(len(raw))):]
	starts := goroutine.FindAllIndex(dump, -1)
	if len(starts) == 0 || len(starts) > mostGoroutines {
		left = append(left, fmt.Sprintf("replica %d: %d goroutines, once idle", r.n, len(starts)))
	}
	for i, at := range starts {
		end := len(dump)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		if stack := dump[at[0]:end]; bytes.Contains(stack, []byte("net/http.(*conn).serve(")) {
			left = append(left, fmt.Sprintf("replica %d: a goroutine serves a request, once idle: %.1500s", r.n, stack))
		}
	}
	return left
}

// mostGoroutines is more than an idle replica has: some of the runtime, and a
// handful for the server, the sweeper and the pool, whatever was asked before.
const mostGoroutines = 40
