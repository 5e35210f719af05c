#!/bin/sh
# Creates a token at the authority, hands it to the node and starts the node.
set -eu
# shellcheck disable=SC2086 # FOUNDER is empty or one flag
"$HOSTCTL" exec authority -- setpriv --reuid rhumb-authority --regid rhumb-authority --clear-groups \
	rhumb token create --authority /var/lib/rhumb-authority --node "$HOST" $FOUNDER |
	"$HOSTCTL" exec "$HOST" -- install -m 0640 -o root -g rhumb /dev/stdin /etc/rhumb/token
"$HOSTCTL" systemctl "$HOST" enable --now rhumb
