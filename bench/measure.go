package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// sample is what one contestant did in one window.
type sample struct {
	Requests  int     `json:"requests"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"requests_per_second"`
	P50       float64 `json:"p50_ms"`
	P99       float64 `json:"p99_ms"`
	Longest   float64 `json:"max_ms"`
	Service   float64 `json:"service_cpu_us_per_request"`
	Postgres  float64 `json:"postgres_cpu_us_per_request"`
	Redis     float64 `json:"redis_cpu_us_per_request"`
	WAL       float64 `json:"wal_bytes_per_request"`
	Memory    float64 `json:"service_rss_mib"`
	RedisSize float64 `json:"redis_rss_mib,omitempty"`
}

// used is what has been used up to some instant.
type used struct {
	service, postgres, redis float64
	wal                      int64
}

// usage asks what a system and the database have used so far. Other contestants
// are idle meanwhile.
func (st *stage) usage(ctx context.Context, s *system) (u used, err error) {
	for _, p := range s.processes {
		c, err := cpuSeconds(p.cmd.Process.Pid)
		if err != nil {
			return u, err
		}
		u.service += c
	}
	if s.redis != nil {
		if u.redis, err = cpuSeconds(s.redis.PID()); err != nil {
			return u, err
		}
	}
	if u.postgres, err = cpuSeconds(st.postgres.pid); err != nil {
		return u, err
	}
	u.wal, err = st.postgres.wal(ctx)
	return u, err
}

// observe measures one window: send sends a load, and calls marked when its
// window begins and when it ends.
func (st *stage) observe(ctx context.Context, s *system, send func(marked func() error) (tally, error)) (sample, error) {
	var marks []used
	t, err := send(func() error {
		u, err := st.usage(ctx, s)
		marks = append(marks, u)
		return err
	})
	if err != nil {
		return sample{}, err
	}
	if len(marks) != 2 {
		return sample{}, fmt.Errorf("the window was marked %d times, want 2", len(marks))
	}
	const microsecond, mib = 1e6, 1 << 20
	n := float64(t.Requests)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	m := sample{
		Requests: t.Requests, Seconds: t.Window.Seconds(), Rate: n / t.Window.Seconds(),
		P50: ms(t.P50), P99: ms(t.P99), Longest: ms(t.Longest),
		Service:  microsecond * (marks[1].service - marks[0].service) / n,
		Postgres: microsecond * (marks[1].postgres - marks[0].postgres) / n,
		Redis:    microsecond * (marks[1].redis - marks[0].redis) / n,
		WAL:      float64(marks[1].wal-marks[0].wal) / n,
	}
	for _, p := range s.processes {
		rss, err := residentBytes(p.cmd.Process.Pid)
		if err != nil {
			return sample{}, err
		}
		m.Memory += float64(rss) / mib
		if err := p.forget(); err != nil {
			return sample{}, err
		}
	}
	if s.redis != nil {
		rss, err := residentBytes(s.redis.PID())
		if err != nil {
			return sample{}, err
		}
		m.RedisSize = float64(rss) / mib
	}
	return m, nil
}

// contestant is one row of a table: a system, and what is asked of it.
type contestant struct {
	name string
	// reset is done before each point; nil: nothing.
	reset func(ctx context.Context) error
	// run measures one window.
	run func(ctx context.Context, connections int) (sample, error)
	// check is done after each point, when all is at rest; nil: nothing. Its
	// error makes the run void.
	check func(ctx context.Context) error
}

// result is what a scenario found.
type result struct {
	Name      string   `json:"scenario"`
	Title     string   `json:"title"`
	Baselines []string `json:"baselines,omitempty"`
	Points    []point  `json:"points,omitempty"`
	Figures   []figure `json:"figures,omitempty"`
	Took      string   `json:"took"`
}

// figure is a number that has no connections.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
}

// point is a number of connections.
type point struct {
	Connections int   `json:"connections"`
	Rows        []row `json:"contestants"`
}

