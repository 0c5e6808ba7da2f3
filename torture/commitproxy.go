package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// trap is what a commitProxy does to a COMMIT.
type trap int32

const (
	trapNone   trap = iota
	trapBefore      // the session is cut before COMMIT is passed on: it never happens
	trapSent        // cut the moment after COMMIT was passed on: it may have happened
	trapAnswer      // cut when the server has answered, and the answer is dropped: it has happened
	trapSilent      // COMMIT is passed on, and nothing comes back for as long as the trap is set
)

// commitProxy passes PostgreSQL's protocol on and knows when a COMMIT travels.
type commitProxy struct {
	ln       net.Listener
	upstream string
	mode     atomic.Int32
	caught   atomic.Int64 // COMMITs that a trap has hit

	mu    sync.Mutex
	links map[*link]bool
}

func newCommitProxy(listen, upstream string) (*commitProxy, error) {
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, err
	}
	p := &commitProxy{ln: ln, upstream: upstream, links: make(map[*link]bool)}
	go p.accept()
	return p, nil
}

func (p *commitProxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.DialTimeout("tcp", p.upstream, 3*time.Second)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{proxy: p, client: client.(*net.TCPConn), server: server.(*net.TCPConn), commits: make(map[string]bool)}
		p.mu.Lock()
		p.links[l] = true
		p.mu.Unlock()
		go l.forward()
		go l.back()
	}
}

// set arms or disarms the trap.
func (p *commitProxy) set(t trap) { p.mode.Store(int32(t)) }

// each calls f for every open connection.
func (p *commitProxy) each(f func(*link)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		f(l)
	}
}

func (p *commitProxy) close() {
	_ = p.ln.Close()
	p.each(func(l *link) { l.sever() })
}

// link is one connection through the proxy.
type link struct {
	proxy          *commitProxy
	client, server *net.TCPConn
	commits        map[string]bool // names of prepared statements that are COMMIT
	armed          atomic.Int32    // the trap that waits for the server's answer
}

// sever cuts both sides.
func (l *link) sever() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// drop severs the link and forgets it.
func (l *link) drop() {
	l.sever()
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	delete(l.proxy.links, l)
}

// halfClose ends what the server says, as far as the client can see, and leaves
// the other direction open; or the other way round.
func (l *link) halfClose(towardsClient bool) {
	if towardsClient {
		_ = l.client.CloseWrite()
	} else {
		_ = l.server.CloseWrite()
	}
}

// forward passes on what the client says, message by message, those up to a Sync
// together, as they would travel.
func (l *link) forward() {
	defer l.drop()
	// The startup message has no type.
	head := make([]byte, 4)
	if _, err := io.ReadFull(l.client, head); err != nil {
		return
	}
	startup, err := rest(l.client, head)
	if err != nil {
		return
	}
	if _, err := l.server.Write(startup); err != nil {
		return
	}
	const cancelRequest = 80877102
	if len(startup) >= 8 && binary.BigEndian.Uint32(startup[4:]) == cancelRequest {
		_, _ = io.Copy(l.server, l.client)
		return
	}
	var pending []byte
	commit := false
	for {
		message, err := read(l.client)
		if err != nil {
			return
		}
		kind, body := message[0], message[5:]
		switch kind {
		case 'P': // Parse: name, query
			name, query, _ := strings.Cut(string(body), "\x00")
			l.commits[name] = isCommit(query)
		case 'B': // Bind: portal, name
			_, names, _ := strings.Cut(string(body), "\x00")
			name, _, _ := strings.Cut(names, "\x00")
			commit = commit || l.commits[name]
		case 'Q':
			commit = commit || isCommit(string(body))
		}
		pending = append(pending, message...)
		if kind != 'S' && kind != 'Q' && kind != 'X' && kind != 'p' && kind != 'H' {
			continue
		}
		// A Flush asks for answers and is not the end of a pipeline.
		t := trap(l.proxy.mode.Load())
		if commit && kind != 'H' && t != trapNone {
			l.proxy.caught.Add(1)
			switch t {
			case trapBefore:
				return
			case trapSent:
				_, _ = l.server.Write(pending)
				return
			default:
				l.armed.Store(int32(t))
			}
		}
		if _, err := l.server.Write(pending); err != nil {
			return
		}
		pending = pending[:0]
		if kind != 'H' {
			commit = false
		}
	}
}

// back passes on what the server says, unless a trap waits for it.
func (l *link) back() {
	defer l.drop()
	for {
		message, err := read(l.server)
		if err != nil {
			return
		}
		const readyForQuery = 'Z'
		switch trap(l.armed.Load()) {
		case trapAnswer:
			if message[0] == readyForQuery {
				return
			}
			continue
		case trapSilent:
			for range 1000 {
				if trap(l.proxy.mode.Load()) != trapSilent {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			return
		}
		if _, err := l.client.Write(message); err != nil {
			return
		}
	}
}

func isCommit(query string) bool {
	return strings.EqualFold(strings.Trim(query, " ;\n\x00"), "commit")
}

// read reads one message, its type and length included.
func read(r io.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	body, err := rest(r, head[1:])
	if err != nil {
		return nil, err
	}
	return append(head[:1], body...), nil
}

// rest reads what follows a length, and returns it with the length.
func rest(r io.Reader, length []byte) ([]byte, error) {
	n := binary.BigEndian.Uint32(length)
	if n < 4 || n > 1<<26 {
		return nil, errors.New("no message of PostgreSQL's")
	}
	message := make([]byte, n)
	copy(message, length)
	_, err := io.ReadFull(r, message[4:])
	return message, err
}
