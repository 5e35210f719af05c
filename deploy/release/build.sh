#!/usr/bin/env bash
# build.sh [--verify] [OUT]: builds the files of a release into OUT, by default bin/release: the program, its package, its bill of
# materials and the checksums. The program is static, so that it runs on any Linux and in an image without anything else.
# --verify builds the program again from a clone in another folder, without any cache, and compares.
set -euo pipefail

verify=
[ "${1:-}" != --verify ] || { verify=1; shift; }
cd "$(dirname "$0")/../.."
out=$(mkdir -p "${1:-bin/release}" && realpath "${1:-bin/release}")
version=${VERSION:-$(git describe --tags --always --dirty)}
epoch=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH=$epoch

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# Nothing of the environment may change the bytes. cgo stays on, because the store keeps its caches outside of Go's heap.
compile() { # compile SOURCE OUT
	(
		cd "$1"
		env -u GOFLAGS -u GOEXPERIMENT -u CGO_CFLAGS -u CGO_LDFLAGS GOAMD64=v1 CGO_ENABLED=1 GOWORK=off \
			go build -trimpath -buildvcs=true -tags netgo,osusergo \
			-ldflags "-X main.version=$version -buildid= -linkmode external -extldflags '-static -Wl,--build-id=none'" -o "$2" ./cmd/rhumb
	)
}

# What is committed is built, from a clone: files that somebody edits meanwhile do not get in. With changes, the program says "dirty".
source=.
if [ -z "$(git status --porcelain)" ]; then
	source=$work/source
	git clone -q . "$source"
fi
compile "$source" "$out/rhumb"
if file=$(readelf -l "$out/rhumb" | grep INTERP); then
	echo "the program is not static: $file" >&2
	exit 1
fi
if [ -n "$verify" ]; then
	[ "$source" != . ] || { echo "--verify builds what is committed; the work tree has changes" >&2; exit 1; }
	git clone -q "$source" "$work/elsewhere"
	GOCACHE=$work/cache compile "$work/elsewhere" "$work/rhumb"
	cmp "$out/rhumb" "$work/rhumb"
	echo "two builds in different folders, one without a cache, have the same bytes"
fi
go run ./deploy/release --version "$version" "$out/rhumb" >"$out/rhumb.cdx.json"
rm -f "$out"/*.deb
deploy/deb/build.sh "$out/rhumb" "$version" "$out" >/dev/null
cd "$out"
sha256sum rhumb rhumb.cdx.json ./*.deb | sed 's#\./##' >SHA256SUMS
cat SHA256SUMS
