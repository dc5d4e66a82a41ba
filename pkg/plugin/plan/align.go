// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Align makes the GID indexes of an attachment what rdma.gidIndex promises. The kernel
// gives an address the lowest free index. So Do takes the addresses of a rail off,
// sets temporary addresses ("fillers") on the same link until the index is right, sets
// the addresses again, and removes the fillers. It is done before routes are made,
// because they would go with an address.
//
// There is nothing to undo: the links are ours, and everything on them goes with them.
// The record has the operation and the links before the first filler is set. The place
// of the operation is the pod. At that time the devices are in the host's namespace.
type Align struct {
	Index conf.GIDIndex `json:"index"`
	Rails []AlignRail   `json:"rails"`
}

// AlignRail is one interface of an attachment.
type AlignRail struct {
	Link   conf.LinkName `json:"link"`
	Device RDMADevice    `json:"device"`
	Wait   time.Duration `json:"wait"` // for the GIDs, at most, each time
	// Addresses are those that get equal indexes, in the order in which they were
	// set. Others are set after them and may have any index.
	Addresses []netip.Prefix `json:"addresses"`
	Others    []netip.Prefix `json:"others,omitempty"`
	// At are the indexes of Addresses that programs have already. It is set only by a
	// repair, and then counts instead of Align.Index.
	At []int `json:"at,omitempty"`
}

// Fillers is where the temporary addresses are from. They are link-local IPv4
// addresses, which the kernel does not announce, and each is a subnet of its own.
var Fillers = netip.MustParsePrefix("169.254.77.0/24") //nolint:gochecknoglobals // a constant

// commands implements Kind.
func (a Align) commands(namespaces) []string {
	var out []string
	for _, r := range a.Rails {
		out = append(out, fmt.Sprintf("# %s: make the GID index %s, with temporary addresses of %s, in the table of %s/%d",
			shell.Word(r.Link), a.wants(), Fillers, shell.Word(r.Device.Name), r.Device.Port))
	}
	return out
}

func (a Align) wants() string {
	if at := a.Rails[0].At; at != nil {
		return strings.Trim(fmt.Sprint(at), "[]")
	}
	if a.Index != conf.EqualIndex {
		return a.Index.String()
	}
	var links []string
	for _, r := range a.Rails {
		links = append(links, shell.Word(r.Link))
	}
	return "equal on " + strings.Join(links, ", ")
}

func (a Align) and(next Align) Align {
	a.Rails = slices.Concat(a.Rails, next.Rails)
	return a
}

// align returns the alignment of the addresses of a rail. set are the operations that
// set them.
func (m maker) align(set Ops) Ops {
	r := m.facts.RDMA
	if r == nil || len(m.lease.Addresses) == 0 || m.req.RDMA.GIDIndex == conf.AnyIndex {
		return nil
	}
	rail := AlignRail{Link: m.rail.IfName, Device: r.Device, Wait: m.req.RDMA.GIDWait}
	for a := range All[Address](set) {
		leased := slices.ContainsFunc(m.lease.Addresses, func(l LeasedAddress) bool { return l.Prefix == a.Prefix })
		if leased {
			rail.Addresses = append(rail.Addresses, a.Prefix)
		} else {
			rail.Others = append(rail.Others, a.Prefix)
		}
	}
	return InPod(Align{Index: m.req.RDMA.GIDIndex, Rails: []AlignRail{rail}})
}
