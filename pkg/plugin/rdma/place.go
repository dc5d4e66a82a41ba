// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// HasPlace returns NoGID if the GID table of a port has no place for another address. It reads
// no more than to the second free place, unless there is none. A table that cannot be read is
// no fault: ADD waits for its entries.
func (s *Subsystem) HasPlace(d plan.RDMADevice) error {
	var full bool
	var entries []gidtable.Entry
	var size int
	err := s.at(plan.Host, func() (err error) {
		t := gidtable.New(s.c.Sys, d.Name, d.Port)
		if full, err = t.Full(); full && err == nil {
			entries, size, err = t.Entries()
		}
		return err
	})
	if err != nil || !full || size-len(entries) >= gidtable.Width(entries) {
		return nil //nolint:nilerr // as it says above
	}
	return cnierr.New(cnierr.NoGID, "use RDMA device", d.Name, fewerPods,
		"its GID table is full: %s", gidtable.Fill(entries, size, s.c.Owners()))
}

// LookBefore notes which entries there are for the addresses that set is about to set on
// interfaces of the pod. So Do, Place and Has later know the pod's entries from those of
// other interfaces with the same address. all are the operations of the attachment. It
// does nothing for devices that are not in the host's namespace, or gone. Errors: IO when a
// table cannot be read.
func (s *Subsystem) LookBefore(all, set plan.Ops) error {
	for g := range plan.All[plan.GID](all) {
		last := slices.Max(append(g.Indexes(), 0))
		link := g.Targets[0].Link
		var addrs []netip.Addr
		for a := range plan.All[plan.Address](set.At(plan.Pod)) {
			if a.Link == link {
				addrs = append(addrs, a.Prefix.Addr())
			}
		}
		if len(addrs) == 0 {
			continue
		}
		var before gidtable.Before
		err := s.at(plan.Pod, func() (err error) {
			before, err = gidtable.New(s.c.Sys, g.Device.Name, g.Device.Port).Look(addrs, last)
			return err
		})
		if errors.Is(err, gidtable.ErrNone) {
			continue // what waits for the entries says so
		}
		if err != nil {
			return classify("read GID table of", portName(g.Device), err)
		}
		for _, t := range g.Targets {
			if t.Index != nil { // repair can set an address that the pod has with another prefix
				before.Own(*t.Index)
			}
		}
		s.before[link] = before
	}
	return nil
}

// Look notes again which entries of other interfaces there are for addresses of a rail, up to
// an index at least. The rail does not have them now. Errors are those of LookBefore.
func (s *Subsystem) Look(r plan.AlignRail, addrs []netip.Addr, from int) error {
	err := s.at(plan.Pod, func() (err error) {
		s.before[r.Link], err = gidtable.New(s.c.Sys, r.Device.Name, r.Device.Port).Again(s.before[r.Link], addrs, from)
		return err
	})
	return classify("read GID table of", portName(r.Device), err)
}

// of returns an interface of the pod, with what LookBefore noted.
func (s *Subsystem) of(link conf.LinkName) gidtable.Interface {
	return gidtable.Interface{Name: string(link), Before: s.before[link]}
}

// ofRail is of for addresses that the caller has chosen: without LookBefore they are taken
// for the pod's alone.
func (s *Subsystem) ofRail(link conf.LinkName) gidtable.Interface {
	out := s.of(link)
	_, looked := s.before[link]
	out.Alone = !looked
	return out
}

// Has says whether an entry is that of an interface of the pod, as far as LookBefore and
// the name of the interface tell.
func (s *Subsystem) Has(link conf.LinkName, e gidtable.Entry) bool { return s.of(link).Has(e) }

// Place waits until the table of the device of a rail has a RoCE v2 entry of the rail's
// interface for each address of set, and none for those of unset: see
// gidtable.Table.Settled. It returns the GID indexes. The device is in the host's
// namespace. Errors: NoRDMA when the device is gone, NoGID when the time is over or when
// it cannot be known which entry is that of the interface.
func (s *Subsystem) Place(ctx context.Context, r plan.AlignRail, set, unset []netip.Addr) (map[netip.Addr]int, error) {
	g := gid{s, plan.Host, plan.GID{Device: r.Device, Wait: r.Wait}}
	for _, a := range set {
		g.op.Targets = append(g.op.Targets, plan.GIDTarget{Link: r.Link, Addr: a})
	}
	t, err := g.table()
	if err != nil {
		return nil, err
	}
	var found map[netip.Addr]int
	var settled bool
	err = g.at(plan.Pod, func() (err error) {
		settled, err = poll(ctx, r.Wait, gidInterval, func() (done bool, err error) {
			found, done, err = t.Settled(s.ofRail(r.Link), set, unset)
			return done, err
		})
		return err
	})
	switch {
	case err != nil:
		return nil, g.failed(found, err)
	case !settled:
		return nil, g.timeout(found)
	}
	return found, nil
}

// Table returns the entries of the GID table of a port in order, and the size of the
// table: see gidtable.Table.Entries. The device is in the namespace of. The entries
// are those that a process in the namespace reader sees: see gidtable.Merge. Errors:
// gidtable.ErrNone.
func (s *Subsystem) Table(of, reader plan.Place, device string, port uint32) ([]gidtable.Entry, int, error) {
	sys, err := s.Files(of)
	if err != nil {
		return nil, 0, err
	}
	return s.entries(sys, reader, plan.RDMADevice{Name: device, Port: port}, math.MaxInt)
}

// Before returns the entries with an index below limit that a reader in a namespace
// sees: see gidtable.Table.Before. The device is in the host's namespace.
func (s *Subsystem) Before(reader plan.Place, d plan.RDMADevice, limit int) (entries []gidtable.Entry, size int, err error) {
	return s.entries(s.c.Sys, reader, d, limit)
}

func (s *Subsystem) entries(sys fs.FS, reader plan.Place, d plan.RDMADevice, limit int) (entries []gidtable.Entry, size int, err error) {
	err = s.at(reader, func() (err error) {
		entries, size, err = gidtable.New(sys, d.Name, d.Port).Before(limit)
		return err
	})
	return entries, size, classify("read GID table of", portName(d), err)
}
