#!/usr/bin/env bash
# What docs/operations.md says of PostgreSQL, done: roles, backup and restore,
# recovery to a point in time, failover, PgBouncer, keys and retention, on servers
# of its own that only their sockets' directory leads to. It takes about half a
# minute, needs PostgreSQL's programs, curl and .bin/api, and leaves nothing behind.
# Run it as `make operations-test`. Without PgBouncer it says that it left that out.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=${PG_BINDIR:-}
[ -n "$bin" ] || for bin in /usr/lib/postgresql/*/bin; do :; done
[ -x "$bin/initdb" ] || bin=$(dirname "$(command -v initdb)")
work=$(mktemp -d /tmp/intentd-operations.XXXXXX)
chmod 755 "$work"
# PostgreSQL does not run as root.
as=()
if [ "$(id -u)" = 0 ]; then
	as=(setpriv --reuid=postgres --regid=postgres --init-groups --)
	chown postgres "$work"
fi
passed=0
step=start
began=$SECONDS
apis=()    # processes of the service
pooler=    # and of PgBouncer
servers=() # data directories

cleanup() {
	local code=$? dir
	trap - EXIT
	if [ "$code" -ne 0 ]; then
		echo "FAILED in: $step" >&2
		tail -n 20 "$work"/*.log >&2 || true
	fi
	for pid in "${apis[@]}" $pooler; do kill "$pid" 2>/dev/null || true; done
	for dir in "${servers[@]}"; do pg pg_ctl --pgdata "$dir" --mode immediate stop >/dev/null 2>&1 || true; done
	wait
	rm -rf "$work"
	exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

step() {
	step=$1
	printf '\n== %s (%d s)\n' "$1" $((SECONDS - began))
}
ok() {
	passed=$((passed + 1))
	echo "ok: $1"
}
fail() {
	echo "not so: $1" >&2
	exit 1
}
eventually() { # SECONDS COMMAND...
	local deadline=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$SECONDS" -lt "$deadline" ] || fail "in time: $*"
		sleep 0.1
	done
}

pg() { (cd / && "${as[@]}" "$bin/$1" "${@:2}"); }
start() { # DIRECTORY [SETTING...]
	local dir=$1 options=''
	shift
	pg mkdir "$dir.run" 2>/dev/null || "${as[@]}" mkdir -p "$dir.run"
	for setting in "$@"; do options+=" -c $setting"; done
	servers+=("$dir")
	pg pg_ctl --pgdata "$dir" --log "$dir.log" --wait --options "-c listen_addresses='' -c unix_socket_directories=$dir.run$options" start >/dev/null
}
sql() { # DIRECTORY DATABASE ROLE STATEMENT
	pg psql -X -h "$1.run" -d "$2" -U "$3" -v ON_ERROR_STOP=1 -Atqc "$4"
}
url() { echo "postgres:///$2?host=$1.run&user=$3"; } # DIRECTORY DATABASE ROLE

# serve NAME URL [VARIABLE=VALUE...] starts the service; its address goes to $NAME.
serve() {
	local name=$1 log=$work/api-$1.log
	env "${@:3}" DATABASE_URL="$2" API_ADDR=127.0.0.1:0 ADMIN_ADDR=off API_DEMO_KEYS=merchant-demo .bin/api 2>"$log" &
	apis+=($!)
	eventually 20 grep -qE 'msg"?[=:]"?listening' "$log"
	printf -v "$name" 'http://%s' "$(sed -nE 's/.*msg"?[=:]"?listening.*addr"?[=:]"?([^ ",]+).*/\1/p' "$log")"
	eventually 20 curl --fail --silent "${!name}/readyz"
}
# create ANSWER ADDRESS KEY [TOKEN]: the answer's status, headers and body as files.
create() {
	curl --silent --max-time 20 --dump-header "$work/$1.headers" --output "$work/$1.body" --write-out '%{http_code}' \
		--header "Authorization: Bearer ${4:-merchant-demo}" --header "Idempotency-Key: $3" --data '{
			"chain": "evm:31337", "token": "0x5fbdb2315678afecb367f032d93f642f64180aa3",
			"payer": "0x70997970c51812dc3a010c7d01b50e0d17dc79c8", "merchant": "0x3c44cdddb6a900fa2b585dd299e03d12fa4293bc",
			"amount": "1000", "metadata": {"b": "2", "a": "1"}}' "$2/v1/payment_intents" >"$work/$1.status"
}
fresh() {
	[ "$(cat "$work/$1.status")" = 201 ] || fail "$1 is a 201: $(cat "$work/$1.status" "$work/$1.body")"
	! grep -qi '^Idempotent-Replayed' "$work/$1.headers" || fail "$1 is fresh"
}
replays() { # ANSWER ORIGINAL
	[ "$(cat "$work/$1.status")" = 201 ] || fail "$1 is a 201: $(cat "$work/$1.status" "$work/$1.body")"
	grep -qi '^Idempotent-Replayed: true' "$work/$1.headers" || fail "$1 is a replay"
	cmp "$work/$1.body" "$work/$2.body" || fail "$1 has the bytes of $2"
}

