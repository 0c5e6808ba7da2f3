package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// page is a list as it is answered.
type page struct {
	Data []struct {
		ID        string
		State     string
		Reference string
		CreatedAt string `json:"created_at"`
	}
	HasMore bool `json:"has_more"`
}

func (p page) ids() (ids []string) {
	for _, in := range p.Data {
		ids = append(ids, in.ID)
	}
	return ids
}

// list asks for a page of a merchant's intents.
func (s *service) list(t testing.TB, c call, query ...string) page {
	t.Helper()
	c.method, c.path = http.MethodGet, intentsPath
	if len(query) > 0 {
		c.path += "?" + strings.Join(query, "&")
	}
	a := s.do(t, c)
	a.want(t, http.StatusOK, "")
	var p page
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Fatal(err)
	}
	if p.Data == nil {
		t.Errorf("%s: data is null", a.body)
	}
	return p
}

func TestList(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		if p := s.list(t, call{}); len(p.Data) != 0 || p.HasMore {
			t.Errorf("list of nothing = %+v", p)
		}
		var ids, times []string // oldest first
		for i := range 25 {
			a := s.created(t, call{body: edit(t, "reference", fmt.Sprintf(`"order %d"`, i%5))})
			ids = append(ids, a.member(t, "id").(string))
			times = append(times, a.member(t, "created_at").(string))
		}
		other := s.created(t, call{token: bob}).member(t, "id").(string)
		s.moved(t, call{path: intentsPath + "/" + ids[3] + "/cancel", body: `{"reason":"r"}`}, "canceled", 2)
		newest := slices.Clone(ids)
		slices.Reverse(newest)

		check := func(name string, got page, want []string, more bool) {
			t.Helper()
			if diff := cmp.Diff(want, got.ids()); diff != "" || got.HasMore != more {
				t.Errorf("%s: has_more = %t, want %t (-want +got):\n%s", name, got.HasMore, more, diff)
			}
		}
		check("default", s.list(t, call{}), newest[:20], true)
		check("whole", s.list(t, call{}, "limit=100"), newest, false)
		check("exactly", s.list(t, call{}, "limit=25"), newest, false)
		check("first", s.list(t, call{}, "limit=1"), newest[:1], true)
		check("after", s.list(t, call{}, "limit=5", "starting_after="+newest[4]), newest[5:10], true)
		check("after the last", s.list(t, call{}, "starting_after="+newest[24]), nil, false)
		check("before", s.list(t, call{}, "limit=5", "ending_before="+newest[10]), newest[5:10], true)
		check("before the fourth", s.list(t, call{}, "limit=5", "ending_before="+newest[3]), newest[:3], false)
		check("state", s.list(t, call{}, "state=canceled"), ids[3:4], false)
		check("no such state", s.list(t, call{}, "state=settled"), nil, false)
		check("reference", s.list(t, call{}, "reference="+url.QueryEscape("order 3")), []string{ids[23], ids[18], ids[13], ids[8], ids[3]}, false)
		check("both", s.list(t, call{}, "state=created", "reference=order+3", "limit=2"), []string{ids[23], ids[18]}, true)
		check("from", s.list(t, call{}, "created_gte="+times[20]), newest[:5], false)
		check("before a time", s.list(t, call{}, "created_lt="+times[5]), newest[20:], false)
		check("between", s.list(t, call{}, "created_gte="+times[5], "created_lt="+times[7]), newest[18:20], false)
		check("a time with an offset", s.list(t, call{}, "created_gte="+url.QueryEscape(strings.Replace(times[20], "Z", "+00:00", 1))), newest[:5], false)
		check("long ago", s.list(t, call{}, "created_lt=1970-01-01T00:00:00Z"), nil, false)
		check("since long ago", s.list(t, call{}, "created_gte=1970-01-01T00:00:00Z", "limit=100"), newest, false)
		check("far ahead", s.list(t, call{}, "created_gte=9999-12-31T23:59:59.999999Z"), nil, false)
		check("another's", s.list(t, call{token: bob}), []string{other}, false)
		// A cursor is a position, and tells nothing of whose it is.
		check("after another's", s.list(t, call{}, "limit=2", "starting_after="+other), newest[:2], true)
		check("for a relayer", s.list(t, call{token: relayer, header: []string{"Intent-Merchant: bob"}}), []string{other}, false)

		// Paging reads each once, whatever comes meanwhile.
		var seen []string
		query := []string{"limit=7"}
		for {
			p := s.list(t, call{}, query...)
			seen = append(seen, p.ids()...)
			if !p.HasMore {
				break
			}
			s.created(t, call{})
			query = []string{"limit=7", "starting_after=" + p.Data[len(p.Data)-1].ID}
		}
		if diff := cmp.Diff(newest, seen); diff != "" {
			t.Errorf("read in pages (-want +got):\n%s", diff)
		}
		// An element is the intent as GET has it.
		p := s.do(t, call{method: "GET", path: intentsPath + "?limit=1"})
		one := s.do(t, call{method: "GET", path: intentsPath + "/" + s.list(t, call{}, "limit=1").Data[0].ID})
		if got, want := p.body, `{"data":[`+strings.TrimSuffix(one.body, "\n")+`],"has_more":true}`+"\n"; got != want {
			t.Errorf("list = %s,\nwant %s", got, want)
		}
	})
}

