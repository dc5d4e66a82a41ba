// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package gids finds the RDMA port and the GID index of each address of a pod, and the
// owners of the entries of a GID table.
//
// It never assumes an index or a device: everything comes from the kernel. It uses
// the packages kernel, rdma and record. Read this file first, then node.go for the owners
// of a node's entries.
package gids

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// Port is a port of an RDMA device with its GID table.
type Port struct {
	discover.Match
	Entries []gidtable.Entry
	Size    int // of the table
	// Hidden says that the driver hides entries from readers in other namespaces. The
	// table may then have more entries than are known: see gidtable.Merge.
	Hidden bool
	// Function is the PCI address of the device; "" for a device on no PCI function, such
	// as Soft-RoCE. Virtual says that it is an SR-IOV virtual function.
	Function string
	Virtual  bool
	Model    string // of the device, as its driver calls it, such as MT4129 for a ConnectX-7 (hca_type)
}

// off says whether RoCE is off: the port then has no GID table.
func (p Port) off() bool { return p.Size == 0 }

// String returns the port as NCCL and UCX take it.
func (p Port) String() string { return fmt.Sprintf("%s:%d", p.Device.Name, p.Number) }

// Ports returns the ports that a namespace sees. In shared mode the host's sysfs has
// all of them. Their entries are those that a process in the namespace reader sees. A
// port without a GID table has no entries: for example, RoCE is off. Errors: NoRDMA
// on a kernel without RDMA, those of rdma.Subsystem.
func Ports(ctx context.Context, s *rdma.Subsystem, side, reader plan.Place) ([]Port, error) {
	sys, err := s.System(ctx, side)
	if errors.Is(err, rdma.ErrNoDevice) {
		return nil, none(err)
	}
	if err != nil {
		return nil, err
	}
	files := plan.Host
	if sys.Exclusive {
		files = side
	}
	tree, err := s.Files(files)
	if err != nil {
		return nil, err
	}
	var out []Port
	for _, m := range discover.Ports(sys.Devices) {
		p := portIn(tree, m)
		p.Entries, p.Size, err = s.Table(files, reader, m.Device.Name, m.Number)
		if err != nil && !errors.Is(err, gidtable.ErrNone) {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// portIn returns a port with what sysfs says about the hardware of its device.
func portIn(sys fs.FS, m discover.Match) Port {
	dir := "class/infiniband/" + m.Device.Name
	p := Port{Match: m, Model: discover.Text(sys, dir+"/hca_type")}
	if bus, address := discover.Hardware(sys, m.Device.Name); bus == "pci" {
		p.Function = address
		_, err := fs.Stat(sys, dir+"/device/physfn")
		p.Virtual = err == nil
	}
	return p
}

// Addr is an address on an interface.
type Addr struct {
	Link conf.LinkName
	Addr netip.Addr
}

// Rail is an interface together with its way to RDMA.
type Rail struct {
	Link  conf.LinkName
	Addr  netip.Addr
	Port  Port
	Index int // of the address's RoCE v2 entry
	// Notes say which of several was chosen and why, and what is unusual.
	Notes []string
	doubt []int  // the indexes that it may have, if it is not known which
	other []Port // the other ports that it may have, if it is not known which
}

// Hints help to choose between ports with an entry for the same address. A bond and
// its slaves are such ports.
type Hints struct {
	Recorded map[Addr]Recorded
	Slaves   []conf.LinkName // the interfaces of a bond
	Out      conf.LinkName   // the interface of the default route, which needs no GID; "": unknown
}

// Recorded is what ADD found for an address.
type Recorded struct {
	Device string
	Place  *int // nil: none, for example because the table was full
}

// recorded returns what ADD found for an address: for another interface of the pod, if it
// is the only one that had the address.
func (h Hints) recorded(a Addr) Recorded {
	if r, ok := h.Recorded[a]; ok {
		return r
	}
	var out []Recorded
	for had, r := range h.Recorded {
		if had.Addr == a.Addr {
			out = append(out, r)
		}
	}
	if len(out) != 1 {
		return Recorded{}
	}
	return out[0]
}

// Find returns the rails of a namespace, in the order of their interfaces' names: net2 before
// net10. The kernel lists interfaces in an order that depends on their indexes. It returns one
// rail for each interface with an address that has a RoCE v2 entry. If possible, all rails
// have addresses of one family. If both families are possible, it is IPv4. Link-local
// addresses make no rail.
//
// Errors: NoRDMA when there is no port, NoGID when no address has an entry, or when it is
// not known which of several entries is that of an interface, or which of several ports.
func Find(ports []Port, addrs []Addr, h Hints) ([]Rail, error) {
	if len(ports) == 0 {
		return nil, none(rdma.ErrNoDevice)
	}
	var links []conf.LinkName
	v4, v6 := map[conf.LinkName]Rail{}, map[conf.LinkName]Rail{}
	for _, a := range addrs {
		if a.Addr.IsLinkLocalUnicast() {
			continue
		}
		r, ok := find(ports, a, addrs, h)
		if !ok {
			continue
		}
		family := v4
		if a.Addr.Is6() {
			family = v6
		}
		if _, have := family[a.Link]; !have {
			family[a.Link] = r
		}
		if !slices.Contains(links, a.Link) {
			links = append(links, a.Link)
		}
	}
	if len(links) == 0 {
		return nil, h.notFound(ports, addrs)
	}
	first, second := v4, v6 // of each link
	if len(v4) < len(links) && len(v6) == len(links) {
		first, second = v6, v4
	}
	slices.SortFunc(links, func(a, b conf.LinkName) int { return parent.Natural(string(a), string(b)) })
	out := make([]Rail, 0, len(links))
	for _, l := range links {
		r, ok := first[l]
		if !ok {
			r = second[l]
		}
		out = append(out, r)
	}
	for _, r := range out {
		if err := r.undecided(); err != nil {
			return nil, err
		}
	}
	out[0].Notes = append(out[0].Notes, h.leftOut(ports, addrs)...)
	return out, nil
}

// undecided says of which entries or ports it is not known which one is the rail's.
func (r Rail) undecided() error {
	const hint = "use what rocectl env --container prints on the node; for another interface, --ifname; then find the other interface with rocectl gids, and remove the address there"
	switch {
	case len(r.other) > 0:
		return cnierr.New(cnierr.NoGID, "find RDMA device of", r.Addr.String(), hint,
			"it has entries in %s, and the names of the interfaces do not tell which one is that of %s: another interface on this node has the address too, or they are the NICs of a bond",
			texts(append([]Port{r.Port}, r.other...)), r.Link)
	case len(r.doubt) > 0:
		return cnierr.New(cnierr.NoGID, "find GID index of", r.Addr.String(), hint,
			"it is in %s at %s, and the names of the interfaces do not tell which entry is that of %s: another interface on this node has the address too", r.Port, gidtable.Numbers(r.doubt), r.Link)
	}
	return nil
}

// none returns the error for a namespace without RDMA devices.
func none(err error) error {
	return cnierr.New(cnierr.NoRDMA, "look for", "RDMA devices",
		"run rdma dev on the node: if it shows none, load the driver of the RDMA NIC; in exclusive mode a pod has only the devices of its networks",
		"the network namespace has none: %w", cause(err))
}

// cause returns the cause of an error without the name of the operation.
func cause(err error) error {
	if known, is := errors.AsType[*cnierr.Error](err); is {
		return known.Err
	}
	return err
}

// find returns the rail of an address, which is one of all addresses of the namespace.
func find(ports []Port, a Addr, all []Addr, h Hints) (Rail, bool) {
	var found []Port
	for _, p := range ports {
		if len(p.places(a.Addr, gidtable.RoCEv2)) > 0 {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return Rail{}, false
	}
	order := func(x, y Port) int {
		return cmp.Or(cmp.Compare(h.rank(x, a), h.rank(y, a)), cmp.Compare(y.count(a.Link, all), x.count(a.Link, all)))
	}
	best := slices.MinFunc(found, func(x, y Port) int {
		return cmp.Or(order(x, y), cmp.Compare(len(x.Device.Name), len(y.Device.Name)), cmp.Compare(x.String(), y.String()))
	})
	r := Rail{Link: a.Link, Addr: a.Addr, Port: best}
	if h.rank(best, a) != slave {
		r.other = slices.DeleteFunc(slices.Clone(found), func(p Port) bool { return p.String() == best.String() || order(p, best) != 0 })
	}
	places := best.places(a.Addr, gidtable.RoCEv2)
	own := best.own(places, a.Link, h.recorded(a))
	r.Index = own[0]
	if len(own) > 1 {
		r.doubt = own
	}
	if len(found) > 1 {
		r.Notes = append(r.Notes, fmt.Sprintf("%s has entries in %s: %s, %s", a.Addr, texts(found), best, h.reason(best, a, found)))
	}
	if len(places) > 1 {
		r.Notes = append(r.Notes, fmt.Sprintf("%s is in %s at %s: another interface on this node has the address too", a.Addr, best, gidtable.Numbers(places)))
	}
	if best.State != 0 && best.State != nldev.Active {
		r.Notes = append(r.Notes, fmt.Sprintf("%s is %s, not %s: check the NIC, its cable and the switch port", best, best.State, nldev.Active))
	}
	return r, true
}

// own returns the GID indexes that may be those of an interface, among all indexes of one
// address and type: see gidtable.Own.
func (p Port) own(places []int, link conf.LinkName, was Recorded) []int {
	entries := slices.DeleteFunc(slices.Clone(p.Entries), func(e gidtable.Entry) bool { return !slices.Contains(places, e.Index) })
	index := was.Place
	if was.Device != p.Device.Name {
		index = nil
	}
	var out []int
	for _, e := range gidtable.Own(entries, string(link), index) {
		out = append(out, e.Index)
	}
	return out
}

const slave = 2

// rank is lower for better ports of an address.
func (h Hints) rank(p Port, a Addr) int {
	switch {
	case h.recorded(a).Device == p.Device.Name:
		return 0
	case !p.has(a):
		return 3
	case slices.Contains(h.Slaves, p.Link):
		return slave
	}
	return 1
}

// count returns how many addresses of an interface have an entry. The port of the
// interface has one of each.
func (p Port) count(link conf.LinkName, all []Addr) int {
	n := 0
	for _, a := range all {
		if a.Link == link && p.has(a) {
			n++
		}
	}
	return n
}

// has says whether an entry of an address is of an interface with the name of the address's.
func (p Port) has(a Addr) bool {
	return slices.ContainsFunc(p.Entries, func(e gidtable.Entry) bool {
		return e.GID == a.Addr && e.Type == gidtable.RoCEv2 && e.Netdev == string(a.Link)
	})
}

func (h Hints) reason(p Port, a Addr, among []Port) string {
	switch {
	case h.recorded(a).Device == p.Device.Name:
		return "as ADD found it"
	case p.has(a) && slices.ContainsFunc(among, func(o Port) bool { return !o.has(a) }):
		return fmt.Sprintf("because the entry there is of %s: another interface on this node has the address too", a.Link)
	case slices.Contains(h.Slaves, p.Link):
		return "one NIC of a bond that has no RDMA device of its own now, so RDMA does not fail over"
	case len(h.Slaves) > 0 && p.Link != "":
		return "because it belongs to the bond, not to a NIC in it"
	}
	return fmt.Sprintf("because it has all addresses of %s: another interface on this node has the address too", a.Link)
}

// places returns the GID indexes of the entries of an address and a type.
func (p Port) places(a netip.Addr, kind string) []int {
	var out []int
	for _, e := range p.Entries {
		if e.GID == a && e.Type == kind {
			out = append(out, e.Index)
		}
	}
	return out
}

func (h Hints) notFound(ports []Port, addrs []Addr) error {
	const action = "look for GIDs of"
	var asked, v1 []string
	for _, a := range addrs {
		if a.Addr.IsLoopback() || a.Addr.IsLinkLocalUnicast() {
			continue
		}
		asked = append(asked, a.Addr.String())
		for _, p := range ports {
			if places := p.places(a.Addr, gidtable.RoCEv1); len(places) > 0 {
				v1 = append(v1, fmt.Sprintf("%s in %s at %s", a.Addr, p, gidtable.Numbers(places)))
			}
		}
	}
	if len(v1) > 0 {
		return cnierr.New(cnierr.NoGID, action, strings.Join(asked, ", "),
			"load the driver with RoCE v2 (for mlx4_core the parameter roce_mode=2); v1 is not routed, and needs other settings of NCCL and UCX",
			"there are only entries of RoCE v1: %s", strings.Join(v1, ", "))
	}
	if len(asked) == 0 {
		return cnierr.New(cnierr.NoGID, action, "this network namespace",
			"on the node choose a pod with --pid, --netns or --container; in a pod look with ip address, and with rocectl check on the node",
			"its interfaces have no addresses")
	}
	full := slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return len(p.Entries) < p.Size || p.off() })
	if off := h.off(ports, addrs); len(off) > 0 && (len(full) == 0 || len(h.Recorded) > 0) {
		return cnierr.New(cnierr.NoGID, action, strings.Join(asked, ", "), "on the node, "+rdma.TurnOnRoCE,
			"none has an entry in %s; RoCE is off on %s: it has no GID table", texts(ports), texts(off))
	}
	if len(full) > 0 {
		p := full[0]
		return cnierr.New(cnierr.NoGID, action, strings.Join(asked, ", "),
			"start fewer pods on this NIC, or give them fewer addresses; rocectl gids on the node shows the owners of the entries. Then delete the pod, so that it is created again",
			"none has an entry in %s, and the table of %s is full, with %d entries", texts(ports), p, p.Size)
	}
	return cnierr.New(cnierr.NoGID, action, strings.Join(asked, ", "),
		"the pod needs an address on a child of an RDMA NIC: check its networks annotation, and the tables with rocectl gids on the node; "+
			rdma.TableFull+" of the node says that a table is full",
		"none has an entry in %s", texts(ports))
}

func texts(ports []Port) string {
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = p.String()
	}
	return strings.Join(out, ", ")
}

// leftOut says which addresses are no rail although they should be, and why, and which
// have their entry in another device than when the pod was made. In a pod
// there are no records, and a port does not tell its interface. So it can only name the
// ports that may be the reason.
func (h Hints) leftOut(ports []Port, addrs []Addr) []string {
	var out []string
	order := func(a, b Addr) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Link, b.Link)) }
	for _, a := range slices.SortedFunc(maps.Keys(h.Recorded), order) {
		r := h.Recorded[a]
		switch {
		case !has(ports, a.Addr):
			out = append(out, fmt.Sprintf("%s %s is left out: %s", a.Link, a.Addr, r.lost(ports)))
		case !slices.ContainsFunc(ports, func(p Port) bool { return p.Device.Name == r.Device }):
			out = append(out, fmt.Sprintf("%s %s: ADD found its entry in %s, and no device has that name now: rocectl check", a.Link, a.Addr, r.Device))
		}
	}
	off := slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return !p.off() })
	if len(off) == 0 || h.Recorded != nil {
		return out
	}
	rail := map[conf.LinkName]bool{h.Out: true}
	for _, a := range addrs {
		rail[a.Link] = rail[a.Link] || has(ports, a.Addr)
	}
	for _, a := range addrs {
		if rail[a.Link] || a.Addr.IsLoopback() || a.Addr.IsLinkLocalUnicast() {
			continue
		}
		out = append(out, fmt.Sprintf("%s %s is left out: it has no entry. On %s RoCE is off, because the port has no GID table: is %s on it? rocectl env on the node tells",
			a.Link, a.Addr, texts(off), a.Link))
		rail[a.Link] = true // once for each interface
	}
	return out
}

