#!/bin/sh
# Fetches the certificate and the key of an operator from the authority, or removes them.
set -eu
umask 077
case $1 in
create)
	mkdir -p "$DIR"
	"$HOSTCTL" exec authority -- setpriv --reuid rhumb-authority --regid rhumb-authority --clear-groups \
		rhumb authority operator terraform --authority /var/lib/rhumb-authority --out /var/lib/rhumb-authority/operator >/dev/null
	for file in operator.crt operator.key ca.crt; do
		"$HOSTCTL" cp "authority:/var/lib/rhumb-authority/operator/$file" "$DIR/"
	done
	# One copy of the key is enough.
	"$HOSTCTL" exec authority -- rm -r /var/lib/rhumb-authority/operator
	;;
destroy) rm -f "$DIR/operator.crt" "$DIR/operator.key" "$DIR/ca.crt" ;;
esac