step 'roles'
main=$work/main
pg initdb --pgdata "$main" --username postgres --auth trust --encoding UTF8 --locale C.UTF-8 --data-checksums --no-sync >/dev/null
"${as[@]}" mkdir "$work/archive"
start "$main" wal_level=replica archive_mode=on "archive_command='test ! -f $work/archive/%f && cp %p $work/archive/%f'"
sql "$main" postgres postgres "
	create role intentd_owner login;
	create role intentd_service login"
sql "$main" postgres postgres 'create role intentd_oncall login in role pg_monitor, pg_signal_backend'
sql "$main" postgres postgres "create database intentd owner intentd_owner encoding 'UTF8' template template0"
sql "$main" postgres postgres "
	revoke all on database intentd from public;
	grant connect on database intentd to intentd_service"
sql "$main" postgres postgres 'grant connect on database intentd to intentd_oncall'
DATABASE_URL=$(url "$main" intentd intentd_owner) .bin/api migrate up
pg psql -X -h "$main.run" -d intentd -U intentd_owner -v ON_ERROR_STOP=1 -q <deploy/grants.sql
serve first "$(url "$main" intentd intentd_service)"
create order-1 "$first" order-1
fresh order-1
[ "$(sql "$main" intentd postgres "select count(*) from pg_class where relowner = 'intentd_service'::regrole")" = 0 ] || fail 'the service owns nothing'
ok 'the owner migrates, the service serves and owns nothing'

step 'keys'
keys() { DATABASE_URL=$(url "$main" intentd intentd_owner) .bin/api keys "$@" -json; }
member() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p"; }
keys create -merchant shop-1 -name old >"$work/old" 2>/dev/null
create shop "$first" order-1 "$(member token <"$work/old")"
fresh shop
keys create -merchant shop-1 -name new >"$work/new" 2>/dev/null
create shop-again "$first" order-1 "$(member token <"$work/new")"
replays shop-again shop
keys revoke "$(member id <"$work/old")" >/dev/null
refused() {
	create refused "$first" order-1 "$(member token <"$work/old")"
	[ "$(cat "$work/refused.status")" = 401 ]
}
eventually 6 refused
create shop-new "$first" order-1 "$(member token <"$work/new")"
replays shop-new shop
! DATABASE_URL=$(url "$main" intentd intentd_service) .bin/api keys create -merchant shop-2 >/dev/null 2>&1 || fail 'the service lets nobody in'
ok 'the second key replays what the first has made, the first is refused, and the service can make none'

step 'retention'
serve short "$(url "$main" intentd intentd_service)" IDEMPOTENCY_TTL=1h
create short-1 "$short" short-1
sql "$main" intentd postgres "select key, expires_at - created_at from idempotency_keys where scope = 'merchant-demo' order by key" | tee "$work/ttl"
[ "$(cat "$work/ttl")" = $'order-1|1 day\nshort-1|01:00:00' ] || fail 'a record keeps the lifetime that it was made with'
ok 'another IDEMPOTENCY_TTL holds for new records only'

step 'what is asked at night'
# The runbook's own statements, asked by who is on call, while somebody reads a
# table that somebody else wants to lock, and a create waits for both.
asked() { sed -n "/^### $1\$/,/^### /{/^\`\`\`sql/,/^\`\`\`\$/{/^\`\`\`/!p}}" docs/operations.md; }
blockers=$(asked 'Who holds a lock')
busy=$(asked IntentdPoolExhausted)
sessions=$(sed -nE 's/^\$ psql -d intentd -c "(.*pg_stat_activity.*)"$/\1/p' docs/operations.md)
[ -n "$blockers" ] && [ -n "$busy" ] && [ -n "$sessions" ] || fail 'the runbook has them'
oncall() { sql "$main" intentd intentd_oncall "$1"; }
meddle() { pg psql -X -h "$main.run" -d intentd -U intentd_owner -c "begin; $1; commit" >/dev/null 2>&1; }
row() { oncall "$blockers" | sed -n "$1p"; }
meddle 'select count(*) from payment_intents; select
	pg_sleep(60)' &