// has says whether a port has a RoCE v2 entry of an address.
func has(ports []Port, a netip.Addr) bool {
	return slices.ContainsFunc(ports, func(p Port) bool { return len(p.places(a, gidtable.RoCEv2)) > 0 })
}

// lost says why an address has no entry in the device in which ADD found one.
func (r Recorded) lost(ports []Port) string {
	of := slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return p.Device.Name != r.Device })
	off := slices.DeleteFunc(slices.Clone(of), func(p Port) bool { return !p.off() })
	switch {
	case len(of) == 0:
		return fmt.Sprintf("it had an entry in %s when the pod was made, and that device is not there now: rdma dev on the node", r.Device)
	case len(off) > 0:
		return fmt.Sprintf("RoCE is off on %s: the port has no GID table. %s", texts(off), "on the node, "+rdma.TurnOnRoCE)
	}
	return fmt.Sprintf("it had an entry in %s when the pod was made, and has none now; rocectl check shows more", r.Device)
}

// off returns the ports without a GID table that are those of addresses: by the records,
// or, without records, all.
func (h Hints) off(ports []Port, addrs []Addr) []Port {
	mine := func(p Port) bool {
		return slices.ContainsFunc(addrs, func(a Addr) bool { return h.recorded(a).Device == p.Device.Name })
	}
	return slices.DeleteFunc(slices.Clone(ports), func(p Port) bool { return !p.off() || len(h.Recorded) > 0 && !mine(p) })
}
