// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"context"
	"math"
	"net/netip"
	"slices"
	"sync"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// gidTables are the GID tables of all NICs of a node. They have an entry for each
// address of the fake kernel's pods, at the lowest free index (find_gid).
type gidTables struct {
	mu      sync.Mutex
	hides   bool // from a reader what belongs to others, as NVIDIA's driver does
	parents map[holder]conf.LinkName
	tables  map[conf.LinkName]*gidTable
}

// holder is an interface in a namespace, "" for the host's.
type holder struct {
	netns string
	link  conf.LinkName
}

type gidTable struct {
	entries []gidEntry // the zero value is a free entry
	each    int        // entries for each address: 2 with RoCE v1
}

type gidEntry struct {
	of   holder
	gid  netip.Addr
	kind string
	gone bool // the address is: the kernel removes the entry before it makes another
}

// newGIDTables returns tables of three NICs with the entries of the host's addresses.
func newGIDTables(size, each int, host ...int) *gidTables {
	out := &gidTables{parents: map[holder]conf.LinkName{}, tables: map[conf.LinkName]*gidTable{}}
	for i, n := range host {
		nic := conf.LinkName([]string{"ens1", "ens2", "ens3"}[i])
		t := &gidTable{entries: make([]gidEntry, size), each: each}
		for a := range n {
			t.set(holder{link: nic}, netip.AddrFrom4([4]byte{10, byte(i), byte((a + 1) >> 8), byte(a + 1)}))
		}
		out.tables[nic] = t
	}
	return out
}

func (t *gidTable) set(of holder, gid netip.Addr) {
	t.settle()
	if slices.ContainsFunc(t.entries, func(e gidEntry) bool { return e.of == of && e.gid == gid }) {
		return
	}
	for _, kind := range []string{gidtable.RoCEv1, gidtable.RoCEv2}[2-t.each:] {
		if i := slices.Index(t.entries, gidEntry{}); i >= 0 {
			t.entries[i] = gidEntry{of: of, gid: gid, kind: kind}
		}
	}
}

func (t *gidTable) unset(is func(gidEntry) bool) {
	for i, e := range t.entries {
		if is(e) {
			t.entries[i] = gidEntry{}
		}
	}
}

func (t *gidTable) settle() { t.unset(func(e gidEntry) bool { return e.gone }) }

// index returns where the RoCE v2 entry of an address is, -1 if there is none.
func (t *gidTable) index(gid netip.Addr) int {
	return slices.IndexFunc(t.entries, func(e gidEntry) bool { return e.gid == gid && e.kind == gidtable.RoCEv2 && !e.gone })
}

// indexOf is index for the entry of one interface.
func (t *gidTable) indexOf(of holder, gid netip.Addr) int {
	return slices.IndexFunc(t.entries, func(e gidEntry) bool { return e.of == of && e.gid == gid && e.kind == gidtable.RoCEv2 && !e.gone })
}

// LookBefore implements attach.RDMA. The fake knows the namespaces of the entries.
func (h handle) LookBefore(plan.Ops, plan.Ops) error { return h.lost }

// Has implements attach.RDMA.
func (h handle) Has(link conf.LinkName, e gidtable.Entry) bool {
	h.tables.mu.Lock()
	defer h.tables.mu.Unlock()
	of := holder{h.netns, link}
	all := h.tables.tables[h.tables.parents[of]].entries
	return e.Index < len(all) && all[e.Index].of == of
}

func (g *gidTables) of(d plan.RDMADevice) *gidTable { return g.tables[d.Link] }

// done adds what an operation has set.
func (g *gidTables) done(netns string, op plan.Op) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch k := op.Kind.(type) {
	case plan.Child:
		g.parents[holder{netns, k.Name}] = k.Parent
	case plan.Address:
		of := holder{netns, k.Link}
		g.tables[g.parents[of]].set(of, k.Prefix.Addr())
	}
}

// undone removes what an operation has removed, and without one all that a namespace has.
func (g *gidTables) undone(netns string, op plan.Op) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.tables {
		switch k := op.Kind.(type) {
		case nil:
			t.unset(func(e gidEntry) bool { return e.of.netns == netns })
		case plan.Child:
			t.unset(func(e gidEntry) bool { return e.of == holder{netns, k.Name} })
		case plan.Address:
			for i, e := range t.entries {
				t.entries[i].gone = e.gone || e.of == holder{netns, k.Link} && e.gid == k.Prefix.Addr()
			}
		}
	}
}

// Look implements attach.RDMA, as LookBefore.
func (h handle) Look(plan.AlignRail, []netip.Addr, int) error { return nil }

// fillers returns how many entries of fillers there are.
func (g *gidTables) fillers() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, t := range g.tables {
		for _, e := range t.entries {
			if e.gid.IsValid() && !e.gone && plan.FillerRange.Contains(e.gid) {
				n++
			}
		}
	}
	return n
}

// Place implements attach.RDMA. The entries of the fake come at once, and go when it waits.
func (h handle) Place(_ context.Context, r plan.AlignRail, set, unset []netip.Addr) (map[netip.Addr]int, error) {
	h.w.step()
	d, of := r.Device, holder{h.netns, r.Link}
	h.tables.mu.Lock()
	defer h.tables.mu.Unlock()
	h.tables.of(d).settle()
	out := map[netip.Addr]int{}
	for _, a := range set {
		if out[a] = h.tables.of(d).indexOf(of, a); out[a] < 0 {
			return nil, cnierr.New(cnierr.NoGID, "wait for GID of", a.String(), "", "the table is full")
		}
	}
	for _, a := range unset {
		if h.tables.of(d).indexOf(of, a) >= 0 {
			h.w.t.Errorf("%s still has an entry", a)
		}
	}
	return out, nil
}

// HasPlace implements attach.RDMA.
func (h handle) HasPlace(d plan.RDMADevice) error {
	entries, size, err := h.Before(plan.Host, d, math.MaxInt)
	if err != nil || size-len(entries) >= gidtable.Width(entries) {
		return nil
	}
	return cnierr.New(cnierr.NoGID, "use RDMA device", d.Name, "", "its GID table is full")
}

// Before implements attach.RDMA.
func (h handle) Before(reader plan.Place, d plan.RDMADevice, limit int) ([]gidtable.Entry, int, error) {
	if h.tables == nil {
		return nil, 0, gidtable.ErrNone
	}
	h.tables.mu.Lock()
	defer h.tables.mu.Unlock()
	netns := h.netns
	if reader == plan.Host {
		netns = ""
	}
	all := h.tables.of(d).entries
	all = all[:min(limit, len(all))]
	var out []gidtable.Entry
	for i, e := range all {
		if e.gid.IsValid() && (!h.tables.hides || e.of.netns == netns) {
			out = append(out, gidtable.Entry{Index: i, GID: e.gid, Type: e.kind, Netdev: string(e.of.link)})
		}
	}
	return out, len(all), nil
}
