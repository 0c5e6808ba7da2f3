package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"intentd/internal/pgtest"
)

// The header with which a caller continues its trace, by the example of
// https://www.w3.org/TR/trace-context/.
const (
	callersTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	callersSpan  = "00f067aa0ba902b7"
	traceparent  = "00-" + callersTrace + "-" + callersSpan + "-01"
)

// collector takes what replicas export.
type collector struct {
	url string

	mu     sync.Mutex
	raw    bytes.Buffer // all that came, and its headers
	traces []*tracepb.TracesData
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := new(collector)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		data := new(tracepb.TracesData)
		if err == nil {
			err = proto.Unmarshal(body, data)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("the collector was sent %s %s %v: %v", r.Method, r.URL, r.Header, err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.raw.Write(body)
		_ = r.Header.Write(&c.raw)
		c.traces = append(c.traces, data)
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// export returns all that came.
func (c *collector) export() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.raw.String()
}

// span is one that came.
type span struct {
	*tracepb.Span
	scope    string
	resource map[string]string
}

func (c *collector) spans() (spans []span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, data := range c.traces {
		for _, r := range data.GetResourceSpans() {
			for _, s := range r.GetScopeSpans() {
				for _, one := range s.GetSpans() {
					spans = append(spans, span{one, s.GetScope().GetName(), attributes(r.GetResource().GetAttributes())})
				}
			}
		}
	}
	return spans
}

// named returns the spans of that name.
func (c *collector) named(name string) []span {
	return slices.DeleteFunc(c.spans(), func(s span) bool { return s.GetName() != name })
}

// trace returns the spans of that trace.
func (c *collector) trace(id any) []span {
	return slices.DeleteFunc(c.spans(), func(s span) bool { return hex.EncodeToString(s.GetTraceId()) != id })
}

// attributes spells what any value of an attribute is.
func attributes(pairs []*commonpb.KeyValue) map[string]string {
	all := make(map[string]string)
	for _, kv := range pairs {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			all[kv.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			all[kv.GetKey()] = fmt.Sprint(v.IntValue)
		default:
			all[kv.GetKey()] = kv.GetValue().String()
		}
	}
	return all
}

func (s span) attribute(name string) string { return attributes(s.GetAttributes())[name] }

// tree spells what is beneath a span, in the order of their beginnings. The
// statements of one pipeline, and what a connection does the first time, are left
// out.
func tree(spans []span, parent []byte, indent string) string {
	slices.SortStableFunc(spans, func(a, b span) int {
		return int(a.GetStartTimeUnixNano()) - int(b.GetStartTimeUnixNano())
	})
	var b strings.Builder
	for _, s := range spans {
		if !bytes.Equal(s.GetParentSpanId(), parent) || s.attribute("pgx.prepare_stmt.name") != "" || s.GetName() == "connect" {
			continue
		}
		fmt.Fprintf(&b, "%s%s", indent, s.GetName())
		for _, name := range []string{"http.route", "http.response.status_code", "idempotency.outcome", "idempotency.undone"} {
			if v := s.attribute(name); v != "" {
				fmt.Fprintf(&b, " %s", v)
			}
		}
		b.WriteString("\n")
		if s.GetName() != "batch start" {
			b.WriteString(tree(spans, s.GetSpanId(), indent+"  "))
		}
	}
	return b.String()
}

// quietly are the settings under which a replica exports nothing before it ends,
// and sweeps once.
func quietly(c *collector) []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_BSP_SCHEDULE_DELAY=3600000", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=2000", "SWEEP_INTERVAL=1h"}
}

