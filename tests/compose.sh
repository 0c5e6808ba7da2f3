#!/usr/bin/env bash
# What docker-compose.yml promises, tried from outside with docker and curl, in a
# project of its own on ports that are free. It takes about four minutes, needs
# an engine and leaves nothing behind. Run it as `make compose-test`.
set -euo pipefail
cd "$(dirname "$0")/.."

unset COMPOSE_FILE COMPOSE_PROFILES
export COMPOSE_PROJECT_NAME=intentd-test-$$
export API_PORT=0 ADMIN_PORT=0 PROXY_PORT=0 PROMETHEUS_PORT=0 GRAFANA_PORT=0 API_DEMO_KEYS=merchant-demo
profiles=(--profile cluster --profile observability)
# Nothing that a URL, a shell or a DSN takes for its own may matter in it.
export POSTGRES_PASSWORD="it's a p@ss/w:rd? 100% \\"

work=$(mktemp -d)
began=$SECONDS
step=start
passed=0

cleanup() {
	local code=$?
	trap - EXIT
	if [ "$code" -ne 0 ]; then
		echo "FAILED in: $step" >&2
		docker compose "${profiles[@]}" ps --all >&2 || true
		docker compose "${profiles[@]}" logs --timestamps --tail 40 >&2 || true
	fi
	docker compose "${profiles[@]}" down --volumes --remove-orphans --rmi local --timeout 5 >"$work/down" 2>&1 || cat "$work/down" >&2
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

# quietly runs a command whose output matters only if it fails.
quietly() { "$@" >"$work/quiet" 2>&1 || { cat "$work/quiet" >&2; fail "$*"; }; }

# eventually SECONDS COMMAND... repeats the command until it succeeds.
eventually() {
	local deadline=$(($(now) + $1 * 1000))
	shift
	until "$@" >/dev/null 2>&1; do
		[ "$(now)" -lt "$deadline" ] || fail "in time: $*"
		sleep 0.1
	done
}
now() { date +%s%3N; }

# Docker chooses the port anew whenever a container starts.
url() { echo "http://$(docker compose --profile cluster port "$1" 8080)"; }

# ask SERVICE NAME METHOD PATH [CURL'S ARGUMENTS...] keeps the answer in
# NAME.status, NAME.headers and NAME.body. The status is 000 where none came.
ask() {
	local service=$1 name=$2 method=$3 path=$4
	shift 4
	rm -f "$work/$name".*
	touch "$work/$name.headers" "$work/$name.body"
	curl --silent --max-time 60 --request "$method" --dump-header "$work/$name.headers" --output "$work/$name.body" \
		--write-out '%{http_code}' --header 'Authorization: Bearer merchant-demo' "$@" "$(url "$service")$path" \
		>"$work/$name.status" || true
}
create() { # SERVICE NAME KEY AMOUNT
	ask "$1" "$2" POST /v1/payment_intents --header "Idempotency-Key: $3" --data "{
		\"chain\": \"evm:31337\", \"token\": \"0x5fbdb2315678afecb367f032d93f642f64180aa3\",
		\"payer\": \"0x70997970c51812dc3a010c7d01b50e0d17dc79c8\", \"merchant\": \"0x3c44cdddb6a900fa2b585dd299e03d12fa4293bc\",
		\"amount\": \"$4\", \"reference\": \"$3\"}"
}
status() { # NAME STATUS
	[ "$(cat "$work/$1.status")" = "$2" ] || fail "$1 is answered $2: it was $(cat "$work/$1.status") $(cat "$work/$1.body")"
}
header() { sed -nE "s/^$2: ([^\r]*)\r?$/\1/Ip" "$work/$1.headers"; } # NAME HEADER
fresh() {                                                               # NAME
	status "$1" 201
	[ -z "$(header "$1" Idempotent-Replayed)" ] || fail "$1 is fresh"
}
replays() { # NAME ORIGINAL: the same status, recorded headers and bytes
	status "$1" "$(cat "$work/$2.status")"
	[ "$(header "$1" Idempotent-Replayed)" = true ] || fail "$1 is a replay"
	[ "$(header "$1" Location)" = "$(header "$2" Location)" ] || fail "$1 has the Location of $2"
	cmp "$work/$1.body" "$work/$2.body" || fail "$1 has the bytes of $2"
}
answers() { # SERVICE PATH STATUS
	ask "$1" answers GET "$2"
	[ "$(cat "$work/answers.status")" = "$3" ]
}
ready() { answers "$1" /readyz 200; }
unready() { answers "$1" /readyz 503; }

container() { docker compose ps --all --quiet "$1"; }
restarts() { docker inspect --format '{{.RestartCount}}' "$(container api)"; }
sql() { docker compose exec -T db psql -X -U intentd -d intentd -v ON_ERROR_STOP=1 -Atc "$1"; }
intents() { sql "select count(*) from payment_intents where reference = '$1'"; }
accepts() { docker compose exec -T db pg_isready -q -h 127.0.0.1 -U intentd -d intentd; }

# serves_within_5s: from the moment that the database takes connections.
serves_within_5s() {
	local from
	eventually 60 accepts
	from=$(now)
	eventually 5 ready api
	ok "serves $(($(now) - from)) ms after its database does"
}

step 'the file'
env -u API_PORT -u ADMIN_PORT -u PROXY_PORT -u PROMETHEUS_PORT -u GRAFANA_PORT docker compose "${profiles[@]}" config >"$work/config"
[ "$(sed -nE 's/^ *published: "(.*)"$/\1/p' "$work/config" | sort | paste -sd ' ')" = '3000 8080 8080 9090 9091' ] ||
	fail 'api and proxy publish 8080, api 9090, Prometheus 9091, Grafana 3000'
grep -A1 'mode: ingress' "$work/config" | grep -o 'host_ip: .*' | sort -u >"$work/ips" || true
[ "$(cat "$work/ips")" = 'host_ip: 127.0.0.1' ] || fail 'ports are published on 127.0.0.1 only'
docker compose config --services | sort | paste -sd ' ' | grep -qx 'api db' || fail 'without a profile there are api and db'
ok 'nothing is published but on 127.0.0.1, each port for one, and 8080 for api or the proxy'

step 'build'
quietly timeout 900 docker compose build
size=$(docker image inspect --format '{{.Size}}' "$COMPOSE_PROJECT_NAME-api")
[ "$size" -lt 34000000 ] || fail "the image is below 34 MB: $size bytes"
[ "$(docker run --rm --network none "$COMPOSE_PROJECT_NAME-api" version)" = "${VERSION:-dev}" ] || fail 'the program knows its version'
ok "the image has $size bytes"

step 'start order: no database for 30 s'
started=$SECONDS
quietly docker compose up --detach --no-deps --no-build api
eventually 10 answers api /healthz 200
unready api || fail '/readyz is 503'
create api early early 1
status early 503
[ "$(header early Retry-After)" = 1 ] || fail 'the 503 says when to try again'
code=0
docker compose exec -T api /api healthcheck >"$work/health" 2>&1 || code=$?
[ "$code $(wc -l <"$work/health")" = "1 1" ] || fail "api healthcheck is 1 and one line: $code, $(cat "$work/health")"
ok "listens and is not ready: $(cat "$work/health")"
while [ $((SECONDS - started)) -lt 30 ]; do sleep 1; done
answers api /healthz 200 || fail '/healthz is still 200'
unready api || fail '/readyz is still 503'
quietly docker compose up --detach --no-deps db
serves_within_5s
[ "$(restarts)" = 0 ] || fail 'it was not restarted'
docker compose logs api >"$work/logs"
grep -q 'will be tried again' "$work/logs" || fail 'it said that it tries again'
create api early early 1
fresh early
ok 'waited on its own, said so, and the early request is fresh'
quietly docker compose down --volumes

step 'start order: a database that prepares itself for 30 s, and the health check'
mkdir "$work/late"
echo 'sleep 30' >"$work/late/late.sh"
chmod -R a+rX "$work"
cat >"$work/late.yml" <<-YAML
	services:
	  db:
	    volumes:
	      - $work/late:/docker-entrypoint-initdb.d:ro
YAML
quietly docker compose --file docker-compose.yml --file "$work/late.yml" up --detach --wait --wait-timeout 180
waited=$(($(date -d "$(docker inspect --format '{{.State.StartedAt}}' "$(container api)")" +%s) -
	$(date -d "$(docker inspect --format '{{.State.StartedAt}}' "$(container db)")" +%s)))
[ "$waited" -ge 30 ] || fail "api starts when the database is healthy: $waited s after it started"
ready api || fail 'it is ready when up --wait returns'
ok "api was started $waited s after the database, and is healthy"
docker inspect --format 'read-only {{.HostConfig.ReadonlyRootfs}}, without {{.HostConfig.CapDrop}}, {{.HostConfig.SecurityOpt}}, user {{.Config.User}}, {{.HostConfig.RestartPolicy.Name}}' \
	"$(container api)" | tee "$work/inspect"
grep -qx 'read-only true, without \[ALL\], \[no-new-privileges:true\], user 65532:65532, unless-stopped' "$work/inspect" || fail 'api is confined'
ok 'it runs confined'

step 'create, replay, mismatch, GET'
create api first order-1 1000
fresh first
create api again order-1 1000
replays again first
create api other order-1 1001
status other 422
ask api get GET "$(header first Location)"
status get 200
cmp "$work/get.body" "$work/first.body" || fail 'GET has the bytes of the 201'
[ "$(intents order-1)" = 1 ] || fail 'there is one intent'
cat "$work/first.body"
ok 'one intent; the replay has its bytes; another amount is a 422'

step 'the database restarts'
quietly docker compose stop db
eventually 10 unready api
quietly docker compose start db
serves_within_5s
create api after-restart order-1 1000
replays after-restart first
[ "$(restarts)" = 0 ] || fail 'api was not restarted'
ok 'the replay has the same bytes'

step 'kill -9 in the middle of a create'
# psql holds the table, the create waits for it, and its process is killed.
coproc HOLDER { docker compose exec -T db psql -X -U intentd -d intentd -At 2>&1; }
holder=$HOLDER_PID
echo "begin; lock table payment_intents in access exclusive mode; select 'held';" >&"${HOLDER[1]}"
while read -r -t 20 line <&"${HOLDER[0]}" && [ "$line" != held ]; do :; done
[ "$line" = held ] || fail 'the table is held'
create api killed order-2 2000 &
asking=$!
backend() { sql "select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%insert into payment_intents%'"; }
waits() { [ -n "$(backend)" ]; }
eventually 20 waits
backend=$(backend)
pid=$(docker inspect --format '{{.State.Pid}}' "$(container api)")
image=$(docker inspect --format '{{.Config.Image}}' "$(container db)")
# The process itself: after `docker kill` the engine would not start it again.
quietly docker run --rm --pid host --network none --entrypoint sh "$image" -c "kill -9 $pid"
wait "$asking"
status killed 000
# The server notices that its client is gone, and the attempt is undone before the
# table is free.
gone() { [ "$(sql "select count(*) from pg_stat_activity where pid = $backend")" = 0 ]; }
eventually 10 gone
echo 'rollback; \q' >&"${HOLDER[1]}"
wait "$holder" || true
[ "$(intents order-2)" = 0 ] || fail 'nothing of it was kept'
eventually 20 ready api
[ "$(restarts)" = 1 ] || fail 'the engine started it again'
create api retry order-2 2000
fresh retry
create api retry-again order-2 2000
replays retry-again retry
[ "$(intents order-2)" = 1 ] || fail 'there is one intent'
ok 'its client heard nothing, the engine started it again, and the retry is fresh: one intent'

step 'down, up'
quietly docker compose down
quietly docker compose up --detach --wait --wait-timeout 120
create api after-down order-1 1000
replays after-down first
create api after-down-retry order-2 2000
replays after-down-retry retry
ok 'the replays have the same bytes'

step 'three replicas and a proxy'
quietly docker compose --profile cluster up --detach --wait --wait-timeout 120 --scale api=3
# A replica is known to the proxy when it has found it, a moment after.
three() {
	for i in 1 2 3 4 5 6; do
		ask proxy "spread-$i" GET /readyz
		header "spread-$i" X-Served-By
	done | sort -u | wc -l | grep -qx 3
}
eventually 20 three
for i in 1 2 3; do
	create proxy "spread-$i" order-1 1000
	replays "spread-$i" first
	echo "replayed by $(header "spread-$i" X-Served-By)"
done
[ "$(for i in 1 2 3; do header "spread-$i" X-Served-By; done | sort -u | wc -l)" = 3 ] || fail 'three replicas replay it'
create proxy third order-3 3000
fresh third
create proxy third-again order-3 3000
replays third-again third
[ "$(header third X-Served-By)" != "$(header third-again X-Served-By)" ] || fail 'another replica replays it'
for name in third third-again; do
	id=$(header "$name" X-Request-Id)
	docker compose logs --no-color api | grep "request_id=$id" | grep -oE '^[^ ]+|outcome=[a-z_-]+' | paste -sd ' '
done
ok 'what one replica created, another replays with the same bytes'
mapfile -t replicas < <(container api)
quietly docker kill --signal KILL "${replicas[0]}"
for i in 1 2 3; do
	create proxy "lost-$i" order-3 3000
	replays "lost-$i" third
done
ok 'with a replica killed, the others replay it'

step 'Prometheus and Grafana'
# The replica that was killed is started again. What is asked here is what the
# dashboard asks; make alerts-test asks all of it.
quietly docker compose --profile observability up --detach --wait --wait-timeout 120 --scale api=3
prometheus() { # PATH [CURL'S ARGUMENTS...]
	curl --silent --fail --max-time 10 --get "http://$(docker compose --profile observability port prometheus 9090)$1" "${@:2}"
}
asks() { prometheus /api/v1/query --data-urlencode "query=$1" | grep -qE "$2"; } # PROMQL PATTERN
eventually 60 asks 'count(up{job="intentd"} == 1) == 3 and count(intentd_ready == 1) == 3' '"3"'
ok 'it has found three replicas, and all are ready'
[ "$(prometheus /api/v1/rules | grep -o '"name":"Intentd[A-Za-z]*"' | sort)" = \
	"$(sed -nE 's/^ *- alert: (.*)$/"name":"\1"/p' deploy/prometheus/alerts.yml | sort)" ] || fail 'it has the alerts of deploy/prometheus'
eventually 60 asks 'count(ALERTS{alertstate="firing"}) or vector(0)' '"0"'
ok 'it has every alert, and none fires'
panel=$(sed -nE 's/^ *"expr": "(sum by \(outcome\) .*)",$/\1/p' deploy/grafana/dashboards/intentd.json |
	sed -e 's/\\"/"/g' -e 's/\$instance/.*/' -e 's/\$__rate_interval/1m/')
claim() {
	create proxy "panel-$SECONDS" order-1 1000
	asks "($panel) > 0" '"outcome":"replay"'
}
eventually 90 claim
ok "the dashboard's panel shows replays"
curl --silent --fail "http://$(docker compose port api 9090)/metrics" | grep -q '^intentd_ready 1$' || fail 'this machine reaches the admin listener'
ok 'this machine reaches the admin listener'
if docker compose --profile observability exec -T grafana sh -c 'command -v grafana' >/dev/null; then
	grafana() { curl --silent --fail --max-time 10 --user admin:demo "http://$(docker compose --profile observability port grafana 3000)$1"; }
	eventually 60 grafana /api/dashboards/uid/intentd
	grafana /api/datasources/uid/prometheus/health | grep -q '"status":"OK"' || fail "Grafana's data source answers"
	ok 'Grafana has the dashboard, and its data source answers'
else
	docker compose --profile observability exec -T grafana sh -c 'cat /etc/grafana/dashboards/intentd.json' | cmp - deploy/grafana/dashboards/intentd.json ||
		fail 'Grafana is given the dashboard'
	docker compose --profile observability exec -T grafana sh -c 'test -r /etc/grafana/provisioning/datasources/prometheus.yml &&
		test -r /etc/grafana/provisioning/dashboards/intentd.yml && touch /var/lib/grafana/x && ! touch /etc/grafana/dashboards/x 2>/dev/null' ||
		fail 'Grafana may read its files and write its data'
	echo 'NOT RUN: Grafana itself: its image is a stand-in. It is given its files, and may write where it has to'
fi

step 'down -v'
quietly docker compose "${profiles[@]}" down --volumes
[ -z "$(docker volume ls --quiet --filter "name=${COMPOSE_PROJECT_NAME}_")" ] || fail 'the volume is gone'
ok 'the data are removed'

printf '\n%d passed, 0 failed\n' "$passed"