// TestQuery_Refusals: a reading request is read as strictly as a body.
func TestQuery_Refusals(t *testing.T) {
	t.Parallel()
	s := stores["Memory"](t, setup{})
	location := s.created(t, call{}).header.Get("Location")
	id := strings.TrimPrefix(location, intentsPath+"/")
	for path, detail := range map[string]string{
		intentsPath + "?limit=0":                                       "limit must be an integer from 1 to 100",
		intentsPath + "?limit=101":                                     "limit must be an integer from 1 to 100",
		intentsPath + "?limit=18446744073709551617":                    "limit must be an integer from 1 to 100",
		intentsPath + "?limit=":                                        "limit must be an integer from 1 to 100",
		intentsPath + "?limit=-1":                                      "limit must be an integer from 1 to 100",
		intentsPath + "?limit=%2B5":                                    "limit must be an integer from 1 to 100",
		intentsPath + "?limit=05":                                      "limit must be an integer from 1 to 100",
		intentsPath + "?limit=1e1":                                     "limit must be an integer from 1 to 100",
		intentsPath + "?limit=5&limit=5":                               "limit must be given once",
		intentsPath + "?Limit=5":                                       `"Limit" is not a member of this request's query, use limit, starting_after, ending_before, state, reference, created_gte, created_lt`,
		intentsPath + "?merchant=alice":                                `"merchant" is not a member of this request's query, use limit, starting_after, ending_before, state, reference, created_gte, created_lt`,
		intentsPath + "?starting_after=x":                              "starting_after must be the id of a payment intent, pi_ and 32 hex digits",
		intentsPath + "?starting_after=":                               "starting_after must be the id of a payment intent, pi_ and 32 hex digits",
		intentsPath + "?ending_before=" + strings.ToUpper(id):          "ending_before must be the id of a payment intent, pi_ and 32 hex digits",
		intentsPath + "?starting_after=" + id + "&ending_before=" + id: "",
		intentsPath + "?state=paid":                                    "",
		intentsPath + "?state=":                                        "state must not be empty; leave it out for any",
		intentsPath + "?reference=":                                    "reference must not be empty; leave it out for any",
		intentsPath + "?reference=%00":                                 refRule,
		intentsPath + "?reference=%ff":                                 refRule,
		intentsPath + "?reference=" + strings.Repeat("x", 256):         refRule,
		intentsPath + "?created_gte=yesterday":                         "",
		intentsPath + "?created_gte=2026-03-01":                        "",
		intentsPath + "?created_gte=2026-03-01T00:00:00":               "",
		intentsPath + "?created_gte=2026-03-01T00:00:00+00:00":         "", // a blank
		intentsPath + "?created_lt=2026-03-01T00:00:00.1234567Z":       "",
		intentsPath + "?created_lt=2026-03-01t00:00:00z":               "",
		intentsPath + "?created_lt=2026-03-01T1:02:03Z":                "",
		intentsPath + "?created_lt=2026-03-01T01:02:03,123456Z":        "",
		intentsPath + "?created_lt=2026-03-01T01:02:03,1234567Z":       "",
		intentsPath + "?created_lt=2026-03-01T00:00:00%2B24:00":        "",
		intentsPath + "?created_lt=2026-03-01T00:00:00-14:60":          "",
		intentsPath + "?created_lt=2016-12-31T23:59:60Z":               "",
		intentsPath + "?created_lt=2026-02-30T00:00:00Z":               "",
		intentsPath + "?limit=%zz":                                     "the query is not well formed: members are name=value, joined by &, with %-escapes",
		intentsPath + "?limit=1;state=created":                         "the query is not well formed: members are name=value, joined by &, with %-escapes",
		location + "?expand=all":                                       "expand must be transitions",
		location + "?expand=":                                          "expand must be transitions",
		location + "?expand=transitions&expand=transitions":            "expand must be given once",
		location + "?expnad=transitions":                               `"expnad" is not a member of this request's query, use expand`,
		location + "/transitions?limit=0":                              "limit must be an integer from 1 to 100",
		location + "/transitions?starting_after=x":                     "starting_after must be an integer from 0 to 9223372036854775807",
		location + "/transitions?starting_after=-1":                    "starting_after must be an integer from 0 to 9223372036854775807",
		location + "/transitions?starting_after=9223372036854775808":   "starting_after must be an integer from 0 to 9223372036854775807",
		intentsPath + "?created_gte=0001-01-01T00:00:00Z":              "created_gte must be in the years 1970 to 9999",
		intentsPath + "?created_lt=1969-12-31T23:59:59Z":               "created_lt must be in the years 1970 to 9999",
		location + "/transitions?state=created":                        `"state" is not a member of this request's query, use limit, starting_after`,
		"/v1/idempotency_keys?key=x":                                   `"key" is not a member of this request's query, which has none`,
	} {
		a := s.do(t, call{method: "GET", path: path, key: "k"})
		a.want(t, http.StatusBadRequest, "invalid_request")
		if detail != "" {
			a.wantDetail(t, detail)
		}
		name := path[strings.LastIndexAny(path, "?&;")+1:]
		name, _, _ = strings.Cut(name, "=")
		if detail == "" && !strings.Contains(a.problem().Detail, name) {
			t.Errorf("%s: %q does not name the member", path, a.problem().Detail)
		}
	}
	// What trails nothing is no error.
	s.do(t, call{method: "GET", path: intentsPath + "?"}).want(t, http.StatusOK, "")
	s.do(t, call{method: "GET", path: location + "/transitions?starting_after=9223372036854775807"}).want(t, http.StatusOK, "")
}

