//go:build container

package main

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestComposeDatabase needs Docker and the real docker-compose.yml. It has a
// project of its own, and with it a volume.
func TestComposeDatabase(t *testing.T) { // sequential: the working directory and the environment are the process's
	project := "intentd-test-" + strings.ToLower(t.Name())
	t.Chdir("../..")
	t.Setenv("COMPOSE_PROJECT_NAME", project)
	t.Setenv("POSTGRES_PASSWORD", `it's a p@ss/w:rd? 100% \`)
	down := func() {
		t.Helper()
		if out, err := exec.Command("docker", "compose", "down", "--volumes", "--timeout", "5").CombinedOutput(); err != nil {
			t.Errorf("docker compose down: %v: %s", err, out)
		}
	}
	down() // of a run that was killed
	t.Cleanup(down)

	url, err := composeDatabase(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var encoding string
	if err := conn.QueryRow(t.Context(), "show server_encoding").Scan(&encoding); err != nil || encoding != "UTF8" {
		t.Errorf("server_encoding = %q, %v; want UTF8", encoding, err)
	}
	again, err := composeDatabase(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil || !again.Equal(url) {
		t.Errorf("composeDatabase of one that runs = %q, %v; want the same", again, err)
	}

	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	env := []string{
		"PWD=" + dir, "PG_BINDIR=" + t.TempDir(),
		"COMPOSE_PROJECT_NAME=" + project, "POSTGRES_PASSWORD=" + os.Getenv("POSTGRES_PASSWORD"),
	}
	r := start(t, env...)
	first := r.post("K", example)
	if !first.fresh() {
		t.Fatalf("create: %v", first)
	}
	r.stop(t)
	r = start(t, env...)
	if got := r.post("K", example); !got.replayed() || got.body != first.body {
		t.Errorf("after a restart: %v", got)
	}
}
