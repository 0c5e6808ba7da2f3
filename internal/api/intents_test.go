package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// allMembers are an answer's, in their order.
var allMembers = []string{
	"id", "chain", "token", "payer", "merchant", "amount", "state", "version", "reference", "metadata", "tx_hash",
	"created_at", "updated_at", "expires_at", "transitions",
}

const (
	maxAmount = "115792089237316195423570985008687907853269984665640564039457584007913129639935"

	chainShape   = "chain must be namespace:reference, such as evm:31337"
	chainUnknown = "chain has an unknown namespace, known is evm"
	chainEVM     = "chain must be evm: and a decimal chain id from 1 to 2^63-1 without a leading zero"
	amountRule   = "amount must be a decimal integer string from 1 to 2^256-1"
	expiresRule  = "expires_in_seconds must be an integer from 1 to 2592000"
	expiresType  = "expires_in_seconds must be a JSON integer"
	refRule      = "reference must be 1 to 255 characters, none of them a control character"
)

// refused is a body that the handler answers 400.
type refused struct {
	body   string
	code   string
	detail string // "": any
	// untold says that OpenAPI can not tell this rule, so that the document
	// lets the body pass.
	untold bool
}

// check sends the body twice: the refusal is recorded, for as long as the key.
func (x refused) check(t *testing.T, s *service) {
	t.Helper()
	c := call{key: newKey(), body: x.body}
	first := s.do(t, c)
	if first.status != http.StatusBadRequest || first.problem().Error != x.code {
		t.Errorf("%.200s: %d %s, want 400 %s", x.body, first.status, first.body, x.code)
		return
	}
	if x.detail != "" && first.problem().Detail != x.detail {
		t.Errorf("%.200s: detail = %q,\nwant %q", x.body, first.problem().Detail, x.detail)
	}
	if len(first.body) > 300 {
		t.Errorf("%.200s: answered with %d bytes", x.body, len(first.body))
	}
	first.wantReplayed(t, false)
	s.replayed(t, c, first)
	if x.code == "invalid_request" {
		r, err := http.NewRequest(http.MethodPost, s.server.URL+intentsPath, strings.NewReader(x.body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer x")
		r.Header.Set("Idempotency-Key", "k")
		if err := documentTakes(r); (err == nil) != x.untold {
			t.Errorf("%.200s is refused, and openapi.yaml says of it: %v", x.body, err)
		}
	}
}

// TestCreate_Members goes through every member's rule, and through what lies
// beside each of its bounds.
func TestCreate_Members(t *testing.T) {
	t.Parallel()
	digits := strings.Repeat("7", 60_000)
	quoted := func(values ...string) []string {
		for i, v := range values {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			values[i] = string(b)
		}
		return values
	}
	wrongTypes := []string{"1", "1.5", "true", "false", "[]", `["x"]`, "{}"}
	members := func(n int) string {
		m := make(map[string]string)
		for i := range n {
			m[fmt.Sprint(i)] = "x"
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	emoji := func(n int) string { return `"` + strings.Repeat("😀", n) + `"` }

	type values struct {
		member string
		json   []string
		detail string
		untold bool
	}
	bad := []values{
		{"chain", quoted("", "evm", "EVM", "31337"), chainShape, false},
		{"chain", quoted("EVM:1", "sol:1", " evm:1", ":1", "::", "evm1:1", "\u0435vm:1"), chainUnknown, false},
		{"chain", quoted("evm:", "evm:0", "evm:01", "evm:-1", "evm:+1", "evm:0x1", "evm:1 ", "evm: 1", "evm:1\n", "evm:1_0", "evm:1e3", "evm:1.0",
			"evm:1:2", "evm:\u0661", "evm:"+digits, "evm:99999999999999999999"), chainEVM, false},
		{"chain", quoted("evm:9223372036854775808"), chainEVM, true},
		{"amount", quoted("0100", "0x10", "1_000", "+5", "-0", "1e18", "0", "", " 1", "1.0", // the case's own
			"00", "-1", "1 ", "1\n", "\t1", "1e3", "1E3", "1,000", "1'000", ".5", "5.", "0.1", "0b1", "0o7", "0X10", "NaN", "Infinity", "one", "\u0661", "\uff11",
			"1\u0000", "1"+strings.Repeat("0", 78), digits), amountRule, false},
		{"amount", quoted("115792089237316195423570985008687907853269984665640564039457584007913129639936", strings.Repeat("9", 78)), amountRule, true},
		{"amount", []string{"100", "1e3", "true", "0", "-1", digits, "[]", `["1"]`, "{}"}, "amount must be a JSON string", false},
		{"expires_in_seconds", []string{"18446744975", "9223372037", "9223372036854775807", "0", "-1",
			"2592001", "9223372036854775808", "18446744073709551615", "18446744073709552516", "-9223372036854775808", "-9223372036854775809", digits, "-" + digits, "-0"},
			expiresRule, false},
		{"expires_in_seconds", []string{"900.5", `"900"`, `""`, "true", "[]", "[900]", "{}", "0.9", "1e-1"}, expiresType, false},
		{"expires_in_seconds", []string{"1e2", "9E2", "900.0", "9.0e2"}, expiresType, true},
		{"reference", append(quoted("", "\x00", "a\x00", "\x1f", "a\nb", "\x7f", "\u0080", "a\u0085b", "\u009f", strings.Repeat("x", 256), strings.Repeat("é", 256)), emoji(256)), refRule, false},
		{"reference", wrongTypes, "reference must be a JSON string", false},
		{"metadata", []string{"1", "true", `"x"`, "[]", `[{"a":"b"}]`}, "metadata must be an object of strings", false},
		{"metadata", []string{`{"a":1}`, `{"a":true}`, `{"a":[]}`, `{"a":{}}`, `{"a":{"b":"c"}}`}, `metadata value of "a" must be a JSON string`, false},
		{"metadata", []string{`{"a":null}`}, `metadata value of "a" must be a JSON string, not null`, false},
		{"metadata", []string{members(51), members(1000)}, "metadata must have at most 50 members", false},
		{"metadata", []string{`{"a":"` + strings.Repeat("x", 501) + `"}`, `{"a":` + emoji(501) + `}`, `{"a":"\u0000"}`, `{"a":"\u0085"}`, `{"a":"\n"}`},
			`metadata value of "a" must be at most 500 characters, none of them a control character`, false},
		{"metadata", []string{`{"":"x"}`}, `metadata name "" must be 1 to 40 characters, none of them a control character`, true},
		{"metadata", []string{`{"` + strings.Repeat("x", 41) + `":"x"}`, `{` + emoji(41) + `:"x"}`, `{"a\u0000":"x"}`, `{"a\u0085":"x"}`, `{"\t":"x"}`}, "", true},
	}
	for _, member := range []string{"token", "payer", "merchant"} {
		lower := "0x90f79bf6eb2c4f870365e785982e1f101e93b906"
		bad = append(bad,
			values{member, quoted("", "0x", lower[2:], "0X"+lower[2:], lower[:41], lower+"0", " "+lower, lower+" ", lower+"\n", strings.Replace(lower, "f", "g", 1),
				strings.Replace(lower, "f7", "\uff46", 1), "0x"+digits), member + " must be 0x and 40 hex digits", false},
			values{member, quoted("0x90F79bf6eb2c4f870365e785982e1f101e93b906", "0x90f79bf6EB2c4f870365E785982E1f101E93b906"), member + " has a wrong EIP-55 checksum", true},
			values{member, quoted("0x" + strings.Repeat("0", 40)), member + " must not be the zero address", true},
			values{member, wrongTypes, member + " must be a JSON string", false},
		)
	}
	bad = append(bad, values{"chain", wrongTypes, "chain must be a JSON string", false})
	for member, kind := range map[string]string{
		"chain": "a JSON string", "token": "a JSON string", "payer": "a JSON string", "merchant": "a JSON string", "amount": "a JSON string",
		"expires_in_seconds": "a JSON integer", "reference": "a JSON string", "metadata": "an object of strings",
	} {
		bad = append(bad, values{member, []string{"null"}, member + " must be " + kind + ", not null", false})
	}
	for _, name := range []string{"amout", "Amount", "AMOUNT", "Reference", "expiresInSeconds", "Expires_in_seconds", "id", "state", "metadata ", "__proto__"} {
		bad = append(bad, values{name, []string{`"1"`, "null"}, fmt.Sprintf("%q is not a member of a payment intent request", name), false})
	}
	// A long name comes back cut.
	bad = append(bad, values{strings.Repeat("x", 60_000), []string{"1"}, fmt.Sprintf("%q is not a member of a payment intent request", strings.Repeat("x", 40)), false})

	good := []values{
		{member: "chain", json: quoted("evm:1", "evm:9223372036854775807")},
		{member: "amount", json: quoted("1", "9", "10", "9007199254740993", maxAmount)},
		{member: "expires_in_seconds", json: []string{"1", "900", "2592000"}},
		{member: "reference", json: append(quoted("a", " ", "\u00a0", "\u2028", `"\/<&>`, "e\u0301", "\ufffd", "\uffff", strings.Repeat("x", 255)), emoji(255), `"\ud83d\ude00"`, `"\u0061"`)},
		{member: "metadata", json: []string{"{}", `{"a":""}`, members(50), `{` + emoji(40) + `:` + emoji(500) + `}`, `{"A":"1","a":"2"}`, `{"b":"1","a":"2","B":"3"}`}},
	}

	eachStore(t, func(t *testing.T, s *service) {
		for _, v := range bad {
			for _, value := range v.json {
				refused{edit(t, v.member, value), "invalid_request", v.detail, v.untold}.check(t, s)
			}
		}
		for _, member := range []string{"chain", "token", "payer", "merchant", "amount"} {
			refused{edit(t, member, ""), "invalid_request", member + " is required", false}.check(t, s)
		}
		for _, v := range good {
			for _, value := range v.json {
				c := call{key: newKey(), body: edit(t, v.member, value)}
				a := s.created(t, c)
				s.replayed(t, c, a)
				got, want := a.member(t, v.member), any(nil)
				if v.member == "expires_in_seconds" {
					got = lifetime(t, a).Seconds()
				}
				if err := json.Unmarshal([]byte(value), &want); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s %.100s (-sent +answered):\n%s", v.member, value, diff)
				}
				if got := s.do(t, call{method: http.MethodGet, path: a.header.Get("Location")}); got.body != a.body {
					t.Errorf("%s %.100s: GET = %s,\ncreated as %s", v.member, value, got.body, a.body)
				}
			}
		}
	})
}

// lifetime returns expires_at - created_at.
func lifetime(t *testing.T, a *answer) time.Duration {
	t.Helper()
	var at [2]time.Time
	for i, member := range []string{"created_at", "expires_at"} {
		var err error
		if at[i], err = time.Parse("2006-01-02T15:04:05.000000Z", a.member(t, member).(string)); err != nil {
			t.Fatal(err)
		}
	}
	return at[1].Sub(at[0])
}

func TestCreate_Addresses(t *testing.T) {
	t.Parallel()
	const (
		sum   = "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
		lower = "0x90f79bf6eb2c4f870365e785982e1f101e93b906"
		upper = "0x90F79BF6EB2C4F870365E785982E1F101E93B906"
	)
	eachStore(t, func(t *testing.T, s *service) {
		for _, member := range []string{"token", "payer", "merchant"} {
			for _, spelling := range []string{sum, lower, upper} {
				a := s.created(t, call{body: edit(t, member, `"`+spelling+`"`)})
				if got := a.member(t, member); got != sum {
					t.Errorf("%s %s is answered as %v, want %s", member, spelling, got, sum)
				}
			}
			const numeric = "0x1111111111111111111111111111111111111111" // no letter to carry a checksum
			if got := s.created(t, call{body: edit(t, member, `"`+numeric+`"`)}).member(t, member); got != numeric {
				t.Errorf("%s %s is answered as %v", member, numeric, got)
			}
		}

		const rule = "payer must differ from merchant"
		for _, payer := range []string{sum, lower, upper} {
			for _, merchant := range []string{sum, lower, upper} {
				body := strings.NewReplacer(
					"0x70997970C51812dc3A010C7d01b50e0d17dc79C8", payer,
					"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC", merchant,
				).Replace(exampleBody)
				refused{body, "invalid_request", rule, true}.check(t, s)
			}
		}
		// The token may be either.
		s.created(t, call{body: edit(t, "token", `"0x70997970C51812dc3A010C7d01b50e0d17dc79C8"`)})
	})
}

// The member that is named is the first at fault in the documented order,
// whatever the order in the body.
func TestCreate_FirstFault(t *testing.T) {
	t.Parallel()
	const unit = `"0x90f79bf6eb2c4f870365e785982e1f101e93b906"`
	faults := []struct{ name, good, bad, detail string }{
		{"chain", `"evm:1"`, `""`, chainShape},
		{"token", unit, `""`, "token must be 0x and 40 hex digits"},
		{"payer", unit, `""`, "payer must be 0x and 40 hex digits"},
		{"merchant", `"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"`, `""`, "merchant must be 0x and 40 hex digits"},
		{"amount", `"1"`, `""`, amountRule},
		{"expires_in_seconds", "1", "0", expiresRule},
		{"reference", `"x"`, `""`, refRule},
		{"metadata", "{}", `{"":"\n"}`, `metadata name "" must be 1 to 40 characters, none of them a control character`},
	}
	eachStore(t, func(t *testing.T, s *service) {
		for i := range faults {
			var members []string
			for j, f := range faults {
				value := f.good
				if j >= i {
					value = f.bad
				}
				members = append(members, `"`+f.name+`":`+value)
			}
			slices.Reverse(members)
			refused{"{" + strings.Join(members, ",") + "}", "invalid_request", faults[i].detail, false}.check(t, s)
		}
	})
}

// TestCreate_JSON: the text must be one strict JSON object.
func TestCreate_JSON(t *testing.T) {
	t.Parallel()
	const notJSON, trailing, notObject = "", "the body must be one JSON object, with nothing after it", "the body must be a JSON object"
	// After the last member, so that all before it has been read.
	with := func(member string) string { return strings.TrimSuffix(exampleBody, "}") + "," + member + "}" }
	var bodies []refused
	add := func(detail string, texts ...string) {
		for _, text := range texts {
			bodies = append(bodies, refused{text, "invalid_json", detail, false})
		}
	}
	add(trailing, exampleBody+"{}", exampleBody+"x", exampleBody+"]", exampleBody+exampleBody, exampleBody+"\n"+exampleBody, exampleBody+",",
		exampleBody+"null", exampleBody+"\x00", exampleBody+"\xff", exampleBody+"//", exampleBody+"\ufeff", exampleBody+"\u00a0", exampleBody+"}")
	add(notObject, "null", "true", "1", `"x"`, "[]", "["+exampleBody+"]", `"`+strings.Repeat("x", 60_000)+`"`)
	add("the body is empty, it must be a JSON object", " ", "\n\t\r ")
	add(notJSON, exampleBody[:len(exampleBody)-1], exampleBody[:1], exampleBody[1:], "x", "'"+exampleBody+"'", "\ufeff"+exampleBody, "\xff\xfe{\x00}\x00",
		"/**/"+exampleBody, with("")+"", with(`"reference"`), with(`"reference":`), with(`"reference":'x'`), with(`reference:"x"`), with(`"expires_in":NaN`),
		with(`"reference":01`), with(`"reference":+1`), with(`"reference":.5`), with(`"reference":undefined`), with(`"reference":"a`+"\n"+`b"`),
		with(`"reference":"`+"\x00"+`"`), with(`"reference":"\x41"`), with(`"reference":"\u00"`), with("\x00"), "\x00"+exampleBody, "\xff"+exampleBody,
		strings.Repeat("[", 60_000), strings.Repeat(`{"a":`, 12_000), "chain=evm%3A31337")
	for _, s := range []string{`\ud800`, `\udc00`, `\ud800x`, `\ud800\u0041`, `\udc00\ud800`, `\ud83d\ud83d`, "\xff", "a\xffb", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"} {
		for _, member := range []string{"chain", "token", "payer", "merchant", "amount"} {
			add(notJSON, edit(t, member, `"`+s+`"`))
		}
		add(notJSON, with(`"reference":"`+s+`"`), with(`"metadata":{"a":"`+s+`"}`), with(`"metadata":{"`+s+`":"a"}`), with(`"`+s+`":1`))
	}
	add(`the body has the member "amount" twice`, with(`"amount":"1"`), with(`"amount":"100000000"`), with(`"\u0061mount":"1"`))
	add(`the body has the member "a" twice`, with(`"metadata":{"a":"1","a":"1"}`), with(`"metadata":{"a":"1","b":"1","\u0061":"2"}`), with(`"x":[{"a":1,"a":1}]`))
	add(`the body has the member "`+strings.Repeat("x", 40)+`" twice`, with(`"`+strings.Repeat("x", 999)+`":1,"`+strings.Repeat("x", 999)+`":1`))

	eachStore(t, func(t *testing.T, s *service) {
		for _, x := range bodies {
			x.check(t, s)
		}
		// No body at all.
		a := s.raw(t, head("Idempotency-Key: "+newKey(), "Content-Length: 0"), false)
		a.want(t, http.StatusBadRequest, "invalid_json")
		a.wantDetail(t, "the body is empty, it must be a JSON object")

		for _, body := range []string{exampleBody + "\n", " \t\r\n" + exampleBody + " \t\r\n", strings.ReplaceAll(exampleBody, ",", " , "), strings.Replace(exampleBody, "amount", `\u0061mount`, 1)} {
			s.created(t, call{body: body})
		}
	})
}

// TestCreate_NUL: case 11, U+0000 in each string member is the member's own
// fault.
func TestCreate_NUL(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		for _, member := range []string{"chain", "token", "payer", "merchant", "amount", "reference"} {
			refused{edit(t, member, `"a\u0000b"`), "invalid_request", "", false}.check(t, s)
		}
		refused{edit(t, "metadata", `{"a":"b\u0000"}`), "invalid_request", "", false}.check(t, s)
		refused{edit(t, "metadata", `{"a\u0000":"b"}`), "invalid_request", "", true}.check(t, s)
		refused{edit(t, `a\u0000`, `"b"`), "invalid_request", "", false}.check(t, s)
	})
}

func TestCreate_Answer(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		full := strings.TrimSuffix(edit(t, "metadata", `{"b":"1","a":"<&>","é":"ü","B":"\"\\"}`), "}") + `,"reference":"order 1001"}`
		a := s.created(t, call{body: full})
		var created struct {
			ID        string
			CreatedAt string `json:"created_at"`
			ExpiresAt string `json:"expires_at"`
		}
		if err := json.Unmarshal([]byte(a.body), &created); err != nil {
			t.Fatal(err)
		}
		want := `{"id":"` + created.ID + `","chain":"evm:31337","token":"0x5FbDB2315678afecb367f032d93F642f64180aa3",` +
			`"payer":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","merchant":"0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",` +
			`"amount":"100000000","state":"created","version":1,"reference":"order 1001",` +
			`"metadata":{"B":"\"\\","a":"<&>","b":"1","é":"ü"},` +
			`"created_at":"` + created.CreatedAt + `","updated_at":"` + created.CreatedAt + `","expires_at":"` + created.ExpiresAt + `"}` + "\n"
		if diff := cmp.Diff(want, a.body); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
		if got := lifetime(t, a); got != 900*time.Second {
			t.Errorf("expires_at - created_at = %v", got)
		}
		id, err := uuid.Parse(strings.TrimPrefix(created.ID, "pi_"))
		if err != nil || id.Version() != 7 {
			t.Errorf("id = %s: version %d, %v", created.ID, id.Version(), err)
		}
		if got := a.header.Get("Location"); got != "/v1/payment_intents/"+created.ID {
			t.Errorf("Location = %q", got)
		}
		if got := a.header.Get("Content-Type"); got != "application/json" {
			t.Errorf("Content-Type = %q", got)
		}

		// What was not given is not answered; {} stays {}.
		bare := s.created(t, call{body: edit(t, "expires_in_seconds", "")})
		for _, member := range []string{"reference", "metadata"} {
			if strings.Contains(bare.body, member) {
				t.Errorf("%s in %s", member, bare.body)
			}
		}
		if got := lifetime(t, bare); got != 900*time.Second {
			t.Errorf("expires_at - created_at = %v by default", got)
		}
		empty := s.created(t, call{body: edit(t, "metadata", "{}")})
		if !strings.Contains(empty.body, `"metadata":{},"created_at"`) {
			t.Errorf("metadata {} is answered in %s", empty.body)
		}
	})
}

