// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"testing"
)

// takes lets Soft-RoCE take packets for the pod by a VLAN of r0, as it does for r0 itself.
func (r rail) takes(link, ingress string) {
	t := r.node.t
	t.Helper()
	finally(t, "ip addr del "+r.addr+"/32 dev "+link)
	shell(t, fmt.Sprintf(`ip addr del %[1]s/32 dev r0
		ip addr add %[1]s/32 dev %[2]s scope host
		%[3]s
		cd /proc/sys/net/ipv4/conf
		echo 0 >all/rp_filter; echo 0 >%[2]s/rp_filter
		echo 3 >%[2]s/arp_ignore; echo 2 >%[2]s/arp_announce; echo 1 >%[2]s/accept_local`, r.addr, link, ingress))
}

func TestNodesSharedPodsOnAVLANTransfer(t *testing.T) {
	n := newNode(t, "shared")
	p := meet(t)
	n.allowVLANs()
	r := n.joined(vlan(n.ownRail(p.self), 160))
	r.takes("r0.160", `tc qdisc add dev r0.160 clsact
		tc filter add dev r0.160 ingress pref 1 protocol ip flower ip_proto udp dst_port 4791 \
			action pedit ex munge eth dst set "$(cat /sys/class/net/r0/address)" pipe action skbedit ptype host`)
	p.swap("ready")
	across(p, r, r.writeServer, r.writeTo)
	run(t, "ip", "addr", "del", r.addr+"/32", "dev", "r0.160") // a VLAN stays while others have addresses on it
	r.mustDel()
	p.swap("over")
}

// TestNodesSharedPodsWithIpvlansTransfer leads the packets past the ipvlans, which would
// take them, to a VLAN of r0.
func TestNodesSharedPodsWithIpvlansTransfer(t *testing.T) {
	n := newNode(t, "shared")
	p := meet(t)
	finally(t, "ip link del past; tc qdisc del dev r0 clsact")
	shell(t, "ip link add link r0 name past type vlan id 4000; ip link set past up")
	r := n.joined(ipvlan(n.ownRail(p.self)))
	r.takes("past", `tc qdisc add dev r0 clsact
		tc filter add dev r0 ingress pref 1 protocol ip flower ip_proto udp dst_port 4791 action mirred ingress redirect dev past`)
	p.swap("ready")
	across(p, r, r.writeServer, r.writeTo)
	r.mustDel()
	run(t, "ip", "link", "del", "past")
	p.swap("over")
}
