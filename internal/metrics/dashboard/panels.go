package dashboard

// What the annotations ask: which alerts fire, and which replicas have started.
const (
	Firing = `ALERTS{alertname=~"Intentd.*", alertstate="firing"}`
	Starts = `changes(process_start_time_seconds{job="intentd"}[1m]) > 0`
)

const (
	half, third, quarter, sixth = 12, 8, 6, 4
	small, tall                 = 4, 8
)

// Rows are the dashboard, in the order in which one asks. Thresholds are those of
// the alerts in deploy/prometheus/alerts.yml.
var Rows = []Row{
	{"Is it up, and right?", []Panel{
		{
			Title: "Replicas", Description: "Those that Prometheus knows, whether they answer or not. None: IntentdAbsent.",
			kind: stat, unit: "none", width: sixth, height: small, low: "red", steps: []step{{1, "green"}}, nothing: "none",
			Queries: []Query{q(`count(up{@})`, "known")},
		},
		{
			Title: "Not ready", Description: "Replicas that do not answer Prometheus, or answer /readyz with 503: IntentdDown, IntentdUnready. Clients try again with the same key.",
			kind: stat, unit: "none", width: sixth, height: small, steps: []step{{1, "red"}},
			Queries: []Query{
				q(`count(up{@} == 0) or vector(0)`, "silent"),
				q(`count(intentd_ready{@} == 0) or vector(0)`, "unready"),
			},
		},
		{
			Title: "Alerts", Description: "Those that fire, for whichever replica.",
			kind: stat, unit: "none", width: sixth, height: small, steps: []step{{1, "red"}},
			Queries: []Query{q(`count(`+Firing+`) or vector(0)`, "firing")},
		},
		{
			Title: "Answered 5xx", Description: "Of all requests but the health checks, over five minutes. From 2 % on: IntentdServerErrors. Nothing that was answered so is on record.",
			kind: stat, unit: "percentunit", width: sixth, height: small, steps: []step{{0.005, "yellow"}, {0.02, "red"}}, nothing: "no traffic",
			Queries: []Query{q(`(sum(rate(intentd_http_requests_total{@, code=~"5..", route=~"/v1/.*"}[5m])) or vector(0))
  / (sum(rate(intentd_http_requests_total{@, route=~"/v1/.*"}[5m])) > 0)`, "5xx")},
		},
		{
			Title: "Creates", Description: "Intents made, each second. Replays make none.",
			kind: stat, unit: "cps", width: sixth, height: small,
			Queries: []Query{q(`sum(rate(intentd_intents_moved_total{@, state="created"}[5m]))`, "created")},
		},
		{
			Title: "Create, p99", Description: "POST /v1/payment_intents, replays and refusals included, over five minutes.",
			kind: stat, unit: "s", width: sixth, height: small, steps: []step{{0.25, "yellow"}, {1, "red"}}, nothing: "no traffic",
			Queries: []Query{q(`histogram_quantile(0.99, sum by (le) (rate(intentd_http_request_duration_seconds_bucket{@, route="/v1/payment_intents", method="POST"}[5m])))`, "p99")},
		},
		{
			Title: "Ready", Description: "Each replica's /readyz; no as well while Prometheus does not reach it.",
			kind: timeline, unit: "none", width: half, height: tall, low: "red", steps: []step{{1, "green"}}, names: []string{"not ready", "ready"},
			Queries: []Query{q(`intentd_ready{@} or up{@} == 0`, "{{instance}}")},
		},
		{
			Title: "Alerts over time", Description: "Yellow: what an alert waits for has begun. Red: it fires. docs/operations.md has a section for each name.",
			kind: timeline, unit: "none", width: half, height: tall, low: "transparent", steps: []step{{1, "yellow"}, {2, "red"}},
			names: []string{"", "pending", "firing"}, nothing: "none",
			Queries: []Query{q(`max by (alertname, instance, task) (ALERTS{alertname=~"Intentd.*", alertstate="firing"} * 2)
  or max by (alertname, instance, task) (ALERTS{alertname=~"Intentd.*", alertstate="pending"})`, "{{alertname}} {{instance}} {{task}}")},
		},
	}},
	{"Traffic", []Panel{
		{
			Title: "Requests by route", Description: "Without the health checks. unmatched: no such path.",
			kind: lines, unit: "reqps", width: half, height: tall,
			Queries: []Query{q(`sum by (method, route) (rate(intentd_http_requests_total{@, route!~"/healthz|/readyz"}[$__rate_interval]))`, "{{method}} {{route}}")},
		},
		{
			Title: "Requests by status", Description: "Without the health checks. 409 and 503 come with Retry-After and are sent again; 5xx are the service's own, the other 4xx the clients'.",
			kind: lines, unit: "reqps", width: half, height: tall,
			Queries: []Query{q(`sum by (code) (rate(intentd_http_requests_total{@, route!~"/healthz|/readyz"}[$__rate_interval]))`, "{{code}}")},
		},
		{
			Title: "Latency by route, p50", Description: "Half of the requests were answered within this time.",
			kind: lines, unit: "s", width: half, height: tall,
			Queries: []Query{q(`histogram_quantile(0.5, sum by (le, method, route) (rate(intentd_http_request_duration_seconds_bucket{@, route!~"/healthz|/readyz"}[$__rate_interval])))`, "{{method}} {{route}}")},
		},
		{
			Title: "Latency by route, p99", Description: "All but one in a hundred. It is read from buckets: the true value lies between two of 1, 2.5, 5, 10 ms and so on.",
			kind: lines, unit: "s", width: half, height: tall,
			Queries: []Query{q(`histogram_quantile(0.99, sum by (le, method, route) (rate(intentd_http_request_duration_seconds_bucket{@, route!~"/healthz|/readyz"}[$__rate_interval])))`, "{{method}} {{route}}")},
		},
		{
			Title: "Answered 5xx", Description: "As above, over time, with IntentdServerErrors' line. Database away: 503 everywhere. A panic: 500, and its stack in the log.",
			kind: lines, unit: "percentunit", width: half, height: tall, steps: []step{{0.02, "red"}}, nothing: "no traffic",
			Queries: []Query{q(`(sum(rate(intentd_http_requests_total{@, code=~"5..", route=~"/v1/.*"}[$__rate_interval])) or vector(0))
  / (sum(rate(intentd_http_requests_total{@, route=~"/v1/.*"}[$__rate_interval])) > 0)`, "5xx")},
		},
		{
			Title: "Rate limited", Description: "Requests answered 429 because their holder sent more than RATE_LIMIT; none without it.",
			kind: lines, unit: "reqps", width: half, height: tall,
			Queries: []Query{q(`sum by (instance) (rate(intentd_rate_limited_requests_total{@}[$__rate_interval]))`, "{{instance}}")},
		},
		{
			Title: "Look-ups of API keys, by result", Description: "cached: known for less than 4 s; asked: the database said whose it is; refused: it is nobody's, or revoked; failed: it could not say. Keys of API_DEMO_KEYS are not looked up.",
			kind: lines, unit: "cps", width: half, height: tall,
			Queries: []Query{q(`sum by (result) (rate(intentd_api_key_lookups_total{@}[$__rate_interval]))`, "{{result}}")},
		},
	}},
	{"Idempotency", []Panel{
		{
			Title: "Claims by outcome", Description: "fresh ran; replay was answered from the record; in_flight (409) came while the first ran; mismatch (422) was another request under the key; error (503): the store could not tell.",
			kind: lines, unit: "cps", width: half, height: tall,
			Queries: []Query{q(`sum by (outcome) (rate(intentd_idempotency_claims_total{@}[$__rate_interval]))`, "{{outcome}}")},
		},
		{
			Title: "Replays of all claims", Description: "Over ten minutes; above 30 % and one a second: IntentdReplaySurge. Clients do not hear what they are answered.",
			kind: lines, unit: "percentunit", width: half, height: tall, most: 1, steps: []step{{0.3, "yellow"}}, nothing: "no traffic",
			Queries: []Query{q(`sum(rate(intentd_idempotency_claims_total{@, outcome="replay"}[10m]))
  / (sum(rate(intentd_idempotency_claims_total{@}[10m])) > 0)`, "replays")},
		},
		{
			Title: "Attempts undone, by reason", Description: "What they wrote is gone and the key is free; one in_doubt may have been kept. panic is a bug; withheld, store and in_doubt: the database; superseded and taken: see takeovers.",
			kind: lines, unit: "cps", width: half, height: tall,
			Queries: []Query{q(`sum by (reason) (rate(intentd_idempotency_undone_attempts_total{@}[$__rate_interval]))`, "{{reason}}")},
		},
		{
			Title: "Takeovers in 15 minutes", Description: "Attempts that outlived their lease and lost their key to another. Above 3: IntentdTakeovers. Something hangs for as long as IDEMPOTENCY_LEASE.",
			kind: lines, unit: "short", width: half, height: tall, steps: []step{{3, "yellow"}},
			Queries: []Query{q(`sum(increase(intentd_idempotency_undone_attempts_total{@, reason=~"superseded|taken"}[15m]))`, "taken over")},
		},
		{
			Title: "Commit groups by size", Description: "Groups each second, by how many attempts they committed together: the darker, the more. Empty with IDEMPOTENCY_COMMITTERS=0 and where the records are not in PostgreSQL.",
			kind: heatmap, unit: "cps", width: half, height: tall,
			Queries: []Query{q(`sum by (le) (rate(intentd_idempotency_commit_group_attempts_bucket{@}[$__rate_interval]))`, "{{le}}")},
		},
		{
			Title: "Attempts, together and alone", Description: "Alone runs who meets no crowd, and whose handler asks before it writes. Left behind: a handler was slower than its group; many are a database that is slow to answer, or a table that is locked.",
			kind: lines, unit: "cps", width: quarter, height: tall,
			Queries: []Query{
				q(`sum(rate(intentd_idempotency_commit_group_attempts_sum{@}[$__rate_interval]))`, "in groups"),
				q(`sum(rate(intentd_idempotency_lone_attempts_total{@}[$__rate_interval]))`, "alone"),
				q(`sum(rate(intentd_idempotency_left_behind_attempts_total{@}[$__rate_interval]))`, "left behind"),
			},
		},
		{
			Title: "Attempts for each group", Description: "The mean. It grows with what comes at the same time, up to 128.",
			kind: lines, unit: "short", width: quarter, height: tall, nothing: "no groups",
			Queries: []Query{q(`sum(rate(intentd_idempotency_commit_group_attempts_sum{@}[$__rate_interval]))
  / (sum(rate(intentd_idempotency_commit_group_attempts_count{@}[$__rate_interval])) > 0)`, "attempts")},
		},
	}},
	{"Connections to the database", []Panel{
		{
			Title: "Pool in use", Description: "Of DB_MAX_CONNS. At 75 % all the time (running requests may take four in five): IntentdPoolExhausted.",
			kind: lines, unit: "percentunit", width: third, height: tall, most: 1, steps: []step{{0.75, "red"}},
			Queries: []Query{q(`intentd_db_pool_acquired_connections{@} / intentd_db_pool_max_connections{@}`, "{{instance}}")},
		},
		{
			Title: "Waiting for a connection", Description: "How many requests wait, on average. One at any time: IntentdPoolExhausted. After two seconds they are answered 503.",
			kind: lines, unit: "short", width: third, height: tall, steps: []step{{1, "red"}},
			Queries: []Query{q(`rate(intentd_db_pool_acquire_wait_seconds_total{@}[$__rate_interval])`, "{{instance}}")},
		},
		{
			Title: "Connections", Description: "Of all replicas together, beside the server's max_connections.",
			kind: lines, unit: "short", width: third, height: tall,
			Queries: []Query{
				q(`sum(intentd_db_pool_acquired_connections{@})`, "in use"),
				q(`sum(intentd_db_pool_idle_connections{@})`, "idle"),
				q(`sum(intentd_db_pool_constructing_connections{@})`, "being made"),
				q(`sum(intentd_db_pool_max_connections{@})`, "most"),
			},
		},
		{
			Title: "Acquires", Description: "Connections taken, and of those how many had to wait. Given up: their request was answered 503.",
			kind: lines, unit: "ops", width: half, height: tall,
			Queries: []Query{
				q(`sum(rate(intentd_db_pool_acquires_total{@}[$__rate_interval]))`, "taken"),
				q(`sum(rate(intentd_db_pool_waited_acquires_total{@}[$__rate_interval]))`, "after waiting"),
				q(`sum(rate(intentd_db_pool_canceled_acquires_total{@}[$__rate_interval]))`, "given up"),
			},
		},
		{
			Title: "New connections", Description: "A steady stream is a server, a pooler or a network that cuts them.",
			kind: lines, unit: "ops", width: half, height: tall,
			Queries: []Query{q(`sum by (instance) (rate(intentd_db_pool_new_connections_total{@}[$__rate_interval]))`, "{{instance}}")},
		},
	}},
	{"Intents and sweeper", []Panel{
		{
			Title: "Intents moved", Description: "By the state that they came to and who moved them. A relayer that has stopped shows as authorized without settling, a listener as confirming without settled; needs_review waits for an operator.",
			kind: lines, unit: "cps", width: half, height: tall,
			Queries: []Query{q(`sum by (state, actor) (rate(intentd_intents_moved_total{@}[$__rate_interval]))`, "{{state}} by {{actor}}")},
		},
		{
			Title: "Sweeper lag", Description: "For how long the oldest intent or record that is due has been so. Above a minute for five: IntentdSweeperLag. No client is answered wrongly by it.",
			kind: lines, unit: "s", width: half, height: tall, steps: []step{{60, "yellow"}},
			Queries: []Query{q(`max by (task) (intentd_sweeper_lag_seconds{@})`, "{{task}}")},
		},
		{
			Title: "Rows swept", Description: "Intents canceled because they expired, and records deleted.",
			kind: lines, unit: "cps", width: third, height: tall,
			Queries: []Query{q(`sum by (task) (rate(intentd_sweeper_rows_total{@}[$__rate_interval]))`, "{{task}}")},
		},
		{
			Title: "Sweeper's failures", Description: "Rounds that failed and are tried again: the log says why. lag: how often the lag could not be asked for.",
			kind: lines, unit: "short", width: third, height: tall, steps: []step{{1, "yellow"}},
			Queries: []Query{
				q(`sum by (task) (increase(intentd_sweeper_rounds_total{@, result="failed"}[$__rate_interval]))`, "{{task}}"),
				q(`sum(increase(intentd_sweeper_lag_failures_total{@}[$__rate_interval]))`, "lag"),
			},
		},
		{
			Title: "Rounds, p99", Description: "How long a round takes, all its batches together. Where it comes near SWEEP_INTERVAL the sweeper has work all the time.",
			kind: lines, unit: "s", width: third, height: tall,
			Queries: []Query{q(`histogram_quantile(0.99, sum by (le, task) (rate(intentd_sweeper_round_duration_seconds_bucket{@}[$__rate_interval])))`, "{{task}}")},
		},
	}},
	{"Processes", []Panel{
		{
			Title: "Processor", Description: "Cores in use. docs/operations.md, Sizing, says what a core can do.",
			kind: lines, unit: "short", width: third, height: tall,
			Queries: []Query{q(`rate(process_cpu_seconds_total{@}[$__rate_interval])`, "{{instance}}")},
		},
		{
			Title: "Memory", Description: "Resident. It follows the requests that run at once; what only grows is a leak: /debug/pprof/heap on the admin listener.",
			kind: lines, unit: "bytes", width: third, height: tall,
			Queries: []Query{q(`process_resident_memory_bytes{@}`, "{{instance}}")},
		},
		{
			Title: "Goroutines", Description: "They follow the connections that are open. What only grows hangs somewhere: /debug/pprof/goroutine?debug=1.",
			kind: lines, unit: "short", width: third, height: tall,
			Queries: []Query{q(`go_goroutines{@}`, "{{instance}}")},
		},
		{
			Title: "Builds", Description: "What runs. Two versions beside each other are an upgrade that is under way, or one that stopped halfway.",
			kind: table, unit: "none", width: third, height: tall,
			Queries: []Query{q(`count by (version, goversion) (intentd_build_info{@})`, "{{version}} {{goversion}}")},
		},
		{
			Title: "Up since", Description: "The age of each process. One that starts over and over: its log, or the machine's for want of memory.",
			kind: lines, unit: "s", width: third, height: tall,
			Queries: []Query{q(`time() - process_start_time_seconds{@}`, "{{instance}}")},
		},
		{
			Title: "File descriptors", Description: "Of those that the process may have. Each connection is one.",
			kind: lines, unit: "percentunit", width: third, height: tall, most: 1, steps: []step{{0.8, "red"}},
			Queries: []Query{q(`process_open_fds{@} / process_max_fds{@}`, "{{instance}}")},
		},
	}},
}
