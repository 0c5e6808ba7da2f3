package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"intentd/internal/localpg"
)

const loopback = "127.0.0.1"

// programs returns the directory of PostgreSQL's programs: PG_BINDIR, or the
// newest of Debian's.
func programs() (string, error) {
	if dir := os.Getenv("PG_BINDIR"); dir != "" {
		return dir, nil
	}
	return newest("/usr/lib/postgresql/[0-9][0-9]/bin", "PostgreSQL (Debian: apt-get install postgresql)")
}

// faketime returns the library that changes the clock of the program that it is
// preloaded into.
func faketime() (string, error) {
	return newest("/usr/lib/*/faketime/libfaketimeMT.so.1", "libfaketime (Debian: apt-get install libfaketime)")
}

func newest(pattern, what string) (string, error) {
	found, err := filepath.Glob(pattern)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("this scenario needs %s", what)
	}
	if err != nil {
		return "", err
	}
	return found[len(found)-1], nil
}

// tcpURL is the database's URL for who goes to it through port.
func tcpURL(ports ...int) string {
	var hosts []string
	for _, p := range ports {
		hosts = append(hosts, at(p))
	}
	u := fmt.Sprintf("postgres://%s@%s/%[1]s?sslmode=disable", localpg.Name, strings.Join(hosts, ","))
	if len(ports) > 1 {
		u += "&target_session_attrs=read-write"
	}
	return u
}

// plainDatabase is the service's own private server, for the scenarios in which
// nobody restarts it. It returns its URL, and what ends it.
func plainDatabase(ctx context.Context, settings map[string]string) (string, func(), error) {
	server, err := localpg.Start(ctx, localpg.Options{Settings: settings})
	if err != nil {
		return "", nil, err
	}
	return server.URL(), func() {
		stopping, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = server.Stop(stopping) // its directory is removed when the shell that watches it is done
	}, nil
}

// cluster is a PostgreSQL server whose process the trial starts, kills and
// starts again.
type cluster struct {
	dir, data string
	programs  string
	port      int
	env       []string
	account   *syscall.Credential
	cmd       *exec.Cmd
	exited    chan struct{}
}

// newCluster makes a cluster that does not run yet, in a directory of its own.
func newCluster() (*cluster, error) {
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "torture-pg-")
	if err != nil {
		return nil, err
	}
	c := &cluster{programs: bin, dir: dir, data: filepath.Join(dir, "data"), port: port, account: account}
	if account != nil {
		err = os.Chown(dir, int(account.Uid), int(account.Gid))
	}
	return c, err
}

// serverAccount is whom PostgreSQL and PgBouncer run as: neither runs as root.
func serverAccount() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, err
}

// command runs as the server's user and ends with the trial: SIGQUIT is
// PostgreSQL's immediate shutdown.
func (c *cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = c.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}, c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.account, Setpgid: true, Pdeathsig: syscall.SIGQUIT}
	return cmd
}

