#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# The main job, for real, on this machine's kernel: two pods, two rails, a
# gateway on each. Everything happens in network namespaces of its own and is
# gone at the end. Run it with `make demo`; it needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }
fail() { printf '\ndemo: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "run it as root: it makes network namespaces"

node=roce-demo-node leaf=roce-demo-leaf podA=roce-demo-a podB=roce-demo-b
work=$(mktemp -d)
cleanup() {
	for ns in $podA $podB $node $leaf; do ip netns del $ns 2>/dev/null || true; done
	rm -rf "$work"
}
trap cleanup EXIT
cleanup
mkdir -p "$work/net.d"
go build -o "$work/cnitool" github.com/containernetworking/cni/cnitool

# cni VERB NETWORK INTERFACE POD calls the plugin as a container runtime does,
# from the node's namespace.
cni() {
	NETCONFPATH=$work/net.d CNI_PATH=$PWD/bin CNI_IFNAME=$3 \
		CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME=$4" \
		nsenter --net=/run/netns/$node "$work/cnitool" "$1" "$2" "/run/netns/$4"
}

say "A node with two NICs (veth here), each on a leaf switch with a gateway"
for ns in $node $leaf $podA $podB; do ip netns add $ns; ip -n $ns link set lo up; done
for i in 1 2; do
	ip -n $node link add rail$i mtu 9000 type veth peer name leaf$i mtu 9000 netns $leaf
	ip -n $node addr add 172.16.1$i.1/24 dev rail$i
	ip -n $leaf addr add 172.16.1$i.254/24 dev leaf$i
	ip -n $node link set rail$i up
	ip -n $leaf link set leaf$i up
	cat >"$work/net.d/gpu$i-rail.conflist" <<EOF
{
  "cniVersion": "1.1.0",
  "name": "gpu$i-rail",
  "plugins": [{
    "type": "roce",
    "master": "rail$i",
    "ipam": {
      "type": "roce-ipam",
      "subnets": [{"subnet": "172.16.1$i.0/24", "ranges": ["172.16.1$i.64-172.16.1$i.127"], "gateway": "172.16.1$i.254"}]
    },
    "rdma": {"mode": "off"},
    "stateDir": "$work/state"
  }]
}
EOF
done
run ip -n $node -br addr

say "What an ADD would do (rocectl plan changes nothing and needs no root)"
run nsenter --net=/run/netns/$node bin/rocectl plan "$work/net.d/gpu1-rail.conflist"

say "ADD: two pods, two rails each"
for pod in $podA $podB; do
	for i in 1 2; do
		start=$(date +%s%N)
		cni add gpu$i-rail net$i $pod >"$work/$pod-net$i.json"
		printf '%s net%d: %d ms, cnitool included\n' $pod $i $((($(date +%s%N) - start) / 1000000))
	done
done
say "What the runtime was told about $podA net1"
cat "$work/$podA-net1.json"

say "What $podA has now"
run ip -n $podA -br addr
run ip -n $podA rule
run ip -n $podA route show table 100
run ip -n $podA route show table 101
run ip -n $podA route show table main
run bin/rocectl --state-dir "$work/state" show
run bin/rocectl --state-dir "$work/state" pool list

say "A ping over each rail: to the gateway, and from pod to pod"
for i in 1 2; do
	a=$(ip -n $podA -o -4 addr show net$i | awk '{sub("/.*","",$4); print $4}')
	b=$(ip -n $podB -o -4 addr show net$i | awk '{sub("/.*","",$4); print $4}')
	run ip netns exec $podA ping -q -c 2 -i 0.2 -W 2 -I "$a" 172.16.1$i.254
	run ip netns exec $podA ping -q -c 2 -i 0.2 -W 2 -I "$a" "$b"
done

say "DEL"
for pod in $podA $podB; do
	for i in 1 2; do cni del gpu$i-rail net$i $pod; done
done

say "What is left"
for pod in $podA $podB; do
	left=$(ip -n $pod -o link | grep -v ' lo: ' || true)$(ip -n $pod rule | grep -E '^320' || true)$(ip -n $pod route show table all | grep -v -E 'table local|^multicast|^local|^broadcast|ff00|fe80|dev lo' || true)
	[ -z "$left" ] || fail "$pod still has: $left"
done
[ -z "$(find "$work/state/attachments" -type f)" ] || fail "records are left: $(find "$work/state/attachments" -type f)"
run bin/rocectl --state-dir "$work/state" show
run bin/rocectl --state-dir "$work/state" pool list
echo
echo "demo: nothing is left but addresses that rest before another pod may have them"
