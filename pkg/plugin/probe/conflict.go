// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// Taken is an address of ours that another host has or wants.
type Taken struct {
	plan.Target
	// By is the MAC of the other host, from its message.
	By conf.MAC
	// What says what was heard: "ARP reply", "ARP request", "ARP probe",
	// "neighbour advertisement", "neighbour solicitation" or "duplicate address
	// detection".
	What string
}

// TakenError lists all addresses of a plan.Conflict that are taken, in the
// order of its targets.
type TakenError struct{ Taken []Taken }

// Error names each address with interface, MAC and what was heard.
func (e *TakenError) Error() string {
	parts := make([]string, 0, len(e.Taken))
	for _, t := range e.Taken {
		parts = append(parts, fmt.Sprintf("%s is used on %s by %s (%s)", t.Addr, t.Link, t.By, t.What))
	}
	return strings.Join(parts, "; ")
}

// conflict asks whether another host has or wants the targets' addresses. A
// conflict is what RFC 5227 section 2.1.1 and RFC 4862 section 5.4 list: any
// message of a host that has the address, and a probe of a host that asks for
// it at the same time as we do.
func (p *Prober) conflict(ctx context.Context, at plan.Place, op plan.Conflict) error {
	mark, err := p.mark()
	if err != nil {
		return err
	}
	asks, err := asksFor(op.Targets, func(t plan.Target) (*ask, error) { return conflictAsk(t, mark) })
	if err != nil {
		return err
	}
	if err := p.query(ctx, at, asks, rounds{n: op.Probes, interval: op.Interval, wait: op.Wait}); err != nil {
		return err
	}
	return taken(asks)
}

// conflictAsk makes the probe of one address. Its sender is none of our
// addresses, because that would change the neighbours' caches before we know
// the answer.
func conflictAsk(t plan.Target, mark []byte) (*ask, error) {
	a := &ask{target: t, about: t.Addr, claims: true}
	if t.Addr.Is4() {
		return a, a.request(netip.IPv4Unspecified(), mark)
	}
	// The owner answers to all nodes (RFC 4861 section 7.2.4), and a rival asks
	// the solicited-node group. A link with IPv6 disabled receives these groups
	// only if it is told to.
	a.groups = []netip.Addr{solicitedNode(t.Addr), netip.IPv6LinkLocalAllNodes()}
	return a, a.request(netip.IPv6Unspecified(), mark)
}

func taken(asks []*ask) error {
	var found []Taken
	var addrs []string
	hint := ""
	for _, a := range asks {
		if a.answer == nil {
			continue
		}
		found = append(found, Taken{Target: a.target, By: a.answer.by, What: a.answer.what})
		addrs = append(addrs, a.target.Addr.String())
		if a.answer.by == a.target.MAC {
			hint = fmt.Sprintf("find the other interface with our MAC %s, and change one of the two: with equal MACs, conflict probes and switches do not work", a.target.MAC)
		}
	}
	if found == nil {
		return nil
	}
	return &cnierr.Error{
		Code: cnierr.AddressTaken, Op: "claim address", Subject: strings.Join(addrs, ", "), Hint: hint,
		Err: &TakenError{Taken: found},
	}
}

// group is the bit of the first byte of an Ethernet address that means many hosts.
const group = 1

// claim says that the sender of a frame has an address, or wants it.
type claim struct {
	addr netip.Addr
	by   conf.MAC
	what string
	// to is the address to which the frame is an answer. A frame that answers no
	// question has none: a request, a solicitation, a probe.
	to netip.Addr
	// alone says that an ARP reply was sent to us and not to all hosts.
	alone bool
}

// answers says whether the claim is an answer to the question of an address. This
// proves both directions: the owner has heard the question. Other frames of the owner
// prove only that its frames arrive here (RFC 4861 section 7.3.1 says the same of
// advertisements that were not solicited). By RFC 826, a reply is sent to the host that
// asks. One that is sent to all hosts counts if it names the address that asks. One that
// is sent to us counts whatever it names, because the kernel takes it too (arp_process).
func (c claim) answers(asker netip.Addr) bool {
	return c.to.IsValid() && (c.to == asker || c.alone)
}

// claimOf reads a frame. It returns false for a frame that claims no address.
func claimOf(frame []byte) (claim, bool) {
	e, ok := parseEther(frame)
	if !ok {
		return claim{}, false
	}
	switch e.proto {
	case unix.ETH_P_ARP:
		a, ok := parseARP(e.payload)
		if !ok {
			return claim{}, false
		}
		return arpClaim(a, e.dst[0]&group == 0)
	case unix.ETH_P_IPV6:
		n, ok := parseNeighbour(e.payload)
		if !ok {
			return claim{}, false
		}
		return neighbourClaim(n, e.src), true
	}
	return claim{}, false
}

func arpClaim(a arp, alone bool) (claim, bool) {
	switch {
	case !a.sender.IsUnspecified() && a.op == arpRequest:
		return claim{addr: a.sender, by: a.senderMAC, what: "ARP request"}, true
	case !a.sender.IsUnspecified():
		return claim{addr: a.sender, by: a.senderMAC, what: "ARP reply", to: a.target, alone: alone}, true
	case a.op == arpRequest:
		return claim{addr: a.target, by: a.senderMAC, what: "ARP probe"}, true
	}
	return claim{}, false
}

func neighbourClaim(n neighbour, from conf.MAC) claim {
	switch m := n.msg.(type) {
	case *ndp.NeighborAdvertisement:
		return claim{addr: m.TargetAddress, by: from, what: "neighbour advertisement", to: n.dst}
	case *ndp.NeighborSolicitation:
		if n.src.IsUnspecified() {
			return claim{addr: m.TargetAddress, by: from, what: "duplicate address detection"}
		}
	}
	return claim{addr: n.src, by: from, what: "neighbour solicitation"}
}
