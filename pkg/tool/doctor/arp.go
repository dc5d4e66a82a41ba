// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// hostARP asks whether the node answers ARP on the NIC that has the address, where
// several RoCE NICs have addresses of one subnet. Pods have their own settings, which
// ADD makes.
func hostARP() Check {
	return Check{
		Name: "host-arp",
		Asks: "do ARP and rp_filter of the node keep its RoCE NICs apart?",
		Why:  "the node answers for the address of one NIC with the MAC of another, so RoCE traffic to the node takes the wrong rail; strict rp_filter drops the replies",
		look: func(ctx context.Context, n Node) []report.Finding {
			ports, unknown := n.ports(ctx)
			if unknown != nil {
				return unknown
			}
			addrs, err := n.Addrs(ctx)
			if err != nil {
				return []report.Finding{cannotTell("the addresses cannot be listed: "+err.Error(), "root in the network namespace of the node")}
			}
			var nics []addressed
			for _, p := range ports {
				link := p.Interface()
				if link == nil {
					continue
				}
				a := addressed{name: link.Name}
				for _, addr := range addrs {
					if addr.Index == link.Index && addr.Prefix.Addr().Is4() {
						a.addrs = append(a.addrs, addr.Prefix)
					}
				}
				nics = append(nics, a)
			}
			var out []report.Finding
			for _, i := range nics {
				if i.shares(nics) {
					out = append(out, n.apart(i.name).About(i.name))
				}
			}
			if len(out) == 0 {
				return []report.Finding{ok("no two RoCE NICs of the node have addresses of one subnet")}
			}
			return out
		},
	}
}

// addressed is an interface with its IPv4 addresses.
type addressed struct {
	name  string
	addrs []netip.Prefix
}

// shares says whether another NIC has an address in a subnet of this one.
func (i addressed) shares(all []addressed) bool {
	for _, a := range i.addrs {
		for _, other := range all {
			for _, b := range other.addrs {
				if other.name != i.name && a.Contains(b.Addr()) {
					return true
				}
			}
		}
	}
	return false
}

// apart judges the settings of an interface. Of a setting and that of "all" the
// kernel takes the larger (IN_DEV_MAXCONF).
func (n Node) apart(name string) report.Finding {
	value := map[string]int{}
	for _, key := range []string{"arp_ignore", "arp_announce", "rp_filter"} {
		for _, of := range []string{"all", name} {
			// Slashes, because the name of an interface may have a dot.
			v, err := n.number("net/ipv4/conf/" + of + "/" + key)
			if err != nil {
				return cannotTell(fmt.Sprintf("%s of %s cannot be read: %v", key, of, err), "the network namespace of the node")
			}
			value[key] = max(value[key], v)
		}
	}
	found := fmt.Sprintf("arp_ignore=%d arp_announce=%d rp_filter=%d", value["arp_ignore"], value["arp_announce"], value["rp_filter"])
	var fix []string
	if value["arp_ignore"] == 0 {
		fix = append(fix, shell.Word("net/ipv4/conf/"+name+"/arp_ignore")+"=1")
	}
	if value["arp_announce"] < 2 {
		fix = append(fix, shell.Word("net/ipv4/conf/"+name+"/arp_announce")+"=2")
	}
	if value["rp_filter"] == 1 {
		fix = append(fix, shell.Word("net/ipv4/conf/"+name+"/rp_filter")+"=2")
	}
	if len(fix) == 0 {
		return ok("%s", found)
	}
	return problem(found+", and another RoCE NIC has an address of the same subnet", "sysctl -w "+strings.Join(fix, " ")+"  # and so in /etc/sysctl.d")
}
