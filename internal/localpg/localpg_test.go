package localpg

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// childEnv makes the test program a process that starts a server on the
// directory it names ("temporary" for none), for tests that kill such processes.
const childEnv = "LOCALPG_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
	}
	os.Exit(m.Run())
}

// child prints the server's URL, then a line for each SIGTERM that it gets.
func child(dir string) {
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	if dir == "temporary" {
		dir = ""
	}
	s, err := Start(context.Background(), Options{DataDir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.URL())
	for range terms {
		fmt.Println("terminated")
	}
}

func TestStart(t *testing.T) {
	t.Parallel()

	t.Run("Temporary", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{Settings: map[string]string{"fsync": "off"}})
		if got := query(t, s.URL(), "select concat_ws(' ', current_user, current_database(), current_setting('fsync'))"); got != "intentd intentd off" {
			t.Errorf("user, database and fsync are %q", got)
		}
		run := runDir(t, s.URL())
		stop(t, s)
		requireGone(t, run)
	})

	t.Run("KeepsData", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "deep", "postgres")
		s := start(t, Options{DataDir: dir})
		if got := query(t, s.URL(), "show fsync"); got != "on" {
			t.Errorf("fsync is %s", got)
		}
		execute(t, s.URL(), "create table kept as select 'here' as word")
		run := runDir(t, s.URL())
		stop(t, s)
		requireGone(t, run)

		s = start(t, Options{DataDir: dir})
		if got := query(t, s.URL(), "select word from kept"); got != "here" {
			t.Errorf("kept %q", got)
		}
		stop(t, s)
		requireCleanLog(t, dir)
		requireEntries(t, filepath.Dir(dir), "postgres", "postgres.lock", "postgres.log")
	})

	t.Run("SecondIsRefused", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		s := start(t, Options{DataDir: dir})
		// By another name it is the same directory.
		link := filepath.Join(openDir(t), "link")
		if err := os.Symlink(filepath.Dir(dir), link); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), Options{DataDir: filepath.Join(link, "postgres")})
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), dir) {
			t.Errorf("Start = %v, want ErrInUse with the directory", err)
		}
		if got := query(t, s.URL(), "select 'alive'"); got != "alive" {
			t.Errorf("the first answers %q", got)
		}
	})

	t.Run("PlaceClosedToTheServersUser", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "home", "postgres")
		if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		s := start(t, Options{DataDir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
		execute(t, s.URL(), "create table kept as select 'here' as word")
		stop(t, s)
		data, err := filepath.EvalSymlinks(dir)
		if err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			t.Cleanup(func() { _ = os.RemoveAll(data) })
			if filepath.Dir(data) != elsewhere || !strings.Contains(log.String(), data) {
				t.Errorf("the data are in %s, the log says\n%s", data, log.String())
			}
		} else if data != dir {
			t.Errorf("the data are in %s, want %s", data, dir)
		}

		s = start(t, Options{DataDir: dir})
		if got := query(t, s.URL(), "select word from kept"); got != "here" {
			t.Errorf("kept %q", got)
		}
		stop(t, s)

		// With the data gone, so that nothing is left to keep, it begins anew.
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		s = start(t, Options{DataDir: dir})
		stop(t, s)
		if os.Geteuid() == 0 {
			again, err := filepath.EvalSymlinks(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(again); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("InterruptedInitdb", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		if err := os.Mkdir(dir+".new-before", 0o700); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		result := make(chan error, 1)
		go func() {
			_, err := Start(ctx, Options{DataDir: dir})
			result <- err
		}()
		poll(t, "initdb to begin", func() bool {
			begun, err := filepath.Glob(dir + ".new-*/PG_VERSION")
			return err == nil && len(begun) == 1
		})
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("Start = %v, want context.Canceled", err)
		}
		requireEntries(t, filepath.Dir(dir), "postgres.lock", "postgres.log")
		stop(t, start(t, Options{DataDir: dir}))
	})

	t.Run("NotACluster", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		file := filepath.Join(dir, "precious")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Start(t.Context(), Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("Start = %v, want an error with the directory", err)
		}
		requireEntries(t, dir, "precious")
	})

	t.Run("ServersLogIsInTheError", func(t *testing.T) {
		t.Parallel()
		parent := openDir(t)
		if err := os.Chmod(parent, 0o777); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), Options{
			Settings: map[string]string{"shared_buffers": "plenty"},
			Getenv:   env(map[string]string{"TMPDIR": parent}),
		})
		if err == nil || !strings.Contains(err.Error(), `"shared_buffers": "plenty"`) {
			t.Errorf("Start = %v, want what PostgreSQL says", err)
		}
		requireEntries(t, parent)
	})

	t.Run("TemporaryDirectory", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			name string
			mode os.FileMode
			used bool
		}{
			{"short", 0o777, true},
			{"a 'b' $(c) \"d\"", 0o777, true},
			{"a,b", 0o777, false},
			{strings.Repeat("x", maxSocketPath-len(socketName)), 0o777, false},
			// For root, the server's user is another.
			{"closed", 0o755, os.Geteuid() != 0},
		} {
			dir := filepath.Join(openDir(t), tt.name)
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, tt.mode); err != nil {
				t.Fatal(err)
			}
			s := start(t, Options{Getenv: env(map[string]string{"TMPDIR": dir})})
			if got := filepath.Dir(runDir(t, s.URL())); (got == dir) != tt.used {
				t.Errorf("TMPDIR is %s, the socket beneath %s", dir, got)
			}
			stop(t, s)
			requireEntries(t, dir)
		}
	})
}

