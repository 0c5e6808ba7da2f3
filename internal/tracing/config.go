package tracing

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// The variables that are read here. Their names, values and defaults are
// OpenTelemetry's:
// https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
// and https://opentelemetry.io/docs/specs/otel/protocol/exporter/. What else the
// SDK knows (OTEL_BSP_..., OTEL_SPAN_...) it reads itself, from the process's
// environment.
const (
	varDisabled   = "OTEL_SDK_DISABLED"
	varExporter   = "OTEL_TRACES_EXPORTER"
	varService    = "OTEL_SERVICE_NAME"
	varResource   = "OTEL_RESOURCE_ATTRIBUTES"
	varSampler    = "OTEL_TRACES_SAMPLER"
	varSamplerArg = "OTEL_TRACES_SAMPLER_ARG"
	varPropagate  = "OTEL_PROPAGATORS"

	// Of the exporter's there are two each: one for all signals, and one for
	// traces, which wins.
	allSignals = "OTEL_EXPORTER_OTLP_"
	traces     = "OTEL_EXPORTER_OTLP_TRACES_"
)

// Variable is one that Parse reads.
type Variable struct {
	Name, Help string
}

// Variables are those that Parse reads, in the order in which they are told of.
// Where a name holds [TRACES_] there is one with it and one without; the one with
// it wins.
func Variables() []Variable {
	return []Variable{
		{allSignals + "ENDPOINT", "http or https URL of a collector, which takes OTLP at /v1/traces below it (http://localhost:4318)"},
		{traces + "ENDPOINT", "the whole URL instead"},
		{allSignals + "[TRACES_]PROTOCOL", "http/protobuf, and no other (http/protobuf)"},
		{allSignals + "[TRACES_]HEADERS", "comma-separated name=value, percent-encoded: what the collector wants to see"},
		{allSignals + "[TRACES_]TIMEOUT", "milliseconds for a batch of spans, with all its tries (10000)"},
		{allSignals + "[TRACES_]COMPRESSION", "gzip or none (none)"},
		{varExporter, "otlp, also without an endpoint's variable, or none"},
		{varSampler, "always_on, always_off, traceidratio, or one of them behind parentbased_ (parentbased_always_on)"},
		{varSamplerArg, "the share of a ..._traceidratio, from 0 to 1 (1)"},
		{varService, "the service's name in its traces (intentd)"},
		{varResource, "comma-separated name=value, percent-encoded: what else its traces tell of it"},
		{varPropagate, "tracecontext: a request's traceparent is continued; baggage, which has no effect; or none (tracecontext,baggage)"},
		{varDisabled, "true: no traces, whatever else is set, and nothing of it is looked at"},
	}
}

// Config is how traces are made and where they go. See Parse.
type Config struct {
	endpoint   string
	headers    http.Header
	timeout    time.Duration
	gzip       bool
	sampler    sdk.Sampler
	sampling   string               // the sampler, as its variable calls it, and its share
	attributes []attribute.KeyValue // of two with one name the later holds
	propagator propagation.TextMapPropagator
}

// defaultTimeout is OpenTelemetry's.
const defaultTimeout = 10 * time.Second

// Parse reads the standard variables out of vars, in which none is empty. The
// Config is nil where no traces are wanted: where none of the endpoints is set
// and OTEL_TRACES_EXPORTER is not otlp, or either of the switches says so. Each
// mistake names its variable and the rule, never the value, which may be secret.
// A mistake is one whether or not traces are wanted, but for OTEL_SDK_DISABLED,
// which is there to have peace from all the others.
func Parse(vars map[string]string) (*Config, []error) {
	p := parser{vars: vars}
	disabled := p.oneOf(varDisabled, "false", "true", "false")
	if disabled == "true" {
		return nil, p.mistakes
	}
	exporter := p.oneOf(varExporter, "", "otlp", "none")
	c := &Config{
		endpoint:   p.endpoint(),
		headers:    p.headers(),
		timeout:    p.timeout(),
		gzip:       p.signal("COMPRESSION", "none", "gzip", "none") == "gzip",
		attributes: p.attributes(),
		propagator: p.propagator(),
	}
	c.sampler, c.sampling = p.sampler()
	p.signal("PROTOCOL", "http/protobuf", "http/protobuf")
	wanted := exporter == "otlp" || exporter == "" && (vars[traces+"ENDPOINT"] != "" || vars[allSignals+"ENDPOINT"] != "")
	if len(p.mistakes) > 0 || !wanted {
		return nil, p.mistakes
	}
	return c, nil
}

