package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"intentd/bench/localredis"
	"intentd/bench/peers"
	"intentd/internal/idempotency"
)

// scenario is something to measure. Its contestants are started for it, and ended
// with it.
type scenario struct {
	name, title string
	// alone says that it takes long, and runs only where it is asked for by name.
	alone bool
	run   func(ctx context.Context, st *stage) (result, error)
}

var scenarios = []scenario{
	{name: "create", title: "Creates, each with a fresh key", run: createScenario},
	{name: "replay-hot", title: "Replays of one hot key", run: hotScenario},
	{name: "replay-cold", title: "Replays of cold keys", run: coldScenario},
	{name: "get", title: "GET of an intent", run: getScenario},
	{name: "replicas", title: "Creates on one replica and on three", run: replicasScenario},
	{name: "sweep", title: "The sweeper", run: sweepScenario},
	{name: "growth", title: "Creates, by how many records there are", alone: true, run: growthScenario},
}

// The service's two ways to commit, and the pairs of a claim and a store that
// stand beside them.
const (
	solo           = "solo"
	group          = "group"
	limit          = "pgbench"
	redisEverysec  = "redis everysec"
	redisAlways    = "redis always"
	threeCommits   = "three commits"
	oneTransaction = "one transaction"
)

// stage is what scenarios are played on.
type stage struct {
	options
	out      io.Writer
	postgres *postgres
	api      string // the service's program
	groups   bool   // it can gather claims
	dir      string // in memory, for logs
	load     loader
	systems  []*system // those of the scenario that runs
	count    int       // of databases
}

// ours are the service's ways to commit that this build has.
func (st *stage) ours() []string {
	if st.groups {
		return []string{solo, group}
	}
	return []string{solo}
}

// end ends the systems of a scenario and forgets their databases.
func (st *stage) end(ctx context.Context) error {
	var errs []error
	for _, s := range st.systems {
		errs = append(errs, s.stop())
	}
	st.systems = nil
	for ; st.count > 0; st.count-- {
		errs = append(errs, st.postgres.drop(ctx, databaseName(st.count)))
	}
	return errors.Join(errs...)
}

func databaseName(n int) string { return fmt.Sprintf("bench%d", n) }

func (st *stage) database(ctx context.Context) (string, error) {
	st.count++
	return st.postgres.database(ctx, databaseName(st.count))
}

// service starts replicas of the service on a database.
func (st *stage) service(ctx context.Context, way, url string, replicas int) (*system, error) {
	committers := ""
	switch {
	case way == group:
		committers = fmt.Sprint(st.committers)
	case st.groups:
		committers = "0"
	}
	s := &system{name: way, url: url}
	st.systems = append(st.systems, s)
	for range replicas {
		p, err := startProcess(ctx, way, st.dir, st.api, nil, serviceEnv(url, st.conns, committers))
		if err != nil {
			return nil, err
		}
		s.processes = append(s.processes, p)
	}
	return s, nil
}

// start starts a contestant on a database of its own.
func (st *stage) start(ctx context.Context, name string) (*system, error) {
	url, err := st.database(ctx)
	if err != nil {
		return nil, err
	}
	return st.startOn(ctx, name, url)
}

func (st *stage) startOn(ctx context.Context, name, url string) (*system, error) {
	if name == solo || name == group {
		return st.service(ctx, name, url, 1)
	}
	s := &system{name: name, url: url}
	st.systems = append(st.systems, s)
	args := []string{peerCommand, "-database", url, "-conns", fmt.Sprint(st.conns)}
	switch name {
	case redisEverysec, redisAlways:
		_, appendfsync, _ := strings.Cut(name, " ")
		var err error
		if s.redis, err = localredis.Start(ctx, appendfsync); err != nil {
			return nil, err
		}
		args = append(args, "-kind", peers.Redis, "-redis", s.redis.Socket())
	case threeCommits:
		args = append(args, "-kind", peers.ThreeCommits)
	case oneTransaction:
		args = append(args, "-kind", peers.OneTransaction)
	}
	p, err := startProcess(ctx, name, st.dir, st.load.self, args, func(addr string) []string { return []string{peerAddr + "=" + addr} })
	if err != nil {
		return nil, err
	}
	s.processes = []*process{p}
	return s, nil
}

