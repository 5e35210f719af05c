#!/bin/sh
# Moves the ranges of a region to another one and removes it with its nodes, before their hosts go.
set -eu
# shellcheck source=/dev/null
. "$SCRIPTS/accept.sh"
"$RHUMB" region rm "$REGION" --if-exists --addr "$ENDPOINTS" --ca "$CA" --cert "$CERT" --key "$KEY" --timeout 1m >&2 || refuse "region $REGION"