func TestReplica_Traces(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c := newCollector(t)
	r := startOn(t, db, append(quietly(c), "IDEMPOTENCY_COMMITTERS=0",
		"OTEL_SERVICE_NAME=payments", "OTEL_RESOURCE_ATTRIBUTES=team=pay", "OTEL_EXPORTER_OTLP_HEADERS=x-collector-key=for%20it")...)
	const (
		key   = "a-key-that-must-not-be-exported"
		token = otherToken
	)
	create := func(body, parent string) reply {
		return r.do(http.MethodPost, "/v1/payment_intents", body, "Authorization", "Bearer "+token, "Idempotency-Key", key, "Traceparent", parent)
	}
	// The caller's second and third are in one trace with the first; the fourth has
	// a traceparent that is none, and the fifth one that is not sampled.
	const other = "7bf92f3577b34da6a3ce929d0e0e4736"
	first := create(example, traceparent)
	create(example, strings.Replace(traceparent, callersTrace, "5bf92f3577b34da6a3ce929d0e0e4736", 1))
	create(with("amount", `"999000000"`), strings.Replace(traceparent, callersTrace, "6bf92f3577b34da6a3ce929d0e0e4736", 1))
	r.get("/v1/payment_intents/" + first.id(t))
	r.do(http.MethodPost, "/v1/payment_intents/"+first.id(t)+"/cancel", `{"reason":"a-reason"}`, "Authorization", "Bearer "+token, "Idempotency-Key", key+"-2", "Traceparent", "00-none")
	create(example, "00-"+other+"-"+callersSpan+"-00")
	r.get("/nothing?secret=a-query")
	r.get("/healthz")
	r.get("/readyz")
	r.admin(t).get("/metrics")
	r.admin(t).get("/readyz")
	db.Exec(t, "alter table idempotency_keys add constraint refuses check (fingerprint is null) not valid")
	refused := r.postAs(token, key+"-3", example)
	if refused.status != 503 {
		t.Errorf("a create whose record is refused: %v", refused)
	}
	if told := r.logged(t, "traces are exported"); told["endpoint"] != c.url+"/v1/traces" || told["sampler"] != "parentbased_always_on" {
		t.Errorf("the log tells of %v", told)
	}
	if spans := c.spans(); len(spans) > 0 {
		t.Errorf("%d spans before the end: then the end tries nothing", len(spans))
	}
	r.stop(t)

	lines := r.log.requests()
	if len(lines) != 7 {
		t.Fatalf("%d lines for 7 requests:\n%s", len(lines), r.log)
	}
	parent, _ := hex.DecodeString(callersSpan)
	const post = "POST /v1/payment_intents"
	for i, want := range []struct{ id, tree string }{
		{callersTrace, `
POST /v1/payment_intents /v1/payment_intents 201 fresh
  claim fresh
    pool.acquire
    batch start
  handler
  commit
    batch start
`},
		{"5bf92f3577b34da6a3ce929d0e0e4736", `
POST /v1/payment_intents /v1/payment_intents 201 replay
  claim replay
    pool.acquire
    batch start
    ROLLBACK
`},
		{"6bf92f3577b34da6a3ce929d0e0e4736", `
POST /v1/payment_intents /v1/payment_intents 422 mismatch
  claim mismatch
    pool.acquire
    batch start
    ROLLBACK
`},
		{"", `
GET /v1/payment_intents/{id} /v1/payment_intents/{id} 404
  pool.acquire
  SELECT
`},
		{"", `
POST /v1/payment_intents/{id}/cancel /v1/payment_intents/{id}/cancel 200 fresh
  claim fresh
    pool.acquire
    batch start
  handler
    batch start
    batch start
  commit
    batch start
`},
		{other, ""},
		{"", `
POST /v1/payment_intents /v1/payment_intents 503 fresh store
  claim fresh
    pool.acquire
    batch start
  handler
  commit
    batch start
    ROLLBACK
`},
	} {
		id, beneath := lines[i]["trace_id"], parent
		if want.id == "" {
			beneath = nil
			if s, _ := id.(string); len(s) != 32 || strings.Trim(s, "0") == "" {
				t.Errorf("line %d: trace id %v", i, id)
			}
		} else if id != want.id {
			t.Errorf("line %d: trace id %v, want %s", i, id, want.id)
		}
		spans := c.trace(id)
		if diff := cmp.Diff(strings.TrimPrefix(want.tree, "\n"), tree(spans, beneath, "")); diff != "" {
			t.Errorf("request %d (-want +got):\n%s", i, diff)
		}
		for _, s := range spans {
			if s.resource["service.name"] != "payments" || s.resource["team"] != "pay" || s.resource["service.version"] == "" {
				t.Errorf("span %s is of %v", s.GetName(), s.resource)
			}
			if s.GetStatus().GetMessage() != "" || len(s.GetEvents()) > 0 {
				t.Errorf("span %s tells of an error: %v %v", s.GetName(), s.GetStatus(), s.GetEvents())
			}
		}
	}
	if servers := c.named(post); len(servers) != 4 {
		t.Errorf("%d spans %s, want 4", len(servers), post)
	}
	var names []string
	for _, s := range c.spans() {
		if s.GetKind() == tracepb.Span_SPAN_KIND_SERVER {
			names = append(names, s.GetName())
		}
	}
	slices.Sort(names)
	if want := []string{"GET", "GET /v1/payment_intents/{id}", post, post, post, post, post + "/{id}/cancel"}; !slices.Equal(names, want) {
		t.Errorf("server spans %q, want %q: health checks and figures have none", names, want)
	}

	sweeps := c.named("sweep")
	for _, s := range sweeps {
		if len(s.GetParentSpanId()) > 0 || !strings.Contains(tree(c.trace(hex.EncodeToString(s.GetTraceId())), nil, ""), "sweep\n  ") {
			t.Errorf("a round of the sweeper: %v", s)
		}
	}
	if len(sweeps) != 2 || sweeps[0].attribute("sweeper.job") == sweeps[1].attribute("sweeper.job") {
		t.Errorf("%d rounds of the sweeper, want one of each of two jobs", len(sweeps))
	}

	export := c.export()
	for _, want := range []string{"insert into idempotency_keys", "X-Collector-Key: for it", "pgx.sql_state"} {
		if !strings.Contains(export, want) {
			t.Errorf("the export does not hold %q", want)
		}
	}
	for _, secret := range []string{
		key, token, merchant, "other-merchant", "a-query", "a-reason", "Bearer", "Authorization", "refuses",
		"0x5FbDB2315678afecb367f032d93F642f64180aa3", "100000000", "999000000",
	} {
		if strings.Contains(export, secret) {
			t.Errorf("the export holds %q", secret)
		}
		if strings.Contains(r.log.String(), "for it") {
			t.Error("the log holds the collector's key")
		}
	}
}

