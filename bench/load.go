package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// The kinds of load.
const (
	createFresh = "create" // POST, each with a key of its own
	replayKeys  = "replay" // POST, with keys that are on record
	getIntents  = "get"    // GET
)

// load is what a worker is to send. It travels to the worker as JSON.
type load struct {
	Kind        string        `json:"kind"`
	Addrs       []string      `json:"addrs"` // connections are dealt out over them
	Connections int           `json:"connections"`
	Warmup      time.Duration `json:"warmup"`
	Window      time.Duration `json:"window"`
	Token       string        `json:"token"`
	Body        []byte        `json:"body,omitempty"`
	// Keys is how many keys of recordedKey there are to be replayed.
	Keys int `json:"keys,omitempty"`
	// IDs are those of the intents to get.
	IDs []string `json:"ids,omitempty"`
}

// tally is what a worker measured in its window.
type tally struct {
	Requests int           `json:"requests"`
	Window   time.Duration `json:"window"`
	P50      time.Duration `json:"p50"`
	P99      time.Duration `json:"p99"`
	Longest  time.Duration `json:"longest"`
}

// tallyOf sums up the latencies of a window; it sorts them.
func tallyOf(latencies []time.Duration, window time.Duration) tally {
	slices.Sort(latencies)
	return tally{
		Requests: len(latencies), Window: window,
		P50: percentile(latencies, 0.50), P99: percentile(latencies, 0.99), Longest: percentile(latencies, 1),
	}
}

// message is one line of what a worker says: that the window has begun, that it
// has ended, what was measured, or why nothing was.
type message struct {
	Began, Ended bool
	Tally        *tally
	Void         string
}

// requestTimeout is for one answer. Longer than the service's own bounds, so that
// what is late has been answered by a refusal that says more.
const requestTimeout = 40 * time.Second

// work is the worker's whole program: it reads a load, sends it, and says what
// it measured. Its error has been said.
func work(in io.Reader, out io.Writer) error {
	say := json.NewEncoder(out)
	var l load
	if err := json.NewDecoder(in).Decode(&l); err != nil {
		return errors.Join(err, say.Encode(message{Void: err.Error()}))
	}
	t, err := l.run(func(m message) { _ = say.Encode(m) }) // who does not listen any more ends us
	if err != nil {
		return errors.Join(err, say.Encode(message{Void: err.Error()}))
	}
	return say.Encode(message{Tally: &t})
}

// run sends the load. Each connection is one goroutine that sends a request when
// it has the answer before; each request that is answered inside the window
// counts, and any that is not answered as it should be makes all of it void.
func (l load) run(say func(message)) (tally, error) {
	conns := make([]*conn, l.Connections)
	for i := range conns {
		c, err := l.dial(l.Addrs[i%len(l.Addrs)])
		if err != nil {
			return tally{}, err
		}
		defer c.Close()
		conns[i] = c
	}
	var (
		group  sync.WaitGroup
		failed = make(chan error, l.Connections)
		begin  = time.Now().Add(l.Warmup)
		end    = begin.Add(l.Window)
	)
	for _, c := range conns {
		group.Go(func() {
			if err := c.send(begin, end); err != nil {
				failed <- err
			}
		})
	}
	for _, at := range []struct {
		when time.Time
		say  message
	}{{begin, message{Began: true}}, {end, message{Ended: true}}} {
		select {
		case <-time.After(time.Until(at.when)):
			say(at.say)
		case err := <-failed:
			return tally{}, err
		}
	}
	group.Wait()
	select {
	case err := <-failed:
		return tally{}, err
	default:
	}
	var latencies []time.Duration
	for _, c := range conns {
		latencies = append(latencies, c.latencies...)
	}
	if len(latencies) == 0 {
		return tally{}, errors.New("no request was answered inside the window")
	}
	return tallyOf(latencies, l.Window), nil
}

// conn is one connection of the load. It speaks HTTP by fasthttp's codec, which
// allocates nothing for a request: on a machine that client and service share,
// what the client uses the service has not. It is one TCP connection, with no
// pool and no retry behind it, so that each failure is seen.
type conn struct {
	net.Conn
	load      load
	rng       *rand.Rand
	w         *bufio.Writer
	r         *bufio.Reader
	req       fasthttp.Request
	resp      fasthttp.Response
	key       [36]byte
	latencies []time.Duration
}