// send measures one window of a load on a system.
func (st *stage) send(ctx context.Context, s *system, l load, connections int, window time.Duration) (sample, error) {
	l.Addrs, l.Connections, l.Warmup, l.Window, l.Token = s.addrs(), connections, st.warmup, window, bearer
	return st.observe(ctx, s, func(marked func() error) (tally, error) { return st.load.run(ctx, l, marked) })
}

// creates is a contestant that creates with fresh keys.
func (st *stage) creates(name string, s *system, window time.Duration) contestant {
	c := contestant{
		name:  name,
		reset: s.empty,
		run: func(ctx context.Context, connections int) (sample, error) {
			return st.send(ctx, s, load{Kind: createFresh, Body: []byte(requestBody)}, connections, window)
		},
	}
	if s.redis == nil {
		c.check = func(ctx context.Context) error { return audit(ctx, s.url) }
	}
	return c
}

// replays is a contestant that replays the first of the recorded keys.
func (st *stage) replays(name string, s *system, keys int) contestant {
	return contestant{name: name, run: func(ctx context.Context, connections int) (sample, error) {
		return st.send(ctx, s, load{Kind: replayKeys, Body: []byte(requestBody), Keys: keys}, connections, st.readWindow())
	}}
}

// limit is pgbench, with the statements of a create and nothing beside them.
func (st *stage) limit(ctx context.Context) (contestant, error) {
	text, err := script(st.source)
	if err != nil {
		return contestant{}, err
	}
	program, err := programOf("pgbench")
	if err != nil {
		return contestant{}, err
	}
	url, err := st.database(ctx)
	if err != nil {
		return contestant{}, err
	}
	b, s := pgbench{program: program, url: url, script: text, dir: st.dir}, &system{name: limit, url: url}
	return contestant{
		name:  limit,
		reset: s.empty,
		run: func(ctx context.Context, connections int) (sample, error) {
			return st.observe(ctx, s, func(marked func() error) (tally, error) {
				return b.run(ctx, connections, st.warmup, st.window, marked)
			})
		},
		check: func(ctx context.Context) error { return audit(ctx, url) },
	}, nil
}

// createScenario compares everybody.
func createScenario(ctx context.Context, st *stage) (r result, err error) {
	c, err := st.limit(ctx)
	if err != nil {
		return r, err
	}
	all := []contestant{c}
	for _, name := range append(st.ours(), redisEverysec, redisAlways, threeCommits, oneTransaction) {
		s, err := st.start(ctx, name)
		if err != nil {
			return r, err
		}
		all = append(all, st.creates(name, s, st.window))
	}
	r.Baselines = []string{limit, solo, redisEverysec}
	r.Points, err = contest(ctx, st.out, st.connections, st.rounds, all, r.Baselines, st.postgres.checkpoint)
	return r, err
}

// hotScenario compares replays of one key, and the service's own creates beside
// them.
func hotScenario(ctx context.Context, st *stage) (r result, err error) {
	var all []contestant
	for _, name := range append(st.ours(), redisEverysec, threeCommits, oneTransaction) {
		s, err := st.start(ctx, name)
		if err != nil {
			return r, err
		}
		if err := s.createOnce(ctx); err != nil {
			return r, err
		}
		all = append(all, st.replays(name, s, 1))
	}
	r.Baselines = []string{solo, redisEverysec}
	creates, err := st.besides(ctx)
	if err != nil {
		return r, err
	}
	for _, c := range creates {
		all, r.Baselines = append(all, c), append(r.Baselines, c.name)
	}
	r.Points, err = contest(ctx, st.out, st.connections, st.readRounds(), all, r.Baselines, st.postgres.checkpoint)
	return r, err
}

// besides are creates on databases of their own, for what reads are compared
// with.
func (st *stage) besides(ctx context.Context) (all []contestant, err error) {
	for _, name := range st.ours() {
		s, err := st.start(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, st.creates(name+" create", s, st.readWindow()))
	}
	return all, nil
}