func TestStart_afterDeath(t *testing.T) {
	t.Parallel()

	t.Run("OfTheParentOfATemporaryServer", func(t *testing.T) {
		t.Parallel()
		cmd, url, _ := startChild(t, "temporary")
		pid := postmaster(t, query(t, url, "show data_directory"))
		kill(t, cmd)
		poll(t, "the server to end", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		poll(t, "its directory to go", func() bool {
			_, err := os.Stat(runDir(t, url))
			return errors.Is(err, os.ErrNotExist)
		})
	})

	t.Run("OfTheParent", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		for i := range 3 {
			cmd, url, _ := startChild(t, dir)
			execute(t, url, "create table if not exists kept (n int)")
			execute(t, url, "insert into kept values (1)")
			if got := query(t, url, "select count(*)::text from kept"); got != strconv.Itoa(i+1) {
				t.Errorf("%s rows, want %d", got, i+1)
			}
			kill(t, cmd)
		}
		s := start(t, Options{DataDir: dir})
		if got := query(t, s.URL(), "select count(*)::text from kept"); got != "3" {
			t.Errorf("%s rows, want 3", got)
		}
		requireCleanLog(t, dir)
	})

	t.Run("OfParentAndShell", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		cmd, url, _ := startChild(t, dir)
		pid := postmaster(t, query(t, url, "show data_directory"))
		// The parent is held, so that it does not tell one half of the shell
		// of the other's death.
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		shell, err := syscall.Getpgid(pid)
		if err != nil {
			t.Fatal(err)
		}
		pids, err := exec.Command("ps", "-A", "-o", "pid=", "-o", "pgid=", "-o", "comm=").Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(pids)) {
			f := strings.Fields(line)
			if len(f) == 3 && f[1] == strconv.Itoa(shell) && filepath.Base(f[2]) == "sh" {
				n, err := strconv.Atoi(f[0])
				if err != nil {
					t.Fatal(err)
				}
				if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		kill(t, cmd)
		if err := syscall.Kill(pid, 0); err != nil {
			t.Fatalf("the server was to be left over: %v", err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(runDir(t, url)) })

		start(t, Options{DataDir: dir})
		requireCleanLog(t, dir)
	})

	t.Run("OfTheServer", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		s := start(t, Options{DataDir: dir})
		execute(t, s.URL(), "create table kept as select 'here' as word")
		if err := syscall.Kill(postmaster(t, dir), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {
		case <-s.Done():
		case <-time.After(10 * time.Second):
			t.Fatal("Done is not closed")
		}
		requireGone(t, runDir(t, s.URL()))
		stop(t, s)

		s = start(t, Options{DataDir: dir})
		if got := query(t, s.URL(), "select word from kept"); got != "here" {
			t.Errorf("kept %q", got)
		}
	})

	t.Run("NumberOfADeadServerIsInUse", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		stop(t, start(t, Options{DataDir: dir}))
		who, err := serverUser(dir)
		if err != nil {
			t.Fatal(err)
		}
		sleep := who.command("sleep", "600")
		if err := sleep.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = sleep.Process.Kill()
			_ = sleep.Wait()
		})
		other := start(t, Options{})
		for name, pid := range map[string]int{
			"by sleep":                      sleep.Process.Pid,
			"by this test":                  os.Getpid(),
			"by another directory's server": postmaster(t, query(t, other.URL(), "show data_directory")),
		} {
			stale := filepath.Join(dir, "postmaster.pid")
			content := fmt.Sprintf("%d\n%s\n1700000000\n5432\n/tmp/gone\n\n  123456         7\nready   \n", pid, dir)
			if err := os.WriteFile(stale, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := who.own(stale); err != nil {
				t.Fatal(err)
			}
			s, err := Start(t.Context(), Options{DataDir: dir})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			stop(t, s)
		}
		if got := query(t, other.URL(), "select 'alive'"); got != "alive" {
			t.Errorf("the other server answers %q", got)
		}
	})
}

