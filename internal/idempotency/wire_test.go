package idempotency_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"intentd/internal/idempotency"
)

// patience bounds what a test waits for that should come at once.
const patience = 10 * time.Second

// wire is a connection to a real server around a layer.
type wire struct {
	*testing.T
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, h http.Handler) *wire {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &wire{t, conn, bufio.NewReader(conn)}
}

// send writes a POST with the key k, the header lines and what there is of a body.
func (w *wire) send(body string, lines ...string) {
	w.Helper()
	head := "POST /v1/payment_intents HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"
	for _, line := range lines {
		head += line + "\r\n"
	}
	if _, err := io.WriteString(w.Conn, head+"\r\n"+body); err != nil {
		w.Fatal(err)
	}
}

func (w *wire) receive() *http.Response {
	w.Helper()
	resp, err := http.ReadResponse(w.in, nil)
	if err != nil {
		w.Fatal(err)
	}
	return resp
}

// wantClosed fails unless the server ends the connection.
func (w *wire) wantClosed() {
	w.Helper()
	b, err := w.in.ReadByte()
	switch {
	case err == nil:
		w.Errorf("the server went on with %q", b)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Errorf("the server kept the connection for %v: %v", patience, err)
	}
}

func (w *wire) halfClose() {
	w.Helper()
	if err := w.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		w.Fatal(err)
	}
}

const cutShortDetail = "the body was cut short or could not be read"