// row is a contestant at a point: medians over the rounds, and the median of the
// ratios that its rate has to a baseline's in each round.
type row struct {
	Name   string             `json:"name"`
	Median sample             `json:"median"`
	Ratios map[string]float64 `json:"ratios,omitempty"`
	// P99Ratios are those of the latencies' 99th percentiles.
	P99Ratios map[string]float64 `json:"p99_ratios,omitempty"`
	Rounds    []sample           `json:"rounds"`
}

// contest lets the contestants run one after the other in each round, at each of
// the points. A round begins with another of them each time, so that none always
// follows the same one. An error says which window was void.
func contest(ctx context.Context, w io.Writer, points []int, rounds int, contestants []contestant, baselines []string, prepare func(context.Context) error) ([]point, error) {
	var all []point
	for _, connections := range points {
		for _, c := range contestants {
			if c.reset != nil {
				if err := c.reset(ctx); err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
			}
		}
		if err := prepare(ctx); err != nil {
			return nil, err
		}
		samples := make([][]sample, len(contestants))
		for round := range rounds {
			for i := range contestants {
				n := (i + round) % len(contestants)
				c := contestants[n]
				m, err := c.run(ctx, connections)
				if err != nil {
					return nil, fmt.Errorf("void: %s at %d connections, round %d of %d: %w", c.name, connections, round+1, rounds, err)
				}
				fmt.Fprintf(w, "%5d connections, round %d: %-28s %8.0f/s  p50 %7.2f ms  p99 %7.2f ms\n",
					connections, round+1, c.name, m.Rate, m.P50, m.P99)
				samples[n] = append(samples[n], m)
			}
		}
		for _, c := range contestants {
			if c.check != nil {
				if err := c.check(ctx); err != nil {
					return nil, fmt.Errorf("void: %s at %d connections: %w", c.name, connections, err)
				}
			}
		}
		names := make([]string, len(contestants))
		for i, c := range contestants {
			names[i] = c.name
		}
		all = append(all, point{Connections: connections, Rows: rowsOf(names, samples, baselines)})
	}
	return all, nil
}

// rowsOf sums up the rounds of each contestant.
func rowsOf(names []string, samples [][]sample, baselines []string) []row {
	rates, p99s := make(map[string][]float64), make(map[string][]float64)
	for i, name := range names {
		rates[name] = column(samples[i], func(m sample) float64 { return m.Rate })
		p99s[name] = column(samples[i], func(m sample) float64 { return m.P99 })
	}
	var rows []row
	for i, name := range names {
		r := row{Name: name, Median: medianOf(samples[i]), Rounds: samples[i], Ratios: make(map[string]float64), P99Ratios: make(map[string]float64)}
		for _, base := range baselines {
			if _, ok := rates[base]; ok {
				r.Ratios[base] = medianRatio(rates[name], rates[base])
				r.P99Ratios[base] = medianRatio(p99s[name], p99s[base])
			}
		}
		rows = append(rows, r)
	}
	return rows
}

func column(samples []sample, of func(sample) float64) (values []float64) {
	for _, m := range samples {
		values = append(values, of(m))
	}
	return values
}

// medianOf returns the median of each member by itself.
func medianOf(samples []sample) sample {
	mid := func(of func(sample) float64) float64 { return median(column(samples, of)) }
	return sample{
		Requests:  int(mid(func(m sample) float64 { return float64(m.Requests) })),
		Seconds:   mid(func(m sample) float64 { return m.Seconds }),
		Rate:      mid(func(m sample) float64 { return m.Rate }),
		P50:       mid(func(m sample) float64 { return m.P50 }),
		P99:       mid(func(m sample) float64 { return m.P99 }),
		Longest:   mid(func(m sample) float64 { return m.Longest }),
		Service:   mid(func(m sample) float64 { return m.Service }),
		Postgres:  mid(func(m sample) float64 { return m.Postgres }),
		Redis:     mid(func(m sample) float64 { return m.Redis }),
		WAL:       mid(func(m sample) float64 { return m.WAL }),
		Memory:    mid(func(m sample) float64 { return m.Memory }),
		RedisSize: mid(func(m sample) float64 { return m.RedisSize }),
	}
}

// encode writes v as JSON for people and programs.
func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
