// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// rdmaDevices asks whether the node has an RDMA device at all.
func rdmaDevices() Check {
	return Check{
		Name: "rdma-devices",
		Asks: "has the node RDMA devices?",
		Why:  "without one there is no RoCE: networks with rdma.mode other than off fail with error 103",
		look: func(ctx context.Context, n Node) []report.Finding {
			s, err := n.RDMA(ctx)
			switch {
			case errors.Is(err, unix.EPROTONOSUPPORT):
				return []report.Finding{problem("the kernel has no RDMA: ib_core is neither loaded nor built in", "modprobe ib_core && modprobe mlx5_ib  # or the driver of your NIC: lspci -k")}
			case err != nil:
				return []report.Finding{cannotTell("the kernel does not list them: "+err.Error(), "root in the network namespace of the node")}
			case len(s.Devices) == 0:
				return []report.Finding{problem("the kernel has RDMA, and no device", "modprobe mlx5_ib  # or the driver of your NIC: lspci -k")}
			}
			var names []string
			for _, d := range s.Devices {
				names = append(names, d.Name)
			}
			return []report.Finding{ok("%s: %s", count(len(names), "device"), strings.Join(names, ", "))}
		},
	}
}

// count returns a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
