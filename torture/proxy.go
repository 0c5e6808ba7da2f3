package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// way is how one replica reaches the database: through a commitProxy, which
// knows the protocol, and toxiproxy, which does not.
type way struct {
	commits *commitProxy
	toxic   *toxiproxy.Proxy
}

func newWay(n, databasePort int) (*way, error) {
	w, port, err := newToxicWay(n, databasePort)
	if err != nil {
		return nil, err
	}
	own, err := freePort()
	if err == nil {
		w.commits, err = newCommitProxy(at(own), at(port))
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// newToxicWay is a way without a commitProxy, and the port that it listens on.
func newToxicWay(n, databasePort int) (*way, int, error) {
	port, err := freePort()
	if err != nil {
		return nil, 0, err
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	w := &way{toxic: toxiproxy.NewProxy(server, fmt.Sprintf("way%d", n), at(port), at(databasePort))}
	return w, port, w.toxic.Start()
}

func at(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

func (w *way) port() int { return w.commits.ln.Addr().(*net.TCPAddr).Port }

// add puts a toxic into the way, and returns what takes it out again.
func (w *way) add(kind, stream string, attributes map[string]any) (func(), error) {
	raw, err := json.Marshal(map[string]any{
		"name": "t", "type": kind, "stream": stream, "toxicity": 1, "attributes": attributes,
	})
	if err != nil {
		return nil, err
	}
	if _, err := w.toxic.Toxics.AddToxicJson(bytes.NewReader(raw)); err != nil {
		return nil, err
	}
	return func() { _ = w.toxic.Toxics.RemoveToxic(context.Background(), "t") }, nil
}

// cut closes every connection and refuses new ones, until what it returns is
// called.
func (w *way) cut() func() error {
	w.toxic.Stop()
	return w.toxic.Start
}

func (w *way) close() {
	if w.commits != nil {
		w.commits.close()
	}
	w.toxic.Stop()
}
