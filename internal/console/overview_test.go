package console_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"intentd/internal/console"
	"intentd/internal/metrics"
	"intentd/internal/secret"
	"intentd/internal/secret/secrettest"
)

// figure returns what the overview has between two texts.
func figure(t testing.TB, a answer, from, to string) string {
	t.Helper()
	_, rest, ok := strings.Cut(a.body, from)
	if !ok {
		t.Fatalf("no %s in %s", from, a.body)
	}
	text, _, ok := strings.Cut(rest, to)
	if !ok {
		t.Fatalf("no %s behind %s", to, from)
	}
	return text
}

// plotOf returns one plot's part of the overview.
func plotOf(t testing.TB, a answer, id string) string {
	t.Helper()
	return figure(t, a, `aria-labelledby="`+id+`">`, "</figure>")
}

// tileOf returns one tile's part of the overview, without markup.
func tileOf(t testing.TB, a answer, name string) string {
	t.Helper()
	text := regexp.MustCompile(`<[^>]*>`).ReplaceAllString(figure(t, a, "<dt>"+name+"</dt>", "</div>"), " ")
	return strings.Join(strings.Fields(text), " ")
}

// wantMark checks how a tile is marked.
func wantMark(t testing.TB, a answer, name, want string) {
	t.Helper()
	marked := regexp.MustCompile(`<div class="tile ?([a-z]*)[a-z ]*">\s*<dt>` + name + "</dt>").FindStringSubmatch(a.body)
	if marked == nil || marked[1] != want {
		t.Errorf("%s is %q, want %q", name, marked, want)
	}
}

// counted is a snapshot in which everything has grown for d.
func counted(at time.Time, d time.Duration) metrics.Snapshot {
	n := d.Seconds()
	return metrics.Snapshot{
		At:       at,
		Requests: map[string]float64{"2xx": 2 * n, "4xx": n, "5xx": n / 100},
		Claims:   map[string]float64{"fresh": n, "replay": n / 2},
		Undone:   map[string]float64{"superseded": n / 60, "store": 0},
		Moved:    map[string]float64{"created": n, "settled": 3 * n},
		Limited:  n / 30,
		Creates: metrics.Histogram{Count: n, Sum: n * .006, Buckets: []metrics.Bucket{
			{Bound: .005, Count: n / 2}, {Bound: .01, Count: n}, {Bound: math.Inf(1), Count: n},
		}},
		Groups: metrics.Histogram{Count: n / 4, Sum: n, Buckets: []metrics.Bucket{{Bound: math.Inf(1), Count: n / 4}}},
		Ready:  true,
		Lag:    map[string]time.Duration{"cancel_expired_intents": 3 * time.Second, "delete_expired_idempotency_keys": 0},
		Pool:   &metrics.Pool{Acquired: 7, Idle: 3, Max: 20, Acquires: n, Waits: n / 60, Wait: time.Duration(n / 60 * float64(20*time.Millisecond))},
	}
}

