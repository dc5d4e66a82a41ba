// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// The table on the host that has a route to each pod with hostLink, and the priority of
// the rule that looks in it. The rule comes before those that a node has for its own
// addresses: the table has nothing but single addresses of pods on this node.
const (
	HostLinkTable    = 8200
	HostLinkPriority = 500
)

// hostLinkMTU is the usual MTU of Ethernet, whatever the rails have: the node forwards
// the packets to networks of which the pod knows no MTU.
const hostLinkMTU = 1500

const maxNodeAddresses = 256

// nextHop returns the address of the node on the link, for each family. The kernel never
// asks who has it, because a Neighbour operation says so. So it need not exist.
func nextHop(family netip.Addr) netip.Addr {
	if family.Is4() {
		return netip.AddrFrom4([4]byte{169, 254, 1, 1})
	}
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1})
}

// localDNS is where node-local DNS of Kubernetes listens. Other link-local addresses are in
// hostLink.routes: one of them is the metadata service of a cloud.
func localDNS() netip.Prefix { return netip.MustParsePrefix("169.254.20.10/32") }

// hostLinkName returns the name of the host's end, which DEL finds without a record.
// Programs that look for addresses of the node skip names that begin with "veth".
func hostLinkName(at conf.Attachment) conf.LinkName {
	sum := sha256.Sum256([]byte(Mark(at)))
	return conf.LinkName("veth" + hex.EncodeToString(sum[:])[:11])
}

func hostVeth(at conf.Attachment, node string) Veth {
	mac := func(end string) conf.MAC {
		sum := sha256.Sum256([]byte(node + "\x00hostLink\x00" + Mark(at) + "\x00" + end))
		return conf.MAC{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
	}
	return Veth{
		Name: hostLinkName(at), MAC: mac("host"), PodEnd: conf.HostLinkInterface, PodMAC: mac("pod"),
		MTU: hostLinkMTU, Mark: Mark(at),
	}
}

// hostLink returns the operations that connect the pod with its node. The pod reaches the
// node, node-local DNS and the routes of the request through the pair, with its own
// address as the source. The host has a route to each address of the rail.
func (m maker) hostLink() (Ops, error) {
	if len(m.lease.Addresses) == 0 { // another IPAM plugin leases them when the link is there
		return nil, nil
	}
	veth := hostVeth(m.req.Attachment, m.facts.Node)
	routes, err := m.nodeRoutes()
	if err != nil {
		return nil, err
	}
	out := slices.Concat(OnHost(veth), InPod(m.endSettings(veth.PodEnd)), OnHost(m.endSettings(veth.Name, setting("ipv4", veth.Name, "forwarding", "1"))),
		InPod(Up{Link: veth.PodEnd}), OnHost(Up{Link: veth.Name}))
	var neighbours []Neighbour
	var toPod []Route
	var rules Ops
	for _, family := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		own := m.ofFamily(family)
		if len(own) == 0 {
			continue
		}
		out = append(out, InPod(Neighbour{veth.PodEnd, nextHop(family), veth.MAC})...)
		for _, a := range own {
			addr := a.Prefix.Addr()
			neighbours = append(neighbours, Neighbour{veth.Name, addr, veth.PodMAC})
			toPod = append(toPod, Route{Link: veth.Name, Table: HostLinkTable, Dst: netip.PrefixFrom(addr, addr.BitLen()), Scope: onLinkScope(addr)})
		}
		rules = append(rules, Op{Place: Host, Shared: true, Kind: Rule{From: defaultDst(family), Table: HostLinkTable, Priority: HostLinkPriority}})
	}
	return slices.Concat(out, at(Host, neighbours), at(Pod, routes), at(Host, toPod), rules), nil
}

func (m maker) ofFamily(family netip.Addr) []LeasedAddress {
	return slices.DeleteFunc(slices.Clone(m.lease.Addresses), func(a LeasedAddress) bool { return a.Prefix.Addr().Is4() != family.Is4() })
}

// endSettings returns the settings of one end. The kernel makes no address of its own, so
// that the pod never uses another source than its address. With rp_filter=1 the pod drops
// what comes from a source that it does not reach through the link: its answer would take
// another way, and the node's NAT would not see it. The host drops what does not come from
// an address of the pod. It must forward what the pod sends to ClusterIPs.
func (m maker) endSettings(link conf.LinkName, more ...Setting) Sysctl {
	op := Sysctl{Link: link}
	if m.facts.Pod.IPv6 {
		op.Set = append(op.Set, setting("ipv6", link, "addr_gen_mode", "1"), setting("ipv6", link, "accept_ra", "0"))
		if m.hasIPv6() {
			op.Set = append(op.Set, setting("ipv6", link, "disable_ipv6", "0"))
		}
	}
	op.Set = append(op.Set, setting("ipv4", link, "rp_filter", "1"))
	op.Set = append(op.Set, more...)
	return op
}

func setting(family string, link conf.LinkName, key, value string) Setting {
	return Setting{Path: fmt.Sprintf("net/%s/conf/%s/%s", family, link, key), Value: value}
}

