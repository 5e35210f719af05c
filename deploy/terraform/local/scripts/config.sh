#!/bin/sh
# Writes the configuration of a node, and restarts the node if it runs.
set -eu
"$HOSTCTL" exec "$HOST" -- install -d -m 0755 /etc/rhumb
printf '%s' "$CONFIG" | "$HOSTCTL" exec "$HOST" -- sh -c 'umask 022; cat >/etc/rhumb/rhumb.yaml.new && mv /etc/rhumb/rhumb.yaml.new /etc/rhumb/rhumb.yaml'
if "$HOSTCTL" systemctl "$HOST" is-active rhumb >/dev/null 2>&1; then
	"$HOSTCTL" systemctl "$HOST" restart rhumb
fi
