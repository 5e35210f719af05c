#!/bin/sh
# Makes or removes the network of the hosts.
set -eu
case $1 in
create) "$HOSTCTL" up --network "$NETWORK" >/dev/null ;;
destroy) "$HOSTCTL" destroy ;;
esac
