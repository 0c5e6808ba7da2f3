// Package localpg runs a private PostgreSQL server from the programs installed
// on the machine, for people and tests that have no server at hand.
//
// The server ends with the process that started it, after kill -9 too, and
// always by a clean shutdown: a shell watches over it that shuts it down when a
// pipe from this process closes. Server and shell are in a session of their
// own, so that a signal to the process group (Ctrl-C) does not take the
// database away from requests that are still being drained.
package localpg

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNoPrograms says that the machine has no PostgreSQL server programs
	// that can be used; a container may do instead.
	ErrNoPrograms = errors.New("no usable PostgreSQL server programs (initdb and postgres, version 15 or newer)")

	// ErrNoCluster says that there is no cluster where one must be, and that none
	// was made.
	ErrNoCluster = errors.New("no api has kept data here")

	// ErrInUse says that another process holds the data directory.
	ErrInUse = errors.New("another api is running")
)

const (
	// Name is the server's superuser and its database.
	Name = "intentd"

	startTimeout = time.Minute

	// maxSocketPath is what sun_path holds on macOS, which has the least, less
	// its NUL: https://man.freebsd.org/cgi/man.cgi?query=unix&sektion=4
	maxSocketPath = 103
	socketName    = ".s.PGSQL.5432"
)

//go:embed supervise.sh
var superviseScript string

// Options say which server to run. The zero value is a temporary one.
type Options struct {
	// DataDir is where the cluster lives; it is made when it is missing. Beside
	// it stand DataDir.lock, which the process holds, and DataDir.log, the
	// server's own log. Empty means a temporary cluster, which is removed when
	// the server ends.
	DataDir string

	// Existing says that the cluster in DataDir must be there: instead of making
	// one Start and Join return ErrNoCluster.
	Existing bool

	// Settings are PostgreSQL's own, by name, and override the defaults here.
	Settings map[string]string

	// Log gets a line or two about what is done; nil means none.
	Log *slog.Logger

	// Getenv is asked for PG_BINDIR, PATH and TMPDIR; nil means os.Getenv.
	Getenv func(string) string
}

// Server is a running PostgreSQL server. Its methods may be called from
// several goroutines.
type Server struct {
	url   string
	shell *shell
	lock  *os.File // nil for a temporary cluster
	log   *os.File
	from  int64 // where in log this run begins
	tail  string
	done  chan struct{}

	// Of one that was joined; shell is nil where the server is another's.
	turn  *os.File
	leave sync.Once
}

// Start starts a server and returns once it answers. ctx bounds the start, as
// does a minute, and means nothing to the server afterwards.
//
// Programs are taken from PG_BINDIR alone if that is set, else from PATH and
// from where distributions put them; an existing DataDir gets the version that
// made it. For root they run as the owner of DataDir, as postgres or as nobody,
// since PostgreSQL refuses to run as root; if that user can not enter the
// directory of DataDir, the data live in /var/lib/intentd and DataDir is a
// symbolic link to them.
//
// It returns ErrNoPrograms if there is nothing to run, and ErrInUse if another
// process has started a server on DataDir and lives. A server left over from
// one that died is shut down first. After a crash at any moment, the next Start
// finds either the cluster as of the last commit or, where it had never been
// complete, makes it anew.
func Start(ctx context.Context, o Options) (*Server, error) {
	return begin(ctx, o, startServer)
}

// Join is for commands that need a durable server for a moment: it returns the
// one that another process has started on o.DataDir, which it waits for while
// that starts, and where there is none it is Start. Stop then ends only a server
// that Join has started. Another's ends with its own process, which Done does not
// tell.
//
// Those that have joined a directory take turns, from Join to Stop, so that none
// stops a server that the next one uses. A process that dies loses its turn.
func Join(ctx context.Context, o Options) (*Server, error) {
	return begin(ctx, o, join)
}

// begin fills in what o leaves out, and bounds what do may take.
func begin(ctx context.Context, o Options, do func(context.Context, Options) (*Server, error)) (*Server, error) {
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it did not start within "+startTimeout.String()))
	defer cancel()

	if o.Existing {
		if err := mustExist(o); err != nil {
			return nil, fmt.Errorf("private PostgreSQL server: %w", err)
		}
	}
	s, err := do(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("private PostgreSQL server: %w", err)
	}
	return s, nil
}