func TestMiddleware_Body(t *testing.T) {
	t.Parallel()
	const slow = 50 * time.Millisecond
	slowDetail := "the body did not arrive within 50ms"

	for _, tt := range []struct{ name, length, start string }{
		{"SlowAnnounced", "Content-Length: 100", "{"},
		{"SlowAnnouncedAndEmpty", "Content-Length: 100", ""},
		{"SlowChunks", "Transfer-Encoding: chunked", "1\r\n{\r\n"},
		{"SlowChunkHead", "Transfer-Encoding: chunked", "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLayer(memory(), idempotency.Options{BodyTimeout: slow}, created())
			w := dial(t, l)
			w.send(tt.start, tt.length)
			wantRefusal(t, w.receive(), 400, "body_unreadable", slowDetail)
			// A client that is never done with its body must not keep the
			// connection either.
			w.wantClosed()
			wantEvents(t, l)
			wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
		})
	}

	t.Run("DefaultTimeout", func(t *testing.T) {
		t.Parallel()
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		start := time.Now()
		newLayer(memory(), idempotency.Options{}, created()).ServeHTTP(w, request("k", ""))
		if len(w.set) != 2 || w.set[0].Before(start.Add(15*time.Second)) || w.set[0].After(time.Now().Add(15*time.Second)) || !w.set[1].IsZero() {
			t.Errorf("read deadlines %v, want one 15 s after %v, and none for the rest", w.set, start)
		}
	})

	t.Run("DeadlineDoesNotOutliveTheBody", func(t *testing.T) {
		t.Parallel()
		// A read deadline that passes while the handler runs would look like a
		// client that hung up, and fail the connection's next request.
		ended := make(chan error, 1)
		l := newLayer(memory(), idempotency.Options{BodyTimeout: slow}, func(w http.ResponseWriter, r *http.Request) {
			timer := time.NewTimer(4 * slow)
			defer timer.Stop()
			select {
			case <-r.Context().Value(outer{}).(context.Context).Done():
				ended <- r.Context().Value(outer{}).(context.Context).Err()
			case <-timer.C:
				ended <- nil
			}
			created()(w, r)
		})
		w := dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			l.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), outer{}, r.Context())))
		}))
		w.send("{}", "Content-Length: 2")
		wantStatus(t, w.receive(), http.StatusCreated, false)
		if err := <-ended; err != nil {
			t.Errorf("the request's context ended while the handler ran: %v", err)
		}
	})

	t.Run("ConnectionIsReused", func(t *testing.T) {
		t.Parallel()
		l := newLayer(memory(), idempotency.Options{}, created())
		w := dial(t, l)
		for i, refused := range []string{"Content-Encoding: gzip", "X: y", "X: y"} {
			w.send("{}", "Content-Length: 2", refused)
			resp := w.receive()
			wantStatus(t, resp, []int{415, 201, 201}[i], i == 2)
			read(t, resp)
		}
	})

	for _, tt := range []struct{ name, length, start string }{
		{"CutShort", "Content-Length: 100", "{}"},
		{"CutShortBeforeItBegan", "Content-Length: 100", ""},
		{"CutShortInAChunk", "Transfer-Encoding: chunked", "5\r\n{}"},
		{"CutShortBetweenChunks", "Transfer-Encoding: chunked", "2\r\n{}\r\n"},
		{"CutShortBeforeTheLastLine", "Transfer-Encoding: chunked", "2\r\n{}\r\n0\r\n"},
		{"BadChunk", "Transfer-Encoding: chunked", "2\r\n{}\r\nxyz\r\n"},
		{"BadChunkEnd", "Transfer-Encoding: chunked", "2\r\n{}}\r\n0\r\n\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := newLayer(memory(), idempotency.Options{}, created())
			w := dial(t, l)
			w.send(tt.start, tt.length)
			w.halfClose()
			wantRefusal(t, w.receive(), 400, "body_unreadable", cutShortDetail)
			w.wantClosed()
			wantEvents(t, l)
			wantStatus(t, l.do(request("k", "")), http.StatusCreated, false)
		})
	}

	t.Run("LongestAnnounced", func(t *testing.T) {
		t.Parallel()
		w := dial(t, newLayer(memory(), idempotency.Options{}, created()))
		w.send(strings.Repeat("x", 65536), "Content-Length: 65536")
		wantStatus(t, w.receive(), http.StatusCreated, false)
	})

	t.Run("LongestInChunks", func(t *testing.T) {
		t.Parallel()
		w := dial(t, newLayer(memory(), idempotency.Options{}, created()))
		w.send("10000\r\n"+strings.Repeat("x", 65536)+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked")
		wantStatus(t, w.receive(), http.StatusCreated, false)
	})

	t.Run("TooLargeInChunks", func(t *testing.T) {
		t.Parallel()
		w := dial(t, newLayer(memory(), idempotency.Options{BodyTimeout: slow}, created()))
		w.send("10001\r\n"+strings.Repeat("x", 65537)+"\r\n", "Transfer-Encoding: chunked")
		wantRefusal(t, w.receive(), 413, "body_too_large", "the body must be at most 65536 bytes long")
		w.wantClosed()
	})

	t.Run("TooLargeEndsTheConnection", func(t *testing.T) {
		t.Parallel()
		// Even where what is left would be short, and where net/http does not see
		// by itself that the limit was passed, since its writer is wrapped.
		l := newLayer(memory(), idempotency.Options{}, created())
		w := dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.ServeHTTP(wrapped{w}, r) }))
		w.send("10001\r\n"+strings.Repeat("x", 65537)+"\r\n0\r\n\r\n", "Transfer-Encoding: chunked")
		wantRefusal(t, w.receive(), 413, "body_too_large", "the body must be at most 65536 bytes long")
		w.wantClosed()
	})

	t.Run("TooLargeIsRefusedUnread", func(t *testing.T) {
		t.Parallel()
		w := dial(t, newLayer(memory(), idempotency.Options{}, created()))
		w.send("", "Content-Length: 1000000000")
		wantRefusal(t, w.receive(), 413, "body_too_large", "the body must be at most 65536 bytes long")
	})

	t.Run("ExpectContinue", func(t *testing.T) {
		t.Parallel()
		w := dial(t, newLayer(memory(), idempotency.Options{}, created()))
		w.send("", "Content-Length: 2", "Expect: 100-continue")
		if resp := w.receive(); resp.StatusCode != http.StatusContinue {
			t.Fatalf("status = %d, want 100", resp.StatusCode)
		}
		if _, err := io.WriteString(w.Conn, "{}"); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, w.receive(), http.StatusCreated, false)
	})

	// What is refused for its headers is refused before the body is asked for.
	for name, line := range map[string]string{
		"ExpectContinueButEncoded":  "Content-Encoding: gzip\r\nContent-Length: 2",
		"ExpectContinueButTooLarge": "Content-Length: 65537",
		"ExpectContinueButTwoKeys":  "Idempotency-Key: l\r\nContent-Length: 2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dial(t, newLayer(memory(), idempotency.Options{}, created()))
			w.send("", line, "Expect: 100-continue")
			if resp := w.receive(); resp.StatusCode < 400 {
				t.Errorf("status = %d, want a refusal", resp.StatusCode)
			}
		})
	}

	t.Run("HangUp", func(t *testing.T) {
		t.Parallel()
		// The server notices that the client is gone while the handler runs.
		l := newLayer(memory(), idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Value(outer{}).(context.Context).Done()
			if err := r.Context().Err(); err != nil {
				t.Errorf("the handler's context has ended: %v", err)
			}
			created()(w, r)
		})
		answered := make(chan struct{})
		w := dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(answered)
			l.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), outer{}, r.Context())))
		}))
		w.send("{}", "Content-Length: 2")
		_ = w.Close()
		<-answered
		wantStatus(t, l.do(request("k", "{}")), http.StatusCreated, true)
	})
}

// wrapped is a ResponseWriter as most middleware passes it on.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// outer is the server's own context of a request.
type outer struct{}

// deadlines is a ResponseWriter that remembers its read deadlines.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.set = append(d.set, t)
	return nil
}