reader=$!
reads() { oncall "$sessions" >/dev/null && [ "$(sql "$main" intentd postgres "select count(*) from pg_locks where relation = 'payment_intents'::regclass and mode = 'AccessShareLock' and granted")" -ge 1 ]; }
eventually 10 reads
meddle 'lock table payment_intents in access exclusive mode' &
locker=$!
queued() { [ "$(sql "$main" intentd postgres "select count(*) from pg_locks where relation = 'payment_intents'::regclass and mode = 'AccessExclusiveLock' and not granted")" = 1 ]; }
eventually 10 queued
create stuck "$first" order-stuck &
asking=$!
waits() { oncall "$sessions" | grep -q 'Lock.*insert into payment_intents (' && oncall "$busy" | grep -q '^Lock|relation|active|'; }
eventually 10 waits
row '1,9' | tee "$work/blockers"
[ "$(wc -l <"$work/blockers")" = 2 ] || fail 'it lists who is waited for, one a line, and nobody else'
row 1 | grep -q '^[0-9]*|intentd_owner|psql|active|.*|{}|begin; select count(\*) from payment_intents; select pg_sleep$' || fail 'the first is who waits for nobody'
row 2 | grep -q "|{$(row 1 | cut -d'|' -f1)}|begin; lock table" || fail 'the second waits for the first'
[ "$(oncall "select pg_terminate_backend($(row 1 | cut -d'|' -f1))")" = t ] || fail 'who is on call may end it'
wait "$asking"
fresh stuck
! wait "$reader" || fail 'it is the reader who was ended'
wait "$locker" || fail 'who only stood in the way goes on'
[ -z "$(oncall "$blockers")" ] || fail 'nobody is waited for any more'
ok 'they name who stands in the way, and without him the others go on'

# The commands that look into the log, in either of its forms.
serve hasty "$(url "$main" intentd intentd_service)" IDEMPOTENCY_LEASE=500ms LOG_FORMAT=json
looks() { sed -n "/^### $1\$/,/^### /s/^\\$ \\(grep .*\\)/\\1/p" docs/operations.md | sed "s|' log|' $2|"; }
meddle 'lock table payment_intents in access exclusive mode; select pg_sleep(60)' &
locker=$!
holds() { [ "$(sql "$main" intentd postgres "select count(*) from pg_locks where relation = 'payment_intents'::regclass and mode = 'AccessExclusiveLock' and granted")" = 1 ]; }
eventually 10 holds
create taken "$hasty" order-taken
[ "$(cat "$work/taken.status")" = 409 ] || fail "beyond its lease it is a 409: $(cat "$work/taken.status" "$work/taken.body")"
oncall "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'intentd_owner'" >/dev/null
wait "$locker" || true
create hasty-again "$hasty" order-1
replays hasty-again order-1
[ "$(bash -c "$(looks IntentdTakeovers "$work/api-hasty.log")" | grep -c '"status":409')" = 1 ] || fail "the log tells which request lost its key: $(looks IntentdTakeovers "$work/api-hasty.log")"
[ "$(bash -c "$(looks IntentdReplaySurge "$work/api-hasty.log")")" = '      1 merchant":"merchant-demo' ] || fail 'one replay is told of in JSON'
bash -c "$(looks IntentdReplaySurge "$work/api-first.log")" | grep -qx ' *[0-9]* merchant=shop-1' || fail 'the replays of a merchant are told of in text'
ok 'the log tells who lost a key, and whose the replays are'

step 'dump and restore'
pg pg_dump -h "$main.run" -U postgres --format custom --file "$work/intentd.dump" intentd
sql "$main" postgres postgres "create database restored owner intentd_owner encoding 'UTF8' template template0"
sql "$main" postgres postgres "
	revoke all on database restored from public;
	grant connect on database restored to intentd_service"
pg pg_restore -h "$main.run" -U postgres --dbname restored --exit-on-error --single-transaction "$work/intentd.dump"
serve restored "$(url "$main" restored intentd_service)"
create dumped "$restored" order-1
replays dumped order-1
curl --fail --silent --header 'Authorization: Bearer merchant-demo' --output "$work/get.body" \
	"$restored$(sed -nE 's/^Location: ([^\r]*)\r?$/\1/Ip' "$work/order-1.headers")"
cmp "$work/get.body" "$work/order-1.body" || fail 'GET has the bytes of the 201'
create dumped-new "$restored" order-1 "$(member token <"$work/new")"
replays dumped-new shop
create after-dump "$restored" order-after-dump
fresh after-dump
ok 'the restored database replays the same bytes, with the same keys and the same grants'

