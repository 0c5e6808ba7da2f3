package console

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// plot is a picture of some series over the time of a frame, as a template shows
// it. All text stands beside the picture and not in it: the picture is stretched to
// the room there is, and text would be with it.
type plot struct {
	ID, Title, Unit string
	Over            string   // the time that is shown, behind "the last"
	Top, Middle     string   // of the vertical axis, which begins at 0
	Times           []string // along the other one, at equal distances, UTC
	Series          []series
	Quiet           string // series that were 0 all the time, in words
	Note            string // what else there is to know
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
	width   = 240.0 // a unit for each sample of an hour
	height  = 100.0
	rowSpan = 5 * time.Minute
)

const (
	// narrowest is the shortest time that is shown, however young the process is.
	narrowest = 5 * time.Minute
	// exact is the time below which the axis has seconds: its labels are less than
	// a few minutes apart, and minutes alone would tell them wrong.
	exact = 20 * time.Minute
)

// frame is the time that plots show, and when the figures were read in it.
type frame struct {
	begin, end time.Time
	times      []time.Time
}

// newFrame ends at now and is an hour wide, or as wide as the process is old.
func newFrame(began, now time.Time, times []time.Time) frame {
	wide := max(narrowest, min(span, now.Sub(began)))
	return frame{now.Add(-wide), now, times}
}

func (f frame) wide() time.Duration { return f.end.Sub(f.begin) }

// over names the time that is shown.
func (f frame) over() string {
	if f.wide() == span {
		return "hour"
	}
	return duration(f.wide().Truncate(time.Second))
}

// labels are for the axis of time. There are fewer where they are longer.
func (f frame) labels() []string {
	parts, form := 4, "15:04"
	if f.wide() < exact {
		parts, form = 2, time.TimeOnly
	}
	var all []string
	for i := range parts + 1 {
		all = append(all, f.begin.Add(f.wide()*time.Duration(i)/time.Duration(parts)).UTC().Format(form))
	}
	return all
}

// sketch is what a plot is drawn from.
type sketch struct {
	id, title, unit string
	note            string // is said below the lines, where there are some
	// missing is said where the figures were read and no curve has a value.
	missing string
	// limit is the largest value that is known as such, 0 for none: what is above
	// it is drawn at it, and written as over it.
	limit float64
	// write writes a value; nil is number.
	write  func(v float64) string
	curves []curve
}

// draw makes the plot. Curves that were 0 all the time are only named.
func (s sketch) draw(f frame) plot {
	p := plot{ID: s.id, Title: s.title, Unit: s.unit, Over: f.over()}
	write := s.write
	if write == nil {
		write = number
	}
	drawn := func(v float64) float64 {
		if s.limit > 0 {
			return min(v, s.limit)
		}
		return v
	}
	// told writes v, which came of what was at most peak.
	told := func(v, peak float64) string {
		if s.limit > 0 && peak > s.limit {
			return "over " + write(v)
		}
		return write(v)
	}

	highest, read := 0.0, false
	var shown []curve
	var quiet []string
	for _, c := range s.curves {
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
		highest = max(highest, drawn(peak))
		shown = append(shown, c)
	}
	switch {
	case len(f.times) == 0:
		p.Empty = "Nothing yet: the first values come a quarter of a minute after the start."
		return p
	case !read:
		p.Empty = s.missing
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
	p.Times, p.Note = f.labels(), s.note
	for i, c := range shown {
		line := series{Name: c.name, Class: c.class, Dash: i % 4, Now: "–", Peak: "–"}
		var path strings.Builder
		peak, pen := math.Inf(-1), "M"
		for i, v := range c.values {
			if math.IsNaN(v) {
				pen = "M"
				continue
			}
			x := max(0, f.times[i].Sub(f.begin).Seconds()/f.wide().Seconds()*width)
			at := fmt.Sprintf("%.2f %.2f", x, height-drawn(v)/top*height)
			path.WriteString(pen + at)
			if pen == "M" {
				path.WriteString("h.01") // so that a value alone is a dot
			}
			pen, peak = "L", max(peak, v)
		}
		if last := len(c.values) - 1; last >= 0 && !math.IsNaN(c.values[last]) {
			line.Now = told(drawn(c.values[last]), c.values[last])
		}
		line.Path, line.Peak = path.String(), told(drawn(peak), peak)
		p.Series = append(p.Series, line)
	}
	for from := f.begin; from.Before(f.end); from = from.Add(rowSpan) {
		r := row{From: from.UTC().Format("15:04")}
		some := false
		for _, c := range shown {
			sum, peak, n := 0.0, 0.0, 0
			for i, v := range c.values {
				if !math.IsNaN(v) && f.times[i].After(from) && !f.times[i].After(from.Add(rowSpan)) {
					sum, peak, n = sum+drawn(v), max(peak, v), n+1
				}
			}
			mean := "–"
			if n > 0 {
				mean, some = told(sum/float64(n), peak), true
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
	return fmt.Sprintf("%s, in %s, over the last %s: %s.", p.Title, p.Unit, p.Over, strings.Join(parts, "; "))
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

// aSecond writes a rate by the second. What is under one comes to a fraction that
// nobody reads as so many events, and is told by the minute.
func aSecond(v float64) string {
	if v > 0 && v < 1 {
		return number(v*60) + "/min"
	}
	return number(v)
}

func trimmed(s string) string { return strings.TrimRight(strings.TrimRight(s, "0"), ".") }
