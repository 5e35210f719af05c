#!/usr/bin/env bash
# build.sh BINARY VERSION OUT: builds OUT/rhumb_VERSION_ARCH.deb from a program that was built already. The same input makes
# the same bytes: all files have the time SOURCE_DATE_EPOCH, by default that of the commit.
set -euo pipefail

[ $# = 3 ] || { echo "usage: $0 BINARY VERSION OUT" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1") out=$(mkdir -p "$3" && realpath "$3")
# A version of Debian begins with a digit and has no '-' of ours: v1.2-3-gabc becomes 1.2+3.gabc.
version=$(echo "${2#v}" | sed -E 's/-/+/; s/-/./g')
# Without a tag the version is a hash. Half of all hashes begin with a digit, and dpkg would take 9f3... for release 9, newer
# than any real one. Only a tag has a 'v' before a digit, or a dot.
[[ $2 =~ ^(v[0-9]|[0-9]+\.) ]] || version=0+$version
arch=$(dpkg --print-architecture)
# Without a repository, as in a source archive, the time is that of the program file.
epoch=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2>/dev/null || stat -c %Y "$binary")}
export SOURCE_DATE_EPOCH=$epoch

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
umask 022
chmod 755 "$root" # a package with another mode of its root would change that of /

install -D -m 755 "$binary" "$root/usr/bin/rhumb"
install -D -m 644 -t "$root/lib/systemd/system" "$here"/../systemd/*.service
install -D -m 644 "$here/rhumb.tmpfiles" "$root/usr/lib/tmpfiles.d/rhumb.conf"
install -D -m 644 "$here/rhumb.yaml" "$root/etc/rhumb/rhumb.yaml"
install -D -m 640 "$here/rhumb.default" "$root/etc/default/rhumb"
install -D -m 644 "$here/copyright" "$root/usr/share/doc/rhumb/copyright"
gzip -9n <"$here/../../CHANGELOG.md" >"$root/usr/share/doc/rhumb/changelog.gz"
chmod 644 "$root/usr/share/doc/rhumb/changelog.gz"

# The program writes its own manual pages and completions.
mkdir -p "$root/usr/share/man/man1" "$root/usr/share/bash-completion/completions" "$root/usr/share/zsh/vendor-completions"
"$binary" man --dir "$root/usr/share/man/man1" >/dev/null
gzip -9n "$root"/usr/share/man/man1/*.1
"$binary" completion bash >"$root/usr/share/bash-completion/completions/rhumb"
"$binary" completion zsh >"$root/usr/share/zsh/vendor-completions/_rhumb"

mkdir -p "$root/DEBIAN"
depends=passwd
# A program that is linked with the C library needs the version whose symbols it uses.
if needs=$(objdump -T "$binary" 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1) && [ -n "$needs" ]; then
	depends="libc6 (>= ${needs#GLIBC_}), $depends"
fi
sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/; s/@DEPENDS@/$depends/" \
	-e "s/@SIZE@/$(du -sk --exclude=DEBIAN "$root" | cut -f1)/" "$here/control" >"$root/DEBIAN/control"
install -m 644 "$here/conffiles" "$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
	install -m 755 "$here/$script" "$root/DEBIAN/$script"
done
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -exec touch -h -d "@$epoch" {} +

# xz takes half a minute of one core; a test has no use for it.
dpkg-deb --root-owner-group -Z"${COMPRESSION:-xz}" --build "$root" "$out/rhumb_${version}_$arch.deb"
