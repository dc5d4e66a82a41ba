#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# The main job, for real: two pods, each with two rails with Soft-RoCE devices in
# one attachment, a gateway on each. make demo runs it in a virtual machine of integration/vm, which has
# the NICs r0 and r1 and is gone afterwards; it works on no other machine.
set -euo pipefail
cd "$(dirname "$0")/../.."

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }
fail() { printf '\ndemo: %s\n' "$*" >&2; exit 1; }

[ -e /sys/class/infiniband/rxe1 ] || fail "run it with make demo"

PATH=$PWD/bin:$PATH
leaf=leaf podA=trainer-0 podB=trainer-1
work=$(mktemp -d)
mkdir "$work/net.d"

# cni VERB NETWORK INTERFACE POD calls the plugin as a container runtime does.
cni() {
	NETCONFPATH=$work/net.d CNI_PATH=$PWD/bin CNI_IFNAME=$3 \
		CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=demo;K8S_POD_NAME=$4" \
		.cache/vm/cnitool "$1" "$2" "/run/netns/$4"
}

say "A node with two RoCE NICs (Soft-RoCE here), and a gateway on each rail"
for ns in $leaf $podA $podB; do ip netns add $ns; ip -n $ns link set lo up; done
for i in 0 1; do
	# The leaf switch is one more child of the NIC: a wire's other end, in the same machine.
	ip link add link r$i name rail$i netns $leaf type macvlan mode bridge
	ip -n $leaf link set rail$i addrgenmode none
	ip -n $leaf link set rail$i up
	ip -n $leaf addr add 172.16.1$i.254/24 dev rail$i
done
cat >"$work/net.d/rails.conflist" <<'END'
{
  "cniVersion": "1.1.0",
  "name": "rails",
  "plugins": [{
    "type": "roce",
    "rails": {"match": {"ifNames": ["r[01]"], "linkTypes": ["ether"]}, "count": 2, "order": "rdma"},
    "ipam": {
      "type": "roce-ipam",
      "subnets": [{"subnet": "172.16.1{rail}.0/24", "ranges": ["172.16.1{rail}.64-172.16.1{rail}.127"], "gateway": "172.16.1{rail}.254"}]
    }
  }]
}
END
run rdma link
run cat "$work/net.d/rails.conflist"

say "What an ADD would do: rocectl plan changes nothing"
run rocectl plan "$work/net.d/rails.conflist"

say "ADD: two pods, two rails each"
for pod in $podA $podB; do
	cni add rails net1 $pod >"$work/$pod.json"
	echo "$pod has all rails"
done

say "What the runtime was told about $podA, and what the pod has now"
cat "$work/$podA.json"
echo
run ip -n $podA -br addr
run ip -n $podA rule
run ip -n $podA route show table 100

say "The node's view: which pod has which interface and which GID"
run rocectl show
run rocectl gids

say "What NCCL, UCX and perftest have to be told in each pod"
run ip netns exec $podA rocectl env
run ip netns exec $podB rocectl env

# interface RAIL and address POD RAIL print what a pod has of a rail.
interface() { [ "$1" = 0 ] && echo net1 || echo "net1-$1"; }
address() { ip -n "$1" -o -4 addr show "$(interface "$2")" | awk '{sub("/.*","",$4); print $4}'; }

say "A ping over each rail: to the gateway, and from pod to pod"
for i in 0 1; do
	a=$(address $podA $i)
	run ip netns exec $podA ping -q -c 2 -i 0.2 -W 2 -I "$a" 172.16.1$i.254
	run ip netns exec $podA ping -q -c 2 -i 0.2 -W 2 -I "$a" "$(address $podB $i)"
done

say "Soft-RoCE gets what a NIC does by itself: packets for the pods' addresses are its own"
for i in 0 1; do
	tc qdisc add dev r$i clsact
	tc filter add dev r$i ingress pref 1 protocol ip flower ip_proto udp dst_port 4791 \
		action pedit ex munge eth dst set "$(cat /sys/class/net/r$i/address)" pipe action skbedit ptype host
	for setting in all/rp_filter=0 r$i/rp_filter=0 r$i/arp_ignore=3 r$i/arp_announce=2 r$i/accept_local=1; do
		echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/${setting%=*}"
	done
	for pod in $podA $podB; do
		ip addr add "$(address $pod $i)/32" dev r$i scope host
	done
done

say "ib_write_bw over each rail, from pod to pod, with what rocectl env names for it"
# command POD INTERFACE prints the test that rocectl env names.
command() { ip netns exec "$1" rocectl env | sed -n "s/^# $2: \(ib_write_bw .*\)/\1/p"; }
# shown prints the output of ib_write_bw, without a bandwidth if the processor is emulated.
shown() { if [ "$VM_KVM" = true ]; then cat; else sed -E 's/^( *65536 +[0-9]+) .*/\1            (emulated: no measurement)/'; fi; }
for i in 0 1; do
	# -F: an emulated processor has no even frequency.
	# shellcheck disable=SC2046 # words of a command
	ip netns exec $podA timeout 100 $(command $podA "$(interface $i)") -F -s 65536 -n 100 >"$work/server.log" 2>&1 &
	server=$!
	for _ in $(seq 100); do
		[ -z "$(ip netns exec $podA ss -Hltn sport = 18515)" ] || break
		sleep 0.1
	done
	# shellcheck disable=SC2046
	run ip netns exec $podB timeout 100 $(command $podB "$(interface $i)") -F -s 65536 -n 100 "$(address $podA $i)" | tee "$work/rail$i.log" | shown
	wait $server || fail "the server of ib_write_bw ended with an error: $(cat "$work/server.log")"
	for pod in $podA $podB; do ip addr del "$(address $pod $i)/32" dev r$i; done
	tc qdisc del dev r$i clsact
done

say "CHECK: is all as it was made? And after an operator took net1 down and up?"
run rocectl check
run ip -n $podA link set net1 down
run ip -n $podA link set net1 up
run rocectl check || echo "(exit status $?)"
run rocectl repair --yes
run rocectl check

say "DEL"
for pod in $podA $podB; do cni del rails net1 $pod; done

say "What is left"
for pod in $podA $podB; do
	left=$(ip -n $pod -o link | grep -v ' lo: ' || true)$(ip -n $pod rule | grep 'proto 82' || true)
	[ -z "$left" ] || fail "$pod still has: $left"
done
[ -z "$(find /run/roce/attachments -type f)" ] || fail "records are left: $(find /run/roce/attachments -type f)"
run rocectl show
run rocectl gids
run rocectl pool list

say "The result"
echo "Nothing is left but addresses in quarantine. From pod to pod went, with ib_write_bw:"
for i in 0 1; do
	awk -v rail=$i -v kvm="$VM_KVM" '$1 == 65536 {print "rail " rail ": " $2 " writes of 65536 bytes" (kvm == "true" ? ", " $4 " MB/s on average" : "")}' "$work/rail$i.log"
done
[ "$VM_KVM" = true ] || echo "The processor of this machine is emulated: that proves that bytes flow, and says nothing about bandwidth."
