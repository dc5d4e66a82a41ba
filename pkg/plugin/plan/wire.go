// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"net/netip"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Target is one of our addresses on one link, for questions and messages on the
// network.
type Target struct {
	Link    conf.LinkName `json:"link"`
	MAC     conf.MAC      `json:"mac"`
	Addr    netip.Addr    `json:"addr"`
	Gateway netip.Addr    `json:"gateway,omitzero"` // Gateway operation only
}

// Conflict is the conflict probe: it asks on the network whether another host
// uses an address, before we use it. It sends ARP probes with sender address
// 0.0.0.0 (RFC 5227 section 2.1.1) and neighbour solicitations from :: (RFC
// 4862 section 5.4.2). It asks about all targets in the same time window. It
// changes nothing, so it has nothing to undo.
type Conflict struct {
	Mode     conf.Severity `json:"mode"`
	Probes   int           `json:"probes"`
	Interval time.Duration `json:"interval"`
	Wait     time.Duration `json:"wait"`
	Targets  []Target      `json:"targets"`
}

func (c Conflict) commands(in namespaces) []string {
	var out []string
	for _, t := range c.Targets {
		if t.Addr.Is4() {
			out = append(out, in.run("arping -D -q -c %d -w 1 -I %s %s", c.Probes, t.Link, t.Addr))
		} else {
			out = append(out, shell.Command("# neighbour solicitations from :: for %s on %s: %d, no host may answer", t.Addr, t.Link, c.Probes))
		}
	}
	return out
}

// Gateway asks whether each target's gateway answers ARP or neighbour
// discovery. It asks all gateways in the same time window, and ends as soon as
// all have answered. Only a reply or advertisement to us is an answer: what a
// gateway asks or announces does not prove that it hears us.
type Gateway struct {
	Mode     conf.Severity `json:"mode"`
	Attempts int           `json:"attempts"`
	Timeout  time.Duration `json:"timeout"`
	Targets  []Target      `json:"targets"`
}

func (g Gateway) commands(in namespaces) []string {
	var out []string
	for _, t := range g.Targets {
		if t.Addr.Is4() {
			out = append(out, in.run("arping -f -q -c %d -w 1 -I %s -s %s %s", g.Attempts, t.Link, t.Addr, t.Gateway))
		} else {
			out = append(out, shell.Command("# neighbour solicitations from %s for gateway %s on %s: up to %d, one must be answered", t.Addr, t.Gateway, t.Link, g.Attempts))
		}
	}
	return out
}

// Announce tells the neighbours about our addresses, so that they overwrite
// entries of an earlier owner. It sends a gratuitous ARP request (RFC 5227
// section 2.3) or an unsolicited neighbour advertisement with the override flag
// (RFC 4861 section 7.2.6). These messages have no answer, so Announce fails
// only when it cannot send.
type Announce struct {
	Targets []Target `json:"targets"`
}

func (a Announce) commands(in namespaces) []string {
	var out []string
	for _, t := range a.Targets {
		if t.Addr.Is4() {
			out = append(out, in.run("arping -U -q -c 1 -I %s %s", t.Link, t.Addr))
		} else {
			out = append(out, shell.Command("# unsolicited neighbour advertisement for %s on %s", t.Addr, t.Link))
		}
	}
	return out
}