// overSome is a console that has run for d, with figures that grow all the time.
func overSome(t *testing.T, d time.Duration) *fixture {
	t.Helper()
	f := loggedIn(t, memory())
	began := time.Now()
	f.present = func() (metrics.Snapshot, error) { return counted(time.Now(), time.Since(began)), nil }
	go func() {
		if err := f.console.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(d)
	synctest.Wait()
	f.cookie = nil
	f.logIn(t, operatorKey)
	return f
}

func TestConsole_Overview(t *testing.T) {
	t.Parallel()

	t.Run("OverAnHour", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := overSome(t, 2*time.Hour)
			a := f.wantPage(t, "/console", http.StatusOK, "This replica alone, over the last hour.", "machine-1", "v1.2.3")
			for name, want := range map[string]string{
				"Readiness":       "ready the database can be used",
				"Requests":        "10 878 in the last hour, without health checks",
				"Server errors":   "3 5xx in the last 5 min, 0.33 % of all; 36 in the last hour",
				"Connections":     "7 of 20 in use, 3 idle; 60 waits in the last hour, 20 ms on average",
				"Commit groups":   "904 in the last hour, of 4 attempts on average",
				"Attempts undone": "5 in the last 5 min; 60 in the last hour, 60 of them taken over",
				"Rate limited":    "120 requests refused in the last hour",
				"Uptime":          "2 h this process",
				"Sweeper lag":     "3 s cancel expired intents",
			} {
				if got := tileOf(t, a, name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			for id, want := range map[string][]string{
				"requests": {"requests a second", `aria-label="Requests by status, in requests a second, over the last hour: 2xx now 2, at most 2; 4xx now 1, at most 1; 5xx now 0.6/min, at most 0.6/min."`, "None: 3xx."},
				"claims":   {"fresh now 1, at most 1; replay now 30/min, at most 30/min.", "None: in_flight, mismatch, error."},
				"moved":    {"created now 1, at most 1; settled now 3, at most 3."},
				"undone":   {"superseded now 1, at most 1.", "attempts a minute", "Superseded: taken over by another."},
				"latency":  {"median now 5, at most 5; 99th percentile now 9.9, at most 9.9.", "Estimated from counts by size. What took over 5 s is not told apart, and drawn at 5 s."},
				"lag":      {"cancel expired intents now 3, at most 3.", "None: delete expired idempotency keys."},
				"pool":     {"in use now 7, at most 7; most there may be now 20, at most 20."},
				"wait":     {"mean wait now 20, at most 20."},
			} {
				plot := plotOf(t, a, id)
				for _, text := range want {
					if !strings.Contains(plot, text) {
						t.Errorf("%s: no %q in %s", id, text, plot)
					}
				}
				// A row for each five minutes, and five times along the axis.
				if n := strings.Count(plot, `<th scope="row">`) - strings.Count(plot, "swatch"); n != 12 {
					t.Errorf("%s: %d rows", id, n)
				}
				if n := strings.Count(figure(t, answer{body: plot}, `class="along"`, "</div>"), "<span>"); n != 5 {
					t.Errorf("%s: %d times", id, n)
				}
			}
			// 2 of at most 2, and so at the top, from the left edge to the right one.
			d := figure(t, answer{body: plotOf(t, a, "requests")}, `class="line good dash0" d="`, `"`)
			points := regexp.MustCompile(`[ML]([\d.]+) ([\d.]+)`).FindAllStringSubmatch(d, -1)
			if len(points) != 240 || points[0][2] != "0.00" || points[0][1] != "0.07" && points[0][1] != "0.93" || strings.Count(d, "M") != 1 {
				t.Errorf("%d points, the first %v: %s", len(points), points[0], d)
			}
		})
	})

	t.Run("Young", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := overSome(t, 0)
			a := f.wantPage(t, "/console", http.StatusOK, "since it began at", "Nothing yet: the first values come")
			if strings.Contains(a.body, "<path") {
				t.Errorf("%s", a.body)
			}
			time.Sleep(17 * time.Second)
			synctest.Wait()
			a = f.wantPage(t, "/console", http.StatusOK, "since it began at")
			if got := tileOf(t, a, "Requests"); got != "51 since the start, without health checks" {
				t.Errorf("%q", got)
			}
			if !strings.Contains(plotOf(t, a, "requests"), "2xx now 2") {
				t.Errorf("%s", plotOf(t, a, "requests"))
			}
		})
	})

	// Its own page asks again where that is wanted.
	t.Run("Refresh", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		f.wantPage(t, "/console?refresh=on", http.StatusOK, `<meta http-equiv="refresh" content="15">`, `<a href="/console">stop</a>`)
		if a := f.wantPage(t, "/console", http.StatusOK, `<a href="/console?refresh=on">`); strings.Contains(a.body, "http-equiv") {
			t.Error("it asks again unasked")
		}
	})

	t.Run("Broken", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		f.present = func() (metrics.Snapshot, error) { return metrics.Snapshot{}, errors.New("the cause") }
		if a := f.wantPage(t, "/console", http.StatusOK, "The figures can not be read."); strings.Contains(a.body, "the cause") || !strings.Contains(f.log.String(), "the cause") {
			t.Errorf("%s\n%s", a.body, f.log)
		}
	})

	t.Run("Unwell", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		s := counted(time.Now(), time.Hour)
		s.Ready, s.Why, s.Pool.Acquired = false, errors.New("lookup db1: <no such host>\n\t10.0.0.7: refused"), 20
		s.Requests["5xx"] = 500
		s.Lag["cancel_expired_intents"] = 2 * time.Minute
		f.present = func() (metrics.Snapshot, error) { return s, nil }
		a := f.wantPage(t, "/console", http.StatusOK)
		if got := tileOf(t, a, "Readiness"); got != "not ready lookup db1: &lt;no such host&gt; 10.0.0.7: refused" {
			t.Errorf("%q", got)
		}
		for _, name := range []string{"Readiness", "Server errors", "Sweeper lag", "Connections"} {
			wantMark(t, a, name, "bad")
		}
		s.Lag = nil
		f.wantPage(t, "/console", http.StatusOK, "the store does not tell")
	})

	// Marks go by the last five minutes, and the hour is told beside them.
	t.Run("OverByNow", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := loggedIn(t, memory())
			f.console.Began(time.Now().Add(-3 * time.Hour))
			read := func(before time.Duration, answered, failed, undone float64) {
				f.console.Remember(metrics.Snapshot{At: time.Now().Add(-before), Requests: map[string]float64{"2xx": answered, "5xx": failed}, Undone: map[string]float64{"store": undone}})
			}
			read(time.Hour, 0, 0, 0)
			read(20*time.Minute, 5000, 10, 3)
			read(5*time.Minute+14*time.Second, 6000, 300, 40)
			read(5*time.Minute-time.Second, 7000, 301, 41) // is within them
			for name, tt := range map[string]struct {
				failed, undone          float64
				errors, tries           string
				errorsState, triesState string
			}{
				"Over": {300, 40, "0 5xx in the last 5 min; 300 in the last hour", "0 in the last 5 min; 40 in the last hour", "good", "good"},
				"Some": {301, 41, "1 5xx in the last 5 min, 0.05 % of all; 301 in the last hour", "1 in the last 5 min; 41 in the last hour", "warn", "warn"},
				"Many": {350, 41, "50 5xx in the last 5 min, 2.44 % of all; 350 in the last hour", "1 in the last 5 min; 41 in the last hour", "bad", "warn"},
			} {
				f.present = func() (metrics.Snapshot, error) {
					return metrics.Snapshot{Requests: map[string]float64{"2xx": 8000, "5xx": tt.failed}, Undone: map[string]float64{"store": tt.undone}}, nil
				}
				a := f.wantPage(t, "/console", http.StatusOK)
				if got := tileOf(t, a, "Server errors"); got != tt.errors {
					t.Errorf("%s: %q, want %q", name, got, tt.errors)
				}
				if got := tileOf(t, a, "Attempts undone"); got != tt.tries {
					t.Errorf("%s: %q, want %q", name, got, tt.tries)
				}
				wantMark(t, a, "Server errors", tt.errorsState)
				wantMark(t, a, "Attempts undone", tt.triesState)
			}
		})
	})

	// A process that stood still tells for how long the figures are, and one without
	// readings that they are all there is.
	t.Run("Gap", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		now := time.Now()
		f.console.Began(now.Add(-30 * time.Minute))
		f.present = func() (metrics.Snapshot, error) { return counted(now, 30*time.Minute), nil }
		if got := tileOf(t, f.wantPage(t, "/console", http.StatusOK), "Server errors"); got != "18 5xx since the start, 0.33 % of all" {
			t.Errorf("%q", got)
		}
		f.console.Remember(counted(now.Add(-20*time.Minute), 10*time.Minute))
		if got := tileOf(t, f.wantPage(t, "/console", http.StatusOK), "Server errors"); got != "12 5xx in the last 20 min, 0.33 % of all; 18 since the start" {
			t.Errorf("%q", got)
		}
	})

	// What took longer than the counts can tell is no number.
	t.Run("Slow", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		now := time.Now()
		f.console.Began(now.Add(-3 * time.Hour))
		for i, counts := range [][]float64{{0, 0, 0, 0}, {0, 2, 2, 2}, {0, 2, 3, 3}, {0, 2, 3, 9}} { // up to 2.5 s, 5 s, 10 s, and all
			h := metrics.Histogram{Count: counts[3]}
			for j, bound := range []float64{2.5, 5, 10, math.Inf(1)} {
				h.Buckets = append(h.Buckets, metrics.Bucket{Bound: bound, Count: counts[j]})
			}
			f.console.Remember(metrics.Snapshot{At: now.Add(time.Duration(i-3) * 15 * time.Second), Creates: h})
			a := f.wantPage(t, "/console", http.StatusOK)
			want := []string{
				"Nothing yet",
				"median now 3.75, at most 3.75; 99th percentile now 4.97, at most 4.97.",
				"median now 4.38, at most 4.38; 99th percentile now over 5, at most over 5.",
				"median now over 5, at most over 5; 99th percentile now over 5, at most over 5.",
			}[i]
			if plot := strings.NewReplacer("3750", "3.75", "4975", "4.97", "4375", "4.38", "5000", "5").Replace(plotOf(t, a, "latency")); !strings.Contains(plot, want) {
				t.Errorf("no %q in %s", want, plot)
			}
		}
		plot := plotOf(t, f.wantPage(t, "/console", http.StatusOK), "latency")
		// The top is 6000; a mean with such a value in it is more than it says.
		for _, want := range []string{" 16.67\"/>", "<td>over 4375</td><td>over 4992</td>"} {
			if !strings.Contains(plot, want) {
				t.Errorf("no %s in %s", want, plot)
			}
		}
	})

	// The plots of a young process begin where it did.
	t.Run("Wide", func(t *testing.T) {
		t.Parallel()
		for age, want := range map[time.Duration]struct {
			heading string
			begin   time.Duration // before now
			form    string
			labels  int
		}{
			time.Minute:      {"The last 5 min", 5 * time.Minute, time.TimeOnly, 3},
			12 * time.Minute: {"The last 12 min", 12 * time.Minute, time.TimeOnly, 3},
			32 * time.Minute: {"The last 32 min", 32 * time.Minute, "15:04", 5},
			2 * time.Hour:    {"The last hour", time.Hour, "15:04", 5},
		} {
			synctest.Test(t, func(t *testing.T) {
				f := overSome(t, age)
				a := f.wantPage(t, "/console", http.StatusOK, ">"+want.heading+"</h2>")
				plot := plotOf(t, a, "requests")
				if over := strings.ToLower(want.heading[:1]) + want.heading[1:]; !strings.Contains(plot, "over "+over+":") {
					t.Errorf("%v: no %s in %s", age, over, plot)
				}
				labels := regexp.MustCompile(`<span>([^<]*)</span>`).FindAllStringSubmatch(figure(t, answer{body: plot}, `class="along"`, "</div>"), -1)
				if len(labels) != want.labels || labels[0][1] != time.Now().Add(-want.begin).UTC().Format(want.form) ||
					labels[len(labels)-1][1] != time.Now().UTC().Format(want.form) || !strings.Contains(plot, ">UTC</span>") {
					t.Errorf("%v: %v", age, labels)
				}
				// The first value comes 16 s after the start.
				first := max(0, 240*(1-(min(age, time.Hour)-16*time.Second).Seconds()/want.begin.Seconds()))
				if age > time.Hour {
					first = .07 * 240 / 240 // of an hour ago, to the reading
				}
				x := regexp.MustCompile(`M([\d.]+) `).FindStringSubmatch(plot[strings.Index(plot, `class="line good`):])
				if got, err := strconv.ParseFloat(x[1], 64); err != nil || math.Abs(got-first) > 1 {
					t.Errorf("%v: begins at %v, want %v", age, got, first)
				}
			})
		}
	})

	// Few events are told by the minute.
	t.Run("Few", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, memory())
		now := time.Now()
		f.console.Began(now.Add(-3 * time.Hour))
		f.console.Remember(metrics.Snapshot{At: now.Add(-15 * time.Second)})
		f.console.Remember(metrics.Snapshot{At: now, Requests: map[string]float64{"2xx": 1}, Claims: map[string]float64{"fresh": 30, "error": 1}})
		a := f.wantPage(t, "/console", http.StatusOK)
		for id, want := range map[string]string{
			"requests": "in requests a minute, over the last hour: 2xx now 4, at most 4.",
			"claims":   "in claims a second, over the last hour: fresh now 2, at most 2; error now 4/min, at most 4/min.",
		} {
			if !strings.Contains(plotOf(t, a, id), want) {
				t.Errorf("%s: no %q in %s", id, want, plotOf(t, a, id))
			}
		}
	})

	// That a lag could not be told is not that there was none.
	t.Run("LagUntold", func(t *testing.T) {
		t.Parallel()
		none := map[string]time.Duration{"cancel_expired_intents": 0}
		some := map[string]time.Duration{"cancel_expired_intents": 3 * time.Second}
		for name, tt := range map[string]struct {
			lags []map[string]time.Duration
			want string
		}{
			"None":  {[]map[string]time.Duration{none, none, none}, `<p class="empty">None in this time.</p>`},
			"Never": {[]map[string]time.Duration{nil, nil, nil}, `<p class="empty">Not told in this time: the store did not answer. That is not none.</p>`},
			"Now": {[]map[string]time.Duration{none, none, nil},
				`<p class="empty">None where it was told. Not told at 1 of 2 readings, the last among them: the store did not answer.</p>`},
			"Once": {[]map[string]time.Duration{none, nil, some, some}, `<p class="quiet">Not told at 1 of 3 readings: the store did not answer.</p>`},
		} {
			f := loggedIn(t, memory())
			now := time.Now()
			f.console.Began(now.Add(-3 * time.Hour))
			for i, lag := range tt.lags {
				f.console.Remember(metrics.Snapshot{At: now.Add(time.Duration(i-len(tt.lags)) * 15 * time.Second), Lag: lag})
			}
			plot := plotOf(t, f.wantPage(t, "/console", http.StatusOK), "lag")
			if !strings.Contains(plot, tt.want) || strings.Contains(plot, "Not told") != strings.Contains(tt.want, "Not told") {
				t.Errorf("%s: no %q in %s", name, tt.want, plot)
			}
		}
	})

	// The real figures, on a real database.
	t.Run("Real", func(t *testing.T) {
		t.Parallel()
		f := loggedIn(t, postgres(t))
		f.create(t, merchantKey, "")
		first, err := f.figures.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		first.At = first.At.Add(-20 * time.Second)
		f.console.Remember(first)
		for range 40 {
			f.create(t, merchantKey, "")
		}
		second, err := f.figures.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		f.console.Remember(second)
		a := f.wantPage(t, "/console", http.StatusOK)
		for id, want := range map[string]string{"requests": "2xx now ", "claims": "fresh now ", "moved": "created now ", "latency": "median now ", "pool": "most there may be now 5"} {
			if !strings.Contains(plotOf(t, a, id), want) {
				t.Errorf("%s: no %q in %s", id, want, plotOf(t, a, id))
			}
		}
		if got := tileOf(t, a, "Requests"); !strings.HasPrefix(got, "41 ") {
			t.Errorf("Requests: %q", got)
		}
	})
}

