package idempotency

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// recordedHeaders are the ones that belong to the answer itself and come back
// in a replay: Link tells, say, where an error is documented. All others (Date, Set-Cookie, request ids, hop-by-hop ones)
// belong to one exchange.
var recordedHeaders = []string{"Content-Type", "Location", "Etag", "Link"}

// recorder is an http.ResponseWriter that holds an answer back until its fate
// is known.
type recorder struct {
	header http.Header // what the handler sets
	sent   http.Header // header as it was when the answer began
	status int         // 0 until then
	body   bytes.Buffer
}

func newRecorder() *recorder { return &recorder{header: make(http.Header)} }

// Header implements http.ResponseWriter.
func (rec *recorder) Header() http.Header { return rec.header }

// WriteHeader implements http.ResponseWriter. As in net/http the first final
// status counts, headers set later do not, and an impossible status panics.
func (rec *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %d", status))
	}
	// An informational answer can not be held back and is none of the final one.
	if status < 200 || rec.status != 0 {
		return
	}
	rec.status = status
	rec.sent = rec.header.Clone()
}

// Write implements http.ResponseWriter.
func (rec *recorder) Write(p []byte) (int, error) {
	rec.WriteHeader(http.StatusOK)
	if rec.status == http.StatusNoContent || rec.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	return rec.body.Write(p)
}

// response returns the answer as it is to be recorded. It shares nothing with
// the recorder's headers.
func (rec *recorder) response() Response {
	rec.WriteHeader(http.StatusOK) // a handler that wrote nothing answered 200
	resp := Response{Status: rec.status, Header: make(http.Header), Body: rec.body.Bytes()}
	// net/http guesses a missing type from the body; guess here instead, so
	// that it is on record and a replay does not depend on the guess.
	if _, set := rec.sent["Content-Type"]; !set && rec.body.Len() > 0 {
		rec.sent.Set("Content-Type", http.DetectContentType(resp.Body))
	}
	for _, name := range recordedHeaders {
		if v, ok := rec.sent[name]; ok {
			resp.Header[name] = slices.Clone(v)
		}
	}
	return resp
}

// send writes the held answer to the client, and until when it is on record.
func (rec *recorder) send(w http.ResponseWriter, resp Response, expires time.Time) {
	maps.Copy(w.Header(), rec.sent)
	setExpires(w, expires)
	// The body goes out in one piece, and net/http counts it better.
	w.Header().Del("Content-Length")
	write(w, resp)
}

// setExpires tells until when an answer is on record, as an HTTP date (RFC 9110,
// section 5.6.7): whole seconds, and never one that the record does not live to
// see. The header belongs to the layer, and is never recorded.
func setExpires(w http.ResponseWriter, expires time.Time) {
	w.Header().Set("Idempotency-Key-Expires", expires.UTC().Format(http.TimeFormat))
}

// write sends a recorded answer.
func write(w http.ResponseWriter, resp Response) {
	for name, values := range resp.Header {
		w.Header()[name] = slices.Clone(values)
	}
	w.WriteHeader(resp.Status)
	// An error means that the client is gone; the record serves its retry.
	_, _ = w.Write(resp.Body)
}
