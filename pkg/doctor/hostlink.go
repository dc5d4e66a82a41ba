// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"strings"
)

// hostLink asks whether the node forwards what pods send through their link to the node.
func hostLink() Check {
	return Check{
		Name: "host-link",
		Asks: "does the node forward packets of pods that hostLink connects with it?",
		Why:  "a pod reaches ClusterIPs through its node: connections to endpoints on other machines time out",
		look: func(_ context.Context, n Node) []Finding {
			links, err := n.Links()
			if err != nil {
				return []Finding{noLinks(err)}
			}
			pods := 0
			for _, l := range links {
				if l.Type() == "veth" && strings.HasPrefix(l.Attrs().Alias, "roce:") {
					pods++
				}
			}
			if pods == 0 {
				return []Finding{ok("no pod has a link to the node")}
			}
			forward, err := n.number("net/ipv4/ip_forward")
			switch {
			case err != nil:
				return []Finding{cannotTell("net.ipv4.ip_forward cannot be read: "+err.Error(), "the network namespace of the node")}
			case forward == 0:
				return []Finding{problem("net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1  # and so in /etc/sysctl.d; for IPv6: net.ipv6.conf.all.forwarding=1")}
			}
			return []Finding{ok("pods with a link to the node: %d; the node forwards IPv4", pods)}
		},
	}
}