// TestConsole_Run: the figures are read every 15 s and kept for an hour, and what
// could not be read is a gap and no line.
func TestConsole_Run(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := loggedIn(t, memory())
		began := time.Now()
		var reads atomic.Int64
		var away atomic.Bool
		f.present = func() (metrics.Snapshot, error) {
			reads.Add(1)
			if away.Load() {
				return metrics.Snapshot{}, errors.New("the cause")
			}
			return counted(time.Now(), time.Since(began)), nil
		}
		go func() { _ = f.console.Run(t.Context()) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if reads.Load() != 40 || f.console.Kept() != 40 {
			t.Errorf("%d reads, %d kept, want 40", reads.Load(), f.console.Kept())
		}
		away.Store(true)
		time.Sleep(5 * time.Minute)
		away.Store(false)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if f.console.Kept() != 60 {
			t.Errorf("%d kept, want 60", f.console.Kept())
		}
		a := f.wantPage(t, "/console", http.StatusOK)
		if d := figure(t, answer{body: plotOf(t, a, "requests")}, `class="line good dash0" d="`, `"`); strings.Count(d, "M") != 2 {
			t.Errorf("%d pieces, want 2: %s", strings.Count(d, "M"), d)
		}
		if n := strings.Count(f.log.String(), "the cause"); n != 20 {
			t.Errorf("%d lines in the log, want 20", n)
		}
		time.Sleep(7 * time.Hour)
		synctest.Wait()
		if f.console.Kept() != 241 {
			t.Errorf("%d kept, want 241", f.console.Kept())
		}
	})
}