func startServer(ctx context.Context, o Options) (*Server, error) {
	if o.DataDir == "" {
		return startTemporary(ctx, o)
	}
	return startDurable(ctx, o)
}

// URL returns the server's connection string, for the superuser intentd and the
// database intentd. It holds no secret: that only this user (and root) can enter
// the socket's directory is what protects the server.
func (s *Server) URL() string {
	return s.url
}

// Done returns a channel that is closed when the server has ended, for whatever
// reason, and what was temporary about it is gone.
func (s *Server) Done() <-chan struct{} {
	return s.done
}

// Stop shuts the server down: open transactions are rolled back, and what was
// committed is on disk when it returns. If ctx ends first, the shutdown goes on
// without the caller, and Stop returns the cause. Stopping again is no error.
//
// Where the server is another process's, Stop only ends the turn of who joined it.
func (s *Server) Stop(ctx context.Context) error {
	if s.shell == nil {
		s.leave.Do(func() { close(s.done) })
	} else {
		s.shell.end()
	}
	select {
	case <-s.done:
		_ = s.turn.Close() // nil, or closed before, is no harm
		return nil
	case <-ctx.Done():
		return fmt.Errorf("private PostgreSQL server: still shutting down: %w", context.Cause(ctx))
	}
}

func startTemporary(ctx context.Context, o Options) (*Server, error) {
	who, err := serverUser("")
	if err != nil {
		return nil, err
	}
	bin, err := findPrograms(o.Getenv, who, "")
	if err != nil {
		return nil, err
	}
	run, err := makeRunDir(o.Getenv, who)
	if err != nil {
		return nil, err
	}
	log, err := openLog(filepath.Join(run, "postgres.log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(run))
	}
	s := &Server{log: log}
	return s.serve(ctx, o, who, job{
		run: run, initdb: bin.initdb, postgres: bin.postgres, data: filepath.Join(run, "data"),
	})
}

func startDurable(ctx context.Context, o Options) (*Server, error) {
	dir, err := resolve(o.DataDir)
	if err != nil {
		return nil, err
	}
	s := &Server{}
	if s.lock, err = takeLock(dir); err != nil {
		return nil, err
	}
	if s.log, err = openLog(dir + ".log"); err != nil {
		s.release()
		return nil, err
	}
	who, j, err := s.prepare(ctx, o, dir)
	if err != nil {
		s.release()
		return nil, err
	}
	return s.serve(ctx, o, who, j)
}

// prepare makes dir a cluster that no server runs on, and returns how to serve
// it.
func (s *Server) prepare(ctx context.Context, o Options, dir string) (*account, job, error) {
	who, err := serverUser(dir)
	if err != nil {
		return nil, job{}, err
	}
	version, err := clusterVersion(dir)
	if err != nil {
		return nil, job{}, err
	}
	bin, err := findPrograms(o.Getenv, who, version)
	if err != nil {
		return nil, job{}, err
	}
	switch {
	case version == "" && o.Existing:
		err = ErrNoCluster
	case version == "":
		err = makeCluster(ctx, o.Log, who, bin, dir, s.log)
	default:
		err = endLeftover(ctx, o.Log, dir)
	}
	if err != nil {
		return nil, job{}, err
	}
	// The name that the server's user can reach, and by which a later Start
	// recognises the process.
	data, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, job{}, err
	}
	run, err := makeRunDir(o.Getenv, who)
	return who, job{run: run, postgres: bin.postgres, data: data}, err
}