// nodeRoutes returns the routes of the pod through its node: in the main table for
// programs that bind no address, and in the table of each address.
func (m maker) nodeRoutes() ([]Route, error) {
	tables := make([]uint32, len(m.lease.Addresses))
	if m.rail.Routing.Mode == conf.RoutingPolicy {
		var err error
		if tables, err = m.tables(); err != nil {
			return nil, err
		}
	}
	to, err := m.nodePrefixes()
	if err != nil {
		return nil, err
	}
	var out []Route
	inMain := map[bool]bool{} // by whether it is IPv4
	for i, a := range m.lease.Addresses {
		addr := a.Prefix.Addr()
		in := []uint32{tables[i]}
		if !inMain[addr.Is4()] {
			in = append(in, MainTable)
			inMain[addr.Is4()] = true
		}
		for _, table := range in {
			for _, p := range to {
				if table != 0 && p.Addr().Is4() == addr.Is4() {
					out = append(out, Route{
						Link: conf.HostLinkInterface, Table: table, Dst: p, Via: nextHop(addr), Src: addr, OnLink: addr.Is4(),
					})
				}
			}
		}
	}
	return out, nil
}

// nodePrefixes returns what the pod reaches through its node. Of the addresses of the node
// it leaves out those that the routes contain anyway: with IPVS, the node has
// each ClusterIP.
func (m maker) nodePrefixes() ([]netip.Prefix, error) {
	out := slices.Clone(m.req.HostLink.Routes)
	if dns := localDNS(); !slices.ContainsFunc(out, func(p netip.Prefix) bool { return p.Contains(dns.Addr()) }) {
		out = slices.Insert(out, 0, dns)
	}
	var single []netip.Prefix
	for _, a := range m.facts.HostAddrs {
		within := func(p netip.Prefix) bool { return p.Contains(a) }
		if a.IsGlobalUnicast() && !slices.ContainsFunc(out, within) {
			single = append(single, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if len(single) > maxNodeAddresses {
		return nil, cnierr.New(cnierr.BadConfig, "route to", "the node", "write the CIDRs of the cluster's Services into hostLink.routes",
			"it has %d addresses outside of hostLink.routes, the limit is %d", len(single), maxNodeAddresses)
	}
	return append(out, single...), nil
}

// Veth creates a pair of connected links, down: one on the host, with the alias Mark, and
// one in the pod. Its place is the host, so that DEL removes the pair also when the
// namespace of the pod is gone. When one end goes, the kernel removes the other.
//
// An existing veth on the host with that name is ours if it carries Mark, or if it has
// this MAC and not the mark of another attachment.
type Veth struct {
	Name   conf.LinkName `json:"name"`           // on the host
	MAC    conf.MAC      `json:"mac"`            // on the host
	PodEnd conf.LinkName `json:"podEnd"`         // its name in the pod
	PodMAC conf.MAC      `json:"podMAC"`         // of the end in the pod
	MTU    int           `json:"mtu,omitempty"`  // of both
	Mark   string        `json:"mark,omitempty"` // alias of the end on the host
}

func (v Veth) commands(in namespaces) []string {
	return []string{
		shell.Command("ip link add name %s address %s mtu %d type veth peer name %s netns %s address %s mtu %d",
			v.Name, v.MAC, v.MTU, v.PodEnd, in.pod, v.PodMAC, v.MTU),
		shell.Command("ip link set dev %s alias %s", v.Name, v.Mark),
	}
}

// Neighbour says which MAC an address has on a link of ours, for ever: no question goes
// over the link, and no answer of the other side changes the entry. It replaces an entry
// of the same address.
type Neighbour struct {
	Link conf.LinkName `json:"link"`
	Addr netip.Addr    `json:"addr"`
	MAC  conf.MAC      `json:"mac"`
}

func (n Neighbour) commands(in namespaces) []string {
	return []string{in.ip() + shell.Command(" neigh replace %s lladdr %s dev %s nud permanent", n.Addr, n.MAC, n.Link)}
}

// firstInterface is the name that container runtimes give to the interface of the first
// network of a pod. They look for the pod's IP under this name (containerd and CRI-O).
const firstInterface = "eth0"

// Isolated says why the pod's eth0 cannot reach its node: the plan makes the first
// interface of the pod and gives it no default route. It returns "" for all other plans.
// Behind another plugin, that plugin makes the first interface.
func (p Plan) Isolated(req conf.Request) string {
	if req.IfName != firstInterface || req.Before != nil {
		return ""
	}
	for r := range All[Route](p.Ops.At(Pod)) {
		if r.Table == MainTable && r.Dst.Bits() == 0 {
			return ""
		}
	}
	return fmt.Sprintf("%s is the first network of the pod, and the pod gets no default route: it reaches no ClusterIP, "+
		"no DNS of the cluster and not its node, and probes of the kubelet fail. Let the CNI of the cluster make %s, and name this network "+
		"in the annotation k8s.v1.cni.cncf.io/networks; or set hostLink. See docs/default-network.md", firstInterface, firstInterface)
}