// TestGet_Conditional: RFC 9110, section 13.1.2.
func TestGet_Conditional(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		created := s.created(t, call{})
		location := created.header.Get("Location")
		if got := created.header.Get("ETag"); got != `"1"` {
			t.Errorf("ETag of the 201 = %q", got)
		}
		for _, path := range []string{location, location + "?expand=transitions"} {
			for tags, status := range map[string]int{
				`"1"`: 304, `W/"1"`: 304, `"7", "1"`: 304, `"7",W/"1"`: 304, `*`: 304,
				`"2"`: 200, `1`: 200, ``: 200, `"11"`: 200, `"1`: 200,
			} {
				for _, method := range []string{"GET", "HEAD"} {
					a := s.do(t, call{method: method, path: path, header: []string{"If-None-Match: " + tags}})
					if a.status != status || a.header.Get("ETag") != `"1"` {
						t.Errorf("%s with If-None-Match: %s = %d, ETag %q, want %d", method, tags, a.status, a.header.Get("ETag"), status)
					}
					if a.status == http.StatusNotModified && (a.body != "" || a.header.Get("Content-Type") != "") {
						t.Errorf("304 with a body: %q", a.body)
					}
				}
			}
		}
		s.moved(t, call{path: location + "/cancel", body: `{"reason":"r"}`}, "canceled", 2)
		a := s.do(t, call{method: "GET", path: location, header: []string{`If-None-Match: "1"`}})
		if a.status != http.StatusOK || a.header.Get("ETag") != `"2"` {
			t.Errorf("after the step = %d, ETag %q", a.status, a.header.Get("ETag"))
		}
		// The replay is what was answered, not what is.
		s.do(t, call{method: "GET", path: intentsPath + "/x", header: []string{"If-None-Match: *"}}).want(t, http.StatusNotFound, "not_found")
	})
}
