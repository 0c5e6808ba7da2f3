package console

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"intentd/internal/intent"
	"intentd/internal/metrics"
)

// refreshEvery is how often the overview asks again, for who wants that, in
// seconds.
const refreshEvery = 15

// overviewPage is how the replica stands, and how it has fared.
type overviewPage struct {
	Ready  bool
	Broken bool // the figures can not be read
	Tiles  []tile
	Plots  []plot
	Since  time.Time
	// Partial says that the process is younger than what the plots show.
	Partial bool
}

// tile is a figure that stands for itself.
type tile struct {
	Name, Value, Unit, Note string
	State                   string // good, warn, bad, or "" where none is
}

// lateAfter is a lag that somebody should look at: an alert of
// deploy/prometheus/alerts.yml waits for the same.
const lateAfter = time.Minute

// overview serves GET /console.
func (c *Console) overview(w http.ResponseWriter, r *http.Request, s session) {
	p := page{Title: "Overview", Here: "overview", Session: &s}
	if r.URL.Query().Has("refresh") {
		p.Refresh = refreshEvery
	}
	present, err := c.Snapshot()
	if err != nil {
		c.Log.Warn("console: the figures can not be read", "error", err)
		p.Body = overviewPage{Broken: true}
		c.render(w, http.StatusOK, "overview", p)
		return
	}
	now := time.Now()
	past := c.history.since(now.Add(-span - interval))
	body := overviewPage{
		Ready:   present.Ready,
		Since:   c.history.began,
		Partial: now.Sub(c.history.began) < span,
		Plots:   plotsOf(now, past),
	}
	first := metrics.Snapshot{} // all that was counted was so since then
	if len(past) > 0 && !body.Partial {
		first = past[0]
	}
	body.Tiles = tilesOf(present, first, now.Sub(c.history.began))
	p.Body = body
	c.render(w, http.StatusOK, "overview", p)
}

func tilesOf(now, first metrics.Snapshot, age time.Duration) []tile {
	within := "in the last hour"
	if age < span {
		within = "since the start"
	}
	answered := total(now.Requests) - total(first.Requests)
	failed := now.Requests["5xx"] - first.Requests["5xx"]
	tiles := []tile{readyTile(now.Ready)}
	requests := tile{Name: "Requests", Value: count(answered), Note: within + ", without health checks"}
	errors := tile{Name: "Server errors", Value: count(failed), Note: "5xx " + within, State: "good"}
	if failed > 0 {
		errors.State = "warn"
		errors.Note = fmt.Sprintf("5xx %s, %s %% of all", within, number(100*failed/answered))
		if failed*100 >= answered {
			errors.State = "bad"
		}
	}
	tiles = append(tiles, requests, errors)

	for _, task := range slices.Sorted(maps.Keys(now.Lag)) {
		lag := now.Lag[task]
		t := tile{Name: "Sweeper lag", Value: duration(lag), Note: words(task), State: "good"}
		if lag >= lateAfter {
			t.State = "bad"
		}
		tiles = append(tiles, t)
	}
	if now.Lag == nil {
		tiles = append(tiles, tile{Name: "Sweeper lag", Value: "unknown", Note: "the store does not tell", State: "bad"})
	}

	if pool := now.Pool; pool != nil {
		before := metrics.Pool{}
		if first.Pool != nil {
			before = *first.Pool
		}
		t := tile{Name: "Connections", Value: count(pool.Acquired), Unit: "of " + count(pool.Max), State: "good",
			Note: fmt.Sprintf("in use, %s idle; nobody waited %s", count(pool.Idle), within)}
		if waits := pool.Waits - before.Waits; waits > 0 {
			t.Note = fmt.Sprintf("in use, %s idle; %s waits %s, %s on average", count(pool.Idle), count(waits), within,
				duration(time.Duration(float64(pool.Wait-before.Wait)/waits)))
		}
		if pool.Acquired >= pool.Max {
			t.State = "bad"
		}
		tiles = append(tiles, t)
	}
	if len(now.Groups.Buckets) > 0 {
		groups := now.Groups.Since(first.Groups)
		t := tile{Name: "Commit groups", Value: count(groups.Count), Note: "none " + within}
		if groups.Count > 0 {
			t.Note = fmt.Sprintf("%s, of %s attempts on average", within, number(groups.Sum/groups.Count))
		}
		tiles = append(tiles, t)
	}
	undone := tile{Name: "Attempts undone", Value: count(total(now.Undone) - total(first.Undone)), Note: within, State: "good"}
	if total(now.Undone) > total(first.Undone) {
		undone.State = "warn"
	}
	if over := now.Undone["superseded"] - first.Undone["superseded"]; over > 0 {
		undone.Note += fmt.Sprintf(", %s of them taken over", count(over))
	}
	tiles = append(tiles, undone)
	limited := tile{Name: "Rate limited", Value: count(now.Limited - first.Limited), Note: "requests refused " + within}
	return append(tiles, limited, tile{Name: "Uptime", Value: duration(age.Truncate(time.Second)), Note: "this process"})
}

