package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// joinTick is how often something is looked at that only its change can tell.
const joinTick = 50 * time.Millisecond

// join is Start where nobody holds the directory, and attach where somebody does.
func join(ctx context.Context, o Options) (_ *Server, err error) {
	if o.DataDir == "" {
		return nil, errors.New("only a server that has a data directory can be joined")
	}
	dir, err := resolve(o.DataDir)
	if err != nil {
		return nil, err
	}
	turn, err := awaitTurn(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = turn.Close()
		}
	}()
	for {
		s, err := startServer(ctx, o)
		if errors.Is(err, ErrInUse) {
			s, err = attach(ctx, dir)
			if err == nil {
				o.Log.Info("using the private PostgreSQL server of the api that is running", "data", dir)
			}
		}
		if err == nil {
			s.turn = turn
			return s, nil
		}
		if !errors.Is(err, errNotServed) {
			return nil, err
		}
		// Who holds the directory is about to serve it, or to leave it.
		if waitErr := sleep(ctx, joinTick); waitErr != nil {
			return nil, fmt.Errorf("%w: %w (%w)", ErrInUse, waitErr, err)
		}
	}
}

// awaitTurn returns when no other process has joined dir.
func awaitTurn(ctx context.Context, dir string) (*os.File, error) {
	for {
		f, err := tryLock(dir + ".turn")
		if !errors.Is(err, errLocked) {
			return f, err
		}
		if waitErr := sleep(ctx, joinTick); waitErr != nil {
			return nil, fmt.Errorf("another command is running on %s: %w", dir, waitErr)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// errNotServed says that no server answers on a data directory, as yet or any
// more.
var errNotServed = errors.New("no server answers")

// attach returns the server that runs on dir, as its postmaster.pid tells.
func attach(ctx context.Context, dir string) (*Server, error) {
	data, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: the cluster is being made", errNotServed)
	}
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: it is not running", errNotServed)
	}
	if err != nil {
		return nil, err
	}
	// One after the other: the process, the data, when it started, port and
	// directory of the socket, the address, the shared memory, and the state:
	// https://github.com/postgres/postgres/blob/REL_15_0/src/include/utils/pidfile.h
	lines := strings.Split(string(raw), "\n")
	if len(lines) < 8 {
		return nil, fmt.Errorf("%w: it is starting", errNotServed)
	}
	url := serverURL(strings.TrimSpace(lines[4]), strings.TrimSpace(lines[3]))
	if err := requireServes(ctx, url, data); err != nil {
		return nil, err
	}
	return &Server{url: url, done: make(chan struct{})}, nil
}

// requireServes returns nil if the server at url is the one on data. The file
// that told of it may be a dead server's.
func requireServes(ctx context.Context, url, data string) error {
	const answerTimeout = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return err // it is another user's
	case err != nil:
		return fmt.Errorf("%w: %w", errNotServed, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var serves string
	switch err := conn.QueryRow(ctx, "show data_directory").Scan(&serves); {
	case err != nil:
		return fmt.Errorf("%w: %w", errNotServed, err)
	case serves != data:
		return fmt.Errorf("%w: at its address there is another, on %s", errNotServed, serves)
	}
	return nil
}
