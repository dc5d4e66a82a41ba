// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rail

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel"
	"github.com/roce-cni/roce-cni/pkg/kernel/view"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/rdma"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Owner has an address: a pod, or the host if there is no container.
type Owner struct {
	Pod         conf.Pod         `json:"pod,omitzero"`
	ContainerID conf.ContainerID `json:"containerID,omitempty"`
	Link        conf.LinkName    `json:"interface"`
	Addr        netip.Addr       `json:"-"`
}

// Table is a port's GID table together with the owners of its entries.
type Table struct {
	Device  string        `json:"device"`
	Port    uint32        `json:"port"`
	Netdev  conf.LinkName `json:"netdev,omitempty"` // the port's, if the host has it
	Holder  *Owner        `json:"holder,omitempty"` // to whom the device was moved
	Size    int           `json:"size"`
	Entries []Entry       `json:"entries"`
	// Twice has the addresses that have several entries of one type, with their
	// places: several have one address then. Link-local ones are left out.
	Twice map[netip.Addr][]int `json:"twice,omitempty"`
}

// Entry is an entry of a GID table.
type Entry struct {
	Index  int        `json:"index"`
	GID    string     `json:"gid"`
	IPv4   netip.Addr `json:"ipv4,omitzero"`
	Type   string     `json:"type"`
	Netdev string     `json:"netdev,omitempty"` // its name in its own namespace
	Owners []Owner    `json:"owners"`           // empty: nobody that is known
}

// Tables returns the GID tables of the node's RDMA devices, the ones that were
// moved to pods included. It needs root if any were. Errors: those of
// rdma.Subsystem, cnierr.IO.
func (n Node) Tables(ctx context.Context) ([]Table, error) {
	owners, err := n.owners(ctx)
	if err != nil {
		return nil, err
	}
	s := rdma.New(rdma.Config{Sys: n.Sys})
	defer s.Close()
	ports, err := Ports(ctx, s, rdma.Host)
	if err != nil {
		return nil, err
	}
	out := tables(ports, nil, owners)
	for _, r := range n.Records {
		moved := movedTo(r)
		if len(moved) == 0 {
			continue
		}
		ports, err := n.heldBy(ctx, r, moved)
		if err != nil {
			return nil, err
		}
		out = append(out, tables(ports, &Owner{Pod: r.Pod, ContainerID: r.ContainerID, Link: r.IfName}, owners)...)
	}
	return out, nil
}

// movedTo returns the names of the devices that were moved for an attachment.
func movedTo(r record.Record) []string {
	var out []string
	for _, op := range r.Plan.Ops {
		if m, ok := op.(plan.Move); ok {
			out = append(out, m.Device.Name)
		}
	}
	return out
}

// heldBy returns the ports of devices that a pod has; none if it is gone.
func (n Node) heldBy(ctx context.Context, r record.Record, devices []string) ([]Port, error) {
	k, err := kernel.Open(r.Netns, n.Sys)
	if errors.Is(err, kernel.ErrNetnsGone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer k.Close()
	if k.ID() != r.NetnsID {
		return nil, nil
	}
	s := rdma.New(rdma.Config{Sys: n.Sys, Enter: k.Enter, Netns: r.Netns})
	defer s.Close()
	ports, err := usable(ctx, s)
	return slices.DeleteFunc(ports, func(p Port) bool { return !slices.Contains(devices, p.Device) }), err
}

// owners returns who has which address: the host, and the pods on record.
func (n Node) owners(ctx context.Context) ([]Owner, error) {
	host, err := view.Look(ctx)
	if err != nil {
		return nil, err
	}
	var out []Owner
	for _, a := range host.Addrs {
		out = append(out, Owner{Link: a.Link, Addr: a.Addr})
	}
	for _, r := range n.Records {
		for _, a := range recordedAddrs(r) {
			out = append(out, Owner{Pod: r.Pod, ContainerID: r.ContainerID, Link: r.IfName, Addr: a})
		}
	}
	return out, nil
}

// recordedAddrs returns the addresses of an attachment: those that were leased,
// and the link-local one.
func recordedAddrs(r record.Record) []netip.Addr {
	var out []netip.Addr
	for _, a := range r.Plan.Addresses {
		out = append(out, a.Prefix.Addr())
	}
	for _, op := range r.Plan.Ops {
		if a, ok := op.(plan.Address); ok {
			out = append(out, a.Prefix.Addr())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func tables(ports []Port, holder *Owner, owners []Owner) []Table {
	var out []Table
	for _, p := range ports {
		t := Table{Device: p.Device, Port: p.Number, Netdev: p.Netdev, Holder: holder, Size: p.Size, Entries: []Entry{}, Twice: p.twice()}
		for _, e := range p.Entries {
			row := Entry{Index: e.Index, GID: plan.GIDText(e.GID), Type: e.Type, Netdev: e.Netdev, Owners: ownersOf(e, owners)}
			if e.GID.Is4() {
				row.IPv4 = e.GID
			}
			t.Entries = append(t.Entries, row)
		}
		out = append(out, t)
	}
	return out
}

// ownersOf returns who has the address of an entry. The interface's name, which
// is that of its own namespace, tells apart those that have the same one, as
// with link-local ones of VLANs.
func ownersOf(e rdma.Entry, all []Owner) []Owner {
	out := []Owner{}
	for _, o := range all {
		if o.Addr == e.GID {
			out = append(out, o)
		}
	}
	named := slices.DeleteFunc(slices.Clone(out), func(o Owner) bool { return string(o.Link) != e.Netdev })
	if len(named) > 0 {
		return named
	}
	return out
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