func readyTile(ready bool) tile {
	if ready {
		return tile{Name: "Readiness", Value: "ready", Note: "the database can be used", State: "good"}
	}
	return tile{Name: "Readiness", Value: "not ready", Note: "/readyz and the log say why", State: "bad"}
}

// The classes of the lines: good and bad are what their names say, the others are
// told apart and no more.
var (
	ofStatus = []curve{{name: "2xx", class: "good"}, {name: "3xx", class: "mute"}, {name: "4xx", class: "warn"}, {name: "5xx", class: "bad"}}
	ofClaim  = []curve{
		{name: "fresh", class: "one"}, {name: "replay", class: "good"}, {name: "in_flight", class: "warn"},
		{name: "mismatch", class: "two"}, {name: "error", class: "bad"},
	}
	ofState = []curve{
		{name: string(intent.Created), class: "one"}, {name: string(intent.Authorized), class: "two"},
		{name: string(intent.Settling), class: "three"}, {name: string(intent.Confirming), class: "warn"},
		{name: string(intent.NeedsReview), class: "four"}, {name: string(intent.Settled), class: "good"},
		{name: string(intent.Failed), class: "bad"}, {name: string(intent.Canceled), class: "mute"},
	}
	ofUndone = []curve{
		{name: "superseded", class: "warn"}, {name: "store", class: "bad"}, {name: "panic", class: "four"},
		{name: "in_doubt", class: "two"}, {name: "taken", class: "three"}, {name: "withheld", class: "one"},
	}
)

// plotsOf draws what there is of the last hour.
func plotsOf(now time.Time, past []metrics.Snapshot) []plot {
	var times []time.Time
	for _, s := range past[min(1, len(past)):] {
		times = append(times, s.At)
	}
	// gap is a value that was not read in time: the process stood still, or the
	// figures could not be collected. What was counted meanwhile is no rate of any
	// moment's.
	gap := func(i int) bool { return past[i].At.Sub(past[i-1].At) > 2*interval }
	draw := func(id, title, unit string, curves []curve) plot { return newPlot(id, title, unit, now, times, curves) }
	rates := func(id, title, unit string, per time.Duration, of []curve, counters func(metrics.Snapshot) map[string]float64) plot {
		curves := slices.Clone(of)
		for i := range curves {
			for j := 1; j < len(past); j++ {
				v := math.NaN()
				if !gap(j) {
					grown := counters(past[j])[curves[i].name] - counters(past[j-1])[curves[i].name]
					v = grown / past[j].At.Sub(past[j-1].At).Seconds() * per.Seconds()
				}
				curves[i].values = append(curves[i].values, v)
			}
		}
		return draw(id, title, unit, curves)
	}

	plots := []plot{
		rates("requests", "Requests by status", "requests a second", time.Second, ofStatus,
			func(s metrics.Snapshot) map[string]float64 { return s.Requests }),
		draw("latency", "How long a create takes", "milliseconds, each value over a minute", latency(past)),
		rates("claims", "Claims by outcome", "claims a second", time.Second, ofClaim,
			func(s metrics.Snapshot) map[string]float64 { return s.Claims }),
		rates("moved", "Intents by the state they came to", "intents a second", time.Second, ofState,
			func(s metrics.Snapshot) map[string]float64 { return s.Moved }),
		rates("undone", "Attempts undone, by reason", "attempts a minute; superseded: taken over by another", time.Minute, ofUndone,
			func(s metrics.Snapshot) map[string]float64 { return s.Undone }),
		draw("lag", "Sweeper lag", "seconds that the oldest due work has waited", lags(past)),
	}
	if len(past) > 0 && past[len(past)-1].Pool != nil {
		used, most := curve{name: "in use", class: "one"}, curve{name: "most there may be", class: "mute"}
		for _, s := range past[1:] {
			u, m := math.NaN(), math.NaN()
			if s.Pool != nil {
				u, m = s.Pool.Acquired, s.Pool.Max
			}
			used.values, most.values = append(used.values, u), append(most.values, m)
		}
		plots = append(plots,
			draw("pool", "Connections to the database", "connections, at the moment of each reading", []curve{used, most}),
			draw("wait", "Waiting for a connection", "milliseconds for who had to wait, on average", waits(past, gap)))
	}
	return plots
}

