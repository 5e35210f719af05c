#!/bin/sh
# Makes or removes a host with the program and the unit of a node.
set -eu
case $1 in
create)
	"$HOSTCTL" add "$HOST" --region "$REGION" --address "$ADDRESS" >/dev/null
	"$HOSTCTL" install "$HOST" --binary "$RHUMB" --unit "$UNITS/rhumb.service"
	;;
destroy)
	# A stop moves primaries away first. A host that is down already has none.
	"$HOSTCTL" systemctl "$HOST" stop rhumb >/dev/null 2>&1 || true
	"$HOSTCTL" rm "$HOST"
	;;
esac
