package api

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"intentd/internal/intent"
)

// query holds a reading request's query members by name, each of them once.
type query map[string]string

// queryOf reads the query as strictly as a body: a member that is not one of
// names, or comes twice, is refused, so that a typo is never ignored.
func queryOf(r *http.Request, names ...string) (query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalidRequest("the query is not well formed: members are name=value, joined by &, with %-escapes")
	}
	q := make(query, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		switch {
		case len(names) == 0:
			return nil, invalidRequest(fmt.Sprintf("%.40q is not a member of this request's query, which has none", name))
		case !slices.Contains(names, name):
			return nil, invalidRequest(fmt.Sprintf("%.40q is not a member of this request's query, use %s", name, strings.Join(names, ", ")))
		case len(values[name]) > 1:
			return nil, invalidRequest(name + " must be given once")
		}
		q[name] = values[name][0]
	}
	return q, nil
}

var digits = regexp.MustCompile(`^(0|[1-9][0-9]*)$`)

// version returns a member that is a version, or 0 where it is not given.
func (q query) version(name string) (int64, error) {
	text, ok := q[name]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || !digits.MatchString(text) {
		return 0, invalidRequest(fmt.Sprintf("%s must be an integer from 0 to %d", name, math.MaxInt64))
	}
	return n, nil
}

// limit returns how many the client wants at most, or def where it does not say.
// What is no such number becomes 0, to which the domain says what is one.
func (q query) limit(def int) int {
	text, ok := q["limit"]
	if !ok {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || !digits.MatchString(text) {
		return 0
	}
	return n
}

// id returns a member that names a payment intent, or nil.
func (q query) id(name string) (*intent.ID, error) {
	text, ok := q[name]
	if !ok {
		return nil, nil
	}
	id, err := intent.ParseID(text)
	if err != nil {
		return nil, invalidRequest(name + " must be the id of a payment intent, pi_ and 32 hex digits")
	}
	return &id, nil
}

// text returns a member that is something where it is given.
func (q query) text(name string) (string, error) {
	text, ok := q[name]
	if ok && text == "" {
		return "", invalidRequest(name + " must not be empty; leave it out for any")
	}
	return text, nil
}

// instant is a time of RFC 3339, of which time.Parse takes more than it has: hours
// of one digit, fractions behind a comma, any offset. There are no leap seconds in
// what is compared with it.
var instant = regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`)

// time returns a point in time, in no finer steps than the API answers in, or
// the zero time.
func (q query) time(name string) (time.Time, error) {
	text, ok := q[name]
	if !ok {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || !instant.MatchString(text) {
		return time.Time{}, invalidRequest(name + ` must be a time of RFC 3339 with at most six fractional digits, such as 2026-03-01T00:00:00Z; "+" is written %2B in a URL`)
	}
	if t.IsZero() {
		t = t.Add(time.Second) // to the domain the zero time is none; this is refused as the year 1 is
	}
	return t, nil
}
