package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// message is one of PostgreSQL's protocol; without a kind, the startup's.
func message(kind byte, body string) []byte {
	m := binary.BigEndian.AppendUint32(nil, uint32(len(body)+4))
	m = append(m, body...)
	if kind == 0 {
		return m
	}
	return append([]byte{kind}, m...)
}

// TestCommitProxy_Trap sends a pipeline that ends in a prepared COMMIT through
// each trap, and looks at what either side gets.
func TestCommitProxy_Trap(t *testing.T) {
	t.Parallel()
	startup := message(0, "\x00\x03\x00\x00user\x00x\x00\x00")
	prepare := append(message('P', "c\x00commit\x00\x00\x00"), message('S', "")...)
	commit := append(message('B', "\x00c\x00\x00\x00\x00\x00\x00\x00"), append(message('E', "\x00\x00\x00\x00\x00"), message('S', "")...)...)
	answer := append(message('C', "COMMIT\x00"), message('Z', "I")...)
	for _, c := range []struct {
		name             string
		trap             trap
		arrives, answers bool
	}{
		{"None", trapNone, true, true},
		{"Before", trapBefore, false, false},
		{"Sent", trapSent, true, false},
		{"Answer", trapAnswer, true, false},
		{"Silent", trapSilent, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			p, err := newCommitProxy("127.0.0.1:0", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			client, err := net.Dial("tcp", p.ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			server, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			deadline := time.Now().Add(5 * time.Second)
			_, _ = client.SetDeadline(deadline), server.SetDeadline(deadline)

			send(t, client, startup, prepare)
			receive(t, server, startup, prepare)
			p.set(c.trap)
			send(t, client, commit)
			if c.arrives {
				receive(t, server, commit)
				send(t, server, answer)
			} else {
				ends(t, server)
			}
			if c.trap == trapSilent {
				p.set(trapNone)
			}
			if c.answers {
				receive(t, client, answer)
			} else {
				ends(t, client)
			}
			if hits := p.caught.Load(); (hits == 1) != (c.trap != trapNone) {
				t.Errorf("%d COMMITs caught", hits)
			}
		})
	}
}

func send(t *testing.T, to net.Conn, parts ...[]byte) {
	t.Helper()
	// A side that is cut already is what some traps are about.
	_, _ = to.Write(bytes.Join(parts, nil))
}

func receive(t *testing.T, from net.Conn, parts ...[]byte) {
	t.Helper()
	want := bytes.Join(parts, nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(from, got); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
}

// ends expects that nothing more comes, and the connection's end.
func ends(t *testing.T, conn net.Conn) {
	t.Helper()
	n, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	if n > 0 || err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("got %d bytes, %v; want the end", n, err)
	}
}

func TestIsCommit(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]bool{
		"commit": true, "COMMIT;\x00": true, "commit prepared 'x'": false, "select 'commit'": false, "rollback": false,
	} {
		if isCommit(query) != want {
			t.Errorf("isCommit(%q) = %t", query, !want)
		}
	}
}
