// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"net"
	"os/exec"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// kernelFault is a fault that the kernel of any machine can have.
type kernelFault struct {
	name     string   // in faults
	commands []string // of the fault
	program  string   // that the check and its command need, besides ip and sysctl
	recorded bool     // a record names the link to a pod
}

func kernelFaults() []kernelFault {
	const link = "ip link add veth0123456789a type veth peer name host0 && ip link set veth0123456789a alias roce:c1/eth0"
	return []kernelFault{
		{name: "an interface is down", commands: []string{"ip link set rail1 down"}},
		{name: "MTU 1500", commands: []string{"ip link set rail0 mtu 1500"}},
		{name: "two NICs in one subnet", commands: []string{"ip address add 172.16.11.2/24 dev rail1"}},
		{name: "strict rp_filter", commands: []string{
			"ip address add 172.16.11.2/24 dev rail1", "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=1",
		}},
		{name: "iptables-legacy drops RoCE", program: "iptables-legacy-save", commands: []string{
			"iptables-legacy -A INPUT -p udp -m multiport --dports 53,4700:4800 -j DROP", "iptables-legacy -A INPUT ! -i rail0 -p udp --dport 4791 -j REJECT",
		}},
		{name: "a rule drops RoCE", program: "nft", commands: []string{
			"nft add table inet filter", "nft 'add chain inet filter input { type filter hook input priority 0; }'",
			"nft add rule inet filter input udp dport 53 drop", "nft 'add rule inet filter input udp dport { 53, 4700-4800 } counter drop'",
			"nft add table ip other", "nft 'add chain ip other in { type filter hook input priority 1; }'", "nft add rule ip other in udp dport 4791 reject",
		}},
		{name: "pods with hostLink on a node that forwards nothing", recorded: true, commands: []string{"sysctl -w net.ipv4.ip_forward=0", link}},
		{name: "pods with hostLink of both families on a node that forwards IPv4", recorded: true, commands: []string{
			"sysctl -w net.ipv6.conf.all.forwarding=0", link, "ip -6 rule add priority 500 table 8200 protocol 82",
		}},
		{name: "a chain drops what pods with hostLink send", recorded: true, program: "nft", commands: []string{
			link, "nft add table ip filter", "nft 'add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'",
			"nft add table ip6 filter", "nft 'add chain ip6 filter FORWARD { type filter hook forward priority 0; policy drop; }'",
			"nft add table inet fw", "nft 'add chain inet fw forward { type filter hook forward priority 1; policy drop; }'", "nft add rule inet fw forward ct state established accept",
			"nft add table inet last", "nft 'add chain inet last forward { type filter hook forward priority 2; }'", "nft add rule inet last forward counter reject with icmpx admin-prohibited",
			"nft add table inet in", "nft 'add chain inet in input { type filter hook input priority 2; }'", "nft add rule inet in input drop",
		}},
		{name: "a rule of a chain that accepts drops what pods with hostLink send", recorded: true, program: "nft", commands: []string{
			link, "nft add table inet fw", "nft 'add chain inet fw forward { type filter hook forward priority 1; policy accept; }'", "nft add rule inet fw forward ct state invalid drop",
			`nft add rule inet fw forward oifname != '{ "cni0", "eth0" }' counter reject`, `nft add rule inet fw forward iifname '"veth*"' drop`,
		}},
		{name: "a rule of iptables-legacy drops what pods with hostLink send", recorded: true, program: "iptables-legacy-save", commands: []string{
			link, "iptables-legacy -A FORWARD -i veth+ -j DROP", "iptables-legacy -A FORWARD -i veth+ -j ACCEPT",
		}},
		{name: "iptables-legacy drops what pods with hostLink send", recorded: true, program: "iptables-legacy-save", commands: []string{
			link, "iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -i docker0 -j ACCEPT", "iptables-legacy -A FORWARD -j REJECT",
		}},
		{name: "a link to a pod without record", commands: []string{"sysctl -w net.ipv4.ip_forward=1", link}},
		{name: "a rule without record", commands: []string{"ip -6 rule add priority 500 table 8200 protocol 82", "ip -4 rule add priority 500 table 8200 protocol 82", "ip -4 rule add priority 500 table 8200 protocol 4"}},
	}
}

