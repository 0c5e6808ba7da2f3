package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// elsewhere holds the data directories that can not be where they were
	// asked for.
	elsewhere = "/var/lib/intentd"

	// leftoverTimeout is more than the shell takes to end a server.
	leftoverTimeout = 15 * time.Second
)

// resolve makes the directory of dir and returns dir by its one true name, so
// that whoever names it, the lock is the same.
func resolve(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	if parent, err = filepath.EvalSymlinks(parent); err != nil {
		return "", err
	}
	return filepath.Join(parent, filepath.Base(dir)), nil
}

const lockSuffix = ".lock"

// takeLock holds dir until the file is closed or this process ends, kill -9
// included. The file stays: removing it would part those who have it open from
// those who come later.
func takeLock(dir string) (*os.File, error) {
	f, err := tryLock(dir + lockSuffix)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("%w on %s", ErrInUse, dir)
	}
	return f, err
}

// errLocked says that another has the file locked.
var errLocked = errors.New("locked by another")

func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// clusterVersion returns the major version that made the cluster in dir, empty
// if there is none.
func clusterVersion(dir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(raw)), err
}

// mustExist returns ErrNoCluster where nobody ever locked o.DataDir to make a
// cluster, and leaves nothing behind there. That there are no programs to serve
// one comes first.
func mustExist(o Options) error {
	if _, err := os.Stat(o.DataDir + lockSuffix); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	who, err := serverUser("")
	if err != nil {
		return err
	}
	if _, err := findPrograms(o.Getenv, who, ""); err != nil {
		return err
	}
	return ErrNoCluster
}

// makeCluster makes a cluster and puts it at dir in one step when it is
// complete, so that dir is never half a cluster.
func makeCluster(ctx context.Context, log *slog.Logger, who *account, bin programs, dir string, out *os.File) (err error) {
	parent, base := filepath.Dir(dir), filepath.Base(dir)
	if err := makeRoom(dir); err != nil {
		return err
	}
	place, prefix, put := parent, base+".new-", os.Rename
	if !who.canEnter(parent) {
		place, prefix, put = elsewhere, "pg-", os.Symlink
		if err := os.MkdirAll(elsewhere, 0o711); err != nil {
			return err
		}
	}
	fresh, err := os.MkdirTemp(place, prefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(fresh))
		}
	}()
	if err := who.own(fresh); err != nil {
		return err
	}
	log.Info("making a PostgreSQL cluster", "data", dir, "programs", filepath.Dir(bin.initdb))
	from, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	sh, err := spawn(who, job{initdb: bin.initdb, data: fresh}, out)
	if err != nil {
		return err
	}
	select {
	case <-sh.ended:
	case <-ctx.Done():
		sh.end()
		<-sh.ended
		return context.Cause(ctx)
	}
	if sh.err != nil {
		return fmt.Errorf("initdb: %w; its output ends:\n%s", sh.err, readTail(out, from))
	}
	if place == elsewhere {
		log.Info("the server's user can not enter the data directory's place; the data are elsewhere",
			"link", dir, "data", fresh)
	}
	return put(fresh, dir)
}

// makeRoom makes room for a cluster at dir, where there is none: it removes what
// interrupted attempts have left, and at dir an empty directory or a link whose
// target is gone, but nothing that holds anything.
func makeRoom(dir string) error {
	parent, base := filepath.Dir(dir), filepath.Base(dir)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), base+".new-") {
			if err := os.RemoveAll(filepath.Join(parent, e.Name())); err != nil {
				return err
			}
		}
	}
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		if _, err := os.Stat(dir); err == nil {
			return fmt.Errorf("%s is a link to something that is no PostgreSQL cluster", dir)
		}
	}
	if err := os.Remove(dir); err != nil {
		return fmt.Errorf("no PostgreSQL cluster, and not empty: %w", err)
	}
	return nil
}

// endLeftover sees to it that no server runs on the cluster in dir, whose lock
// we hold: one that is still there has lost its parent.
func endLeftover(ctx context.Context, log *slog.Logger, dir string) error {
	data, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leftoverTimeout)
	defer cancel()
	pidFile := filepath.Join(data, "postmaster.pid")
	const tick = 20 * time.Millisecond
	for told := false; ; {
		raw, err := os.ReadFile(pidFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		first, _, _ := strings.Cut(string(raw), "\n")
		pid, err := strconv.Atoi(strings.TrimSpace(first))
		if err != nil || pid <= 1 || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			// PostgreSQL knows best what to do about a dead server's file.
			return nil
		}

		p := describe(pid)
		if p.isOther(data) {
			// PostgreSQL refuses to start when the number of a server that
			// died belongs to any process of its user.
			log.Info("removing a dead server's postmaster.pid", "data", data, "pid", pid)
			if err := os.Remove(pidFile); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}
		if p.serves(data) && !told {
			log.Info("shutting down a leftover PostgreSQL server", "data", data, "pid", pid)
			if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("leftover PostgreSQL server, process %d: %w", pid, err)
			}
			told = true
		}

		// A process that is ending shows neither directory nor arguments, so
		// that nothing is concluded from their absence before the time is up.
		select {
		case <-ctx.Done():
			return fmt.Errorf("a PostgreSQL server, process %d, seems to run on %s and does not end; "+
				"if it serves another directory, remove %s: %w", pid, data, pidFile, context.Cause(ctx))
		case <-time.After(tick):
		}
	}
}

// process is what can be learnt about one; what can not is empty.
type process struct {
	name, dir, args string
}

func describe(pid int) process {
	if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		dir, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
		return process{name: strings.TrimSpace(string(name)), dir: dir, args: strings.ReplaceAll(string(args), "\x00", " ")}
	}
	ps := func(column string) string {
		out, _ := exec.Command("ps", "-ww", "-p", strconv.Itoa(pid), "-o", column+"=").Output()
		return strings.TrimSpace(string(out))
	}
	return process{name: filepath.Base(ps("comm")), args: ps("args")}
}

func (p process) isServer() bool {
	return p.name == "postgres" || p.name == "postmaster"
}

// serves tells whether it is the server of data: PostgreSQL makes its data
// directory its working directory, and is named it by us.
func (p process) serves(data string) bool {
	return p.isServer() && (p.dir == data || p.dir == "" && strings.Contains(p.args, data))
}

// isOther tells whether it certainly is something else.
func (p process) isOther(data string) bool {
	return p.name != "" && (!p.isServer() || p.dir != "" && p.dir != data)
}
