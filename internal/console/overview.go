package console

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"intentd/internal/intent"
	"intentd/internal/metrics"
	"intentd/internal/secret"
)

// refreshEvery is how often the overview asks again, for who wants that, in
// seconds.
const refreshEvery = 15

// overviewPage is how the replica stands, and how it has fared.
type overviewPage struct {
	Broken bool // the figures can not be read
	Tiles  []tile
	Plots  []plot
	Over   string // the time that the plots show, behind "the last"
	Since  time.Time
	// Partial says that the process is younger than what the plots show.
	Partial bool
}

// tile is a figure that stands for itself.
type tile struct {
	Name, Value, Unit, Note string
	State                   string // good, warn, bad, or "" where none is
	Broad                   bool   // its note is long
}

// stretch is a time that figures are counted over: since a reading, or since the
// process began, for which since is the zero one.
type stretch struct {
	since metrics.Snapshot
	in    string // completes "so many"
}

// sinceStart is what there is before the first reading that would do.
var sinceStart = stretch{in: "since the start"}

// lately is what the marks of tiles go by that count: what is over for longer needs
// nobody any more.
const lately = 5 * time.Minute

// latelyOf is the last five minutes, or since the reading before them.
func latelyOf(now time.Time, past []metrics.Snapshot) stretch {
	for _, s := range slices.Backward(past) {
		if age := now.Sub(s.At); age >= lately {
			return stretch{s, "in the last " + duration(age.Round(time.Minute))}
		}
	}
	return sinceStart
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
	frame := newFrame(c.history.began, now, readAt(past))
	body := overviewPage{
		Over:    frame.over(),
		Since:   c.history.began,
		Partial: now.Sub(c.history.began) < span,
		Plots:   plotsOf(frame, past),
	}
	hour := sinceStart
	if len(past) > 0 && !body.Partial {
		hour = stretch{past[0], "in the last hour"}
	}
	body.Tiles = tilesOf(present, hour, latelyOf(now, past), now.Sub(c.history.began))
	p.Body = body
	c.render(w, http.StatusOK, "overview", p)
}

func tilesOf(now metrics.Snapshot, hour, recent stretch, age time.Duration) []tile {
	first, within := hour.since, hour.in
	tiles := []tile{
		readyTile(now),
		{Name: "Requests", Value: count(total(now.Requests) - total(first.Requests)), Note: within + ", without health checks"},
		errorsTile(now, hour, recent),
	}

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
	tiles = append(tiles, undoneTile(now, hour, recent))
	limited := tile{Name: "Rate limited", Value: count(now.Limited - first.Limited), Note: "requests refused " + within}
	return append(tiles, limited, tile{Name: "Uptime", Value: duration(age.Truncate(time.Second)), Note: "this process"})
}

func readyTile(now metrics.Snapshot) tile {
	if now.Ready {
		return tile{Name: "Readiness", Value: "ready", Note: "the database can be used", State: "good"}
	}
	return tile{Name: "Readiness", Value: "not ready", Note: reason(now.Why), State: "bad", Broad: true}
}

// longestReason is how much of an error is on a tile, in code points.
const longestReason = 200

// password finds what an error has of one. None should: who opens a connection
// keeps its URL to himself. The one in a URL ends at the last @ of the word, since
// it may have one itself.
var (
	passwordInURL  = regexp.MustCompile(`(://[^\s:/@]*:)\S*@`)
	passwordMember = regexp.MustCompile(`(?i)(password\s*=\s*)('[^']*'|\S+)`)
)

// reason writes an error for people who may know the names of hosts and no
// passwords: in one line, and cut.
func reason(err error) string {
	if err == nil {
		return "the log says why"
	}
	text := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "\uFFFD")), " ")
	text = passwordInURL.ReplaceAllString(text, "${1}"+secret.Mark+"@")
	text = passwordMember.ReplaceAllString(text, "${1}"+secret.Mark)
	if runes := []rune(text); len(runes) > longestReason {
		return string(runes[:longestReason]) + " … (the log has the rest)"
	}
	return text
}

// errorsTile is marked by what has happened lately, and tells the hour beside it.
func errorsTile(now metrics.Snapshot, hour, recent stretch) tile {
	failed := now.Requests["5xx"] - recent.since.Requests["5xx"]
	t := tile{Name: "Server errors", Value: count(failed), Note: "5xx " + recent.in, State: "good"}
	if failed > 0 {
		answered := total(now.Requests) - total(recent.since.Requests)
		t.State = "warn"
		t.Note += fmt.Sprintf(", %s %% of all", number(100*failed/answered))
		if failed*100 >= answered {
			t.State = "bad"
		}
	}
	if hour.in != recent.in {
		t.Note += fmt.Sprintf("; %s %s", count(now.Requests["5xx"]-hour.since.Requests["5xx"]), hour.in)
	}
	return t
}

