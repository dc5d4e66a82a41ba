// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"context"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/look"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Owner is the owner of an address: a pod, or the host if there is no container.
type Owner struct {
	Pod         conf.Pod         `json:"pod,omitzero"`
	ContainerID conf.ContainerID `json:"containerID,omitempty"`
	Link        conf.LinkName    `json:"interface"`
	Addr        netip.Addr       `json:"-"`
	recorded    Recorded
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
	// Twice has the addresses with several entries of one type, and the GID indexes
	// of these entries. Then several interfaces have the same address. Link-local
	// addresses are left out.
	Twice map[netip.Addr][]int `json:"twice,omitempty"`
}

// Entry is an entry of a GID table.
type Entry struct {
	Index  int        `json:"index"`
	GID    string     `json:"gid"`
	IPv4   netip.Addr `json:"ipv4,omitzero"`
	Type   string     `json:"type"`
	Netdev string     `json:"netdev,omitempty"` // its name in its own namespace
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
	s := rdma.New(rdma.Config{Sys: n.Sys})
	defer s.Close()
	host, err := Ports(ctx, s, rdma.Host, rdma.Host)
	if err != nil {
		return nil, err
	}
	views, err := n.views(ctx, host)
	if err != nil {
		return nil, err
	}
	out, seen := tables(host, nil, owners), host
	for _, v := range views {
		seen = append(seen, v.held...)
		out = append(out, tables(v.held, v.holder, owners)...)
	}
	return append(out, n.missing(seen)...), nil
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

// moved returns the devices that were moved for an attachment.
func moved(r record.Record) []plan.RDMADevice {
	var out []plan.RDMADevice
	for m := range plan.All[plan.Move](r.Plan.Ops) {
		out = append(out, m.Device)
	}
	return out
}

// of says whether this is a port of a device. The device may have another name now.
func (p Port) of(d plan.RDMADevice) bool { return p.Device.Index == d.Index && p.Device.GUID == d.GUID }

// owners returns the owners of all addresses: the host, and the pods with a record.
func (n Node) owners(ctx context.Context) ([]Owner, error) {
	host, err := look.Here(ctx)
	if err != nil {
		return nil, err
	}
	var out []Owner
	for _, a := range host.Addrs {
		out = append(out, Owner{Link: a.Link, Addr: a.Addr})
	}
	for _, r := range n.Records {
		found := recorded(r)
		for a, link := range recordedAddrs(r) {
			out = append(out, Owner{Pod: r.Pod, ContainerID: r.ContainerID, Link: link, Addr: a, recorded: found[Addr{link, a}]})
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

func tables(ports []Port, holder *Owner, owners []Owner) []Table {
	var out []Table
	for _, p := range ports {
		t := Table{Device: p.Device.Name, Port: p.Number, Netdev: p.Link, Holder: holder, Size: p.Size, Hidden: p.Hidden, Entries: []Entry{}, Twice: p.twice()}
		for _, e := range p.Entries {
			row := Entry{Index: e.Index, GID: plan.GIDText(e.GID), Type: e.Type, Netdev: e.Netdev, Owners: p.ownersOf(e, owners)}
			if e.GID.Is4() {
				row.IPv4 = e.GID
			}
			t.Entries = append(t.Entries, row)
		}
		out = append(out, t)
	}
	return out
}

// ownersOf returns the owners of the address of an entry. It leaves out owners that
// have an entry of this address at another GID index. Several interfaces may have the
// same address, such as link-local addresses of VLANs. Then the name of the interface
// in its own namespace decides.
func (p Port) ownersOf(e rdma.Entry, all []Owner) []Owner {
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

// gidTypes is how many types RoCE has.
const gidTypes = 2

// isDefault says whether an entry is the one that the port has for its MAC. This
// entry does not depend on the addresses of the interface. The kernel reserves the
// first entry of the table for it, one for each type (gid_table_reserve_default).
func (p Port) isDefault(e rdma.Entry) bool {
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