// TestRepairInTheKernel has each of these faults in a network namespace of its own, runs the
// commands that the checks name, and looks again until there is no problem. RDMA is
// recorded; interfaces, addresses, rules, firewall and settings are the kernel's.
func TestRepairInTheKernel(t *testing.T) {
	for _, k := range kernelFaults() {
		t.Run(k.name, func(t *testing.T) {
			if _, err := exec.LookPath(k.program); k.program != "" && err != nil {
				t.Skip(k.program + " is missing: install the Debian packages iptables and nftables")
			}
			l := newLive(t, k)
			if got := problemsOf(l.look()); len(got) > 0 {
				t.Fatalf("the node without the fault: %+v", got)
			}
			for _, c := range k.commands {
				l.node.Exec("sh", "-ec", c)
			}
			f := faults()[slices.IndexFunc(faults(), func(f fault) bool { return f.name == k.name })]
			found := problemsOf(l.look())
			if !slices.ContainsFunc(found, func(a report.Answer) bool { return a.Check == f.check }) {
				t.Fatalf("%s does not find it: %+v", f.check, found)
			}
			for range 5 { // a check of rules finds one at a time
				for _, a := range found {
					l.node.Exec("sh", "-ec", a.Fix)
				}
				if found = problemsOf(l.look()); len(found) == 0 {
					return
				}
			}
			t.Errorf("after the commands: %+v", found)
		})
	}
}

// live is a node of which the network is the kernel's, and the rest recorded.
type live struct {
	*world
	node *kerneltest.Node
	of   kernelFault
}

func newLive(t *testing.T, of kernelFault) live {
	t.Helper()
	l := live{healthy(t), kerneltest.NewNode(t), of}
	for i, name := range []string{"rail0", "rail1"} {
		l.node.NIC(name)
		l.node.IP("link set " + name + " mtu 9000")
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		l.port(i).NetdevIndex = int32(link.Attrs().Index)
	}
	l.node.IP("address add 172.16.11.1/24 dev rail0")
	settings := []string{"-qw", "net.ipv4.ip_forward=1"}
	for _, name := range []string{"all", "rail0", "rail1"} { // a machine may have other defaults
		for _, key := range []string{"rp_filter", "arp_ignore", "arp_announce"} {
			settings = append(settings, "net.ipv4.conf."+name+"."+key+"=0")
		}
	}
	l.node.Exec("sysctl", settings...)
	if of.recorded {
		l.record()
	}
	if of.program != "" {
		l.write("sys/class/infiniband/mlx5_0/parent", "rail0\n")
	}
	if of.program == "iptables-legacy-save" {
		l.write("proc/net/ip_tables_names", "filter\n")
	}
	if of.program != "nft" {
		l.programs["nft"] = ""
	}
	return l
}

// look runs all checks that look at the network.
func (l live) look() []report.Answer {
	l.t.Helper()
	kernel, n := Live(l.pools, l.leases, l.listen()), l.world.node()
	n.Links, n.Addrs, n.Sysctl, n.Rules = kernel.Links, kernel.Addrs, kernel.Sysctl, kernel.Rules
	if l.of.program != "" {
		recorded := n.Run
		n.Run = func(ctx context.Context, program string, args ...string) (string, error) {
			if program == l.of.program {
				return kernel.Run(ctx, program, args...)
			}
			return recorded(ctx, program, args...)
		}
	}
	links, err := netlink.LinkList()
	if err != nil {
		l.t.Fatal(err)
	}
	for _, link := range links {
		l.write("sys/class/net/"+link.Attrs().Name+"/ifalias", link.Attrs().Alias)
		if link.Attrs().Name == "rail1" { // its RDMA device does as the driver would
			l.port(1).State = map[bool]nldev.State{true: nldev.Active, false: nldev.Down}[link.Attrs().Flags&net.FlagUp != 0]
		}
	}
	names := []string{"rdma-ports", "rdma-mtu", "rdma-bond", "host-arp", "firewall", "host-link", "left-behind"}
	return slices.Collect(Run(l.t.Context(), n, slices.DeleteFunc(Checks(), func(c Check) bool { return !slices.Contains(names, c.Name) })))
}

func problemsOf(answers []report.Answer) []report.Answer {
	return slices.DeleteFunc(answers, func(a report.Answer) bool { return a.Verdict == report.OK })
}
