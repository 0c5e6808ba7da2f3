package tracing

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// environment reads NAME=value lines.
func environment(lines ...string) map[string]string {
	vars := make(map[string]string)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		vars[name] = value
	}
	return vars
}

// parse is Parse of what must be right.
func parse(t *testing.T, lines ...string) *Config {
	t.Helper()
	c, mistakes := Parse(environment(lines...))
	if len(mistakes) > 0 {
		t.Fatalf("%q: %v", lines, errors.Join(mistakes...))
	}
	return c
}

const endpoint = "OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318"

func TestParse_Wanted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines  string
		wanted bool
	}{
		{"", false},
		{"OTEL_SERVICE_NAME=x OTEL_TRACES_SAMPLER=always_on OTEL_EXPORTER_OTLP_HEADERS=a=b", false},
		{endpoint, true},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector", true},
		{"OTEL_TRACES_EXPORTER=otlp", true},
		{"OTEL_TRACES_EXPORTER=none " + endpoint, false},
		{"OTEL_TRACES_EXPORTER=NONE " + endpoint, false},
		{"OTEL_SDK_DISABLED=true " + endpoint, false},
		{"OTEL_SDK_DISABLED=True OTEL_TRACES_EXPORTER=otlp", false},
		{"OTEL_SDK_DISABLED=true OTEL_EXPORTER_OTLP_PROTOCOL=grpc " + endpoint, false},
		{"OTEL_SDK_DISABLED=false " + endpoint, true},
	} {
		if got := parse(t, strings.Fields(c.lines)...); (got != nil) != c.wanted {
			t.Errorf("%s: wanted %t, want %t", c.lines, got != nil, c.wanted)
		}
	}
}

