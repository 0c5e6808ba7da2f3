package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is the user that the server runs as; nil is the current one.
type account struct {
	uid, gid uint32
}

// serverUser returns whom to run the server as. PostgreSQL refuses to run as
// root, and on a data directory that belongs to someone else.
func serverUser(dataDir string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	if info, err := os.Stat(dataDir); err == nil {
		if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Uid != 0 {
			return &account{uid: owner.Uid, gid: owner.Gid}, nil
		}
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &account{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

// command returns a command that runs as the account, and whose environment
// holds none of the variables that PostgreSQL's programs listen to.
func (a *account) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	// Where we are may be closed to the account.
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return cmd
}

// canEnter tells whether the account can reach what is in dir. It asks the
// system rather than the permission bits, which are not all that decides.
func (a *account) canEnter(dir string) bool {
	return a.command("/bin/sh", "-c", `cd -- "$1"`, "sh", dir).Run() == nil
}

// canFill tells whether the account can make and remove entries of dir.
func (a *account) canFill(dir string) bool {
	return a.command("/bin/sh", "-c", `cd -- "$1" && test -w .`, "sh", dir).Run() == nil
}

// own gives path to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// makeRunDir makes the directory of the server's socket, and of all that a
// temporary server has. Only the server's user and root can enter it, which is
// the whole protection of the server: it trusts whoever reaches its socket.
func makeRunDir(getenv func(string) string, who *account) (string, error) {
	var errs []error
	for _, parent := range []string{getenv("TMPDIR"), "/tmp"} {
		// MkdirTemp's number has at most ten digits. A comma would make two
		// hosts of the path in the connection string. The shell, which runs as
		// the account, has to remove the directory.
		longest := filepath.Join(parent, "intentd-0123456789", socketName)
		if !filepath.IsAbs(parent) || len(longest) > maxSocketPath ||
			strings.Contains(parent, ",") || !who.canFill(parent) {
			continue
		}
		dir, err := os.MkdirTemp(parent, "intentd-")
		if err == nil {
			err = who.own(dir)
		}
		if err == nil {
			return dir, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("no place for a socket: %w", errors.Join(errs...))
}
