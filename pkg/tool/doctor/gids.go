// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// gidTable asks how full the GID table of each port is.
func gidTable() Check {
	return Check{
		Name: "gid-table",
		Asks: "how full are the GID tables, and how many more pods fit?",
		Why:  "an address without a place in the table has no RDMA: ADD fails with error 108 when the table is full",
		look: func(ctx context.Context, n Node) []report.Finding {
			hidden, err := n.has("sys/module/mlx_compat")
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
			}
			sys, err := fs.Sub(n.Root, "sys")
			if err != nil {
				return []report.Finding{cannotTell(err.Error(), "the right to read /sys")}
			}
			return n.eachPort(ctx, func(p nic.Port) report.Finding { return fill(sys, p, hidden) })
		},
	}
}

// fill judges a table. OFED hides the entries of other namespaces in sysfs, so there
// it can be fuller than it looks.
func fill(sys fs.FS, p nic.Port, hidden bool) report.Finding {
	entries, size, err := gidtable.New(sys, p.Device.Name, p.Number).Entries()
	if errors.Is(err, gidtable.ErrNone) {
		return problem("the port has no GID table: RoCE is off, or the NIC is in switchdev mode", "devlink dev param show  # enable_roce must be true")
	}
	if err != nil {
		return cannotTell("its table cannot be read: "+err.Error(), "the sysfs of the namespace that has the device")
	}
	each := 1 // places for an IPv4 address
	for _, e := range entries {
		if e.Type == gidtable.RoCEv1 {
			each = 2
		}
	}
	free := size - len(entries)
	found := fmt.Sprintf("%d of %d entries used", len(entries), size)
	switch {
	case free*10 < size:
		return problem(fmt.Sprintf("%s, room for %s with one IPv4 address", found, count(free/each, "more pod")),
			"rocectl gids  # shows the owners; remove addresses from the NIC that nothing needs, or let fewer pods run on the node")
	case hidden:
		return cannotTell(found+" as far as this namespace sees: OFED hides the entries of pods", "rocectl gids, which merges what the host and each pod on record see")
	}
	return ok("%s, room for %s with one IPv4 address", found, count(free/each, "more pod"))
}
