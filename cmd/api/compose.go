package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"time"

	"intentd/internal/secret"
)

// composeTimeout is for pulling the image and starting the server.
const composeTimeout = 5 * time.Minute

// composeDatabase starts the db service of docker-compose.yml and returns its
// URL. It stays up when the process ends, as its volume does.
func composeDatabase(ctx context.Context, log *slog.Logger) (secret.Text, error) {
	if err := exec.CommandContext(ctx, "docker", "info").Run(); err != nil {
		return secret.Text{}, errors.New("no Docker engine answers")
	}
	log.Info("no PostgreSQL programs on this machine, starting docker-compose.yml's db")
	ctx, cancel := context.WithTimeout(ctx, composeTimeout)
	defer cancel()
	if _, err := compose(ctx, "up", "--detach", "--wait", "db"); err != nil {
		return secret.Text{}, err
	}
	addr, err := compose(ctx, "port", "db", "5432")
	if err != nil {
		return secret.Text{}, err
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return secret.Text{}, fmt.Errorf("docker compose port db: %q is no address", addr)
	}
	password, err := compose(ctx, "exec", "-T", "db", "printenv", "POSTGRES_PASSWORD")
	if err != nil {
		return secret.Text{}, err
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword("intentd", password), Host: addr, Path: "/intentd"}
	return secret.New(u.String()), nil
}

// compose runs docker compose on the files in the working directory: the
// project's own, and the one that lets a program outside Docker reach db.
func compose(ctx context.Context, args ...string) (string, error) {
	files := []string{"compose", "--file", "docker-compose.yml", "--file", "deploy/db-port.yml"}
	cmd := exec.CommandContext(ctx, "docker", append(files, args...)...) //nolint:gosec // the arguments are ours
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("docker compose %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("docker compose %s: %w", args[0], err)
	}
	return strings.TrimRight(string(out), "\r\n"), nil // a password may end in a space
}
