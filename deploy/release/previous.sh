#!/usr/bin/env bash
# previous.sh OUT: builds the release before this one from the history of this repository, for tests of upgrades. It exits with 3 if
# the history is missing, as in a shallow clone. A program that was built for the same commit is kept.
set -euo pipefail

# The commit of the release before this one, the last that knew no cluster versions, and what the program says about itself.
commit=f3672f5
version=0.13

mkdir -p "$(dirname "$1")"
out=$(realpath "$1")
cd "$(dirname "$0")/../.."
[ ! -x "$out" ] || [ "$(cat "$out.commit" 2>/dev/null)" != "$commit" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git archive -o "$work/source.tar" "$commit" || exit 3
mkdir "$work/source"
tar -xf "$work/source.tar" -C "$work/source"
# With -trimpath, the packages that have not changed come from the cache of earlier builds.
go build -C "$work/source" -trimpath -ldflags "-X main.version=$version" -o "$out" ./cmd/rhumb
echo "$commit" >"$out.commit"
