// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Align makes the GID indexes of an attachment what rdma.gidIndex promises. The kernel
// gives an address the lowest free index. So Do takes the addresses of a rail off, takes the
// indexes below the wanted one with other addresses ("fillers"), and sets the addresses
// again. It is done before routes are made, because they would go with an address.
//
// Fillers belong to the node and stay, so that the next attachments find the same index
// free on all rails. They are on links of a namespace of their own: see Child.Fillers.
//
// There is nothing to undo: other attachments use the fillers, too. The place of the
// operation is the pod. At that time the devices are in the host's namespace.
type Align struct {
	Index conf.GIDIndex `json:"index"`
	Rails []AlignRail   `json:"rails"`
}

// AlignRail is one interface of an attachment.
type AlignRail struct {
	Link   conf.LinkName `json:"link"`
	Device RDMADevice    `json:"device"`
	Wait   time.Duration `json:"wait"` // for the GIDs, at most, each time
	// Fillers is the node's link with the fillers of the NIC. It is zero if the NIC can
	// have none: then the fillers are on Link, and go when the index is right.
	Fillers Child `json:"fillers,omitzero"`
	// Addresses are those that get equal indexes, in the order in which they were
	// set. Others are set after them and may have any index.
	Addresses []netip.Prefix `json:"addresses"`
	Others    []netip.Prefix `json:"others,omitempty"`
	// At are the indexes of Addresses that programs have already. It is set only by a
	// repair, and then counts instead of Align.Index.
	At []int `json:"at,omitempty"`
}

// FillerNetns is the network namespace of the node's fillers. Programs of the host do not
// see their addresses there.
const FillerNetns = "/run/netns/roce-gids"

// FillerRange is where the addresses of fillers are from: link-local IPv4, each a subnet of
// its own, and enough for all tables.
var FillerRange = netip.MustParsePrefix("169.254.64.0/20") //nolint:gochecknoglobals // a constant

// FillerMark is the alias of each link with fillers. It names no attachment.
const FillerMark = MarkPrefix + "gids"

const fillerLink = "gids-" // begins the name of each link with fillers

// IsFiller says whether an entry of a GID table looks like that of a filler: by its address
// and the name of its interface. A pod can have both.
func IsFiller(gid netip.Addr, netdev string) bool {
	return FillerRange.Contains(gid) && strings.HasPrefix(netdev, fillerLink)
}

// Fillers returns the node's link with the fillers for a child of a NIC, in FillerNetns. It
// is zero if the NIC can have no other child, or if the NIC is in the pod.
//
// The link is never up. So it has no entry but those of the fillers, and nothing is sent
// from or for their addresses.
func (c Child) Fillers() Child {
	if c.InPod || c.Mode == conf.Passthru {
		return Child{}
	}
	sum := sha256.Sum256([]byte(FillerMark + "/" + c.Parent))
	out := Child{
		Name: conf.LinkName(fmt.Sprintf("%s%x", fillerLink, sum[:4])), Parent: c.Parent, NIC: c.NIC, Mode: conf.Bridge,
		MTU: 1280, MAC: conf.MAC{0x02, sum[0], sum[1], sum[2], sum[3], sum[4]}, Mark: FillerMark,
	}
	if c.Mode.SharesMAC() {
		out.Mode, out.MAC = c.Mode, c.MAC
	}
	return out
}

func (a Align) commands(namespaces) []string {
	var out []string
	for _, r := range a.Rails {
		out = append(out, fmt.Sprintf("# %s: make the GID index %s in the table of %s/%d, with fillers of %s",
			shell.Word(r.Link), a.wants(), shell.Word(r.Device.Name), r.Device.Port, FillerRange))
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

// align returns the alignment of the addresses of a rail. link has the operation that makes
// its link, and set those that set them.
func (m maker) align(link, set Ops) Ops {
	r := m.facts.RDMA
	if r == nil || len(m.lease.Addresses) == 0 || m.req.RDMA.GIDIndex == conf.AnyIndex {
		return nil
	}
	rail := AlignRail{Link: m.rail.IfName, Device: r.Device, Wait: m.req.RDMA.GIDWait}
	for c := range All[Child](link) {
		rail.Fillers = c.Fillers()
	}
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
