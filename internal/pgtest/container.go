package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"intentd"
)

const (
	dockerAnswers  = 2 * time.Second
	containerReady = 2 * time.Minute // with the image's download

	// label is on each container of this package, with the process that it
	// belongs to.
	label = "intentd.pgtest"
)

var imagePattern = regexp.MustCompile(`(?m)^ *image: \$\{POSTGRES_IMAGE:-([^}\s]+)\}$`)

// Image returns the name of the image that containers are made of: the one that
// docker-compose.yml names for its database, POSTGRES_IMAGE included.
func Image(getenv func(string) string) string {
	if image := getenv("POSTGRES_IMAGE"); image != "" {
		return image
	}
	m := imagePattern.FindSubmatch(intentd.Compose)
	if m == nil {
		panic("pgtest: docker-compose.yml names no image with POSTGRES_IMAGE")
	}
	return string(m[1])
}

// lifeline runs the image's own entry point for as long as somebody holds the
// container's standard input. The shell is process 1, so that the container ends
// with it.
const lifeline = `
exec 3<&0
docker-entrypoint.sh "$@" 3<&- &
server=$!
{ cat <&3 >/dev/null; kill -KILL "$server"; } &
wait "$server"`

// startContainer starts a container that does not outlive this process, however
// that ends: the process holds the container's standard input, whose end stops
// the server, and a stopped container is removed with its volumes. That needs
// nobody to clean up, in this process or beside it.
func startContainer(getenv func(string) string, settings map[string]string) (*server, error) {
	docker, err := dialDocker()
	if err != nil {
		return nil, fmt.Errorf("container: Docker does not answer: %w", err)
	}
	defer docker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), containerReady)
	defer cancel()

	// The name of the program is needed, since the image's entry point asks
	// for the first argument.
	command := []string{"postgres"}
	for name, value := range settings {
		command = append(command, "-c", name+"="+value)
	}
	var stdin net.Conn
	const port = "5432/tcp"
	image := Image(getenv)
	c, err := testcontainers.Run(ctx, image,
		testcontainers.WithEnv(map[string]string{
			"POSTGRES_PASSWORD": "test",
			"LANG":              "C.UTF-8", // as in docker-compose.yml
		}),
		testcontainers.WithExposedPorts(port),
		testcontainers.WithLabels(map[string]string{label: fmt.Sprint(os.Getpid())}),
		testcontainers.WithEntrypoint("sh", "-c", lifeline, "lifeline"),
		testcontainers.WithCmd(command...),
		testcontainers.WithConfigModifier(func(c *container.Config) {
			c.OpenStdin = true
			c.StdinOnce = true // it ends with the first to hold it
		}),
		testcontainers.WithHostConfigModifier(func(c *container.HostConfig) {
			c.AutoRemove = true
		}),
		testcontainers.WithAdditionalLifecycleHooks(testcontainers.ContainerLifecycleHooks{
			// Before it runs, so that there is no moment in which nobody does.
			PostCreates: []testcontainers.ContainerHook{func(ctx context.Context, c testcontainers.Container) error {
				attached, err := docker.ContainerAttach(ctx, c.GetContainerID(),
					client.ContainerAttachOptions{Stream: true, Stdin: true})
				stdin = attached.Conn
				return err
			}},
		}),
	)
	var url string
	if err == nil {
		url, err = awaitServer(ctx, c, port)
	}
	stop := func(ctx context.Context) error {
		if stdin != nil {
			defer stdin.Close()
		}
		return terminate(ctx, c)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
		defer cancel()
		return nil, fmt.Errorf("container %s: %w", image, errors.Join(err, stop(ctx)))
	}
	return &server{url: url, stop: stop}, nil
}

// terminate ends a container without a farewell: nobody wants its data.
func terminate(ctx context.Context, c testcontainers.Container) error {
	return testcontainers.TerminateContainer(c, testcontainers.StopContext(ctx), testcontainers.StopTimeout(0))
}

// dialDocker returns a client of the Docker engine if there is one, and takes a
// late answer for no.
func dialDocker() (client.APIClient, error) {
	// testcontainers' own reaper would be a second image to download, with the
	// engine's socket in its hands, and has nothing left to do. The setting is
	// read once, when it is first used.
	if err := os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true"); err != nil {
		return nil, err
	}
	type answer struct {
		client client.APIClient
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		provider, err := testcontainers.NewDockerProvider()
		if err != nil {
			answers <- answer{err: err}
			return
		}
		answers <- answer{client: provider.Client(), err: provider.Health(context.Background())}
	}()
	select {
	case a := <-answers:
		if a.err != nil && a.client != nil {
			_ = a.client.Close()
		}
		return a.client, a.err
	case <-time.After(dockerAnswers):
		return nil, fmt.Errorf("no answer within %s", dockerAnswers)
	}
}

// awaitServer returns the URL of the server in c once it can be connected to.
// The image's first server, which prepares the cluster, listens on no port that
// could be mistaken.
func awaitServer(ctx context.Context, c testcontainers.Container, port string) (string, error) {
	const tick, connectTimeout = 100 * time.Millisecond, time.Second
	address, err := c.PortEndpoint(ctx, port, "")
	if err != nil {
		return "", err
	}
	addresses := []string{address}
	// Inside a container, testcontainers takes the default gateway for the
	// engine's host, which may swallow what is sent to it. An engine of the
	// container's own is nearer; where there is none, the answer is no at once.
	if host, port, err := net.SplitHostPort(address); err == nil && host != "localhost" {
		addresses = []string{net.JoinHostPort("127.0.0.1", port), address}
	}
	for {
		var errs []error
		for _, address := range addresses {
			url := "postgres://postgres:test@" + address + "/postgres?sslmode=disable"
			err := canConnect(ctx, url, connectTimeout)
			if err == nil {
				return url, nil
			}
			errs = append(errs, err)
		}
		if state, err := c.State(ctx); ctx.Err() == nil && (err != nil || !state.Running) {
			return "", fmt.Errorf("it ended before its server answered: %w", errors.Join(append(errs, err)...))
		}
		select {
		case <-ctx.Done():
			return "", errors.Join(errs...)
		case <-time.After(tick):
		}
	}
}

func canConnect(ctx context.Context, url string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}
