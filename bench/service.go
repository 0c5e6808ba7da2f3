package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"intentd/bench/localredis"
	"intentd/bench/peers"
	"intentd/internal/idempotency"
)

// What every request is sent with, by every contestant's clients.
const (
	merchant = "bench"
	bearer   = "token-of-bench"

	requestBody = `{"chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3","payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8",` +
		`"merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC","amount":"100000000","expires_in_seconds":900}`

	// The answer to it, as fills put it on record.
	answerHeader = `{"Location": ["/v1/payment_intents/pi_01a227ad00037e149deb5ac7ce81d7d2"], "Content-Type": ["application/json"]}`
	answerBody   = `{"id":"pi_01a227ad00037e149deb5ac7ce81d7d2","chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3",` +
		`"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC","amount":"100000000",` +
		`"state":"created","version":1,"created_at":"2026-11-29T14:19:38.883628Z","updated_at":"2026-11-29T14:19:38.883628Z","expires_at":"2026-11-29T14:34:38.883628Z"}` + "\n"

	ttl   = 24 * time.Hour
	lease = 30 * time.Second
)

var fingerprint = idempotency.FingerprintOf(http.MethodPost, createPath, []byte(requestBody))

// committersVariable chooses between the service's two ways to commit: 0 is one
// transaction for each request, n is n committers of groups.
const committersVariable = "IDEMPOTENCY_COMMITTERS"

// buildService builds the service's program into dir, and returns its path.
func buildService(ctx context.Context, source, dir string) (string, error) {
	bin := filepath.Join(dir, "api")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", bin, "./cmd/api")
	cmd.Dir = source
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return bin, nil
}

// hasGroups says whether the service can gather claims into groups.
func hasGroups(ctx context.Context, bin string) (bool, error) {
	usage, err := exec.CommandContext(ctx, bin, "-h").Output()
	return bytes.Contains(usage, []byte(committersVariable)), err
}

// process is a running server of HTTP.
type process struct {
	name, addr string
	cmd        *exec.Cmd
	exited     chan struct{}
	log        string
}

// startProcess starts program and waits until it says that it can serve.
func startProcess(ctx context.Context, name, dir, program string, args []string, env func(addr string) []string) (*process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, addr: addr, exited: make(chan struct{}), log: filepath.Join(dir, "log-"+strings.ReplaceAll(addr, ":", "-"))}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env(addr)...)
	p.cmd.Dir = dir
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // its log tells
		close(p.exited)
	}()
	if err := p.awaitReady(ctx); err != nil {
		err = fmt.Errorf("%s: %w; its log ends: %s", name, err, p.logTail())
		p.stop()
		return nil, err
	}
	return p, nil
}

// freeAddr returns an address below those that the system gives to outgoing
// connections.
func freeAddr() (string, error) {
	for range 100 {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(12000+rand.IntN(18000)))
		if ln, err := net.Listen("tcp", addr); err == nil {
			return addr, ln.Close()
		}
	}
	return "", errors.New("no free port")
}

func (p *process) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+"/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-p.exited:
			return errors.New("it ended while it started")
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *process) logTail() []byte {
	raw, _ := os.ReadFile(p.log)
	return raw[max(0, len(raw)-1500):]
}

// forget empties the log, which has a line for each request, and is in memory.
func (p *process) forget() error { return os.Truncate(p.log, 0) }

// stop ends the process. A drain has nothing to wait for: no request runs.
func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// system is a contestant's servers: replicas over one database, and Redis where
// it needs one.
type system struct {
	name      string
	url       string // its database's
	processes []*process
	redis     *localredis.Server
}

// stop ends all of it.
func (s *system) stop() error {
	for _, p := range s.processes {
		p.stop()
	}
	if s.redis != nil {
		return s.redis.Stop()
	}
	return nil
}

func (s *system) addrs() (addrs []string) {
	for _, p := range s.processes {
		addrs = append(addrs, p.addr)
	}
	return addrs
}

// empty takes away all that the system has on record.
func (s *system) empty(ctx context.Context) error {
	if s.redis != nil {
		if err := peers.EmptyRedis(ctx, s.redis.Socket()); err != nil {
			return err
		}
	}
	return execSQL(ctx, s.url, emptySQL)
}

// createOnce makes an intent under the first of the recorded keys.
func (s *system) createOnce(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.processes[0].addr+createPath, strings.NewReader(requestBody))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	req.Header.Set("Idempotency-Key", recordedKey(1))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: the first create was answered %d: %s", s.name, resp.StatusCode, body)
	}
	return err
}

// serviceEnv is the service's environment. Its sweeper sweeps once, at the start:
// no peer has one, and it shall not come into the middle of somebody's window.
func serviceEnv(url string, conns int, committers string) func(addr string) []string {
	return func(addr string) []string {
		env := []string{
			"API_ADDR=" + addr, "ADMIN_ADDR=127.0.0.1:0", "DATABASE_URL=" + url, "API_DEMO_KEYS=" + merchant + "=" + bearer,
			"DB_MAX_CONNS=" + strconv.Itoa(conns), "SWEEP_INTERVAL=1h",
			"IDEMPOTENCY_TTL=" + ttl.String(), "IDEMPOTENCY_LEASE=" + lease.String(),
		}
		if committers != "" {
			env = append(env, committersVariable+"="+committers)
		}
		return env
	}
}

// peerAddr is the variable that tells a peer's server where to listen.
const peerAddr = "BENCH_PEER_ADDR"

// servePeer is the program of a peer's server. Its server has the bounds of the
// service's own, its garbage is collected as seldom, and its log is the same.
func servePeer(ctx context.Context, args []string, stderr io.Writer) error {
	debug.SetGCPercent(400)
	o := peers.Options{TTL: ttl, Lease: lease, Merchants: map[string]string{bearer: merchant}}
	o.Log = slog.New(slog.NewTextHandler(stderr, nil))
	f := flag.NewFlagSet(peerCommand, flag.ContinueOnError)
	f.StringVar(&o.Kind, "kind", "", "which peer")
	f.StringVar(&o.DatabaseURL, "database", "", "URL of the database")
	f.StringVar(&o.Redis, "redis", "", "socket of the Redis server")
	f.IntVar(&o.Conns, "conns", 0, "size of the pool")
	if err := f.Parse(args); err != nil {
		return err
	}
	handler, end, err := peers.New(ctx, o)
	if err != nil {
		return err
	}
	defer end()
	srv := &http.Server{
		Addr: os.Getenv(peerAddr), Handler: handler,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 90 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, DisableGeneralOptionsHandler: true,
	}
	return srv.ListenAndServe()
}

// logDir makes the directory of the servers' logs: in memory where there is such
// a place, since the lines of a log are no part of what the disk has to do here.
func logDir() (string, error) {
	parent := ""
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		parent = "/dev/shm"
	}
	return os.MkdirTemp(parent, "bench-")
}

// programOf returns where one of PostgreSQL's client programs is.
func programOf(name string) (string, error) {
	dirs, _ := filepath.Glob("/usr/lib/postgresql/[0-9][0-9]/bin") // the pattern is valid
	newest := ""
	if len(dirs) > 0 {
		newest = dirs[len(dirs)-1]
	}
	if dir := cmp.Or(os.Getenv("PG_BINDIR"), newest); dir != "" {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}
