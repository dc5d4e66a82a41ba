// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// rdmaMTU asks whether the MTU of the interface lets RoCE use its largest one.
func rdmaMTU() Check {
	return Check{
		Name: "rdma-mtu",
		Asks: "does the MTU of each RoCE interface fit RoCE's largest, 4096?",
		Why:  "RoCE packets then carry less than 4096 bytes, so the NIC sends up to four times as many for the same data; connections between ends of different MTU may fail",
		look: func(ctx context.Context, n Node) []report.Finding {
			return n.eachPort(ctx, func(p nic.Port) report.Finding {
				if p.Own == nil {
					return cannotTell("its interface is not in this namespace", "the pod that has the interface: rocectl show")
				}
				name, mtu := p.Own.Name, p.Own.MTU
				found := fmt.Sprintf("MTU %d of %s, so RoCE uses %d", mtu, name, roceMTU(mtu))
				if roceMTU(mtu) == largestMTU {
					return ok("%s", found)
				}
				return problem(found, shell.Command("ip link set %s mtu 9000  # and so in the configuration of the network of the node, and on the switch: at least %d", name, largestMTU+headers))
			})
		},
	}
}

const (
	largestMTU = 4096
	// headers is what the kernel deducts from the MTU of an interface: GRH, UDP, BTH,
	// the two largest extensions and ICRC (iboe_get_mtu).
	headers = 40 + 8 + 12 + 4 + 28 + 4
)

// roceMTU returns the path MTU of RoCE over an interface; 0 if none fits.
func roceMTU(mtu int) int {
	for m := largestMTU; m >= 256; m /= 2 {
		if mtu-headers >= m {
			return m
		}
	}
	return 0
}
