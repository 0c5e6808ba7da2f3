//go:build container

package pgtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// crashVar makes of this test binary a process that starts a container and then
// ends in the way that the variable names.
const crashVar = "PGTEST_CRASH"

func TestContainer_EndsWithItsProcess(t *testing.T) {
	t.Parallel()
	docker := requireDocker(t)

	for name, tt := range map[string]struct{ way, output string }{
		"Normally":                  {"return", "PASS"},
		"ByPanic":                   {"panic", "panic: on purpose"},
		"ByPanicInAnotherGoroutine": {"panic elsewhere", "panic: elsewhere"}, // as a timeout does
		"ByExit":                    {"exit", ""},
		"ByKill":                    {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child := crashing(t, tt.way)
			pid := fmt.Sprint(child.cmd.Process.Pid)
			running := containersOf(t, docker, pid)
			if len(running) != 1 {
				t.Fatalf("%d containers of a process with two databases, want 1", len(running))
			}
			var volumes []string
			for _, m := range running[0].Mounts {
				volumes = append(volumes, m.Name)
			}
			if len(volumes) == 0 {
				t.Error("the container has no volume, so that nothing shows that it is removed")
			}

			_ = child.stdin.Close()
			if tt.way == "" {
				_ = child.cmd.Process.Kill()
			}
			out := <-child.output
			_ = child.cmd.Wait() // how it ended is in what it said
			if !strings.Contains(out, tt.output) {
				t.Errorf("the process did not end by %q, it said: %s", tt.way, out)
			}
			const patience, tick = time.Minute, 50 * time.Millisecond
			for deadline := time.Now().Add(patience); ; time.Sleep(tick) {
				left := containersOf(t, docker, pid)
				if len(left) == 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("container %s is still there, %s", left[0].ID, left[0].Status)
				}
			}
			for _, v := range volumes {
				if _, err := docker.VolumeInspect(t.Context(), v, client.VolumeInspectOptions{}); err == nil {
					t.Errorf("volume %s is still there", v)
				}
			}
		})
	}
}

type crashingProcess struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	output <-chan string
}

// crashing returns a process that has a container, and ends when its input does.
// What it has said comes through output when it has ended.
func crashing(t *testing.T, way string) crashingProcess {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrash$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), crashVar+"=now:"+way, "TEST_DATABASE=container", "TEST_DATABASE_URL=")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	hasContainer, output := make(chan struct{}), make(chan string, 1)
	go func() {
		var said strings.Builder
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			fmt.Fprintln(&said, lines.Text())
			if lines.Text() == ready {
				close(hasContainer)
			}
		}
		output <- said.String()
	}()
	select {
	case <-hasContainer:
	case said := <-output:
		_ = cmd.Wait()
		t.Fatalf("the process has no container, it said: %s", said)
	}
	return crashingProcess{cmd: cmd, stdin: stdin, output: output}
}

const ready = "has a container"

// TestCrash is what the other process runs; in this one there is nothing to do.
func TestCrash(t *testing.T) { //nolint:paralleltest // alone in its process
	way, ok := strings.CutPrefix(os.Getenv(crashVar), "now:")
	if !ok {
		return
	}
	New(t).Exec(t, "select 1")
	New(t).Exec(t, "select 1")
	fmt.Println(ready)
	_, _ = io.Copy(io.Discard, os.Stdin)
	switch way {
	case "panic":
		panic("on purpose")
	case "exit":
		os.Exit(3)
	case "panic elsewhere":
		go panic("elsewhere")
		select {}
	case "":
		select {}
	}
}

func TestContainer_ServerDoesNotStart(t *testing.T) {
	t.Parallel()
	requireDocker(t)
	start := time.Now()
	s, err := startContainer(os.Getenv, map[string]string{"no_such_setting": "1"})
	if err == nil {
		t.Fatalf("startContainer = %s, want an error", s.url)
	}
	if want := "it ended before its server answered"; !strings.Contains(err.Error(), want) {
		t.Errorf("error %q does not say %q", err, want)
	}
	if took := time.Since(start); took > containerReady/2 {
		t.Errorf("took %s to fail", took)
	}
}

// requireDocker fails the test where Docker does not answer: these tests are
// compiled only where a container was asked for.
func requireDocker(t *testing.T) client.APIClient {
	t.Helper()
	docker, err := dialDocker()
	if err != nil {
		t.Fatal("Docker does not answer:", err)
	}
	t.Cleanup(func() { _ = docker.Close() })
	return docker
}

// containersOf returns the containers that belong to a process, in whatever
// state they are.
func containersOf(t *testing.T, docker client.APIClient, pid string) []container.Summary {
	t.Helper()
	list, err := docker.ContainerList(context.Background(), client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", label+"="+pid),
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}