// latency is the median and the 99th percentile of a create's duration, at each
// moment over the minute before.
func latency(past []metrics.Snapshot) []curve {
	p50, p99 := curve{name: "median", class: "one"}, curve{name: "99th percentile", class: "warn"}
	for j := 1; j < len(past); j++ {
		h := past[j].Creates.Since(past[max(0, j-int(time.Minute/interval))].Creates)
		for _, q := range []struct {
			of *curve
			at float64
		}{{&p50, .5}, {&p99, .99}} {
			v, ok := h.Quantile(q.at)
			if !ok {
				v = math.NaN()
			}
			q.of.values = append(q.of.values, v*1000)
		}
	}
	return []curve{p50, p99}
}

func lags(past []metrics.Snapshot) []curve {
	tasks := make(map[string]bool)
	for _, s := range past {
		for task := range s.Lag {
			tasks[task] = true
		}
	}
	var curves []curve
	classes := []string{"one", "three", "two", "four"}
	for i, task := range slices.Sorted(maps.Keys(tasks)) {
		c := curve{name: words(task), class: classes[i%len(classes)]}
		for _, s := range past[1:] {
			v := math.NaN()
			if lag, ok := s.Lag[task]; ok {
				v = lag.Seconds()
			}
			c.values = append(c.values, v)
		}
		curves = append(curves, c)
	}
	return curves
}

func waits(past []metrics.Snapshot, gap func(int) bool) []curve {
	c := curve{name: "mean wait", class: "warn"}
	for j := 1; j < len(past); j++ {
		v := math.NaN()
		if a, b := past[j-1].Pool, past[j].Pool; a != nil && b != nil && !gap(j) {
			v = 0
			if n := b.Waits - a.Waits; n > 0 {
				v = float64(b.Wait-a.Wait) / float64(time.Millisecond) / n
			}
		}
		c.values = append(c.values, v)
	}
	return []curve{c}
}

func total(of map[string]float64) (sum float64) {
	for _, n := range of {
		sum += n
	}
	return sum
}

// words writes a task's or a state's name for people.
func words(name string) string { return strings.ReplaceAll(name, "_", " ") }

// count writes a whole number in groups of three digits.
func count(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:] // a narrow space that no line breaks at
	}
	return s
}

// duration writes d with at most two units.
func duration(d time.Duration) string {
	switch {
	case d == 0:
		return "0 s"
	case d < time.Millisecond:
		return "<1 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return trimmed(fmt.Sprintf("%.1f", d.Seconds())) + " s"
	}
	units := []struct {
		name string
		is   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"min", time.Minute}, {"s", time.Second}}
	for i, u := range units {
		if d >= u.is {
			s := fmt.Sprintf("%d %s", d/u.is, u.name)
			if rest := d % u.is / units[i+1].is; rest > 0 {
				s += fmt.Sprintf(" %d %s", rest, units[i+1].name)
			}
			return s
		}
	}
	return ""
}
