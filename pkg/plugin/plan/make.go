// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"crypto/sha256"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Plan is an attachment: its operations, in order, and what the runtime is
// told. It survives JSON, because the record of an attachment is its plan.
type Plan struct {
	Interfaces []Interface `json:"interfaces"`
	DNS        types.DNS   `json:"dns,omitzero"`
	Ops        Ops         `json:"ops"`
}

// Interface is one interface of the pod, in the order of the rails.
type Interface struct {
	Rail      int             `json:"rail,omitempty"`
	Name      conf.LinkName   `json:"name"`
	MAC       conf.MAC        `json:"mac"`
	MTU       int             `json:"mtu"`
	Addresses []LeasedAddress `json:"addresses,omitempty"`
}

// Addresses returns the addresses of all interfaces.
func (p Plan) Addresses() []LeasedAddress {
	var out []LeasedAddress
	for _, i := range p.Interfaces {
		out = append(out, i.Addresses...)
	}
	return out
}

// Rail is what is known of one interface of an attachment.
type Rail struct {
	conf.Rail
	Facts Facts
	Lease Lease
}

// Make returns the plan of an attachment with these rails of the request. Rails may be
// left out. Equal arguments give equal plans.
//
// The network is asked before an address is used. IPv4 addresses come before IPv6 ones, so
// that the IPv4 GID gets the first free index in the NIC's table.
//
// Errors: BadConfig for what the node cannot do, RouteTaken for a foreign table, rule
// or default route.
func Make(req conf.Request, rails []Rail) (Plan, error) {
	var out Plan
	var all []Ops
	var linked Ops
	for i, r := range rails {
		m := maker{req: req, rail: r.Rail, facts: withBefore(r.Facts, all), lease: r.Lease, behind: rails[i+1:], mark: railMark(req.Attachment, r.Number)}
		ops, err := m.ops()
		if err != nil {
			return Plan{}, err
		}
		if req.Linked(r.Rail) {
			if linked, err = m.hostLink(); err != nil {
				return Plan{}, err
			}
		}
		all = append(all, ops)
		out.Interfaces = append(out.Interfaces, Interface{
			Rail: r.Number, Name: r.IfName, MAC: m.mac(), MTU: m.mtu(), Addresses: r.Lease.Addresses,
		})
		if i == 0 {
			out.DNS = m.dns()
		}
	}
	out.Ops = inPhases(append(all, linked))
	return out, checkTwice(out.Ops)
}

type maker struct {
	req    conf.Request
	rail   conf.Rail
	facts  Facts
	lease  Lease
	behind []Rail // rails that are still to be made
	mark   string
}

func (m maker) checkFamilies() error {
	for _, a := range m.lease.Addresses {
		if a.Prefix.Addr().Is6() && !m.facts.Pod.IPv6 {
			return cnierr.New(cnierr.BadConfig, "assign address", a.Prefix.String(),
				"remove the IPv6 subnet from ipam.subnets, or boot the node without ipv6.disable=1",
				"the kernel has no IPv6")
		}
	}
	return nil
}

func (m maker) mtu() int {
	if m.facts.Adopted != nil {
		return m.facts.Adopted.MTU
	}
	if m.req.MTU != 0 {
		return m.req.MTU
	}
	return m.facts.Parent.MTU
}

// mac returns the link's MAC. Without a MAC in the request it is a hash of
// node, pool and first address. So an address that returns to its node keeps
// its MAC, and old neighbour entries stay right. On another node the MAC
// differs, because two nodes with the same MAC would blind the conflict probe.
// Other IPAM plugins lease after the link is made; for them it is a hash of the
// attachment.
func (m maker) mac() conf.MAC {
	if m.facts.Adopted != nil {
		return m.facts.Adopted.MAC
	}
	if m.req.Mode.SharesMAC() {
		return m.facts.Parent.MAC
	}
	if !m.req.MAC.IsZero() {
		return m.req.MAC
	}
	return m.ownMAC()
}

func (m maker) ownMAC() conf.MAC {
	owner := string(m.req.ContainerID) + "/" + string(m.rail.IfName)
	if m.req.IPAM.Type == conf.PoolType {
		owner = m.lease.Addresses[0].Prefix.Addr().String()
	}
	sum := sha256.Sum256([]byte(m.facts.Node + "\x00" + m.req.IPAM.Pool + "\x00" + owner))
	return conf.MAC{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}
}

// MACFromAddress says whether the MAC of a link of ours is made from its first address.
// Another address then gives another MAC.
func MACFromAddress(req conf.Request) bool {
	return req.Prev == nil && !req.Mode.SharesMAC() && req.MAC.IsZero() && req.IPAM.Type == conf.PoolType
}

// dns returns the DNS settings of the configuration, or else those of IPAM, as
// upstream's main plugins do.
func (m maker) dns() types.DNS {
	if m.req.DNS.IsEmpty() {
		return m.lease.DNS
	}
	return m.req.DNS
}

func (m maker) hasIPv6() bool {
	return slices.ContainsFunc(m.lease.Addresses, func(a LeasedAddress) bool { return a.Prefix.Addr().Is6() })
}

