#!/usr/bin/env bash
# Two builds, one hash: the service built by `make build` from what is here, and by
# the Dockerfile's own command from a copy of it that has another path, no history
# and an empty build cache. Run it as `make reproducible`. It takes one whole build.
#
# The same Go is used for both: another version of the compiler makes another
# program. What was built, by which Go and from which modules, `go version -m` tells.
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-dev}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make --no-print-directory build VERSION="$version"

# What git has, with what has been changed since, and nothing that it ignores.
mkdir "$work/other place"
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
	[ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --create --null --files-from=- | tar --extract --directory "$work/other place"

command=$(sed -nE 's/^ *(CGO_ENABLED=0 go build .*) -o \/out\/api (.*)$/\1 -o "$OUT" \2/p' Dockerfile)
[ -n "$command" ] || { echo 'the Dockerfile has no go build that this script knows' >&2; exit 1; }
echo "$command"
(cd "$work/other place" && VERSION=$version OUT=$work/api GOCACHE=$work/cache GOENV=off GOFLAGS= sh -euc "$command")

sha256sum .bin/api "$work/api"
go version .bin/api
cmp .bin/api "$work/api" || {
	diff <(go version -m .bin/api | tail -n +2) <(go version -m "$work/api" | tail -n +2) || true
	echo 'the two builds differ' >&2
	exit 1
}
echo 'the two builds are the same'