// serve runs the server and waits until it answers. From here on the lock, the
// log and j.run belong to the server's life.
func (s *Server) serve(ctx context.Context, o Options, who *account, j job) (*Server, error) {
	settings := map[string]string{
		"listen_addresses": "",
		// The quoting is the list's own, for a directory with a space in it.
		"unix_socket_directories":          `"` + strings.ReplaceAll(j.run, `"`, `""`) + `"`,
		"port":                             "5432",
		"max_connections":                  "200",
		"client_connection_check_interval": "500ms",
		"timezone":                         "UTC",
		"log_timezone":                     "UTC",
		// A failed statement is the client's to report, and may hold what no
		// log should.
		"log_min_messages":    "log",
		"log_error_verbosity": "terse",
		"log_checkpoints":     "off",
	}
	maps.Copy(settings, o.Settings)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		j.arguments = append(j.arguments, "-c", name+"="+settings[name])
	}
	s.url = serverURL(j.run, "5432")

	var err error
	if s.from, err = s.log.Seek(0, io.SeekEnd); err == nil {
		s.shell, err = spawn(who, j, s.log)
	}
	if err != nil {
		s.release()
		return nil, errors.Join(err, os.RemoveAll(j.run))
	}
	s.done = make(chan struct{})
	go func() {
		<-s.shell.ended
		s.tail = readTail(s.log, s.from)
		s.release()
		close(s.done)
	}()

	if err := s.awaitReady(ctx); err != nil {
		s.shell.end()
		<-s.done
		return nil, fmt.Errorf("%w; its log ends:\n%s", err, s.tail)
	}
	o.Log.Info("private PostgreSQL server started", "data", j.data, "log", s.log.Name(), "connect", "psql -h "+j.run+" -U "+Name)
	return s, nil
}

// serverURL is the connection string of a server by the directory of its socket.
func serverURL(run, port string) string {
	query := url.Values{"host": {run}, "port": {port}, "sslmode": {"disable"}}
	// As in libpq, a plus stands for itself and not for a space.
	return fmt.Sprintf("postgres://%s@/%s?%s", Name, Name, strings.ReplaceAll(query.Encode(), "+", "%20"))
}

func (s *Server) release() {
	if s.log != nil {
		_ = s.log.Close()
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

// awaitReady returns when the server answers and has its database.
func (s *Server) awaitReady(ctx context.Context) error {
	const tick = 20 * time.Millisecond
	for {
		err := createDatabase(ctx, s.url)
		var pgErr *pgconn.PgError
		const cannotConnectNow = "57P03"
		if err == nil || errors.As(err, &pgErr) && pgErr.Code != cannotConnectNow {
			return err
		}
		select {
		case <-s.done:
			return errors.New("it ended while starting")
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
		case <-time.After(tick):
		}
	}
}

func createDatabase(ctx context.Context, url string) error {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return err
	}
	config.Database = "postgres"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// Asked first, since a cluster that somebody made a standby can not try.
	var there bool
	const exists = "select exists (select from pg_database where datname = $1)"
	if err := conn.QueryRow(ctx, exists, Name).Scan(&there); err != nil || there {
		return err
	}
	_, err = conn.Exec(ctx, "create database "+Name)
	return err
}

// job is what one shell is to run: the arguments of supervise.sh.
type job struct {
	run, initdb, postgres, data string
	arguments                   []string
}

// shell is a running supervise.sh.
type shell struct {
	alive *os.File      // its other end is the shell's standard input
	ended chan struct{} // closed when the shell is over, and all that it ran
	err   error         // how it ended; valid then
}

func spawn(who *account, j job, log *os.File) (*shell, error) {
	stdin, alive, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	args := []string{"-c", superviseScript, "supervise", j.run, j.initdb, j.postgres, j.data}
	cmd := who.command("/bin/sh", append(args, j.arguments...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, log, log
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, alive.Close())
	}
	sh := &shell{alive: alive, ended: make(chan struct{})}
	go func() {
		sh.err = cmd.Wait()
		// The shell may have been killed alone; its watcher lives and has to
		// hear of it.
		sh.end()
		close(sh.ended)
	}()
	return sh, nil
}

// end makes the shell end what it runs. It may be called again.
func (sh *shell) end() {
	_ = sh.alive.Close()
}

func openLog(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
}

// readTail returns the end of what the log got since from.
func readTail(log *os.File, from int64) string {
	const most = 2048
	end, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err.Error()
	}
	from = max(from, end-most)
	tail, err := io.ReadAll(io.NewSectionReader(log, from, end-from))
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(tail))
}