// coldScenario compares replays of as many keys as were asked for.
func coldScenario(ctx context.Context, st *stage) (r result, err error) {
	url, err := st.database(ctx)
	if err != nil {
		return r, err
	}
	if err := fillRecords(ctx, url, fillRecordsSQL, st.keys, time.Hour); err != nil {
		return r, err
	}
	var all []contestant
	for _, name := range append(st.ours(), redisEverysec, threeCommits) {
		on := url
		if name == threeCommits || name == redisEverysec {
			if on, err = st.database(ctx); err != nil {
				return r, err
			}
		}
		s, err := st.startOn(ctx, name, on)
		if err != nil {
			return r, err
		}
		switch name {
		case threeCommits:
			err = fillRecords(ctx, on, fillPeerRecordsSQL, st.keys, time.Hour)
		case redisEverysec:
			var header http.Header
			if err = json.Unmarshal([]byte(answerHeader), &header); err == nil {
				resp := idempotency.Response{Status: http.StatusCreated, Header: header, Body: []byte(answerBody)}
				err = peers.FillRedis(ctx, s.redis.Socket(), merchant, st.keys, recordedKey, fingerprint, resp, ttl)
			}
		}
		if err != nil {
			return r, fmt.Errorf("fill %s: %w", name, err)
		}
		all = append(all, st.replays(name, s, st.keys))
	}
	r.Baselines = []string{solo, redisEverysec}
	r.Points, err = contest(ctx, st.out, st.connections, st.readRounds(), all, r.Baselines, st.postgres.checkpoint)
	return r, err
}

// getScenario compares GET with creates.
func getScenario(ctx context.Context, st *stage) (r result, err error) {
	const intents = 10_000
	url, err := st.database(ctx)
	if err != nil {
		return r, err
	}
	if err := fillIntents(ctx, url, intents, "settled"); err != nil {
		return r, err
	}
	var ids []string
	err = with(ctx, url, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select 'pi_' || replace(id::text, '-', '') from payment_intents")
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		return r, err
	}
	var all []contestant
	for _, name := range st.ours() {
		s, err := st.startOn(ctx, name, url)
		if err != nil {
			return r, err
		}
		all = append(all, contestant{name: name + " get", run: func(ctx context.Context, connections int) (sample, error) {
			return st.send(ctx, s, load{Kind: getIntents, IDs: ids}, connections, st.readWindow())
		}})
	}
	creates, err := st.besides(ctx)
	if err != nil {
		return r, err
	}
	for _, c := range creates {
		all, r.Baselines = append(all, c), append(r.Baselines, c.name)
	}
	r.Points, err = contest(ctx, st.out, st.connections, st.readRounds(), all, r.Baselines, st.postgres.checkpoint)
	return r, err
}

// replicasScenario compares one replica with three over one database.
func replicasScenario(ctx context.Context, st *stage) (r result, err error) {
	var all []contestant
	for _, way := range st.ours() {
		for _, replicas := range []int{1, 3} {
			url, err := st.database(ctx)
			if err != nil {
				return r, err
			}
			s, err := st.service(ctx, way, url, replicas)
			if err != nil {
				return r, err
			}
			all = append(all, st.creates(fmt.Sprintf("%s, replicas: %d", way, replicas), s, st.window))
		}
		r.Baselines = append(r.Baselines, way+", replicas: 1")
	}
	r.Points, err = contest(ctx, st.out, st.some(), st.rounds, all, r.Baselines, st.postgres.checkpoint)
	return r, err
}

// growthScenario compares creates into tables of several sizes. What one way is to
// find is filled in, and copied for the others before any service is there.
func growthScenario(ctx context.Context, st *stage) (r result, err error) {
	urls := make(map[string][]string)
	for _, records := range st.records {
		began := time.Now()
		url, err := st.database(ctx)
		if err != nil {
			return r, err
		}
		if err := fillRecords(ctx, url, fillRecordsSQL, records, time.Hour); err != nil {
			return r, err
		}
		if err := fillIntents(ctx, url, records, "settled"); err != nil {
			return r, err
		}
		filled := databaseName(st.count)
		for n, way := range st.ours() {
			if n > 0 {
				st.count++
				if url, err = st.postgres.copy(ctx, databaseName(st.count), filled); err != nil {
					return r, err
				}
			}
			urls[way] = append(urls[way], url)
		}
		fmt.Fprintf(st.out, "%d records and intents were made in %v\n", records, time.Since(began).Round(time.Second))
	}
	var all []contestant
	for _, way := range st.ours() {
		for n, records := range st.records {
			s, err := st.service(ctx, way, urls[way][n], 1)
			if err != nil {
				return r, err
			}
			c := st.creates(fmt.Sprintf("%s, records: %d", way, records), s, st.window)
			if records > 0 {
				c.reset = nil
			}
			all = append(all, c)
		}
		r.Baselines = append(r.Baselines, fmt.Sprintf("%s, records: %d", way, st.records[0]))
	}
	r.Points, err = contest(ctx, st.out, st.some(), st.rounds, all, r.Baselines, st.postgres.checkpoint)
	return r, err
}

