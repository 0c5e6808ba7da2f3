package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// printHead says on what and how it was measured, as markdown.
func (rep report) printHead(w io.Writer) {
	m := rep.Machine
	fmt.Fprintf(w, "Measured on %s: %s, %d cores, %.0f GiB memory, Linux %s; 8 KiB and fdatasync: %s.\n",
		m.Date, m.CPU, m.Cores, float64(m.Memory)/(1<<30), m.Kernel, m.Flush)
	fmt.Fprintf(w, "PostgreSQL %s, Redis %s, %s, service %s.\n\n", m.PostgreSQL, m.Redis, m.Go, m.Service)
	fmt.Fprint(w, "PostgreSQL says of itself: ")
	for i, name := range asked {
		if name == "data_directory" {
			continue // another one in each run
		}
		if i > 0 {
			fmt.Fprint(w, ", ")
		}
		fmt.Fprintf(w, "`%s = %s`", name, rep.Settings[name])
	}
	fmt.Fprint(w, ".\n")
	for i, name := range slices.Sorted(maps.Keys(rep.Options)) {
		if i > 0 {
			fmt.Fprint(w, "; ")
		}
		fmt.Fprintf(w, "%s: %s", name, rep.Options[name])
	}
	fmt.Fprint(w, ".\n")
}

// print prints the whole report as markdown.
func (rep report) print(w io.Writer) {
	rep.printHead(w)
	for _, r := range rep.Results {
		r.print(w)
	}
}

func (r result) print(w io.Writer) {
	fmt.Fprintf(w, "\n## %s (`%s`, took %s)\n\n", r.Title, r.Name, r.Took)
	if len(r.Figures) > 0 {
		fmt.Fprint(w, "| | | |\n|---|---:|---|\n")
		for _, f := range r.Figures {
			fmt.Fprintf(w, "| %s | %.1f | %s |\n", f.Name, f.Value, f.Unit)
		}
	}
	if len(r.Points) == 0 {
		return
	}
	fmt.Fprint(w, "| connections | | requests/s | p50 ms | p99 ms | service µs | PostgreSQL µs | Redis µs | WAL bytes | RSS MiB |")
	for _, base := range r.Baselines {
		fmt.Fprintf(w, " to %s |", base)
	}
	fmt.Fprintf(w, "\n|---:|---|%s\n", strings.Repeat("---:|", 8+len(r.Baselines)))
	for _, p := range r.Points {
		for _, row := range p.Rows {
			m := row.Median
			fmt.Fprintf(w, "| %d | %s | %.0f | %.2f | %.2f | %s | %.0f | %s | %.0f | %s |", p.Connections, row.Name, m.Rate, m.P50, m.P99,
				orNone("%.0f", m.Service), m.Postgres, orNone("%.0f", m.Redis), m.WAL, orNone("%.0f", m.Memory+m.RedisSize))
			for _, base := range r.Baselines {
				if ratio, ok := row.Ratios[base]; ok {
					fmt.Fprintf(w, " %.2f |", ratio)
				} else {
					fmt.Fprint(w, " |")
				}
			}
			fmt.Fprintln(w)
		}
	}
}

// orNone leaves out what there is none of.
func orNone(format string, v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf(format, v)
}
