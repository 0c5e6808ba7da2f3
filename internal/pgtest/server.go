package pgtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/testcontainers/testcontainers-go"

	"intentd/internal/localpg"
)

// DefaultImage is the container's, where POSTGRES_IMAGE names no other.
const DefaultImage = "postgres:17-alpine"

const (
	dockerAnswers  = 2 * time.Second
	containerReady = 2 * time.Minute // with the image's download
)

// settings trade durability, which a test's database does not need, for speed.
var settings = map[string]string{
	"fsync":              "off",
	"synchronous_commit": "off",
	"full_page_writes":   "off",
	"max_connections":    "300",
}

// start finds a server in the order that the package's documentation tells.
func start(getenv func(string) string) (*server, error) {
	if url := getenv("TEST_DATABASE_URL"); url != "" {
		return &server{url: url, stop: func(context.Context) error { return nil }}, nil
	}
	switch way := getenv("TEST_DATABASE"); way {
	case "container":
		return startContainer(getenv)
	case "private":
		return startPrivate(getenv)
	case "":
		s, containerErr := startContainer(getenv)
		if containerErr == nil {
			return s, nil
		}
		s, privateErr := startPrivate(getenv)
		if privateErr == nil {
			return s, nil
		}
		return nil, fmt.Errorf("no PostgreSQL server to test with: set TEST_DATABASE_URL, or mend one of\n%w\n%w",
			containerErr, privateErr)
	default:
		return nil, fmt.Errorf("TEST_DATABASE is %q, and can be container or private", way)
	}
}

func startPrivate(getenv func(string) string) (*server, error) {
	s, err := localpg.Start(context.Background(), localpg.Options{Settings: settings, Getenv: getenv})
	if err != nil {
		return nil, err
	}
	return &server{url: s.URL(), stop: s.Stop}, nil
}

func startContainer(getenv func(string) string) (*server, error) {
	if err := dockerHealth(); err != nil {
		return nil, fmt.Errorf("container: Docker does not answer: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), containerReady)
	defer cancel()
	image := getenv("POSTGRES_IMAGE")
	if image == "" {
		image = DefaultImage
	}
	// The name of the program is needed, since the image's entry point asks
	// for the first argument.
	command := []string{"postgres"}
	for name, value := range settings {
		command = append(command, "-c", name+"="+value)
	}
	const port = "5432/tcp"
	container, err := testcontainers.Run(ctx, image,
		testcontainers.WithEnv(map[string]string{"POSTGRES_PASSWORD": "test"}),
		testcontainers.WithExposedPorts(port),
		testcontainers.WithCmd(command...),
	)
	if err == nil {
		var address string
		if address, err = container.PortEndpoint(ctx, port, ""); err == nil {
			url := "postgres://postgres:test@" + address + "/postgres?sslmode=disable"
			if err = awaitServer(ctx, url); err == nil {
				return &server{url: url, stop: func(ctx context.Context) error { return container.Terminate(ctx) }}, nil
			}
		}
	}
	return nil, fmt.Errorf("container %s: %w", image, errors.Join(err, testcontainers.TerminateContainer(container)))
}

// dockerHealth asks Docker whether it is there, and takes a late answer for no.
func dockerHealth() error {
	answer := make(chan error, 1)
	go func() {
		provider, err := testcontainers.NewDockerProvider()
		if err == nil {
			err = provider.Health(context.Background())
		}
		answer <- err
	}()
	select {
	case err := <-answer:
		return err
	case <-time.After(dockerAnswers):
		return fmt.Errorf("no answer within %s", dockerAnswers)
	}
}

// awaitServer returns when url can be connected to. The image's first server,
// which prepares the cluster, listens on no port that could be mistaken.
func awaitServer(ctx context.Context, url string) error {
	const tick = 100 * time.Millisecond
	for {
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(tick):
		}
	}
}
