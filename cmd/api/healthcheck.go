package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// healthTimeout is for the whole of a health check. The service's own bound on
// /readyz is as long, so that one without a database is heard or counts as late;
// either way it is not ready.
const healthTimeout = 2 * time.Second

// healthcheck asks the service that listens on addr, on this machine, whether it
// can serve, and says so in one line. It is what an image without a shell has
// for a health check.
func healthcheck(ctx context.Context, addr string, stdout io.Writer) error {
	target, err := localAddr(addr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+hostOnly+"/readyz", http.NoBody)
	if err != nil {
		return err
	}
	// To the address itself: no proxy of the environment's, and a port may have
	// a name, which a URL's may not.
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, target)
		},
	}}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("not ready: no answer from %s within %s", target, healthTimeout)
		}
		return fmt.Errorf("not ready: %s can not be reached", target)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: /readyz on %s answered %d", target, resp.StatusCode)
	}
	_, err = fmt.Fprintf(stdout, "ready: /readyz on %s answered 200\n", target)
	return err
}

// hostOnly stands in the Host header, which the service does not look at.
const hostOnly = "localhost"

// localAddr returns where a service that listens on addr is reached from its own
// machine: one that listens everywhere, on the loopback address. That is IPv4's,
// since Go listens on both where it is told [::].
func localAddr(addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("API_ADDR: %w", err)
	}
	ip, err := netip.ParseAddr(host)
	if host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}