func TestParse_Mistakes(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for _, c := range []struct{ line, rule string }{
		{"OTEL_SDK_DISABLED=1" + secret, "true or false"},
		{"OTEL_TRACES_EXPORTER=" + secret, "otlp or none"},
		{"OTEL_TRACES_EXPORTER=zipkin", "otlp or none"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=" + secret + ":4318", "an http or https URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=grpc://" + secret, "an http or https URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://", "an http or https URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://:4318", "an http or https URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://u:" + secret + "@collector", "without user"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + secret + ":4318/v1/traces", "without /v1/traces, which is put behind it (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is the whole URL)"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + secret + "/otlp/v1/traces/", "without /v1/traces"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector/?key=" + secret, "without user, query"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector/#" + secret, "fragment"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "http/protobuf"},
		{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json", "http/protobuf"},
		{"OTEL_EXPORTER_OTLP_HEADERS=" + secret, "name=value of headers"},
		{"OTEL_EXPORTER_OTLP_HEADERS==" + secret, "name=value of headers"},
		{"OTEL_EXPORTER_OTLP_HEADERS=a=b,c d=" + secret, "name=value of headers"},
		{"OTEL_EXPORTER_OTLP_HEADERS=a=%0d" + secret, "name=value of headers"},
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS=a=%x" + secret, "name=value of headers"},
		{"OTEL_EXPORTER_OTLP_TIMEOUT=10s", "a whole number of milliseconds"},
		{"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=0", "a whole number of milliseconds"},
		{"OTEL_EXPORTER_OTLP_COMPRESSION=zstd", "gzip or none"},
		{"OTEL_TRACES_SAMPLER=" + secret, "always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or parentbased_traceidratio"},
		{"OTEL_TRACES_SAMPLER_ARG=" + secret, "a number from 0 to 1"},
		{"OTEL_TRACES_SAMPLER_ARG=1.01", "a number from 0 to 1"},
		{"OTEL_TRACES_SAMPLER_ARG=-0.1", "a number from 0 to 1"},
		{"OTEL_TRACES_SAMPLER_ARG=NaN", "a number from 0 to 1"},
		{"OTEL_RESOURCE_ATTRIBUTES=a=b," + secret, "name=value with commas"},
		{"OTEL_PROPAGATORS=b3", "tracecontext, baggage"},
		{"OTEL_PROPAGATORS=tracecontext," + secret, "tracecontext, baggage"},
	} {
		// Wanted or not: it is a mistake all the same.
		for _, lines := range [][]string{{c.line}, {c.line, "OTEL_TRACES_EXPORTER=none"}, {endpoint, c.line}} {
			if strings.HasPrefix(c.line, "OTEL_TRACES_EXPORTER") && len(lines) > 1 {
				continue
			}
			got, mistakes := Parse(environment(lines...))
			text := errors.Join(mistakes...)
			name, _, _ := strings.Cut(c.line, "=")
			if got != nil || len(mistakes) != 1 || !strings.HasPrefix(text.Error(), name+": must be ") || !strings.Contains(text.Error(), c.rule) || strings.Contains(text.Error(), secret) {
				t.Errorf("%q: %v, %v; want one mistake of %s: %s", lines, got, text, name, c.rule)
			}
		}
	}
	if _, mistakes := Parse(environment("OTEL_PROPAGATORS=x", "OTEL_TRACES_SAMPLER=x", "OTEL_EXPORTER_OTLP_TIMEOUT=x", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=x")); len(mistakes) != 4 {
		t.Errorf("%d mistakes at once, want 4: %v", len(mistakes), mistakes)
	}
}

func TestParse_Exporter(t *testing.T) {
	t.Parallel()
	for lines, want := range map[string]string{
		"OTEL_TRACES_EXPORTER=otlp": "http://localhost:4318/v1/traces",
		endpoint:                    "http://collector:4318/v1/traces",
		"OTEL_EXPORTER_OTLP_ENDPOINT=https://collector/otlp/":                    "https://collector/otlp/v1/traces",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector/elsewhere":          "http://collector/elsewhere",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector/v1/traces":          "http://collector/v1/traces",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://collector/there " + endpoint:  "http://collector/there",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://[::1]:4318/there " + endpoint: "http://[::1]:4318/there",
	} {
		if got := parse(t, strings.Fields(lines)...).endpoint; got != want {
			t.Errorf("%s: %s, want %s", lines, got, want)
		}
	}

	got := parse(t, endpoint)
	if got.headers != nil || got.timeout != 10*time.Second || got.gzip {
		t.Errorf("defaults: %v %v %t", got.headers, got.timeout, got.gzip)
	}
	general := []string{
		endpoint, "OTEL_EXPORTER_OTLP_HEADERS=x-key=a%20b%3D, x-team = pay ,", "OTEL_EXPORTER_OTLP_TIMEOUT=250",
		"OTEL_EXPORTER_OTLP_COMPRESSION=GZIP", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
	}
	got = parse(t, general...)
	if diff := cmp.Diff(http.Header{"X-Key": {"a b="}, "X-Team": {"pay"}}, got.headers); diff != "" || got.timeout != 250*time.Millisecond || !got.gzip {
		t.Errorf("for all signals: %v %t; headers (-want +got):\n%s", got.timeout, got.gzip, diff)
	}
	got = parse(t, append(general, "OTEL_EXPORTER_OTLP_TRACES_HEADERS=x-other=1", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=5", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION=none")...)
	if diff := cmp.Diff(http.Header{"X-Other": {"1"}}, got.headers); diff != "" || got.timeout != 5*time.Millisecond || got.gzip {
		t.Errorf("for traces: %v %t; headers (-want +got):\n%s", got.timeout, got.gzip, diff)
	}
}

func TestParse_Resource(t *testing.T) {
	t.Parallel()
	for lines, want := range map[string]map[string]string{
		"":                      {"service.name": "intentd", "service.version": "v1"},
		"OTEL_SERVICE_NAME=pay": {"service.name": "pay"},
		"OTEL_RESOURCE_ATTRIBUTES=service.name=theirs,deployment.environment.name=a%2Cb,service.version=v2": {
			"service.name": "theirs", "deployment.environment.name": "a,b", "service.version": "v2",
		},
		"OTEL_RESOURCE_ATTRIBUTES=service.name=theirs OTEL_SERVICE_NAME=pay": {"service.name": "pay"},
	} {
		r := resourceOf(parse(t, append(strings.Fields(lines), endpoint)...), "v1")
		got := make(map[string]string)
		for _, kv := range r.Attributes() {
			if _, ok := want[string(kv.Key)]; ok {
				got[string(kv.Key)] = kv.Value.AsString()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", lines, diff)
		}
		if _, ok := r.Set().Value("telemetry.sdk.language"); !ok {
			t.Errorf("%s: the resource does not tell of the SDK: %v", lines, r)
		}
	}
}

func TestParse_Propagators(t *testing.T) {
	t.Parallel()
	for text, continues := range map[string]bool{
		"": true, "tracecontext": true, "TraceContext, baggage": true, "baggage": false, "none": false,
	} {
		lines := []string{endpoint}
		if text != "" {
			lines = append(lines, "OTEL_PROPAGATORS="+text)
		}
		ctx := parse(t, lines...).propagator.Extract(t.Context(), propagation.HeaderCarrier{"Traceparent": {traceparent}})
		if got := trace.SpanContextFromContext(ctx).IsSampled(); got != continues {
			t.Errorf("OTEL_PROPAGATORS=%s continues a trace: %t, want %t", text, got, continues)
		}
	}
}

func TestParse_Sampler(t *testing.T) {
	t.Parallel()
	sampled := func(s sdk.Sampler, parent trace.TraceFlags, links ...trace.Link) bool {
		id := trace.TraceID{1, 8: 0x80}
		ctx := t.Context()
		if parent != noParent {
			ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: parent, Remote: true}))
		}
		return s.ShouldSample(sdk.SamplingParameters{ParentContext: ctx, TraceID: id, Links: links}).Decision == sdk.RecordAndSample
	}
	type decisions struct{ root, ofSampled, ofOther bool }
	for lines, want := range map[string]decisions{
		"": {true, true, false},
		"OTEL_TRACES_SAMPLER=parentbased_always_on":                                {true, true, false},
		"OTEL_TRACES_SAMPLER=parentbased_always_off":                               {false, true, false},
		"OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=0":   {false, true, false},
		"OTEL_TRACES_SAMPLER=parentbased_traceidratio OTEL_TRACES_SAMPLER_ARG=1":   {true, true, false},
		"OTEL_TRACES_SAMPLER=ALWAYS_ON":                                            {true, true, true},
		"OTEL_TRACES_SAMPLER=always_off":                                           {false, false, false},
		"OTEL_TRACES_SAMPLER=traceidratio":                                         {true, true, true},
		"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=0":               {false, false, false},
		"OTEL_TRACES_SAMPLER=traceidratio OTEL_TRACES_SAMPLER_ARG=0.0000000000001": {false, false, false},
	} {
		s := parse(t, append(strings.Fields(lines), endpoint)...).sampler
		got := decisions{sampled(s, noParent), sampled(s, trace.FlagsSampled), sampled(s, 0)}
		if got != want {
			t.Errorf("%s: %+v, want %+v", lines, got, want)
		}
	}

	// What several share is sampled with any of them.
	s := parse(t, endpoint, "OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0").sampler
	link := func(flags trace.TraceFlags) trace.Link {
		return trace.Link{SpanContext: trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{2}, SpanID: trace.SpanID{2}, TraceFlags: flags})}
	}
	if sampled(s, noParent, link(0)) || !sampled(s, noParent, link(0), link(trace.FlagsSampled)) {
		t.Error("a span is not sampled if, and only if, one that it links to is")
	}
}

const noParent = trace.TraceFlags(0xff)