func TestServer_Stop(t *testing.T) {
	t.Parallel()

	t.Run("OpenTransactionDoesNotDelayIt", func(t *testing.T) {
		t.Parallel()
		s := start(t, Options{})
		conn := connect(t, s.URL())
		if _, err := conn.Exec(t.Context(), "begin"); err != nil {
			t.Fatal(err)
		}
		stop(t, s)
		stop(t, s)
		select {
		case <-s.Done():
		default:
			t.Error("Done is not closed after Stop")
		}
	})

	t.Run("IsTheOnlyOneToStopIt", func(t *testing.T) {
		t.Parallel()
		cmd, url, lines := startChild(t, "temporary")
		if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != "terminated" {
			t.Fatalf("the child printed %q", lines.Text())
		}
		// A server that has got the signal refuses new connections.
		if got := query(t, url, "select 'alive'"); got != "alive" {
			t.Errorf("it answers %q", got)
		}
	})
}

func TestJoin(t *testing.T) {
	t.Parallel()
	joined := func(t *testing.T, dir string) *Server {
		t.Helper()
		s, err := Join(t.Context(), Options{DataDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { stop(t, s) })
		return s
	}

	t.Run("OfAnotherProcess", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		_, url, _ := startChild(t, dir)
		execute(t, url, "create table kept as select 'here' as word")
		for range 2 {
			s := joined(t, dir)
			if got := query(t, s.URL(), "select word from kept"); got != "here" || s.URL() != url {
				t.Errorf("%q at %s, want the server at %s", got, s.URL(), url)
			}
			stop(t, s)
			stop(t, s)
			select {
			case <-s.Done():
			default:
				t.Error("Done is not closed after Stop")
			}
		}
		if got := query(t, url, "select word from kept"); got != "here" {
			t.Errorf("after Stop it answers %q", got)
		}
	})

	t.Run("NobodysIsStartedAndStopped", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		for i := range 2 { // the cluster is made, and then there
			s := joined(t, dir)
			execute(t, s.URL(), "create table if not exists kept (n int)")
			execute(t, s.URL(), "insert into kept values (1)")
			if got := query(t, s.URL(), "select count(*)::text from kept"); got != strconv.Itoa(i+1) {
				t.Errorf("%s rows, want %d", got, i+1)
			}
			stop(t, s)
			requireGone(t, runDir(t, s.URL()))
			requireGone(t, filepath.Join(dir, "postmaster.pid"))
		}
		requireCleanLog(t, dir)
	})

	// Whoever comes while another is at it uses the server that this one
	// started, or starts one in turn, but has none stopped under its hands.
	t.Run("AllAtOnce", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				s, err := Join(t.Context(), Options{DataDir: dir})
				if err != nil {
					t.Error(err)
					return
				}
				defer stop(t, s)
				conn, err := pgx.Connect(t.Context(), s.URL())
				if err == nil {
					_, err = conn.Exec(t.Context(), "create table if not exists kept (n int); insert into kept values (1); select pg_sleep(0.1)")
					_ = conn.Close(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		s := start(t, Options{DataDir: dir})
		if got := query(t, s.URL(), "select count(*)::text from kept"); got != "4" {
			t.Errorf("%s rows, want 4", got)
		}
	})

	// It joins one that is only starting, and starts its own where that one goes
	// instead.
	t.Run("WhileAnotherHoldsTheDirectory", func(t *testing.T) {
		t.Parallel()
		for _, served := range []bool{false, true} {
			dir := filepath.Join(openDir(t), "postgres")
			lock, err := takeLock(dir)
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan *Server, 1)
			go func() {
				s, err := Join(t.Context(), Options{DataDir: dir})
				if err != nil {
					t.Error(err)
				}
				result <- s
			}()
			poll(t, "its turn to be taken", func() bool {
				f, err := tryLock(dir + ".turn")
				if err == nil {
					_ = f.Close()
				}
				return errors.Is(err, errLocked)
			})
			_ = lock.Close()
			want := ""
			if served {
				if s, err := Start(t.Context(), Options{DataDir: dir}); err == nil {
					defer stop(t, s)
					want = s.URL()
				} else if !errors.Is(err, ErrInUse) {
					t.Fatal(err)
				}
			}
			s := <-result
			if s == nil {
				t.FailNow()
			}
			if got := query(t, s.URL(), "select 'alive'"); got != "alive" || want != "" && s.URL() != want {
				t.Errorf("%q at %s, want %s", got, s.URL(), want)
			}
			stop(t, s)
		}
	})

	// What postmaster.pid names may not be what is there.
	t.Run("NotTheServerOfTheDirectory", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(openDir(t), "postgres")
		stop(t, start(t, Options{DataDir: dir}))
		lock, err := takeLock(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		other := start(t, Options{})
		who, err := serverUser(dir)
		if err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]string{
			"of another directory": fmt.Sprintf("1\n%s\n1700000000\n5432\n%s\n\n  123456         7\nready   \n", dir, runDir(t, other.URL())),
			"of nobody":            fmt.Sprintf("1\n%s\n1700000000\n5432\n/tmp/gone\n\n  123456         7\nready   \n", dir),
			"half written":         "1\n",
		} {
			file := filepath.Join(dir, "postmaster.pid")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := who.own(file); err != nil {
				t.Fatal(err)
			}
			if s, err := attach(t.Context(), dir); !errors.Is(err, errNotServed) {
				t.Errorf("%s: attach = %v, %v, want errNotServed", name, s, err)
			}
			// Nobody but who holds the directory can mend this: it waits, says why
			// and who, and leaves its turn to the next.
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			if _, err := Join(ctx, Options{DataDir: dir}); !errors.Is(err, ErrInUse) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: Join = %v, want ErrInUse", name, err)
			}
			cancel()
		}
	})

	t.Run("NeedsADirectory", func(t *testing.T) {
		t.Parallel()
		if _, err := Join(t.Context(), Options{}); err == nil {
			t.Error("a temporary server was joined")
		}
	})
}