// TestCreate_Times is case 2: what was created in nanoseconds is read back in
// microseconds, as the same text.
func TestCreate_Times(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		for i := range 200 {
			seconds := []int{1, 900, 2592000, 86399}[i%4]
			c := call{key: newKey(), body: edit(t, "expires_in_seconds", fmt.Sprint(seconds))}
			a := s.created(t, c)
			s.replayed(t, c, a)
			got := s.do(t, call{method: http.MethodGet, path: a.header.Get("Location")})
			got.want(t, http.StatusOK, "")
			if got.body != a.body {
				t.Errorf("GET = %s,\ncreated as %s", got.body, a.body)
			}
			if got := lifetime(t, a); got != time.Duration(seconds)*time.Second {
				t.Errorf("expires_at - created_at = %v, want %d s", got, seconds)
			}
		}
	})
}

func TestGet(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, s *service) {
		a := s.created(t, call{})
		path := a.header.Get("Location")
		id := a.member(t, "id").(string)

		head := s.do(t, call{method: http.MethodHead, path: path})
		head.want(t, http.StatusOK, "")
		get := s.do(t, call{method: http.MethodGet, path: path, header: []string{"Idempotency-Key: a b"}}) // ignored
		get.want(t, http.StatusOK, "")
		get.wantReplayed(t, false)
		for _, name := range []string{"Content-Type", "Content-Length"} {
			if head.header.Get(name) == "" || head.header.Get(name) != get.header.Get(name) {
				t.Errorf("%s of HEAD = %q, of GET %q", name, head.header.Get(name), get.header.Get(name))
			}
		}

		const none = "there is no payment intent with this id"
		s.do(t, call{method: http.MethodGet, path: path, token: bob}).wantProblem(t, 404, "not_found", none)
		hex := strings.TrimPrefix(id, "pi_")
		dashed, err := uuid.Parse(hex)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range []string{
			"pi_019ca9450a7b7c3d8e4f5a6b7c8d9e0f", // no such
			"pi_" + strings.ToUpper(hex), "PI_" + hex, hex, dashed.String(), "pi_" + dashed.String(), "pi_" + hex[:31], "pi_" + hex + "0", id + "%20", "%20" + id,
			id + "%00", "pi_" + strings.Repeat("0", 32), "pi_" + hex[:12] + "4" + hex[13:], "pi_" + hex[:16] + "0" + hex[17:], "pi_" + strings.Repeat("g", 32),
			"%ff", "x", "pi_", "..%2f" + id, id + "%2f", "'%20or%201=1", strings.Repeat("a", 4000), "%F0%9F%98%80",
		} {
			s.do(t, call{method: http.MethodGet, path: intentsPath + "/" + other}).wantProblem(t, 404, "not_found", none)
		}
	})
}

// wantProblem checks an error answer.
func (a *answer) wantProblem(t testing.TB, status int, code, detail string) {
	t.Helper()
	a.want(t, status, code)
	a.wantDetail(t, detail)
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type = %q", got)
	}
}