func (l load) dial(addr string) (*conn, error) {
	nc, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	c := &conn{
		Conn: nc, load: l, w: bufio.NewWriter(nc), r: bufio.NewReader(nc),
		rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
	c.req.Header.SetHost(addr)
	c.req.Header.Set("Authorization", "Bearer "+l.Token)
	if l.Kind == getIntents {
		c.req.Header.SetMethod(fasthttp.MethodGet)
		return c, nil
	}
	c.req.Header.SetMethod(fasthttp.MethodPost)
	c.req.Header.SetRequestURI(createPath)
	c.req.Header.SetContentType("application/json")
	c.req.SetBody(l.Body)
	return c, nil
}

const createPath = "/v1/payment_intents"

// send sends one request after the other until end.
func (c *conn) send(begin, end time.Time) error {
	for {
		c.next()
		start := time.Now()
		if !start.Before(end) {
			return nil
		}
		if err := c.exchange(start); err != nil {
			return err
		}
		now := time.Now()
		if err := c.judge(); err != nil {
			return err
		}
		if !now.Before(begin) && now.Before(end) {
			c.latencies = append(c.latencies, now.Sub(start))
		}
	}
}

// next makes the next request.
func (c *conn) next() {
	switch c.load.Kind {
	case createFresh:
		freshKey(c.rng, &c.key)
		c.req.Header.SetBytesV("Idempotency-Key", c.key[:])
	case replayKeys:
		c.req.Header.Set("Idempotency-Key", recordedKey(1+c.rng.IntN(c.load.Keys)))
	case getIntents:
		c.req.Header.SetRequestURI(createPath + "/" + c.load.IDs[c.rng.IntN(len(c.load.IDs))])
	}
}

func (c *conn) exchange(start time.Time) error {
	if err := c.SetDeadline(start.Add(requestTimeout)); err != nil {
		return err
	}
	err := c.req.Write(c.w)
	if err == nil {
		err = c.w.Flush()
	}
	if err == nil {
		err = c.resp.Read(c.r)
	}
	if err != nil {
		return fmt.Errorf("%s: no answer after %v: %w", c.req.Header.Method(), time.Since(start).Round(time.Millisecond), err)
	}
	return nil
}

// judge says whether the answer is the one that this load must get.
func (c *conn) judge() error {
	want, replayed := fasthttp.StatusCreated, ""
	switch c.load.Kind {
	case replayKeys:
		replayed = "true"
	case getIntents:
		want = fasthttp.StatusOK
	}
	got := c.resp.StatusCode()
	mark := string(c.resp.Header.Peek("Idempotent-Replayed"))
	if got != want || mark != replayed {
		return fmt.Errorf("%s was answered %d (Idempotent-Replayed: %q), want %d (%q): %.300s",
			c.load.Kind, got, mark, want, replayed, c.resp.Body())
	}
	if c.resp.ConnectionClose() {
		return errors.New("the server closes a connection that should have been kept")
	}
	return nil
}

const hexDigits = "0123456789abcdef"

// freshKey makes a UUIDv4, the key that a client would use.
func freshKey(rng *rand.Rand, key *[36]byte) {
	bits, left := uint64(0), 0
	for i := range key {
		switch i {
		case 8, 13, 18, 23:
			key[i] = '-'
			continue
		case 14:
			key[i] = '4'
			continue
		}
		if left == 0 {
			bits, left = rng.Uint64(), 16
		}
		digit := bits & 15
		if i == 19 {
			digit = digit&3 | 8
		}
		key[i] = hexDigits[digit]
		bits, left = bits>>4, left-1
	}
}

// loader starts workers.
type loader struct {
	self string // this program
}

// run has a worker send l. marked is called when its window begins and when it
// ends, while the load goes on.
func (ld loader) run(ctx context.Context, l load, marked func() error) (tally, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	raw, err := json.Marshal(l)
	if err != nil {
		return tally{}, err
	}
	cmd := exec.CommandContext(ctx, ld.self, workerCommand)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return tally{}, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return tally{}, err
	}
	if err := cmd.Start(); err != nil {
		return tally{}, err
	}
	_, err = stdin.Write(raw)
	result, heard := tally{}, false
	said := json.NewDecoder(stdout)
	for err == nil && !heard {
		var m message
		if err = said.Decode(&m); err != nil {
			break
		}
		switch {
		case m.Void != "":
			err = errors.New(m.Void)
		case m.Tally != nil:
			result, heard = *m.Tally, true
		default:
			err = marked()
		}
	}
	if err != nil {
		cancel()
		_ = cmd.Wait() // the first error tells more
		return tally{}, err
	}
	return result, cmd.Wait()
}