func TestFindPrograms(t *testing.T) {
	t.Parallel()
	who, err := serverUser("")
	if err != nil {
		t.Fatal(err)
	}
	root := openDir(t)
	for _, major := range []string{"14", "16", "17"} {
		dir := filepath.Join(root, major)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"initdb", "postgres"} {
			script := fmt.Sprintf("#!/bin/sh\necho '%s (PostgreSQL) %s.3 (Debian)'\n", name, major)
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	empty := filepath.Join(root, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	at := func(major string) string { return filepath.Join(root, major) }
	path := strings.Join([]string{empty, at("14"), at("16"), at("17")}, ":")

	for _, tt := range []struct {
		name, bindir, cluster string
		want                  string // the directory, or else part of the error
		noPrograms            bool
	}{
		{name: "FirstInPathThatIsNewEnough", want: at("16")},
		{name: "TheClustersVersion", cluster: "17", want: at("17")},
		{name: "OnlyBindirIfSet", bindir: at("17"), want: at("17")},
		{name: "EmptyBindir", bindir: empty, want: "no usable", noPrograms: true},
		{name: "OldBindir", bindir: at("14"), want: "version 14 in " + at("14"), noPrograms: true},
		{name: "NoneForTheCluster", bindir: at("17"), cluster: "16", want: "made by PostgreSQL 16"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := findPrograms(env(map[string]string{"PATH": path, "PG_BINDIR": tt.bindir}), who, tt.cluster)
			if errors.Is(err, ErrNoPrograms) != tt.noPrograms {
				t.Errorf("error is %v, ErrNoPrograms expected: %t", err, tt.noPrograms)
			}
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error is %q, want %q in it", err, tt.want)
				}
				return
			}
			if diff := cmp.Diff(filepath.Join(tt.want, "postgres"), got.postgres); diff != "" {
				t.Errorf("postgres (-want +got):\n%s", diff)
			}
		})
	}

	t.Run("StartSaysSo", func(t *testing.T) {
		t.Parallel()
		_, err := Start(t.Context(), Options{Getenv: env(map[string]string{"PG_BINDIR": empty})})
		if !errors.Is(err, ErrNoPrograms) {
			t.Errorf("Start = %v, want ErrNoPrograms", err)
		}
	})
}

