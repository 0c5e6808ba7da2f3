package redistest

import (
	"bufio"
	"context"
	_ "embed" // the supervisor
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Options choose how a private server runs.
type Options struct {
	// TCP has it listen on a free port of the loopback, instead of on a socket.
	TCP bool
	// Args are settings as redis-server's command line has them, as in
	// "--appendonly", "yes". What it keeps is in a directory of its own.
	Args []string
}

// Durable has all that a server answered outlive its process. With "appendfsync
// everysec" it would not: while the disk is busy Redis answers before it has
// written anything.
var Durable = Options{Args: []string{"--appendonly", "yes", "--appendfsync", "always"}}

// Server is a private server. It keeps its address over restarts. Its methods are
// not safe for concurrent use.
type Server struct {
	program string
	args    []string
	dir     string
	url     string
	runs    []*run
}

// run is one process of the server.
type run struct {
	supervisor *exec.Cmd
	hold       io.Closer // its end ends the process
	pid        int
	done       chan struct{}
}

//go:embed supervise.sh
var supervise string

// startTimeout is for a server to answer after its start.
const startTimeout = 10 * time.Second

// maxSocketPath is the shortest of the limits that systems have, macOS's.
const maxSocketPath = 103

// Start starts a private server. Where the machine has no program for it, the
// error is ErrNoProgram.
func Start(o Options) (*Server, error) {
	s := new(Server)
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			s.program = path
			break
		}
	}
	if s.program == "" {
		return nil, ErrNoProgram
	}
	var err error
	if s.dir, err = makeDir(); err != nil {
		return nil, err
	}
	if err = s.listen(o.TCP); err == nil {
		s.args = append(s.args, "--dir", s.dir, "--save", "", "--daemonize", "no", "--logfile", filepath.Join(s.dir, "log"))
		s.args = append(s.args, o.Args...)
		err = s.Start()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// makeDir makes the server's directory, in which the path of a socket must not be
// too long.
func makeDir() (string, error) {
	dir, err := os.MkdirTemp("", "intentd-redis-")
	if err == nil && len(filepath.Join(dir, "s")) > maxSocketPath {
		_ = os.Remove(dir)
		dir, err = os.MkdirTemp("/tmp", "intentd-redis-")
	}
	return dir, err
}

// listen chooses the address.
func (s *Server) listen(tcp bool) error {
	if !tcp {
		socket := filepath.Join(s.dir, "s")
		s.url = "unix://" + socket
		s.args = []string{"--port", "0", "--unixsocket", socket, "--unixsocketperm", "700"}
		return nil
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	s.url = "redis://127.0.0.1:" + port
	s.args = []string{"--port", port, "--bind", "127.0.0.1"}
	return nil
}

// freePort returns a port below those that the system gives to outgoing
// connections, so that the server finds it free when it comes back. A cluster's
// server takes the one 10,000 above it too.
func freePort() (string, error) {
	for range 100 {
		port := strconv.Itoa(12000 + rand.IntN(10000))
		ln, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err == nil {
			return port, ln.Close()
		}
	}
	return "", errors.New("no free port")
}

// URL is where the server is, as REDIS_URL is written.
func (s *Server) URL() string { return s.url }

// Start starts the server again, after Kill or Stop, and waits until it answers.
func (s *Server) Start() error {
	cmd := exec.Command("/bin/sh", append([]string{"-c", supervise, "supervise", s.dir, s.program}, s.args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // whoever signals our group means us
	hold, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	r := &run{supervisor: cmd, hold: hold, done: make(chan struct{})}
	s.runs = append(s.runs, r)
	lines := bufio.NewScanner(out)
	if lines.Scan() {
		r.pid, _ = strconv.Atoi(lines.Text()) // 0 is seen below
	}
	go func() {
		defer close(r.done)
		for lines.Scan() { // nothing is said until the server has ended
		}
		_ = cmd.Wait() // how it ended is as we wanted it
	}()
	if r.pid == 0 {
		return errors.New("the supervisor does not tell the server's number")
	}
	return s.awaitAnswer(r)
}

func (s *Server) awaitAnswer(r *run) error {
	o, err := redis.ParseURL(s.url)
	if err != nil {
		return err
	}
	o.MaxRetries = -1
	client := redis.NewClient(o)
	defer client.Close()
	for deadline := time.Now().Add(startTimeout); ; {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := client.Ping(ctx).Err()
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-r.done:
			return fmt.Errorf("%s ended as it started: %s", s.program, s.logTail())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not answer: %w: %s", s.program, err, s.logTail())
		}
	}
}

func (s *Server) logTail() string {
	raw, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(raw[max(0, len(raw)-1500):]))
}

// Signal signals the server's process: SIGSTOP makes it silent, SIGCONT lets it
// go on.
func (s *Server) Signal(sig syscall.Signal) error {
	return syscall.Kill(s.runs[len(s.runs)-1].pid, sig)
}

// Kill ends the server as a crash does. What it had written stays for Start.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Stop ends the server in good order. What it keeps stays for Start.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

func (s *Server) end(sig syscall.Signal) {
	r := s.runs[len(s.runs)-1]
	_ = s.Signal(sig) // one that has ended needs none
	select {
	case <-r.done:
	case <-time.After(startTimeout):
		_ = s.Signal(syscall.SIGKILL)
		<-r.done
	}
}

// Close ends the server and deletes what it had.
func (s *Server) Close() error {
	for _, r := range s.runs {
		_ = r.hold.Close()
		<-r.done
	}
	return os.RemoveAll(s.dir)
}
