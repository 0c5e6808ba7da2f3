// Package localredis runs a private Redis server from the program installed on
// the machine.
package localredis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNoProgram says that there is no redis-server in PATH.
var ErrNoProgram = errors.New("no redis-server in PATH (Debian: apt-get install redis-server)")

const (
	startTimeout = 20 * time.Second
	stopTimeout  = 10 * time.Second
)

// Server is a running Redis server. Its data are gone when it ends.
type Server struct {
	dir    string
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a server in a directory of its own, which listens on a socket
// only, and returns once it answers. It keeps an append-only file that it flushes
// as appendfsync says: always, everysec or no. Nothing else differs from Redis'
// defaults, but that it takes no snapshots, which a server with an append-only
// file does not need. It ends with this process, after kill -9 too.
func Start(ctx context.Context, appendfsync string) (*Server, error) {
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoProgram
	}
	dir, err := os.MkdirTemp("", "bench-redis-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, exited: make(chan struct{})}
	s.cmd = exec.Command(program, "--port", "0", "--unixsocket", s.Socket(), "--dir", dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", appendfsync, "--logfile", filepath.Join(dir, "log"))
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	go func() {
		_ = s.cmd.Wait() // how it ended is as we wanted it, or its log tells
		close(s.exited)
	}()
	if err := s.awaitReady(ctx); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return nil, errors.Join(fmt.Errorf("redis-server: %w; its log ends: %s", err, log[max(0, len(log)-1000):]), s.Stop())
	}
	return s, nil
}

func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: s.Socket(), MaxRetries: -1})
	defer client.Close()
	for {
		err := client.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return errors.New("it ended while it started")
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Socket is the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, "sock") }

// PID is the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Stop ends the server and removes what it had.
func (s *Server) Stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // one that is gone needs none
	select {
	case <-s.exited:
	case <-time.After(stopTimeout):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
	return os.RemoveAll(s.dir)
}
