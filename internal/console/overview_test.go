package console_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"intentd/internal/console"
	"intentd/internal/metrics"
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
				"Server errors":   "36 5xx in the last hour, 0.33 % of all",
				"Connections":     "7 of 20 in use, 3 idle; 60 waits in the last hour, 20 ms on average",
				"Commit groups":   "904 in the last hour, of 4 attempts on average",
				"Attempts undone": "60 in the last hour, 60 of them taken over",
				"Rate limited":    "120 requests refused in the last hour",
				"Uptime":          "2 h this process",
				"Sweeper lag":     "3 s cancel expired intents",
			} {
				if got := tileOf(t, a, name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			for id, want := range map[string][]string{
				"requests": {"requests a second", `aria-label="Requests by status, in requests a second, over the last hour: 2xx now 2, at most 2; 4xx now 1, at most 1; 5xx now 0.01, at most 0.01."`, "None: 3xx."},
				"claims":   {"fresh now 1, at most 1; replay now 0.5, at most 0.5.", "None: in_flight, mismatch, error."},
				"moved":    {"created now 1, at most 1; settled now 3, at most 3."},
				"undone":   {"superseded now 1, at most 1.", "attempts a minute"},
				"latency":  {"median now 5, at most 5; 99th percentile now 9.9, at most 9.9."},
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
		s.Ready, s.Pool.Acquired = false, 20
		s.Requests["5xx"] = 500
		s.Lag["cancel_expired_intents"] = 2 * time.Minute
		f.present = func() (metrics.Snapshot, error) { return s, nil }
		a := f.wantPage(t, "/console", http.StatusOK, "/readyz and the log say why")
		for _, name := range []string{"Readiness", "Server errors", "Sweeper lag", "Connections"} {
			if !strings.Contains(a.body, "<div class=\"tile bad\">\n      <dt>"+name) {
				t.Errorf("%s is not bad", name)
			}
		}
		s.Lag = nil
		f.wantPage(t, "/console", http.StatusOK, "the store does not tell")
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
