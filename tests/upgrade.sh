#!/usr/bin/env bash
# An upgrade under load: the program of an older commit serves, this one starts beside
# it and migrates, and both take creates, duplicates, replays and reads. Run it as
# `make upgrade-test`, or `make upgrade-test FROM=commit` for the release that is to
# be replaced. It needs the repository's history, and a minute beside the builds
# (UPGRADE_DURATION).
set -euo pipefail
cd "$(dirname "$0")/.."
from=${1:-14e20dc}

work=$(mktemp -d)
trap 'git worktree remove --force "$work/source" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/source" "$from"
echo "from $from, which knows $(find "$work/source/migrations" -name '*.up.sql' | wc -l) migrations, to $(find migrations -name '*.up.sql' | wc -l)"
(cd "$work/source" && go build -trimpath -buildvcs=false -o "$work/api" ./cmd/api)
UPGRADE_FROM=$work/api UPGRADE_DURATION=${UPGRADE_DURATION:-1m} \
	go test -tags upgrade -run '^TestUpgrade$' -count=1 -v ./cmd/api