// undoneTile is marked as errorsTile is.
func undoneTile(now metrics.Snapshot, hour, recent stretch) tile {
	undone := total(now.Undone) - total(recent.since.Undone)
	t := tile{Name: "Attempts undone", Value: count(undone), Note: recent.in, State: "good"}
	if undone > 0 {
		t.State = "warn"
	}
	if hour.in != recent.in {
		t.Note += fmt.Sprintf("; %s %s", count(total(now.Undone)-total(hour.since.Undone)), hour.in)
	}
	if over := now.Undone["superseded"] - hour.since.Undone["superseded"]; over > 0 {
		t.Note += fmt.Sprintf(", %s of them taken over", count(over))
	}
	return t
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

// readAt is when there are values: all are of the time since the reading before.
func readAt(past []metrics.Snapshot) []time.Time {
	var times []time.Time
	for _, s := range past[min(1, len(past)):] {
		times = append(times, s.At)
	}
	return times
}

// notRead is what a plot says of figures that could not be.
const notRead = "Not read in this time: the log says why."

// plotsOf draws what there is of the last hour.
func plotsOf(f frame, past []metrics.Snapshot) []plot {
	// gap is a value that was not read in time: the process stood still, or the
	// figures could not be collected. What was counted meanwhile is no rate of any
	// moment's.
	gap := func(i int) bool { return past[i].At.Sub(past[i-1].At) > 2*interval }
	rates := func(id, title, what, note string, of []curve, counters func(metrics.Snapshot) map[string]float64) plot {
		s := sketch{id: id, title: title, unit: what + " a second", note: note, missing: notRead, write: aSecond, curves: slices.Clone(of)}
		peak := 0.0
		for i := range s.curves {
			c := &s.curves[i]
			for j := 1; j < len(past); j++ {
				v := math.NaN()
				if !gap(j) {
					v = (counters(past[j])[c.name] - counters(past[j-1])[c.name]) / past[j].At.Sub(past[j-1].At).Seconds()
					peak = max(peak, v)
				}
				c.values = append(c.values, v)
			}
		}
		if peak < 1 {
			s.unit, s.write = what+" a minute", nil
			for _, c := range s.curves {
				for j := range c.values {
					c.values[j] *= 60
				}
			}
		}
		return s.draw(f)
	}

	plots := []plot{
		rates("requests", "Requests by status", "requests", "", ofStatus,
			func(s metrics.Snapshot) map[string]float64 { return s.Requests }),
		latency(past).draw(f),
		rates("claims", "Claims by outcome", "claims", "", ofClaim,
			func(s metrics.Snapshot) map[string]float64 { return s.Claims }),
		rates("moved", "Intents by the state they came to", "intents", "", ofState,
			func(s metrics.Snapshot) map[string]float64 { return s.Moved }),
		rates("undone", "Attempts undone, by reason", "attempts", "Superseded: taken over by another.", ofUndone,
			func(s metrics.Snapshot) map[string]float64 { return s.Undone }),
		lags(f, past),
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
		connections := sketch{id: "pool", title: "Connections to the database", unit: "connections, at the moment of each reading",
			missing: notRead, curves: []curve{used, most}}
		waiting := sketch{id: "wait", title: "Waiting for a connection", unit: "milliseconds for who had to wait, on average",
			missing: notRead, curves: waits(past, gap)}
		plots = append(plots, connections.draw(f), waiting.draw(f))
	}
	return plots
}

// slowest is the longest duration of a create, in seconds, that the histogram
// tells well enough: the store is given up after so long, and the bounds behind it
// are far apart.
const slowest = 5

// latency is the median and the 99th percentile of a create's duration, at each
// moment over the minute before.
func latency(past []metrics.Snapshot) sketch {
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
	return sketch{
		id: "latency", title: "How long a create takes", unit: "milliseconds, each value over a minute",
		note:    fmt.Sprintf("Estimated from counts by size. What took over %d s is not told apart, and drawn at %d s.", slowest, slowest),
		missing: "None in this time.", limit: slowest * 1000, curves: []curve{p50, p99},
	}
}

// lags draws the sweeper's lag, and says where it could not be told: that is no lag
// of 0, and happens when somebody looks.
func lags(f frame, past []metrics.Snapshot) plot {
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
	s := sketch{id: "lag", title: "Sweeper lag", unit: "seconds that the oldest due work has waited", curves: curves,
		missing: "Not told in this time: the store did not answer. That is not none."}
	read := past[min(1, len(past)):]
	untold := 0
	for _, s := range read {
		if s.Lag == nil {
			untold++
		}
	}
	if untold > 0 {
		s.note = fmt.Sprintf("Not told at %d of %d readings", untold, len(read))
		if read[len(read)-1].Lag == nil {
			s.note += ", the last among them"
		}
		s.note += ": the store did not answer."
	}
	p := s.draw(f)
	if untold > 0 && untold < len(read) && p.Empty != "" {
		p.Empty = "None where it was told. " + s.note
	}
	return p
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
