#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The roce-cni authors
#
# node.sh DIR BIN REGISTRY: makes a virtual machine of integration/vm a node of a
# cluster, as an administrator has it before the quick start: RoCE NICs, containerd,
# kubelet, a network for pods, and Multus. DIR has the kubeconfig files, BIN the programs.
# It ends when the machine does.
set -euo pipefail
dir=$1 bin=$2 registry=$3
here=$(realpath "$(dirname "$0")")
n=$VM_NODE
export PATH=$bin:$PATH

# Folders that are written to are not below the overlay of the machine: containerd
# puts overlays of its own there.
for d in /opt /var/lib /var/log; do mount -t tmpfs -o mode=755 node "$d"; done
mount -t cgroup2 cgroup /sys/fs/cgroup
mount --make-shared /run # as systemd has it: containers may see namespaces that appear there while they run
modprobe -a ib_umad nf_tables nft_compat veth bridge macvlan
printf '%032x\n' $((n + 1)) >/etc/machine-id
mkdir -p /etc/roce
echo '{"version": 1, "rdma": {"counts": "pods", "foreignGID": "tell"}}' >/etc/roce/node.json

# What a leaf switch is to the rails of node 0: one more child of its NICs.
[ "$n" != 0 ] || ip netns add leaf
for i in 0 1; do
	ip addr add "10.$((i + 1)).0.$((n + 1))/16" dev "r$i"
	[ "$n" = 0 ] || continue
	ip link add link "r$i" name "rail$i" netns leaf type macvlan mode bridge
	ip -n leaf link set "rail$i" up
	ip -n leaf addr add "10.$((i + 1)).255.254/16" dev "rail$i"
done

# What a NIC does by itself, and Soft-RoCE does not: packets for the addresses of pods
# are its own.
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for i in 0 1; do
	tc qdisc add dev "r$i" clsact
	tc filter add dev "r$i" ingress pref 1 protocol ip flower ip_proto udp dst_port 4791 \
		action pedit ex munge eth dst set "$(cat "/sys/class/net/r$i/address")" pipe action skbedit ptype host
	for setting in rp_filter=0 arp_ignore=3 arp_announce=2 accept_local=1; do
		echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/r$i/${setting%=*}"
	done
done
listen() {
	while sleep 1; do
		for file in /run/roce/attachments/*/*.json; do
			grep -qs "\"committed\": *true" "$file" || continue
			for i in 0 1; do
				for address in $(grep -o "\"10\.$((i + 1))\.[0-9]*\.[0-9]*/16\"" "$file" | tr -d '"' | sort -u); do
					ip addr add "${address%/*}/32" dev "r$i" scope host 2>/dev/null || true
				done
			done
		done
	done
}
listen &

# The network of the pods: a bridge, and the way to the other node.
sysctl -qw net.ipv4.ip_forward=1
ip route add "10.244.$((1 - n)).0/24" via "10.1.0.$((2 - n))" dev r0
ip addr add "192.0.2.$((n + 1))/32" dev lo
mkdir -p /opt/cni/bin /etc/cni/net.d
for program in multus bridge host-local loopback; do cp "$(realpath "$bin/$program")" "/opt/cni/bin/$program"; done
rm -f /etc/cni/net.d/*
# Multus starts anew for each pod, and waits a second for the API server. Here the
# handshake alone can take longer, so that Multus goes through a process that has done it.
kubectl proxy --kubeconfig="$dir/admin.conf" --port=8001 >/var/log/proxy.log 2>&1 &
kubectl config --kubeconfig=/etc/cni/multus.conf set-cluster node --server=http://127.0.0.1:8001 >/dev/null
kubectl config --kubeconfig=/etc/cni/multus.conf set-context node --cluster=node --user=node >/dev/null
kubectl config --kubeconfig=/etc/cni/multus.conf set-credentials node --token=unused >/dev/null
kubectl config --kubeconfig=/etc/cni/multus.conf use-context node >/dev/null
cat >/etc/cni/net.d/00-multus.conflist <<END
{"cniVersion": "1.0.0", "name": "multus-cni-network", "plugins": [{
  "type": "multus", "kubeconfig": "/etc/cni/multus.conf", "logToStderr": false, "logLevel": "verbose", "logFile": "/var/log/multus.log",
  "delegates": [{"cniVersion": "1.0.0", "name": "cluster", "type": "bridge", "bridge": "cluster", "isGateway": true, "ipMasq": true,
    "ipam": {"type": "host-local", "subnet": "10.244.$n.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}]
}]}
END

for name in docker.io ghcr.io registry.k8s.io "$registry"; do
	mkdir -p "/etc/containerd/certs.d/$name"
	printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$registry" "$registry" >"/etc/containerd/certs.d/$name/hosts.toml"
done
containerd --config="$here/containerd.toml" >/var/log/containerd.log 2>&1 &
until ctr version >/dev/null 2>&1; do sleep 1; done
echo "node$n: containerd answers"
kubelet --config="$here/kubelet.yaml" --kubeconfig="$dir/node$n.conf" --hostname-override="node$n" \
	--node-ip="192.0.2.$((n + 1))" >/var/log/kubelet.log 2>&1 &
echo "node$n: kubelet has started"
wait $! || true
tail -n 50 /var/log/kubelet.log
exit 1
