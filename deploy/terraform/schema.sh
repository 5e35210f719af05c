#!/bin/sh
# Checks FILE... against the schema of cloud-init by cloud-init's own program, taken from its Debian package and not installed:
# an installed cloud-init would act at the next boot. Exits with 77 if the package cannot be had. Needs the Debian packages
# python3-configobj python3-jinja2 python3-jsonpatch python3-jsonschema python3-oauthlib python3-requests python3-yaml.
set -eu
dir=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/rhumb/cloud-init
modules=$dir/usr/lib/python3/dist-packages
if [ ! -e "$modules/cloudinit/config/schema.py" ]; then
	command -v apt-get >/dev/null || { echo "no apt-get to fetch cloud-init with"; exit 77; }
	new=$(mktemp -d)
	(cd "$new" && apt-get download -q cloud-init >/dev/null 2>&1 && dpkg -x cloud-init_*.deb root) ||
		{ rm -rf "$new"; echo "cannot fetch cloud-init by apt-get download; run apt-get update"; exit 77; }
	mkdir -p "${dir%/*}"
	mv -T "$new/root" "$dir" 2>/dev/null || [ -e "$modules" ] # another run may have been first
	rm -rf "$new"
fi
export PYTHONPATH="$modules"
/usr/bin/python3 -c 'import configobj, jinja2, jsonpatch, jsonschema, oauthlib, requests, yaml' 2>/dev/null ||
	{ echo "the Python packages of cloud-init are missing; install those at the head of $0"; exit 77; }
for file; do
	/usr/bin/python3 -W ignore -m cloudinit.config.schema --config-file "$file"
done
