#!/bin/sh
# compile.sh VERSION OUT [PROGRAM]: writes the root file system of the image into OUT. The Containerfile calls it, and so does the
# test of the image, which has no engine. PROGRAM is a static program that was built already.
set -eu

[ $# -ge 2 ] || { echo "usage: $0 VERSION OUT [PROGRAM]" >&2; exit 2; }
cd "$(dirname "$0")/../.."
version=$1 out=$2

mkdir -p "$out/usr/bin" "$out/etc/rhumb" "$out/var/lib/rhumb" "$out/var/lib/rhumb-authority" "$out/tmp" "$out/dev" "$out/proc" "$out/sys"
chmod 755 "$out"
if [ $# -ge 3 ]; then
	install -m 755 "$3" "$out/usr/bin/rhumb"
else
	# The same flags as a release has.
	CGO_ENABLED=1 go build -trimpath -tags netgo,osusergo \
		-ldflags "-X main.version=$version -buildid= -linkmode external -extldflags '-static -Wl,--build-id=none'" \
		-o "$out/usr/bin/rhumb" ./cmd/rhumb
fi
# Names for the user, so that messages and `id` are readable. No entry has a password or a shell.
printf 'root:x:0:0:root:/:/sbin/nologin\nrhumb:x:65532:65532:rhumb:/var/lib/rhumb:/sbin/nologin\n' >"$out/etc/passwd"
printf 'root:x:0:\nrhumb:x:65532:\n' >"$out/etc/group"
chown -R 65532:65532 "$out/var/lib/rhumb" "$out/var/lib/rhumb-authority"
chmod 750 "$out/var/lib/rhumb"
chmod 700 "$out/var/lib/rhumb-authority"
chmod 1777 "$out/tmp"