// parser collects the mistakes.
type parser struct {
	vars     map[string]string
	mistakes []error
}

func (p *parser) wrong(name, rule string) {
	p.mistakes = append(p.mistakes, fmt.Errorf("%s: must be %s", name, rule))
}

// oneOf reads a variable that has few values. As OpenTelemetry wants it, their
// case does not matter.
func (p *parser) oneOf(name, byDefault string, values ...string) string {
	text, set := p.vars[name]
	if !set {
		return byDefault
	}
	for _, v := range values {
		if strings.EqualFold(text, v) {
			return v
		}
	}
	rule := values[len(values)-1]
	if len(values) > 1 {
		rule = strings.Join(values[:len(values)-1], ", ") + " or " + rule
	}
	p.wrong(name, rule)
	return byDefault
}

// signal is oneOf for a pair of the exporter's variables: both are checked, and
// the one for traces wins.
func (p *parser) signal(name, byDefault string, values ...string) string {
	return p.oneOf(traces+name, p.oneOf(allSignals+name, byDefault, values...), values...)
}

// each calls read with those of a pair that are set, so that the one that wins
// comes last.
func (p *parser) each(name string, read func(name, text string)) {
	for _, prefix := range []string{allSignals, traces} {
		if text := p.vars[prefix+name]; text != "" {
			read(prefix+name, text)
		}
	}
}

// tracesPath is where a collector takes traces, below its URL:
// https://opentelemetry.io/docs/specs/otlp/#otlphttp-request
const tracesPath = "/v1/traces"

func (p *parser) endpoint() string {
	endpoint := "http://localhost:4318" + tracesPath
	p.each("ENDPOINT", func(name, text string) {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			p.wrong(name, "an http or https URL with a host, and without user, query and fragment")
			return
		}
		if name == allSignals+"ENDPOINT" {
			if strings.HasSuffix(strings.TrimRight(u.Path, "/"), tracesPath) {
				p.wrong(name, "the collector's URL without "+tracesPath+", which is put behind it ("+traces+"ENDPOINT is the whole URL)")
				return
			}
			u = u.JoinPath(tracesPath)
		}
		endpoint = u.String()
	})
	return endpoint
}

// RFC 9110, section 5.6.2: what a header's name is made of.
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

func (p *parser) headers() http.Header {
	var headers http.Header
	p.each("HEADERS", func(name, text string) {
		headers = make(http.Header)
		pairs, err := pairsOf(text)
		for _, kv := range pairs {
			if !headerName.MatchString(kv.name) || strings.ContainsFunc(kv.value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				err = errNotPairs
			}
			headers.Set(kv.name, kv.value)
		}
		if err != nil {
			p.wrong(name, "name=value of headers with commas between, the values percent-encoded")
		}
	})
	return headers
}

func (p *parser) timeout() time.Duration {
	timeout := defaultTimeout
	p.each("TIMEOUT", func(name, text string) {
		ms, err := strconv.ParseInt(text, 10, 32)
		if err != nil || ms < 1 {
			p.wrong(name, fmt.Sprintf("a whole number of milliseconds from 1 to %d", math.MaxInt32))
		}
		timeout = time.Duration(ms) * time.Millisecond
	})
	return timeout
}