// env is an environment of some variables over the process's own.
func env(vars map[string]string) func(string) string {
	return func(name string) string {
		if v, ok := vars[name]; ok {
			return v
		}
		return os.Getenv(name)
	}
}

// openDir returns a temporary directory that the server's user can enter, with
// its links resolved (macOS's are beneath one).
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "localpg-test-") //nolint:usetesting // t.TempDir is in one that is closed to that user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// startChild runs the test program as child, in a process group of its own, and
// returns its server's URL and what it prints afterwards.
func startChild(t *testing.T, dir string) (*exec.Cmd, string, *bufio.Scanner) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { kill(t, cmd) })
	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "postgres://") {
		t.Fatalf("the child printed %q", lines.Text())
	}
	return cmd, lines.Text(), lines
}

// kill kills the child as kill -9 does, and returns when it is gone.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if cmd.ProcessState != nil {
		return
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait()
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func query(t *testing.T, url, sql string) (value string) {
	t.Helper()
	conn := connect(t, url)
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return value
}

func execute(t *testing.T, url, sql string) {
	t.Helper()
	conn := connect(t, url)
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// runDir returns the directory of the server's socket.
func runDir(t *testing.T, url string) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config.Host
}

// postmaster returns the number of the server's process.
func postmaster(t *testing.T, data string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(raw), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// poll waits for what only the operating system can tell.
func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func requireGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", path, err)
	}
}

func requireEntries(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries of %s (-want +got):\n%s", dir, diff)
	}
}

// requireCleanLog fails the test if the server on dir ever had to recover.
func requireCleanLog(t *testing.T, dir string) {
	t.Helper()
	log, err := os.ReadFile(dir + ".log")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "ready to accept connections") || strings.Contains(string(log), "not properly shut down") {
		t.Errorf("the shutdown was not clean:\n%s", log)
	}
}