// TestReplica_TracesOfAGroup has creates share transactions, whose work is
// nobody's in particular.
func TestReplica_TracesOfAGroup(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	c := newCollector(t)
	// Few are sampled by chance, and all by their parents.
	r := startOn(t, db, append(quietly(c), "OTEL_TRACES_SAMPLER=parentbased_always_off", "OTEL_BSP_MAX_QUEUE_SIZE=100000")...)
	const crowd = 32
	for round := range 4 {
		var wg sync.WaitGroup
		for n := range crowd {
			parent := traceparent
			if n%2 == 1 {
				parent = "00-" + callersTrace + "-" + callersSpan + "-00"
			}
			wg.Go(func() {
				got := r.do(http.MethodPost, "/v1/payment_intents", example, "Authorization", "Bearer "+token, "Idempotency-Key", fmt.Sprint("K", round, "-", n), "Traceparent", parent)
				if !got.fresh() {
					t.Errorf("create: %v", got)
				}
			})
		}
		wg.Wait()
	}
	r.stop(t)
	wantPaired(t, db)

	byID := make(map[string]span)
	for _, s := range c.spans() {
		byID[string(s.GetSpanId())] = s
	}
	if n := len(c.named("POST /v1/payment_intents")); n != 4*crowd/2 {
		t.Errorf("%d requests are recorded, want the %d that are sampled", n, 4*crowd/2)
	}
	for _, pair := range []struct{ group, member string }{{"claim group", "claim"}, {"commit group", "commit"}} {
		groups, linked := c.named(pair.group), 0
		if len(groups) == 0 {
			t.Errorf("no span %s: %d came at a time, and no two met", pair.group, crowd)
		}
		for _, g := range groups {
			if len(g.GetParentSpanId()) > 0 || hex.EncodeToString(g.GetTraceId()) == callersTrace {
				t.Errorf("%s is a request's: %v", pair.group, g)
			}
			if got := tree(c.trace(hex.EncodeToString(g.GetTraceId())), nil, ""); !strings.Contains(got, pair.group+"\n") || !strings.Contains(got, "  batch start\n") {
				t.Errorf("trace of a %s:\n%s", pair.group, got)
			}
			if len(g.GetLinks()) == 0 || g.attribute("idempotency.group.size") == "" {
				t.Errorf("%s has %d links, and the size %q", pair.group, len(g.GetLinks()), g.attribute("idempotency.group.size"))
			}
			for _, l := range g.GetLinks() {
				linked++
				m := byID[string(l.GetSpanId())]
				back := slices.ContainsFunc(m.GetLinks(), func(l *tracepb.Span_Link) bool { return bytes.Equal(l.GetSpanId(), g.GetSpanId()) })
				if m.GetName() != pair.member || !back || m.attribute("idempotency.group.size") != g.attribute("idempotency.group.size") {
					t.Errorf("%s links to %v, want a %s that links to it", pair.group, m.Span, pair.member)
				}
			}
		}
		// Each is in a group, or alone with its own pipeline.
		alone := 0
		for _, m := range c.named(pair.member) {
			if len(m.GetLinks()) == 0 {
				alone++
			}
		}
		if want := 4 * crowd / 2; linked+alone != want {
			t.Errorf("%d spans %s in groups and %d alone, want %d", linked, pair.member, alone, want)
		}
	}
}