// sampler returns the sampler, and what it is called.
func (p *parser) sampler() (_ sdk.Sampler, called string) {
	const parentBased = "parentbased_"
	name := p.oneOf(varSampler, parentBased+"always_on",
		"always_on", "always_off", "traceidratio", parentBased+"always_on", parentBased+"always_off", parentBased+"traceidratio")
	share := 1.0
	if text := p.vars[varSamplerArg]; text != "" {
		var err error
		if share, err = strconv.ParseFloat(text, 64); err != nil || !(share >= 0 && share <= 1) {
			p.wrong(varSamplerArg, "a number from 0 to 1")
		}
	}
	called = name
	name, based := strings.CutPrefix(name, parentBased)
	root := map[string]sdk.Sampler{
		"always_on": sdk.AlwaysSample(), "always_off": sdk.NeverSample(), "traceidratio": sdk.TraceIDRatioBased(share),
	}[name]
	if name == "traceidratio" {
		called = fmt.Sprintf("%s(%v)", called, share)
	}
	if based {
		root = sdk.ParentBased(root)
	}
	return linked{root}, called
}

const serviceName = "service.name"

func (p *parser) attributes() []attribute.KeyValue {
	attributes := []attribute.KeyValue{attribute.String(serviceName, "intentd")}
	pairs, err := pairsOf(p.vars[varResource])
	if err != nil {
		p.wrong(varResource, "name=value with commas between, the values percent-encoded")
	}
	for _, kv := range pairs {
		attributes = append(attributes, attribute.String(kv.name, kv.value))
	}
	if name := p.vars[varService]; name != "" {
		attributes = append(attributes, attribute.String(serviceName, name))
	}
	return attributes
}

func (p *parser) propagator() propagation.TextMapPropagator {
	nothing := propagation.NewCompositeTextMapPropagator()
	known := map[string]propagation.TextMapPropagator{
		"tracecontext": propagation.TraceContext{},
		"baggage":      nothing, // there is nobody to hand it on to
		"none":         nothing,
	}
	text := p.vars[varPropagate]
	if text == "" {
		text = "tracecontext"
	}
	var chosen []propagation.TextMapPropagator
	for name := range strings.SplitSeq(text, ",") {
		one, ok := known[strings.ToLower(strings.TrimSpace(name))]
		if !ok {
			p.wrong(varPropagate, "tracecontext, baggage or both with a comma between, or none")
			break
		}
		chosen = append(chosen, one)
	}
	return propagation.NewCompositeTextMapPropagator(chosen...)
}

var errNotPairs = errors.New("not pairs")

type pair struct{ name, value string }

// pairsOf reads name=value,name=value, as OpenTelemetry writes headers and
// resource attributes.
func pairsOf(text string) (pairs []pair, err error) {
	for entry := range strings.SplitSeq(text, ",") {
		if entry = strings.TrimSpace(entry); entry == "" {
			continue
		}
		name, value, ok := strings.Cut(entry, "=")
		name = strings.TrimSpace(name)
		value, unescapeErr := url.PathUnescape(strings.TrimSpace(value))
		if !ok || name == "" || unescapeErr != nil {
			return nil, errNotPairs
		}
		pairs = append(pairs, pair{name, value})
	}
	return pairs, nil
}

// linked samples what belongs to a trace that is sampled: a transaction that
// several requests share is no request's child, and is sampled with any of them.
type linked struct{ sdk.Sampler }

// ShouldSample implements sdk.Sampler.
func (l linked) ShouldSample(p sdk.SamplingParameters) sdk.SamplingResult {
	for _, link := range p.Links {
		if link.SpanContext.IsSampled() {
			return sdk.SamplingResult{Decision: sdk.RecordAndSample}
		}
	}
	return l.Sampler.ShouldSample(p)
}

// Description implements sdk.Sampler.
func (l linked) Description() string { return "Linked{" + l.Sampler.Description() + "}" }
