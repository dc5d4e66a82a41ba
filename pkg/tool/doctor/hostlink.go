// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (n Node) hostLink(ctx context.Context) []report.Finding {
	return append(n.forwards(ctx), n.knowsServices()...)
}

func (n Node) forwards(ctx context.Context) []report.Finding {
	links, err := n.Links(ctx)
	if err != nil {
		return []report.Finding{noLinks(err)}
	}
	pods := 0
	for _, l := range links {
		if l.Kind == "veth" && strings.HasPrefix(l.Alias, "roce:") {
			pods++
		}
	}
	if pods == 0 {
		return []report.Finding{ok("no pod has a link to the node")}
	}
	forward, err := n.number("net/ipv4/ip_forward")
	switch {
	case err != nil:
		return []report.Finding{cannotTell("net.ipv4.ip_forward cannot be read: "+err.Error(), "the network namespace of the node")}
	case forward == 0:
		return []report.Finding{problem("net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1  # and so in /etc/sysctl.d; for IPv6: net.ipv6.conf.all.forwarding=1")}
	}
	return []report.Finding{ok("pods with a link to the node: %d; the node forwards IPv4", pods)}
}

// knowsServices asks about the file that rocectl agent writes. Only networks with
// hostLink.routes "auto" need it, and those are in the cluster. So a missing file is a
// problem that this node cannot tell.
func (n Node) knowsServices() []report.Finding {
	cidrs, err := n.Pools.Services()
	switch {
	case err == nil:
		return []report.Finding{ok("CIDRs of the cluster's Services: %v", cidrs)}
	case cnierr.CodeOf(err) == cnierr.Unreadable:
		return []report.Finding{problem(err.Error(), shell.Command("rm %s  # rocectl agent writes it again", n.Pools.ServicesPath()))}
	}
	if pools, _ := n.Pools.Pools(); len(pools) == 0 { // without rocectl agent no network can use it
		return nil
	}
	return []report.Finding{cannotTell(err.Error(), `whether a network has hostLink.routes "auto": if one has, its pods do not start; curl -s `+n.AgentURL)}
}