// TestReplica_NoTraces has a collector, and switches that win over it.
func TestReplica_NoTraces(t *testing.T) {
	t.Parallel()
	for _, off := range []string{"OTEL_TRACES_EXPORTER=none", "OTEL_SDK_DISABLED=true", "OTEL_TRACES_SAMPLER=always_off", "OTEL_EXPORTER_OTLP_ENDPOINT="} {
		t.Run(off, func(t *testing.T) {
			t.Parallel()
			c := newCollector(t)
			r := start(t, append(quietly(c), "API_STORE=memory", off)...)
			r.do(http.MethodPost, "/v1/payment_intents", example, "Authorization", "Bearer "+token, "Idempotency-Key", "K", "Traceparent", traceparent)
			r.post("L", example)
			r.stop(t)
			if spans := c.spans(); len(spans) > 0 {
				t.Errorf("%d spans", len(spans))
			}
			// What the caller's trace is can be told all the same.
			if lines := r.log.requests(); len(lines) != 2 || lines[0]["trace_id"] != callersTrace {
				t.Errorf("lines %v", lines)
			} else if id, told := lines[1]["trace_id"]; told && off != "OTEL_TRACES_SAMPLER=always_off" {
				t.Errorf("a request that is in no trace is in %v", id)
			}
		})
	}
}

// TestReplica_CollectorAway has collectors that refuse, and that say nothing:
// requests and shutdown do not notice, and the log is told once.
func TestReplica_CollectorAway(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = refusing.Close()
	for name, ln := range map[string]net.Listener{"Silent": silent, "Refusing": refusing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			r := startOn(t, db, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+ln.Addr().String(), "OTEL_EXPORTER_OTLP_TIMEOUT=100",
				"OTEL_BSP_SCHEDULE_DELAY=10", "OTEL_BSP_MAX_QUEUE_SIZE=20", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=5", "SWEEP_INTERVAL=20ms")
			for i := range 100 {
				if got := r.post(fmt.Sprint("K", i), example); !got.fresh() {
					t.Errorf("create: %v", got)
				}
			}
			r.logged(t, "traces are lost")
			r.signal(t, syscall.SIGTERM)
			r.wait(t)
			if r.err != nil {
				t.Errorf("exit: %v", r.err)
			}
			if n := strings.Count(r.log.String(), "traces are lost"); n != 1 {
				t.Errorf("the log is told %d times, want once in a minute", n)
			}
			for _, line := range r.log.lines() {
				if line["msg"] == "traces are lost" && line["level"] != "WARN" {
					t.Errorf("level %v", line["level"])
				}
			}
			if n := strings.Count(r.log.String(), "\n"); n != len(r.log.lines()) {
				t.Errorf("%d lines, of which %d are the log's own:\n%s", n, len(r.log.lines()), r.log)
			}
			wantPaired(t, db)
		})
	}

	// What is left of SHUTDOWN_TIMEOUT is all that the last spans get.
	t.Run("AtTheEnd", func(t *testing.T) {
		t.Parallel()
		r := start(t, "API_STORE=memory", "SHUTDOWN_TIMEOUT=300ms", "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+silent.Addr().String(), "OTEL_EXPORTER_OTLP_TIMEOUT=3600000")
		r.post("K", example)
		began := time.Now()
		r.stop(t)
		if took := time.Since(began); took > patience/2 {
			t.Errorf("ended after %v", took)
		}
		if !strings.Contains(r.log.String(), "the last traces may be lost") {
			t.Errorf("the log does not tell:\n%s", r.log)
		}
	})
}
