#!/bin/sh
# Moves everything away from a node and removes it from the cluster, before its host goes. Without --no-wait the first command ends when the
# node holds nothing, so a node never goes with the only copy of something. Both find a node that is gone already.
set -eu
# shellcheck source=/dev/null
. "$SCRIPTS/accept.sh"
set -- --addr "$ENDPOINTS" --ca "$CA" --cert "$CERT" --key "$KEY" --timeout 1m
"$RHUMB" node decommission "$NODE" --if-exists "$@" >&2 || refuse "node $NODE"
"$RHUMB" node rm "$NODE" --if-exists "$@" >&2 || refuse "node $NODE"
