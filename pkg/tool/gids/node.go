// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

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
	"sync"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Node is the node to look at, or a pod on it.
type Node struct {
	Sys     fs.FS                       // root of sysfs, as the calling thread's namespace sees it
	Records []record.Record             // of the attachments on the node; nil in a pod
	Dial    func() (*nldev.Conn, error) // nil: rdma.Config's

	fillers string // the path of the namespace of fillers; "": plan.FillerNetns
}

// Namespace is what programs in a network namespace can use.
type Namespace struct {
	Rails []Rail
	// Out is the interface of the default route, OutAddr its address: see view.
	Out     conf.LinkName
	OutAddr netip.Addr
	// Apart names two rails of which the first has no route to the second; "" if each rail
	// has a route to each other.
	Apart string
}

// namespace finds the rails of a namespace, from its view and the ports that it can use. If an
// interface is given, it returns only the rails of that interface.
func namespace(v view, ports []Port, only conf.LinkName, h Hints) (Namespace, error) {
	on, err := addrs(v, only)
	if err != nil {
		return Namespace{}, err
	}
	h.Out = v.Out
	rails, err := Find(ports, on, h)
	return Namespace{Rails: rails, Out: v.Out, OutAddr: v.OutAddr, Apart: apart(rails, v.Routes)}, err
}

// apart returns "net1 to net2" for the first rail that has no route to another one. The
// rules of the pod send packets of a rail by the rail's own interface only.
func apart(rails []Rail, routes []linkRoute) string {
	for _, from := range rails {
		for _, to := range rails {
			way := func(r linkRoute) bool { return r.Link == from.Link && r.Dst.Contains(to.Addr) }
			if from.Link != to.Link && !slices.ContainsFunc(routes, way) {
				return fmt.Sprintf("%s to %s", from.Link, to.Link)
			}
		}
	}
	return ""
}

// Here returns the rails of the calling thread's namespace. If an interface is given,
// it returns only the rails of that interface. It needs no privileges. Errors: those
// of Find, cnierr.IO.
func (n Node) Here(ctx context.Context, only conf.LinkName) (Namespace, error) {
	here, err := viewHere(ctx)
	if err != nil {
		return Namespace{}, err
	}
	s := rdma.New(rdma.Config{Dial: n.Dial, Sys: n.Sys})
	defer s.Close()
	ports, err := Ports(ctx, s, plan.Host, plan.Host)
	if err != nil {
		return Namespace{}, err
	}
	return namespace(here, ports, only, Hints{Slaves: here.Slaves})
}

// At returns the rails of the namespace at a path. Otherwise it is as Here. It needs
// root.
func (n Node) At(ctx context.Context, netns string, only conf.LinkName) (Namespace, error) {
	k, err := kernel.Open(netns, n.Sys)
	if errors.Is(err, kernel.ErrHostNetns) {
		return n.Here(ctx, only)
	}
	if err != nil {
		return Namespace{}, unreachable(netns, err)
	}
	defer k.Close()
	host, err := viewHere(ctx)
	if err != nil {
		return Namespace{}, err
	}
	var pod view
	if err = k.Enter(func() (err error) { pod, err = viewHere(ctx); return err }); err != nil {
		return Namespace{}, err
	}
	s := rdma.New(rdma.Config{Dial: n.Dial, Sys: n.Sys, Enter: k.Enter, Netns: netns})
	defer s.Close()
	ports, err := usable(ctx, s)
	if err != nil {
		return Namespace{}, err
	}
	return namespace(pod, ports, only, Hints{Slaves: append(host.Slaves, pod.Slaves...), Recorded: n.recorded(k.ID(), only)})
}

// usable returns the ports that a pod can use, with the entries that it sees. In
// shared mode, only the host sees the interfaces of the ports.
func usable(ctx context.Context, s *rdma.Subsystem) ([]Port, error) {
	sys, err := s.System(ctx, plan.Pod)
	if err != nil {
		return nil, err
	}
	if sys.Exclusive {
		return Ports(ctx, s, plan.Pod, plan.Pod)
	}
	return Ports(ctx, s, plan.Host, plan.Pod)
}

