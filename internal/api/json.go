package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// writeJSON answers with v, in a media type of JSON. Members of maps are sorted by name, so that the same
// value always has the same bytes.
func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil { // what the API answers always has a JSON form
		panic(fmt.Errorf("encode answer: %w", err))
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client is gone
}

// timestamp spells t as the API does: RFC 3339, UTC, always six fractional
// digits.
func timestamp(t time.Time) string {
	return t.UTC().Format("2006-01-02T15:04:05.000000Z")
}

// members are an object's values by name, still encoded.
type members map[string]jsontext.Value

// decodeObject reads a request body: one JSON object and nothing after it, in
// the strict form of RFC 7493 (valid UTF-8 without unpaired surrogates, no name
// twice). It returns the names in their order as well.
func decodeObject(body io.Reader) (members, []string, error) {
	dec := jsontext.NewDecoder(body)
	if dec.PeekKind() != '{' {
		if _, err := dec.ReadValue(); err != nil {
			return nil, nil, notStrict(err)
		}
		return nil, nil, invalidJSON("the body must be a JSON object")
	}
	m, names, err := split(dec)
	if err != nil {
		return nil, nil, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, nil, invalidJSON("the body must be one JSON object, with nothing after it")
	}
	return m, names, nil
}

// decodeMembers is decodeObject for a request that has these members and no
// other.
func decodeMembers(body io.Reader, what string, allowed []string) (members, error) {
	m, names, err := decodeObject(body)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !slices.Contains(allowed, name) {
			return nil, invalidRequest(fmt.Sprintf("%.40q is not a member of %s", name, what))
		}
	}
	return m, nil
}

// split takes apart the object that comes next, to its end.
func split(dec *jsontext.Decoder) (members, []string, error) {
	const some = 8 // members of a usual request
	m, names := make(members, some), make([]string, 0, some)
	if _, err := dec.ReadToken(); err != nil {
		return nil, nil, notStrict(err)
	}
	for dec.PeekKind() != '}' {
		tok, err := dec.ReadToken()
		if err != nil {
			return nil, nil, notStrict(err)
		}
		name := tok.String()
		value, err := dec.ReadValue()
		if err != nil {
			return nil, nil, notStrict(err)
		}
		m[name], names = value.Clone(), append(names, name)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, nil, notStrict(err)
	}
	return m, names, nil
}

// notStrict says where the text is no strict JSON. The decoder's own words may
// hold any part of the text, and are left out.
func notStrict(err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF):
		return invalidJSON("the body is empty, it must be a JSON object")
	case errors.Is(err, jsontext.ErrDuplicateName):
		detail := "the body has a member twice"
		if errors.As(err, &syntax) {
			detail = fmt.Sprintf("the body has the member %.40q twice", syntax.JSONPointer.LastToken())
		}
		return invalidJSON(detail)
	case errors.As(err, &syntax):
		return invalidJSON(fmt.Sprintf("the body is not valid JSON in UTF-8, from byte %d on", syntax.ByteOffset))
	default:
		return invalidJSON("the body is not valid JSON in UTF-8")
	}
}

// text returns a required string.
func (m members) text(name string) (string, error) {
	s, err := m.optionalText(name)
	switch {
	case err != nil:
		return "", err
	case s == nil:
		return "", invalidRequest(name + " is required")
	}
	return *s, nil
}

// optionalText returns a string, or nil where it is not given.
func (m members) optionalText(name string) (*string, error) {
	value, ok := m[name]
	if !ok {
		return nil, nil
	}
	s, ok := text(value)
	if !ok {
		return nil, wrongType(name, "a JSON string", value)
	}
	return &s, nil
}

// integerPattern is how an integer is written in JSON without a fraction and
// without an exponent.
var integerPattern = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// optionalInteger returns an integer, or nil where it is not given. One that no
// int64 holds becomes the nearest that does.
func (m members) optionalInteger(name string) (*int64, error) {
	value, ok := m[name]
	if !ok {
		return nil, nil
	}
	if !integerPattern.Match(value) {
		return nil, wrongType(name, "a JSON integer", value)
	}
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return nil, wrongType(name, "a JSON integer", value)
	}
	return &n, nil
}

// optionalTexts returns an object of strings, or nil where it is not given.
func (m members) optionalTexts(name string) (map[string]string, error) {
	value, ok := m[name]
	if !ok {
		return nil, nil
	}
	if value.Kind() != '{' {
		return nil, wrongType(name, "an object of strings", value)
	}
	object, names, err := split(jsontext.NewDecoder(bytes.NewReader(value)))
	if err != nil {
		return nil, err
	}
	texts := make(map[string]string, len(object))
	for _, n := range names {
		if texts[n], ok = text(object[n]); !ok {
			return nil, wrongType(fmt.Sprintf("%s value of %.40q", name, n), "a JSON string", object[n])
		}
	}
	return texts, nil
}

// text decodes a JSON string.
func text(value jsontext.Value) (string, bool) {
	if value.Kind() != '"' {
		return "", false
	}
	var room [128]byte // for most; AppendUnquote takes more where it needs it
	s, err := jsontext.AppendUnquote(room[:0], value)
	return string(s), err == nil
}

func wrongType(name, want string, value jsontext.Value) error {
	if value.Kind() == 'n' {
		return invalidRequest(fmt.Sprintf("%s must be %s, not null", name, want))
	}
	return invalidRequest(fmt.Sprintf("%s must be %s", name, want))
}
