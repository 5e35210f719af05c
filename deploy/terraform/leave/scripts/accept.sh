# Read by the other scripts. A person may say that data may be lost, for one run and not by a variable: the value of a variable stays in
# a file, and the next removal would be careless too.
if [ "${RHUMB_DATA_LOSS:-}" = accept ]; then
	exit 0
fi

# refuse ends a step that the cluster has refused. Terraform then leaves the hosts alone.
refuse() {
	echo "$1 cannot leave the cluster, so its host stays. The reason stands above. To destroy it with its data, for example the whole" >&2
	echo "cluster, run Terraform with RHUMB_DATA_LOSS=accept in its environment." >&2
	exit 1
}
