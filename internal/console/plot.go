package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// plot is a picture of some series over the last hour, as a template shows it. All
// text stands beside the picture and not in it: the picture is stretched to the
// room there is, and text would be with it.
type plot struct {
	ID, Title, Unit string
	Top, Middle     string // of the vertical axis, which begins at 0
	Times           []string
	Series          []series
	Quiet           string // series that were 0 all the time, in words
	Empty           string // said instead of all that, where there is nothing to show
	Rows            []row
}

// series is one line.
type series struct {
	Name, Class string
	Dash        int
	Path        string
	Now, Peak   string
}

// row is five minutes of a plot as a table has it.
type row struct {
	From  string
	Means []string
}

// curve is a series as it is computed: a value for each of the times, NaN for none.
type curve struct {
	name, class string
	values      []float64
}

// The picture's own measures; it is stretched.
const (
	width   = 240.0 // a unit for each sample
	height  = 100.0
	rowSpan = 5 * time.Minute
)

// newPlot draws the curves over the hour that ends at now. Those that were 0 all
// the time are only named.
func newPlot(id, title, unit string, now time.Time, times []time.Time, curves []curve) plot {
	p := plot{ID: id, Title: title, Unit: unit}
	highest, read := 0.0, false
	var shown []curve
	var quiet []string
	for _, c := range curves {
		peak := 0.0
		for _, v := range c.values {
			if !math.IsNaN(v) {
				peak, read = max(peak, v), true
			}
		}
		if peak == 0 {
			quiet = append(quiet, c.name)
			continue
		}
		highest = max(highest, peak)
		shown = append(shown, c)
	}
	switch {
	case !read:
		p.Empty = "Nothing yet: the first values come a quarter of a minute after the start."
		return p
	case len(shown) == 0:
		p.Empty = "None in this time."
		return p
	}
	top := ceiling(highest)
	p.Top, p.Middle = number(top), number(top/2)
	if len(quiet) > 0 {
		p.Quiet = "None: " + strings.Join(quiet, ", ") + "."
	}
	begin := now.Add(-span)
	for at := begin; !at.After(now); at = at.Add(span / 4) {
		p.Times = append(p.Times, at.UTC().Format("15:04"))
	}
	for i, c := range shown {
		s := series{Name: c.name, Class: c.class, Dash: i % 4, Now: "–", Peak: "–"}
		var path strings.Builder
		peak, pen := math.Inf(-1), "M"
		for i, v := range c.values {
			if math.IsNaN(v) {
				pen = "M"
				continue
			}
			x := max(0, times[i].Sub(begin).Seconds()/span.Seconds()*width)
			at := fmt.Sprintf("%.2f %.2f", x, height-v/top*height)
			path.WriteString(pen + at)
			if pen == "M" {
				path.WriteString("h.01") // so that a value alone is a dot
			}
			pen, peak = "L", max(peak, v)
		}
		if last := len(c.values) - 1; last >= 0 && !math.IsNaN(c.values[last]) {
			s.Now = number(c.values[last])
		}
		s.Path, s.Peak = path.String(), number(peak)
		p.Series = append(p.Series, s)
	}
	for from := begin; from.Before(now); from = from.Add(rowSpan) {
		r := row{From: from.UTC().Format("15:04")}
		some := false
		for _, c := range shown {
			sum, n := 0.0, 0
			for i, v := range c.values {
				if !math.IsNaN(v) && times[i].After(from) && !times[i].After(from.Add(rowSpan)) {
					sum, n = sum+v, n+1
				}
			}
			mean := "–"
			if n > 0 {
				mean, some = number(sum/float64(n)), true
			}
			r.Means = append(r.Means, mean)
		}
		if some {
			p.Rows = append(p.Rows, r)
		}
	}
	return p
}

// Summary says in a sentence what the picture shows.
func (p plot) Summary() string {
	parts := make([]string, len(p.Series))
	for i, s := range p.Series {
		parts[i] = fmt.Sprintf("%s now %s, at most %s", s.Name, s.Now, s.Peak)
	}
	return fmt.Sprintf("%s, in %s, over the last hour: %s.", p.Title, p.Unit, strings.Join(parts, "; "))
}

// ceiling returns the next number from v on that reads well, and whose half does.
func ceiling(v float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 4, 6, 8, 10} {
		if n*step >= v*(1-1e-9) {
			return n * step
		}
	}
	return 10 * step
}

// number writes v with two or three digits that count, and the rest as it is.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return trimmed(strconv.FormatFloat(v, 'f', 1, 64))
	case a >= 0.1:
		return trimmed(strconv.FormatFloat(v, 'f', 2, 64))
	case a >= 0.001:
		return trimmed(strconv.FormatFloat(v, 'f', 4, 64))
	default:
		return "<0.001"
	}
}

func trimmed(s string) string { return strings.TrimRight(strings.TrimRight(s, "0"), ".") }
