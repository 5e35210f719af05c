#!/bin/sh
# Makes the host of the authority, the authority and its service.
set -eu
"$HOSTCTL" add "$HOST" --address "$ADDRESS" >/dev/null
"$HOSTCTL" install "$HOST" --binary "$RHUMB" --unit "$UNITS/rhumb-authority.service"
dir=/var/lib/rhumb-authority
"$HOSTCTL" exec "$HOST" -- install -d -o rhumb-authority -g rhumb-authority -m 0700 "$dir"
"$HOSTCTL" exec "$HOST" -- setpriv --reuid rhumb-authority --regid rhumb-authority --clear-groups \
	rhumb init --authority "$dir" --advertise "$ADDRESS:$PORT" >/dev/null
"$HOSTCTL" systemctl "$HOST" enable --now rhumb-authority