func TestWriting(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{
		0: "0", .0001: "<0.001", .0012: "0.0012", .25: "0.25", .1: "0.1", 1: "1", 3.456: "3.46", 10: "10", 12.34: "12.3", 99.96: "100", 1234.5: "1234", 100: "100",
	} {
		if got := console.Number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 1: "1", .5: "30/min", 1. / 15: "4/min", 40: "40"} {
		if got := console.ASecond(v); got != want {
			t.Errorf("aSecond(%v) = %s, want %s", v, got, want)
		}
	}
	for address, want := range map[string]string{
		"0x5FbDB2315678afecb367f032d93F642f64180aa3": "0x5FbD…0aa3", "0x12345678": "0x12345678", "": "",
	} {
		if got := console.Short(address); got != want {
			t.Errorf("short(%s) = %s, want %s", address, got, want)
		}
	}
	long := strings.Repeat("ä ", 150)
	for text, want := range map[string]string{
		"dial tcp 10.0.0.7:5432:\n\tconnect: refused":                   "dial tcp 10.0.0.7:5432: connect: refused",
		"postgres://u:" + secrettest.Word + "@x@db1:5432/d is away":     "postgres://u:" + secret.Mark + "@db1:5432/d is away",
		"redis://:" + secrettest.Word + "@r1/0 is away":                 "redis://:" + secret.Mark + "@r1/0 is away",
		"host=db1 Password = '" + secrettest.Word + " b' user=u":        "host=db1 Password = " + secret.Mark + " user=u",
		"password=" + secrettest.Word:                                   "password=" + secret.Mark,
		"http://host:4318/v1 refuses":                                   "http://host:4318/v1 refuses",
		"\xff<b>":                                                       "\uFFFD<b>",
		long:                                                            long[:len("ä ")*100] + " … (the log has the rest)",
		strings.Repeat("ä ", 99) + "password=" + secrettest.Word + " x": strings.Repeat("ä ", 99) + "pa … (the log has the rest)",
	} {
		if got := console.Reason(errors.New(text)); got != want {
			t.Errorf("reason(%q) = %q, want %q", text, got, want)
		}
	}
	if got := console.Reason(nil); got != "the log says why" {
		t.Errorf("without a reason: %q", got)
	}
	for v, want := range map[float64]float64{1: 1, 1.01: 2, 2: 2, 3: 4, 5: 6, 7: 8, 9: 10, 11: 20, .03: .04, .00071: .0008, 4000: 4000} {
		if got := console.Ceiling(v); math.Abs(got-want) > 1e-9*want {
			t.Errorf("ceiling(%v) = %v, want %v", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 s", time.Microsecond: "<1 ms", 20 * time.Millisecond: "20 ms", 1500 * time.Millisecond: "1.5 s", 59 * time.Second: "59 s",
		time.Minute: "1 min", 61 * time.Second: "1 min 1 s", 2 * time.Hour: "2 h", 50 * time.Hour: "2 d 2 h", 24*time.Hour + time.Minute: "1 d",
	} {
		if got := console.Duration(d); got != want {
			t.Errorf("duration(%v) = %s, want %s", d, got, want)
		}
	}
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1\u202f000", 1234567: "1\u202f234\u202f567"} {
		if got := console.Count(v); got != want {
			t.Errorf("count(%v) = %s, want %s", v, got, fmt.Sprint(want))
		}
	}
}