// unreachable returns the error for a namespace that cannot be entered, with a hint
// for the user of rocectl.
func unreachable(netns string, err error) error {
	const action = "open network namespace"
	switch {
	case errors.Is(err, fs.ErrPermission):
		return cnierr.New(cnierr.IO, action, netns, "run it as root on the node, or without --netns, --pid and --container in the pod", "%w", fs.ErrPermission)
	case errors.Is(err, kernel.ErrNetnsGone):
		return cnierr.New(cnierr.BadNetns, action, netns,
			"ip netns list has the names that --netns takes, lsns -t net the PIDs for --pid, and rocectl show -o wide the IDs for --container", "%w", cause(err))
	}
	return err
}

// addrs returns the addresses of an interface, or of all interfaces for "". Errors:
// BadConfig when the interface has none.
func addrs(v view, only conf.LinkName) ([]Addr, error) {
	var out []Addr
	var others []string
	for _, a := range v.Addrs {
		switch {
		case only == "" || only == a.Link:
			out = append(out, a)
		case !slices.Contains(others, string(a.Link)):
			others = append(others, string(a.Link))
		}
	}
	if len(out) == 0 && only != "" {
		slices.Sort(others)
		return nil, cnierr.New(cnierr.BadConfig, "look at interface", string(only), "ip address in the pod shows its interfaces",
			"no interface of this name has an address; with addresses are: %s", cmp.Or(strings.Join(others, ", "), "none"))
	}
	return out, nil
}

// recorded returns what ADD found for the addresses of a pod. If an interface is
// given, it returns only what ADD found for that interface.
func (n Node) recorded(id netns.ID, only conf.LinkName) map[Addr]Recorded {
	out := map[Addr]Recorded{}
	for _, r := range n.Records {
		if r.NetnsID == id {
			maps.Copy(out, recorded(r))
		}
	}
	maps.DeleteFunc(out, func(a Addr, _ Recorded) bool { return only != "" && a.Link != only })
	return out
}

// recorded returns what ADD found for the addresses of an attachment.
func recorded(r record.Record) map[Addr]Recorded {
	out := map[Addr]Recorded{}
	for g := range plan.All[plan.GID](r.Plan.Ops) {
		for _, t := range g.Targets {
			out[Addr{t.Link, t.Addr}] = Recorded{g.Device.Name, t.Index}
		}
	}
	return out
}

// views looks from inside the namespaces of pods. It returns the ports of the devices that the
// pods have, and their tables. It also finds entries of the host's ports that only pods see, and
// adds them to host.
func (n Node) views(ctx context.Context, host []Port, owners []Owner) (all []Port, out []Table, err error) {
	hidden := n.lacksEntries(host)
	if hidden || !slices.ContainsFunc(host, Port.hasFillers) {
		if _, err := n.look(ctx, cmp.Or(n.fillers, plan.FillerNetns), netns.ID{}, nil, host); err != nil {
			return nil, nil, err
		}
	}
	looked := map[netns.ID]bool{}
	for _, r := range n.Records {
		moves := moved(r)
		if len(moves) == 0 && (!hidden || looked[r.NetnsID]) {
			continue
		}
		into := host
		if !hidden || looked[r.NetnsID] {
			into = nil
		}
		held, err := n.look(ctx, r.Netns, r.NetnsID, moves, into)
		if err != nil {
			return nil, nil, err
		}
		looked[r.NetnsID] = true
		all = append(all, held...)
		out = append(out, tables(held, holder(r), owners, func() []Owner { return nil })...)
	}
	return all, out, nil
}

