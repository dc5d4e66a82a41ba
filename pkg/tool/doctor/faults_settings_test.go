// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// configuredFaults are of what people or other programs have set: e-switch, firmware, PFC,
// routes, and rules of iptables.
func configuredFaults() []fault {
	const forced = "sys/class/infiniband/mlx5_0/tc/1/traffic_class"
	legacy := func(rules string) func(*world) {
		return func(w *world) {
			w.write("sys/class/infiniband/mlx5_0/parent", "ens1f0np0")
			w.write("proc/net/ip_tables_names", "filter\n")
			w.programs["nft"] = "table ip nothing {\n}\n"
			if rules != "" {
				w.programs["iptables-legacy-save"] = rules
			}
		}
	}
	return []fault{
		{
			name: "switchdev mode", change: func(w *world) { w.devlink[1].Attrs.Eswitch.Mode = "switchdev" },
			check: "eswitch-mode", verdict: report.Problem, says: "mlx5_1: its NIC is in switchdev mode", advice: "devlink dev eswitch set pci/",
			after: func(w *world) { w.devlink[1].Attrs.Eswitch.Mode = "legacy" },
		},
		{
			name: "devlink does not answer", change: func(w *world) { w.devlinkErr = errRefused },
			check: "eswitch-mode", verdict: report.CannotTell, says: "not permitted", advice: "root",
		},
		{
			name: "NICs without e-switch", change: func(w *world) { w.devlink = nil },
			check: "eswitch-mode", verdict: report.OK, says: "no RDMA device has an e-switch",
		},
		{
			name: "another firmware", change: func(w *world) {
				w.secondPort()
				w.drivers["ens1f0np0"] = nic.Driver{Name: "mlx5_core", Version: "6.8.0-60-generic", Firmware: "22.31.1014"}
			},
			check: "nic-firmware", verdict: report.Problem, says: "[ens2f0np0 ens3f0np0]: version 6.8.0-60-generic, firmware 22.43.2026; [ens1f0np0]: version 6.8.0-60-generic, firmware 22.31.1014", advice: "ethtool -i ens1f0np0",
			after: func(w *world) { w.drivers["ens1f0np0"] = w.drivers["ens2f0np0"] },
		},
		{
			name: "no NIC reports a firmware", change: func(w *world) {
				for nic, d := range w.drivers {
					d.Firmware = ""
					w.drivers[nic] = d
				}
			},
			check: "nic-firmware", verdict: report.OK, says: "version 6.8.0-60-generic, firmware unknown",
		},
		{
			name: "a driver that does not answer", change: func(w *world) { delete(w.drivers, "ens1f0np0") },
			check: "nic-firmware", verdict: report.CannotTell, says: "ens1f0np0: its driver", advice: "ethtool -i",
		},
		{
			name: "PFC on one rail only", change: func(w *world) { w.qos["ens2f0np0"] = nic.QoS{TellsECN: true} },
			check: "nic-qos", verdict: report.Problem, says: "ens1f0np0: PFC for priority 3, DSCP 24-31 there, ECN for priority 3; ens2f0np0: PFC off, ECN off", advice: "dcb pfc set dev",
			after: func(w *world) { w.qos["ens2f0np0"] = lossless() },
		},
		{
			name: "no DSCP leads to PFC", change: quality(func(q *nic.QoS) { q.DSCP = [64]nic.Priorities{} }),
			check: "nic-qos", verdict: report.CannotTell, says: "ens1f0np0, ens2f0np0: no DSCP leads to priority 3", advice: "dcb app add dev ens1f0np0",
		},
		{
			name: "PFC without ECN", change: quality(func(q *nic.QoS) { q.ECN = 1 << 5 }),
			check: "nic-qos", verdict: report.Problem, says: "ens1f0np0, ens2f0np0: ECN is off for priority 3", advice: "/sys/class/net/ens1f0np0/ecn/roce_np/enable/3",
			after: quality(func(q *nic.QoS) { q.ECN = 1 << 3 }),
		},
		{
			name: "the driver does not tell ECN", change: quality(func(q *nic.QoS) { q.ECN, q.TellsECN = 0, false }),
			check: "nic-qos", verdict: report.CannotTell, says: "ens1f0np0, ens2f0np0: its driver does not tell ECN", advice: "NVIDIA's own driver",
		},
		{
			name: "PFC and ECN are off", change: quality(func(q *nic.QoS) { *q = nic.QoS{TellsECN: true} }),
			check: "nic-qos", verdict: report.OK, says: "PFC off, ECN off",
		},
		{
			name: "a bond: its slaves are asked", change: func(w *world) {
				w.links = append(w.links, rtnl.Link{Index: 9, Name: "bond0", Kind: "bond", MTU: 9000})
				for i := range 2 {
					w.link(i).SlaveKind, w.link(i).Master = "bond", 9
				}
				w.rdma.Devices, w.port(0).NetdevIndex, w.routes[0].Index = w.rdma.Devices[:1], 9, 9
			},
			check: "nic-qos", verdict: report.OK, says: "ens1f0np0, ens2f0np0: PFC for priority 3",
		},
		{
			name: "a VF: its PF is asked", change: func(w *world) {
				delete(w.qos, "ens1f0np0")
				w.write("sys/class/net/ens1f0np0/device/physfn/net/ens2f0np0/mtu", "9000")
			},
			check: "nic-qos", verdict: report.OK, says: "ens2f0np0: PFC for priority 3",
		},
		{
			name: "all packets have a traffic class without PFC", change: func(w *world) { w.write(forced, "Global tclass=48\n") },
			check: "nic-qos", verdict: report.Problem, says: "mlx5_0/1: its driver gives all packets traffic class 48, which is DSCP 12", advice: "echo 96 >/" + forced,
			after: func(w *world) { w.write(forced, "Global tclass=106\n") },
		},
		{
			name: "a driver without dcbnl", change: func(w *world) { clear(w.qos) },
			check: "nic-qos", verdict: report.CannotTell, says: "ens2f0np0: its driver does not tell PFC", advice: "mlnx_qos -i ens2f0np0",
		},
		{
			name: "the pod network has the pool's subnet", change: func(w *world) { w.routes = append(w.routes, route("172.20.128.0/24", 9)) },
			check: "pool-routes", verdict: report.Problem, says: "gpu: 172.20.0.0/16 of the pool overlaps the route 172.20.128.0/24", advice: "ip route show 172.20.128.0/24",
			after: func(w *world) { w.routes = w.routes[:2] },
		},
		{
			name: "routes cannot be listed", change: func(w *world) { w.routesErr = errRefused },
			check: "pool-routes", verdict: report.CannotTell, says: "not permitted", advice: "root",
		},
		{
			name: "pods with hostLink on a node that forwards nothing", change: func(w *world) {
				w.linked()
				w.write("proc/sys/net/ipv4/ip_forward", "0")
			},
			check: "host-link", verdict: report.Problem, says: "net.ipv4.ip_forward is 0", advice: "sysctl -w net.ipv4.ip_forward=1",
			after: func(w *world) { w.write("proc/sys/net/ipv4/ip_forward", "1") },
		},
		{
			name: "pods with hostLink on a node that forwards", change: func(w *world) {
				w.linked()
				w.write("proc/sys/net/ipv4/ip_forward", "1")
			},
			check: "host-link", verdict: report.OK, says: "pods with a link to the node: 1",
		},
		{
			name: "the agent has not written the CIDRs of Services", change: (*world).withoutServices,
			check: "host-link", verdict: report.CannotTell, says: "rocectl agent has not written it yet", advice: `hostLink.routes "auto"`,
		},
		{
			name: "the file with the CIDRs of Services is damaged", change: func(w *world) { w.spoil("pools/_services") },
			check: "host-link", verdict: report.Problem, says: "_services", advice: "/pools/_services",
			after: func(w *world) {
				w.withoutServices()
				w.pool(0)
			},
		},
		{
			name: "pods with hostLink of both families on a node that forwards IPv4", change: func(w *world) {
				w.dual("0")
			},
			check: "host-link", verdict: report.Problem, says: "net.ipv6.conf.all.forwarding is 0", advice: "accept_ra=2",
			after: func(w *world) { w.write("proc/sys/net/ipv6/conf/all/forwarding", "1") },
		},
		{
			name: "a chain drops what pods with hostLink send", change: func(w *world) {
				w.dual("1")
				w.programs["nft"] = "table ip6 filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n"
			},
			check: "host-link", verdict: report.Problem, says: "the chain FORWARD of table ip6 filter drops", advice: `nft insert rule ip6 filter FORWARD iifname "veth*" accept`,
			after: func(w *world) {
				w.programs["nft"] = "table ip6 filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority filter; policy drop;\n\t\tiifname \"veth*\" accept\n\t}\n}\n"
			},
		},
		{
			name: "iptables-legacy drops what pods with hostLink send", change: func(w *world) {
				w.dual("1")
				w.write("proc/net/ip6_tables_names", "filter\n")
				w.programs["ip6tables-legacy-save"] = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i docker0 -j ACCEPT\nCOMMIT\n"
			},
			check: "host-link", verdict: report.Problem, says: "the chain FORWARD of ip6tables-legacy drops", advice: "ip6tables-legacy -I FORWARD -i veth+ -j ACCEPT",
			after: func(w *world) {
				w.programs["ip6tables-legacy-save"] = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i veth+ -j ACCEPT\nCOMMIT\n"
			},
		},
		{
			name: "a rule of a chain that accepts drops what pods with hostLink send", change: func(w *world) {
				w.dual("1")
				w.programs["nft"] = "table inet fw {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\tct state invalid drop\n\t\tiifname \"veth*\" counter packets 1 bytes 60 drop\n\t}\n}\n"
			},
			check: "host-link", verdict: report.Problem, says: `the chain forward of table inet fw drops packets of pods: iifname "veth*" counter packets 1 bytes 60 drop`, advice: `nft insert rule inet fw forward iifname "veth*" accept`,
			after: func(w *world) {
				w.programs["nft"] = "table inet fw {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\tiifname \"veth*\" accept\n\t\tct state invalid drop\n\t\tiifname \"veth*\" counter packets 1 bytes 60 drop\n\t}\n}\n"
			},
		},
		{
			name: "a rule of iptables-legacy drops what pods with hostLink send", change: func(w *world) {
				w.dual("1")
				w.write("proc/net/ip_tables_names", "filter\n")
				w.programs["iptables-legacy-save"] = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD ! -o cni0 -j REJECT --reject-with icmp-port-unreachable\n-A FORWARD -i veth+ -j ACCEPT\nCOMMIT\n"
			},
			check: "host-link", verdict: report.Problem, says: "the chain FORWARD of iptables-legacy drops packets of pods: -A FORWARD ! -o cni0 -j REJECT", advice: "iptables-legacy -I FORWARD -i veth+ -j ACCEPT",
			after: func(w *world) {
				w.programs["iptables-legacy-save"] = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -i veth+ -j ACCEPT\n-A FORWARD ! -o cni0 -j REJECT\nCOMMIT\n"
			},
		},
		{
			name: "rules that drop what is not of pods with hostLink", change: func(w *world) {
				w.dual("1")
				w.write("proc/net/ip_tables_names", "filter\n")
				w.programs["nft"] = "table inet fw {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy accept;\n\t\tiifname \"docker0\" drop\n\t\tiifname \"veth*\" ct state invalid drop\n\t}\n\tchain other {\n\t\tiifname \"veth*\" drop\n\t}\n}\n"
				w.programs["iptables-legacy-save"] = "*filter\n:FORWARD ACCEPT [0:0]\n-A FORWARD -i docker0 -j DROP\n-A FORWARD -i veth+ -m conntrack --ctstate INVALID -j DROP\nCOMMIT\n"
			},
			check: "host-link", verdict: report.OK, says: "the node forwards IPv4 and IPv6",
		},
		{
			name: "no nft for the chains that pods with hostLink pass", change: func(w *world) {
				w.linked()
				w.write("proc/sys/net/ipv4/ip_forward", "1")
				delete(w.programs, "nft")
			},
			check: "host-link", verdict: report.CannotTell, says: "nft list ruleset: ", advice: "nft",
		},
		{
			name: "forwarding cannot be read", change: func(w *world) { w.linked() },
			check: "host-link", verdict: report.CannotTell, says: "net.ipv4.ip_forward cannot be read", advice: "network namespace",
		},
		{
			name: "a VLAN without record", change: (*world).onVLAN,
			check: "left-behind", verdict: report.Problem, says: "ens1f0np0.120: a VLAN that roce has made: no record names it", advice: "ip link del ens1f0np0.120",
			after: func(w *world) { w.links, w.rules = w.links[:2], nil },
		},
		{
			name: "a link to a pod without record", change: func(w *world) {
				w.linked()
				w.write("proc/sys/net/ipv4/ip_forward", "1")
				w.forget()
			},
			check: "left-behind", verdict: report.Problem, says: "a link to the pod c1/eth0: no record names it", advice: "ip link del veth0123456789a",
			after: func(w *world) { w.links, w.rules = w.links[:2], nil },
		},
		{
			name: "a rule without record", change: (*world).onVLAN,
			check: "left-behind", verdict: report.Problem, says: "IPv6 rule: the rule to table 8200: no record names it", advice: "ip -6 rule del priority 500 table 8200 protocol 82",
			after: func(w *world) { w.links, w.rules = w.links[:2], nil },
		},
		{
			name: "a pod of roce-hwtest that was killed", change: func(w *world) { w.write("run/netns/roce-hwtest-0-1", "") },
			check: "left-behind", verdict: report.Problem, says: "roce-hwtest-0-1: the namespace /run/netns/roce-hwtest-0-1 of roce-hwtest", advice: "roce-hwtest --mutate",
			after: func(w *world) { w.remove("run/netns/roce-hwtest-0-1") },
		},
		{
			name: "a pod on a VLAN with a link", change: func(w *world) {
				w.onVLAN()
				w.record()
			},
			check: "left-behind", verdict: report.OK, says: "interfaces and rules of pods on the node: 2; a record names each",
		},
		{
			name: "a VLAN that has gone meanwhile", change: func(w *world) {
				w.onVLAN()
				w.rules = nil
				w.remove("sys/class/net/ens1f0np0.120")
			},
			check: "left-behind", verdict: report.OK, says: "interfaces and rules of pods on the node: 0",
		},
		{
			name: "a damaged record", change: func(w *world) {
				w.onVLAN()
				w.record()
				w.spoil("attachments/c1/eth0.json")
			},
			check: "left-behind", verdict: report.CannotTell, says: "the records cannot be read: ", advice: "rocectl show",
		},
		{
			name: "rules cannot be listed", change: func(w *world) { w.rulesErr = errRefused },
			check: "left-behind", verdict: report.CannotTell, says: "not permitted", advice: "root",
		},
		{
			name: "iptables-legacy drops RoCE", change: legacy("*filter\n-A INPUT -i eth0 -p udp -m multiport --dports 53,4700:4800 -j DROP\n"),
			check: "firewall", verdict: report.Problem, says: "a rule of iptables-legacy drops it: -A INPUT", advice: "iptables-legacy -t filter -D INPUT -i eth0 -p udp -m multiport --dports 53,4700:4800 -j DROP",
			after: func(w *world) { w.programs["iptables-legacy-save"] = "*filter\nCOMMIT\n" },
		},
		{
			name: "iptables-legacy drops RoCE, with a comment", change: legacy("*filter\n-A INPUT -p udp -m udp --dport 4791 -m comment --comment \"$(id)\" -j DROP\n"),
			check: "firewall", verdict: report.Problem, says: "a rule of iptables-legacy drops it: -A INPUT", advice: "iptables-legacy -D CHAIN NUMBER",
			after: func(w *world) { w.programs["iptables-legacy-save"] = "*filter\nCOMMIT\n" },
		},
		{
			name: "iptables-legacy lets RoCE pass", change: legacy("-A INPUT -p udp -m udp --dport 4791 -j ACCEPT\n-A INPUT -p tcp --dport 4791 -j DROP\n"),
			check: "firewall", verdict: report.OK, says: "no rule",
		},
		{
			name: "no iptables-legacy-save", change: legacy(""),
			check: "firewall", verdict: report.CannotTell, says: "not found", advice: "iptables-legacy-save",
		},
	}
}

// quality changes what both NICs do for the classes of traffic.
func quality(change func(*nic.QoS)) func(*world) {
	return func(w *world) {
		for name, q := range w.qos {
			change(&q)
			w.qos[name] = q
		}
	}
}