// some are the points of scenarios that compare something else than connections.
func (st *stage) some() []int {
	const usual = 64
	if slices.Contains(st.connections, usual) {
		return []int{usual}
	}
	return []int{slices.Max(st.connections)}
}

// sweepScenario measures how fast one replica deletes expired records and cancels
// due intents, both at the same time.
func sweepScenario(ctx context.Context, st *stage) (r result, err error) {
	rates := make(map[string][]float64)
	var memory, cpu []float64
	for range st.readRounds() {
		url, err := st.database(ctx)
		if err != nil {
			return r, err
		}
		if err := fillRecords(ctx, url, fillRecordsSQL, st.sweep, 48*time.Hour); err != nil {
			return r, err
		}
		if err := fillIntents(ctx, url, st.sweep, "created"); err != nil {
			return r, err
		}
		if err := st.postgres.checkpoint(ctx); err != nil {
			return r, err
		}
		before, err := st.usage(ctx, &system{})
		if err != nil {
			return r, err
		}
		// Its sweeper begins when the schema is current, and so does it listen.
		began := time.Now()
		s, err := st.service(ctx, solo, url, 1)
		if err != nil {
			return r, err
		}
		swept, err := awaitSwept(ctx, url, began)
		if err != nil {
			return r, err
		}
		for name, took := range swept {
			rates[name] = append(rates[name], float64(st.sweep)/took.Seconds())
		}
		after, err := st.usage(ctx, s)
		if err != nil {
			return r, err
		}
		rss, err := residentBytes(s.processes[0].cmd.Process.Pid)
		if err != nil {
			return r, err
		}
		memory = append(memory, float64(rss)/(1<<20))
		cpu = append(cpu, 1e6*(after.service+after.postgres-before.postgres)/float64(2*st.sweep))
		if err := s.stop(); err != nil {
			return r, err
		}
		st.systems = slices.DeleteFunc(st.systems, func(other *system) bool { return other == s })
	}
	for _, name := range slices.Sorted(maps.Keys(rates)) {
		r.Figures = append(r.Figures, figure{Name: name + ", the other at the same time", Value: median(rates[name]), Unit: "rows/s"})
	}
	r.Figures = append(r.Figures,
		figure{Name: "CPU of service and PostgreSQL", Value: median(cpu), Unit: "µs/row"},
		figure{Name: "memory of the service in the end", Value: median(memory), Unit: "MiB"})
	return r, nil
}

// dueSQL says whether there is anything left for each of the sweeper's jobs.
var dueSQL = map[string]string{
	"expired records deleted": dueRecordsSQL,
	"due intents canceled":    dueIntentsSQL,
}

// awaitSwept waits until nothing is due, and returns how long each job took from
// began on, a few milliseconds more or less.
func awaitSwept(ctx context.Context, url string, began time.Time) (map[string]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	took := make(map[string]time.Duration)
	err := with(ctx, url, func(conn *pgx.Conn) error {
		for len(took) < len(dueSQL) {
			for name, sql := range dueSQL {
				var due bool
				if _, done := took[name]; done {
					continue
				}
				if err := conn.QueryRow(ctx, sql).Scan(&due); err != nil {
					return err
				}
				if !due {
					took[name] = time.Since(began)
				}
			}
			select {
			case <-ctx.Done():
				return errors.New("the sweeper does not come to an end")
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil
	})
	return took, err
}
