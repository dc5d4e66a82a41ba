#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# versions.sh CACHE [NAME...]: runs the tests of this folder with other versions than
# make test-cluster has, one after another, and prints the rows for docs/versions.md. Each
# run differs from make test-cluster in one thing. CACHE has the programs of
# make test-cluster. The output of each run is in CACHE/../versions. Without a NAME, all run.
set -euo pipefail
cd "$(dirname "$0")/../.."
cache=$1
shift
wanted=" $* "
logs=$cache/../versions
failed=0

# The kubelet of 1.31 cannot be built: modules of that version are missing at the proxy.
server="etcd kube-apiserver kubectl"
node="kubelet containerd ctr containerd-shim-runc-v2 runc multus"

# run NAME VARIABLE=VERSION PROGRAMS PACKAGE...
run() {
	local name=$1 version=$2 programs=$3 result start=$SECONDS
	shift 3
	[ "$wanted" = "  " ] || [[ $wanted == *" $name "* ]] || return 0
	# shellcheck disable=SC2086 # several programs
	if ! env "$version" bash integration/cluster/build.sh "$cache" $programs >"$logs/$name" 2>&1; then
		result="could not be built"
	elif env "$version" REQUIRE_CLUSTER=1 bash integration/ground.sh go test -count=1 -timeout 60m -v "$@" >>"$logs/$name" 2>&1; then
		result=passed
	else
		result=failed
	fi
	[ "$result" = passed ] || failed=1
	echo "| $name | $* | $(date +%F) | $(((SECONDS - start + 59) / 60)) min | $result |"
}

mkdir -p "$logs"
# shellcheck disable=SC2086 # several programs
trap 'bash integration/cluster/build.sh "$cache" $server $node' EXIT # as make test-cluster has them

run kubernetes-1.31.14 KUBERNETES=v1.31.14 "$server" ./integration/cluster
run kubernetes-1.36.5 KUBERNETES=v1.36.5 "$server kubelet" ./integration/cluster ./integration/cluster/e2e
run kubernetes-1.37.0 KUBERNETES=v1.37.0 "$server kubelet" ./integration/cluster ./integration/cluster/e2e
run multus-4.3.0 MULTUS=v4.3.0 multus ./integration/cluster/e2e
run multus-thick MULTUS_THICK=1 "multus-daemon multus-shim" ./integration/cluster/e2e
run containerd-sid CONTAINERD=sid "$node" ./integration/cluster/e2e
exit $failed