// addresses returns the IPv4 addresses, then the IPv6 ones. With IPv6 it also
// returns the link-local address. Without addr_gen_mode=1 the kernel would make
// that one, and would start duplicate address detection for it. For an ipvlan the
// address cannot be made from its MAC, which all ipvlans of the NIC have.
func (m maker) addresses(mac conf.MAC) Ops {
	var v4, v6 []Address
	for _, a := range m.lease.Addresses {
		op := Address{Link: m.rail.IfName, Prefix: a.Prefix}
		if a.Prefix.Addr().Is4() {
			v4 = append(v4, op)
		} else {
			v6 = append(v6, op)
		}
	}
	if m.req.Mode == conf.L2 {
		mac = m.ownMAC()
	}
	if len(v6) > 0 {
		v6 = append(v6, Address{Link: m.rail.IfName, Prefix: netip.PrefixFrom(eui64(mac), 64)})
	}
	return at(Pod, append(v4, v6...))
}

// eui64 returns the link-local address of a MAC (RFC 4291 appendix A).
func eui64(mac conf.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{
		0: 0xfe, 1: 0x80,
		8: mac[0] ^ 0x02, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5],
	})
}

// conflict returns the conflict probe of our addresses. A point-to-point prefix needs none:
// there is no other host. Addresses in quarantine are probed even when probing is off.
func (m maker) conflict(mac conf.MAC) Ops {
	c := m.req.Probe.Conflict
	var targets []Target
	for _, a := range m.lease.Addresses {
		pointToPoint := a.Prefix.Bits() == a.Prefix.Addr().BitLen()-1
		if pointToPoint || (c.Mode == conf.Off && !a.Early) {
			continue
		}
		targets = append(targets, Target{Link: m.rail.IfName, MAC: mac, Addr: a.Prefix.Addr()})
	}
	if len(targets) == 0 {
		return nil
	}
	mode := c.Mode
	if mode == conf.Off {
		mode = conf.Require
	}
	op := Conflict{Mode: mode, Probes: c.Probes, Interval: c.Interval, Wait: c.Wait, Targets: targets}
	if m.req.Mode == conf.L2 && m.facts.Adopted == nil {
		return m.onMaster(op)
	}
	return InPod(op)
}

// onMaster returns the conflict probe of an ipvlan. A NIC gives a frame to an ipvlan only
// if that has the address to which the frame is sent (ipvlan_handle_mode_l2). The answer
// to an ARP probe is sent to 0.0.0.0, so only the NIC itself hears it.
func (m maker) onMaster(op Conflict) Ops {
	for i := range op.Targets {
		op.Targets[i].Link = m.facts.Parent.Name
	}
	if m.req.LinkInContainer {
		return InPod(op)
	}
	return OnHost(op)
}

func (m maker) gateway(mac conf.MAC) Ops {
	g := m.req.Probe.Gateway
	if g.Mode == conf.Off || m.silent() {
		return nil
	}
	var targets []Target
	for _, a := range m.lease.Addresses {
		if a.Gateway.IsValid() {
			targets = append(targets, Target{Link: m.rail.IfName, MAC: mac, Addr: a.Prefix.Addr(), Gateway: a.Gateway})
		}
	}
	if len(targets) == 0 {
		return nil
	}
	return InPod(Gateway{Mode: g.Mode, Attempts: g.Attempts, Timeout: g.Timeout, Targets: targets})
}

// at returns the operation at the place where the device is at that time.
func (r RDMA) at(k Kind) Ops {
	if r.Exclusive {
		return InPod(k)
	}
	return OnHost(k)
}

func (m maker) port() Ops {
	r := m.facts.RDMA
	if r == nil {
		return nil
	}
	return r.at(Port{Link: m.rail.IfName, Device: r.Device})
}

func (m maker) gid() Ops {
	r := m.facts.RDMA
	if r == nil || len(m.lease.Addresses) == 0 || m.req.RDMA.GID == conf.Off {
		return nil
	}
	var targets []GIDTarget
	for _, a := range m.lease.Addresses {
		targets = append(targets, GIDTarget{Link: m.rail.IfName, Addr: a.Prefix.Addr()})
	}
	return r.at(GID{Mode: m.req.RDMA.GID, Device: r.Device, Wait: m.req.RDMA.GIDWait, Targets: targets})
}

// move returns the move of the RDMA device, in exclusive mode. It keeps the
// host's settings unless the request has others: the kernel resets the settings
// of a device that moves (cma_add_one).
func (m maker) move() Ops {
	r := m.facts.RDMA
	if r == nil || !r.Exclusive {
		return nil
	}
	out := Move{
		Device: r.Device, Parent: m.facts.Parent.OnNode(), Link: m.rail.IfName, Netns: m.facts.Pod.Netns,
		TOS: r.TOS, TrafficClass: r.TrafficClass, HostTOS: r.TOS, HostTrafficClass: r.TrafficClass,
		UVerbs: r.UVerbs, UVerbsMode: m.req.RDMA.UVerbs,
	}
	if m.req.RDMA.TOS != nil {
		out.TOS = m.req.RDMA.TOS
	}
	if m.req.RDMA.TrafficClass != nil {
		out.TrafficClass = m.req.RDMA.TrafficClass
	}
	return OnHost(out)
}

func (m maker) announce(mac conf.MAC) Ops {
	var targets []Target
	for _, a := range m.lease.Addresses {
		targets = append(targets, Target{Link: m.rail.IfName, MAC: mac, Addr: a.Prefix.Addr()})
	}
	if len(targets) == 0 || m.silent() {
		return nil
	}
	return InPod(Announce{Targets: targets})
}