// run runs one of PostgreSQL's programs to its end.
func (c *cluster) run(program string, args ...string) error {
	out, err := c.command(filepath.Join(c.programs, program), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}

func (c *cluster) initialize() error {
	return c.run("initdb", "-D", c.data, "-U", localpg.Name, "--auth=trust", "-E", "UTF8", "--no-locale", "--no-sync")
}

// copyOf makes c a standby of the primary that it reaches at port.
func (c *cluster) copyOf(port int) error {
	return c.run("pg_basebackup", "-D", c.data, "-h", loopback, "-p", strconv.Itoa(port), "-U", localpg.Name,
		"-R", "-X", "stream", "-c", "fast", "--no-sync")
}

// start starts the server and waits until it takes connections.
func (c *cluster) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(c.dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := c.command(filepath.Join(c.programs, "postgres"), "-D", c.data,
		"-p", strconv.Itoa(c.port), "-c", "listen_addresses="+loopback, "-c", "unix_socket_directories=",
		"-c", "max_connections=300", "-c", "timezone=UTC", "-c", "wal_level=replica",
		"-c", "client_connection_check_interval=500ms", "-c", "wal_receiver_timeout=5s", "-c", "hot_standby=on")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is as we wanted it
		close(exited)
	}()
	c.cmd, c.exited = cmd, exited
	for range 1000 {
		if conn, err := pgx.Connect(ctx, maintenance(c.port)); err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-exited:
			raw, _ := os.ReadFile(filepath.Join(c.dir, "log"))
			return fmt.Errorf("PostgreSQL ended while it started: %s", raw[max(0, len(raw)-1500):])
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return errors.New("PostgreSQL does not take connections")
}

// maintenance is the URL of the database that every cluster has.
func maintenance(port int) string {
	return strings.Replace(tcpURL(port), "/"+localpg.Name+"?", "/postgres?", 1)
}

// end signals the server and waits for its end. SIGINT is a fast shutdown,
// SIGQUIT an immediate one: then the next start recovers from the log.
func (c *cluster) end(sig syscall.Signal) {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Signal(sig)
	select {
	case <-c.exited:
	case <-time.After(20 * time.Second):
		c.crash()
	}
}

// crash kills the server and all its children at once, as a machine's end does.
func (c *cluster) crash() {
	children := childrenOf(c.cmd.Process.Pid)
	_ = c.cmd.Process.Kill()
	for _, pid := range children {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-c.exited
}

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) (children []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		// The name stands in parentheses and may hold anything.
		fields := bytes.Fields(raw[bytes.LastIndexByte(raw, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(pid) {
			if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}

// remove ends the server and deletes what it had.
func (c *cluster) remove() {
	c.end(syscall.SIGQUIT)
	_ = os.RemoveAll(c.dir)
}

// ownDatabase is a server of the trial's own, with the service's database.
func ownDatabase(ctx context.Context, env ...string) (*cluster, error) {
	c, err := newCluster()
	if err != nil {
		return nil, err
	}
	if err = c.initialize(); err == nil {
		c.env = env
		err = c.start(ctx)
	}
	if err == nil {
		err = execSQL(ctx, maintenance(c.port), "create database "+localpg.Name)
	}
	if err != nil {
		c.remove()
		return nil, err
	}
	return c, nil
}

// execSQL runs statements, each in a transaction of its own, on a connection
// made for them.
func execSQL(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// poolerDSN asks pgx for what works behind a pooler that gives each transaction
// another session.
func poolerDSN(port int) string { return tcpURL(port) + "&default_query_exec_mode=exec" }

// startPooler runs PgBouncer in transaction mode before the server at port, and
// returns its own port and what ends it.
func startPooler(ctx context.Context, port int) (int, func(), error) {
	c, err := newCluster()
	if err != nil {
		return 0, nil, err
	}
	ini := filepath.Join(c.dir, "pgbouncer.ini")
	text := fmt.Sprintf("[databases]\n%[1]s = host=%[2]s port=%[3]d user=%[1]s dbname=%[1]s\n"+
		"[pgbouncer]\nlisten_addr = %[2]s\nlisten_port = %[4]d\nunix_socket_dir =\nauth_type = any\n"+
		"pool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20\n"+
		"server_login_retry = 1\nlogfile = %[5]s\n",
		localpg.Name, loopback, port, c.port, filepath.Join(c.dir, "log"))
	if err := os.WriteFile(ini, []byte(text), 0o644); err != nil {
		return 0, nil, err
	}
	cmd := c.command("pgbouncer", ini)
	if err := cmd.Start(); err != nil {
		return 0, nil, err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	c.cmd, c.exited = cmd, exited
	for range 100 {
		if err = execSQL(ctx, poolerDSN(c.port), "select 1"); err == nil {
			return c.port, c.remove, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	raw, _ := os.ReadFile(filepath.Join(c.dir, "log"))
	c.remove()
	return 0, nil, fmt.Errorf("PgBouncer does not answer: %w: %s", err, raw)
}