step 'recovery to a point in time'
pg pg_basebackup -h "$main.run" -U postgres --pgdata "$work/base" --checkpoint fast --no-sync
pg pg_verifybackup --quiet "$work/base"
create order-2 "$first" order-2
fresh order-2
target=$(sql "$main" intentd postgres 'select clock_timestamp()')
create order-3 "$first" order-3
fresh order-3
sql "$main" intentd postgres 'select pg_switch_wal()' >/dev/null
archived() { [ -z "$(ls "$main/pg_wal/archive_status" | grep '\.ready$')" ]; }
eventually 20 archived
pg pg_ctl --pgdata "$main" --mode immediate stop >/dev/null # it is lost
point=$work/base
"${as[@]}" touch "$point/recovery.signal"
start "$point" archive_mode=off "restore_command='cp $work/archive/%f %p'" "recovery_target_time='$target'" recovery_target_action=promote
recovered() { [ "$(sql "$point" intentd postgres 'select pg_is_in_recovery()')" = f ]; }
eventually 20 recovered
serve back "$(url "$point" intentd intentd_service)"
create back-1 "$back" order-1
replays back-1 order-1
create back-2 "$back" order-2
replays back-2 order-2
create back-3 "$back" order-3
fresh back-3
! cmp -s "$work/back-3.body" "$work/order-3.body" || fail 'it is another intent'
ok "recovered to $target: keys from before replay the same bytes, one from after is fresh and makes another intent"

step 'failover'
standby=$work/standby
sql "$point" postgres postgres 'create role replica login replication'
pg pg_basebackup -h "$point.run" -U replica --pgdata "$standby" --checkpoint fast --write-recovery-conf --no-sync
start "$standby" archive_mode=off cluster_name=standby1
streams() { [ "$(sql "$point" postgres postgres "select count(*) from pg_stat_replication where application_name = 'standby1' and state = 'streaming'")" = 1 ]; }
eventually 20 streams
sql "$point" postgres postgres "alter system set synchronous_standby_names = 'FIRST 1 (standby1)'"
sql "$point" postgres postgres 'select pg_reload_conf()' >/dev/null
synchronous() { [ "$(sql "$point" postgres postgres "select sync_state from pg_stat_replication where application_name = 'standby1'")" = sync ]; }
eventually 20 synchronous
serve both "postgres:///intentd?host=$point.run,$standby.run&port=5432,5432&user=intentd_service"
create order-4 "$both" order-4
fresh order-4
pg pg_ctl --pgdata "$point" --mode immediate stop >/dev/null
create away "$both" order-4
[ "$(cat "$work/away.status")" = 503 ] || fail "without a primary it is a 503: $(cat "$work/away.status")"
# What the standby has inherited would have it wait for itself.
sql "$standby" postgres postgres "alter system set synchronous_standby_names = ''"
pg pg_ctl --pgdata "$standby" --wait promote >/dev/null
eventually 6 curl --fail --silent "$both/readyz"
create failed-over "$both" order-4
replays failed-over order-4
create order-5 "$both" order-5
fresh order-5
ok 'the promoted standby replays what the lost primary has acknowledged; the service was not restarted'

if command -v pgbouncer >/dev/null; then
	step 'PgBouncer'
	cat >"$work/pgbouncer.ini" <<-INI
		[databases]
		intentd = host=$standby.run port=5432 dbname=intentd user=intentd_service
		[pgbouncer]
		listen_addr =
		unix_socket_dir = $standby.run
		listen_port = 6432
		auth_type = any
		pool_mode = transaction
		default_pool_size = 20
		max_client_conn = 500
		logfile = $work/pgbouncer.log
	INI
	chmod a+r "$work/pgbouncer.ini"
	"${as[@]}" pgbouncer --quiet "$work/pgbouncer.ini" 2>"$work/pgbouncer.err" &
	pooler=$!
	answers() { pg psql -X -h "$standby.run" -p 6432 -U intentd_service -d intentd -Atqc 'select 1'; }
	eventually 20 answers
	serve pooled "postgres:///intentd?host=$standby.run&port=6432&user=intentd_service&default_query_exec_mode=exec"
	create pooled "$pooled" order-4
	replays pooled order-4
	create order-6 "$pooled" order-6
	fresh order-6
	create pooled-again "$both" order-6
	replays pooled-again order-6
	ok 'the service serves through PgBouncer in transaction mode, beside one that does not'
else
	echo 'NOT TRIED: PgBouncer is not here'
fi

printf '\n%d passed, 0 failed\n' "$passed"