// lacksEntries says whether the host does not see an entry that an attachment has, as
// its record says, in a device of the host. The driver may hide it. If the kernel
// hides nothing, views need not look again from each pod.
func (n Node) lacksEntries(host []Port) bool {
	for _, r := range n.Records {
		for addr, found := range recorded(r) {
			lacks := func(p Port) bool {
				return p.Device.Name == found.Device && len(p.places(addr.Addr, gidtable.RoCEv2)) == 0
			}
			if found.Place != nil && slices.ContainsFunc(host, lacks) {
				return true
			}
		}
	}
	return false
}

// look returns the ports of the devices in the namespace at a path, which has an ID, or any
// for zero. It adds the entries that this namespace sees to the entries of the host's ports. A
// namespace that is gone has nothing.
func (n Node) look(ctx context.Context, path string, id netns.ID, devices []plan.RDMADevice, host []Port) ([]Port, error) {
	k, err := kernel.Open(path, n.Sys)
	if errors.Is(err, kernel.ErrNetnsGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer k.Close()
	if id != (netns.ID{}) && k.ID() != id {
		return nil, nil
	}
	s := rdma.New(rdma.Config{Dial: n.Dial, Sys: n.Sys, Enter: k.Enter, Netns: path})
	defer s.Close()
	for i := range host {
		if err := host[i].add(s, plan.Host, plan.Pod); err != nil {
			return nil, err
		}
	}
	if len(devices) == 0 {
		return nil, nil
	}
	held, err := usable(ctx, s)
	if err != nil {
		return nil, err
	}
	held = slices.DeleteFunc(held, func(p Port) bool { return !slices.ContainsFunc(devices, p.of) })
	for i := range held { // these entries belong to the host's interface
		if err := held[i].add(s, plan.Pod, plan.Host); err != nil {
			return nil, err
		}
	}
	return held, nil
}

func (p Port) hasFillers() bool {
	return slices.ContainsFunc(p.Entries, func(e gidtable.Entry) bool { return plan.IsFiller(e.GID, e.Netdev) })
}

// add adds the entries of a port of the namespace of that a reader sees.
func (p *Port) add(s *rdma.Subsystem, of, reader plan.Place) error {
	entries, _, err := s.Table(of, reader, p.Device.Name, p.Number)
	if errors.Is(err, gidtable.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	before := len(p.Entries)
	p.Entries, _ = gidtable.Merge(p.Entries, entries)
	p.Hidden = p.Hidden || len(p.Entries) > before
	return nil
}

// Owner is the owner of an address: a pod, or a namespace without a record, or else the host.
type Owner struct {
	Pod         conf.Pod         `json:"pod,omitzero"`
	ContainerID conf.ContainerID `json:"containerID,omitempty"`
	Netns       string           `json:"netns,omitempty"` // the path of a namespace without a record
	Link        conf.LinkName    `json:"interface"`
	Addr        netip.Addr       `json:"-"`
	ID          netns.ID         `json:"-"` // of the namespace that has the address; zero for the host
	recorded    Recorded
}

// String returns the name of the pod, or who else it is.
func (o Owner) String() string {
	switch {
	case o.Netns != "":
		return o.Netns
	case o.ContainerID == "":
		return "host"
	}
	return cmp.Or(o.Pod.String(), string(o.ContainerID))
}

// Table is a port's GID table together with the owners of its entries.
type Table struct {
	Device string        `json:"device"`
	Port   uint32        `json:"port"`
	Netdev conf.LinkName `json:"netdev,omitempty"` // the port's, if the host has it
	Holder *Owner        `json:"holder,omitempty"` // the pod that the device was moved to
	// Missing says that the device is not with its holder, not on the host, and not
	// with another holder. Either a process keeps the holder's namespace, or another
	// program moved the device. Then there is no table and no port.
	Missing bool    `json:"missing,omitempty"`
	Size    int     `json:"size"`
	Hidden  bool    `json:"hidden,omitempty"` // see Port
	Entries []Entry `json:"entries"`
	// Held are GID indexes without an entry that are perhaps not free. Tables leaves them out,
	// and so does rocectl gids if it cannot read the users of devices.
	Held []Held `json:"held,omitempty"`
	// Twice has the addresses with several entries of one type, and the GID indexes
	// of these entries. Then several interfaces have the same address. Link-local
	// addresses are left out.
	Twice map[netip.Addr][]int `json:"twice,omitempty"`
}

// Held is a GID index of a pod that is gone, or of an interface that a pod has lost. Programs
// with queue pairs may hold it until they end.
type Held struct {
	Index       int              `json:"index"`
	Pod         conf.Pod         `json:"pod,omitzero"`
	ContainerID conf.ContainerID `json:"containerID"`
	Processes   []rdma.Process   `json:"processes"`
}

// Entry is an entry of a GID table.
type Entry struct {
	Index  int        `json:"index"`
	GID    string     `json:"gid"`
	IPv4   netip.Addr `json:"ipv4,omitzero"`
	Type   string     `json:"type"`
	Netdev string     `json:"netdev,omitempty"` // its name in its own namespace
	Filler bool       `json:"filler,omitempty"` // of the node: see plan.Align
	Owners []Owner    `json:"owners"`           // empty: no known owner
}

// Tables returns the GID tables of the node's RDMA devices, including devices that
// were moved to pods. It needs root if a device was moved, or if the driver hides the
// entries of pods from the host. Errors: those of rdma.Subsystem, cnierr.IO.
func (n Node) Tables(ctx context.Context) ([]Table, error) {
	owners, err := n.owners(ctx)
	if err != nil {
		return nil, err
	}
	s := rdma.New(rdma.Config{Dial: n.Dial, Sys: n.Sys})
	defer s.Close()
	host, err := Ports(ctx, s, plan.Host, plan.Host)
	if err != nil {
		return nil, err
	}
	held, moved, err := n.views(ctx, host, owners)
	if err != nil {
		return nil, err
	}
	out := tables(host, nil, owners, sync.OnceValue(func() []Owner { return n.strangers(ctx) }))
	return slices.Concat(out, moved, n.missing(slices.Concat(host, held))), nil
}

// missing returns the devices in the records that have none of the ports.
func (n Node) missing(ports []Port) []Table {
	var out []Table
	for _, r := range n.Records {
		for _, d := range moved(r) {
			known := slices.ContainsFunc(ports, func(p Port) bool { return p.of(d) }) ||
				slices.ContainsFunc(out, func(t Table) bool { return t.Device == d.Name })
			if !known {
				out = append(out, Table{Device: d.Name, Port: d.Port, Holder: holder(r), Missing: true, Entries: []Entry{}})
			}
		}
	}
	return out
}

func holder(r record.Record) *Owner {
	return &Owner{Pod: r.Pod, ContainerID: r.ContainerID, Link: r.IfName}
}

func moved(r record.Record) []plan.RDMADevice {
	var out []plan.RDMADevice
	for m := range plan.All[plan.Move](r.Plan.Ops) {
		out = append(out, m.Device)
	}
	return out
}

// of says whether this is a port of a device. The device may have another name now.
func (p Port) of(d plan.RDMADevice) bool { return p.Device.Index == d.Index && p.Device.GUID == d.GUID }

// strangers returns the owners of addresses in the namespaces of the node without a record,
// such as those of pods of another plugin. It leaves out what it may not enter: only root of
// the node may.
func (n Node) strangers(ctx context.Context) []Owner {
	var out []Owner
	own, _ := netns.OwnID() // zero is the ID of no namespace
	for ns, err := range netns.Each("/proc") {
		if err != nil || ns.ID == own || slices.ContainsFunc(n.Records, func(r record.Record) bool { return r.NetnsID == ns.ID }) {
			continue
		}
		_ = ns.Enter(func() error {
			addrs, err := addrsHere(ctx)
			for _, a := range addrs {
				out = append(out, Owner{Netns: ns.Path, Link: a.Link, Addr: a.Addr, ID: ns.ID})
			}
			return err
		})
	}
	return out
}

// owners returns the owners of all addresses: the host, and the pods with a record.
func (n Node) owners(ctx context.Context) ([]Owner, error) {
	host, err := addrsHere(ctx)
	if err != nil {
		return nil, err
	}
	var out []Owner
	for _, a := range host {
		out = append(out, Owner{Link: a.Link, Addr: a.Addr})
	}
	for _, r := range n.Records {
		found := recorded(r)
		for a, link := range recordedAddrs(r) {
			out = append(out, Owner{Pod: r.Pod, ContainerID: r.ContainerID, Link: link, Addr: a, ID: r.NetnsID, recorded: found[Addr{link, a}]})
		}
	}
	return out, nil
}

// recordedAddrs returns the addresses of an attachment with their interfaces:
// those that were leased, and the link-local ones.
func recordedAddrs(r record.Record) map[netip.Addr]conf.LinkName {
	out := map[netip.Addr]conf.LinkName{}
	for _, i := range r.Plan.Interfaces {
		for _, a := range i.Addresses {
			out[a.Prefix.Addr()] = i.Name
		}
	}
	for a := range plan.All[plan.Address](r.Plan.Ops.At(plan.Pod)) {
		out[a.Prefix.Addr()] = a.Link
	}
	return out
}

// tables returns the tables of ports. Strangers are asked for if an entry has none of the
// owners.
func tables(ports []Port, holder *Owner, owners []Owner, strangers func() []Owner) []Table {
	var out []Table
	for _, p := range ports {
		t := Table{Device: p.Device.Name, Port: p.Number, Netdev: p.Link, Holder: holder, Size: p.Size, Hidden: p.Hidden, Entries: []Entry{}, Twice: p.twice()}
		for _, e := range p.Entries {
			row := Entry{Index: e.Index, GID: plan.GIDText(e.GID), Type: e.Type, Netdev: e.Netdev, Filler: plan.IsFiller(e.GID, e.Netdev), Owners: p.ownersOf(e, owners)}
			if len(row.Owners) == 0 && !row.Filler {
				row.Owners = p.ownersOf(e, strangers())
			}
			if e.GID.Is4() {
				row.IPv4 = e.GID
			}
			t.Entries = append(t.Entries, row)
		}
		out = append(out, t)
	}
	// The kernel has them in the order in which they were made.
	slices.SortStableFunc(out, func(a, b Table) int { return parent.Natural(a.Device, b.Device) })
	return out
}

// ownersOf returns the owners of the address of an entry. It leaves out owners that
// have an entry of this address at another GID index. Several interfaces may have the
// same address, such as link-local addresses of VLANs. Then the name of the interface
// in its own namespace decides.
func (p Port) ownersOf(e gidtable.Entry, all []Owner) []Owner {
	out := []Owner{}
	places := p.places(e.GID, e.Type)
	for _, o := range all {
		if o.Addr == e.GID && slices.Contains(p.own(places, o.Link, o.recorded), e.Index) {
			out = append(out, o)
		}
	}
	named := slices.DeleteFunc(slices.Clone(out), func(o Owner) bool { return string(o.Link) != e.Netdev })
	if len(named) > 0 {
		return named
	}
	if len(out) == 0 && p.isDefault(e) {
		return []Owner{{Link: p.Link, Addr: e.GID}}
	}
	return out
}

const gidTypes = 2

// isDefault says whether an entry is the one that the port has for its MAC. This
// entry does not depend on the addresses of the interface. The kernel reserves the
// first entry of the table for it, one for each type (gid_table_reserve_default).
func (p Port) isDefault(e gidtable.Entry) bool {
	return e.Index < gidTypes && e.GID.IsLinkLocalUnicast() && e.Netdev != "" && e.Netdev == string(p.Link)
}

func (p Port) twice() map[netip.Addr][]int {
	out := map[netip.Addr][]int{}
	for _, e := range p.Entries {
		places := p.places(e.GID, e.Type)
		if len(places) > 1 && !e.GID.IsLinkLocalUnicast() {
			out[e.GID] = places
		}
	}
	return out
}
