package pgtest

import (
	"context"
	"fmt"

	"intentd/internal/localpg"
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
		return startContainer(getenv, settings)
	case "private":
		return startPrivate(getenv)
	case "":
		s, containerErr := startContainer(getenv, settings)
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
