// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// gid executes plan.GID. It reads the table from inside the pod's namespace,
// because NVIDIA's driver shows its entries nowhere else: see gidtable.Merge.
type gid struct {
	*Subsystem
	side plan.Place // of the device
	op   plan.GID
}

// gidInterval is how often the table is looked at. The kernel adds an entry
// from a work queue, mostly within a millisecond (add_netdev_ips).
const gidInterval = time.Millisecond

const (
	waiting  = "wait for GID of"
	checking = "check GID of"
)

func (g gid) do(ctx context.Context) error {
	return g.severity(g.wait(ctx))
}

// severity logs the error if the configuration asks for a warning only.
func (g gid) severity(err error) error {
	code := cnierr.CodeOf(err)
	if err == nil || g.op.Mode != conf.Warn || (code != cnierr.NoGID && code != cnierr.Damaged) {
		return err
	}
	g.c.Log.Warn("GID is not as expected", "error", err.Error(), "hint", hintOf(err))
	return nil
}

func (g gid) wait(ctx context.Context) error {
	t, err := g.table()
	if err != nil {
		return err
	}
	addrs := g.addrs()
	for _, a := range addrs { // an ADD that starts again has the same addresses at other indexes
		delete(g.found, a)
	}
	var all bool
	of := g.of(g.op.Targets[0].Link)
	err = g.at(plan.Pod, func() (err error) {
		all, err = poll(ctx, g.op.Wait, gidInterval, func() (bool, error) {
			found, settled, err := t.Settled(of, addrs, nil)
			maps.Copy(g.found, found)
			return settled, err
		})
		return err
	})
	if err != nil {
		return g.failed(g.found, err)
	}
	if !all {
		return g.timeout(g.found)
	}
	g.warn(of.Before)
	return nil
}

// warn logs the addresses that another interface of the NIC has, too.
func (g gid) warn(before gidtable.Before) {
	for _, a := range g.addrs() {
		if others := before.Others(a); len(others) > 0 {
			g.c.Log.Warn("another interface on this NIC has the address of the pod too: find it with rocectl gids, and remove the address there",
				"address", a, "device", portName(g.op.Device), "index", g.found[a], "others", gidtable.Numbers(others))
		}
	}
}

// others returns where a table has entries of other interfaces for addresses that are not
// in found, for a sentence.
func (g gid) others(table []gidtable.Entry, found map[netip.Addr]int) string {
	var out []string
	for _, t := range g.op.Targets {
		var places []int
		for _, e := range table {
			if e.GID == t.Addr && g.of(t.Link).Had(e) {
				places = append(places, e.Index)
			}
		}
		if _, have := found[t.Addr]; !have && len(places) > 0 {
			out = append(out, gidtable.Numbers(places))
		}
	}
	return strings.Join(out, " and ")
}

// failed returns the error for a table in which the entries cannot be found.
func (g gid) failed(found map[netip.Addr]int, err error) error {
	var several *gidtable.SeveralError
	switch {
	case errors.Is(err, gidtable.ErrNone):
		return g.noTable(err)
	case errors.As(err, &several):
		return cnierr.New(cnierr.NoGID, waiting, several.Addr.String(), foreignEntry,
			"in the table of %s %w, so another interface on this NIC has the address too, and nothing tells which entry is that of the pod", portName(g.op.Device), err)
	}
	return classify(waiting, g.missing(found), err)
}

// foreignEntry is what to do about an entry of another interface.
const foreignEntry = "find the other interface with rocectl gids, and remove the address there; an interface that rocectl gids cannot name is in a namespace without a pod of roce: ip netns, lsns -t net"

func (g gid) table() (gidtable.Table, error) {
	sys, err := g.Files(g.side)
	return gidtable.New(sys, g.op.Device.Name, g.op.Device.Port), err
}

func (g gid) noTable(err error) error {
	return cnierr.New(cnierr.NoRDMA, "read GID table of", portName(g.op.Device),
		"find the device with "+g.rdma(g.side, "dev"), "%w of this name in the namespace of %s: %w", ErrNoDevice, g.side, err)
}

func (g gid) addrs() []netip.Addr {
	var out []netip.Addr
	for _, t := range g.op.Targets {
		out = append(out, t.Addr)
	}
	return out
}

// missing returns the addresses that are not in found.
func (g gid) missing(found map[netip.Addr]int) string {
	var out []string
	for _, a := range g.addrs() {
		if _, have := found[a]; !have {
			out = append(out, a.String())
		}
	}
	return strings.Join(out, ", ")
}

// views returns the table with the entries that the pod or the host sees. It also
// returns whether there can be entries that neither of them sees.
func (g gid) views() (entries []gidtable.Entry, size int, hidden bool, err error) {
	of := g.side
	var views [2][]gidtable.Entry
	for _, reader := range []plan.Place{plan.Host, plan.Pod} {
		views[reader], size, err = g.Table(of, reader, g.op.Device.Name, g.op.Device.Port)
		if err != nil {
			return nil, 0, false, err
		}
	}
	entries, hidden = gidtable.Merge(views[plan.Host], views[plan.Pod])
	return entries, size, hidden, nil
}

// TableFull is what the kernel logs for an address when the table has no free entry
// (__ib_cache_gid_add, ENOSPC). A count may be too low: the driver may hide entries, and one
// that a running program holds after its address is gone reads as free (del_gid).
const TableFull = `"unable to add gid" with error=-28 in dmesg`

const fewerPods = "see with rocectl gids who has the entries, and start fewer pods on this NIC, or give them fewer addresses: each address takes one entry, or two if the NIC has RoCE v1 too, and so does each address of the host"

// timeout returns the error for entries that did not appear in time.
func (g gid) timeout(found map[netip.Addr]int) error {
	entries, size, hidden, err := g.views()
	if err != nil {
		return classify(waiting, g.missing(found), err)
	}
	name, fill := portName(g.op.Device), gidtable.Fill(entries, size, g.c.Owners())
	const slow = "check that the address is on the interface; if the NIC is slow under load, raise rdma.gidWait, or set rdma.gid to warn"
	switch {
	case len(entries) >= size:
		return cnierr.New(cnierr.NoGID, waiting, g.missing(found), fewerPods, "the GID table of %s is full: %s; %s", name, fill, g.room(entries, size))
	case g.others(entries, found) != "":
		return cnierr.New(cnierr.NoGID, waiting, g.missing(found), foreignEntry,
			"%s made no new RoCE v2 entry for it within %s: another interface on this NIC had the address before, at the index %s", name, g.op.Wait, g.others(entries, found))
	case hidden:
		return cnierr.New(cnierr.NoGID, waiting, g.missing(found),
			"if "+TableFull+" shows that the table is full, "+fewerPods+"; otherwise "+slow,
			"%s made no RoCE v2 entry for it within %s; its table may be full: the driver hides the entries of other pods, and without them %s",
			name, g.op.Wait, fill)
	}
	return cnierr.New(cnierr.NoGID, waiting, g.missing(found),
		"if "+TableFull+" shows that the table is full, end the programs that still use addresses that are gone; otherwise "+slow,
		"%s made no RoCE v2 entry for it within %s; %s", name, g.op.Wait, fill)
}

// room says what would fit into a full table without the entries of this pod's addresses.
func (g gid) room(entries []gidtable.Entry, size int) string {
	free, width := size-len(entries), gidtable.Width(entries)
	for _, e := range entries {
		if slices.Contains(g.addrs(), e.GID) {
			free++
		}
	}
	return fmt.Sprintf("each address takes %d, this pod has at least %d addresses, and without it %d are free: %s",
		width, len(g.op.Targets), free, gidtable.Room(free, width))
}

// undo has nothing to undo: the kernel removes the entries with the addresses.
func (gid) undo(context.Context) error { return nil }

// check reads the whole table, because another interface may have an entry of the same
// address at any index.
func (g gid) check(ctx context.Context) error {
	entries, _, _, err := g.views()
	if errors.Is(err, gidtable.ErrNone) {
		return g.severity(g.lost(ctx))
	}
	if err != nil {
		return classify("check GIDs of", portName(g.op.Device), err)
	}
	var errs []error
	for _, target := range g.op.Targets {
		errs = append(errs, g.severity(g.checkTarget(target, gidtable.Of(entries, target.Addr))))
	}
	return errors.Join(errs...)
}

// lost returns the finding for a port without files of a table under the name of its
// device.
func (g gid) lost(ctx context.Context) error {
	where, want := g.side, g.op.Device
	d, err := g.device(ctx, where, want)
	if err == nil && d.Name == want.Name {
		return cnierr.New(cnierr.Damaged, "check GIDs of", portName(want),
			"look at the NIC with devlink dev param show and devlink dev eswitch show, set back what was changed, and delete the pod so that it is created again",
			"the port has no GID table, so RoCE is off")
	}
	if err != nil {
		return g.damaged(portName(want), "the device is not in the namespace of %s under its name", where)
	}
	return damaged("check GIDs of", portName(want), []string{g.rdma(where, "dev set %s name %s", d.Name, want.Name)},
		"the device has another name in the namespace of %s, %q", where, d.Name)
}

func (g gid) checkTarget(t plan.GIDTarget, have []gidtable.Entry) error {
	subject := t.Addr.String()
	switch {
	case len(have) == 0:
		return g.damaged(subject, "%s has no RoCE v2 entry for it", portName(g.op.Device))
	case len(have) > 1:
		return g.twice(t, have)
	case t.Index != nil && *t.Index != have[0].Index && have[0].Netdev != string(t.Link):
		return g.damaged(subject, "%s has no RoCE v2 entry of %s for it, but another interface has the address: %s", portName(g.op.Device), t.Link, at(have))
	case t.Index != nil && *t.Index != have[0].Index:
		return g.moved(t.Addr, *t.Index, have[0].Index)
	}
	return nil
}

// twice returns the finding for an address with several entries.
func (g gid) twice(t plan.GIDTarget, have []gidtable.Entry) error {
	own := gidtable.Own(have, string(t.Link), t.Index)
	which := "which is the pod's is not known"
	if len(own) == 1 {
		which = fmt.Sprintf("the pod's is at %d", own[0].Index)
		if t.Index != nil && *t.Index != own[0].Index {
			which += fmt.Sprintf(", and was at %d", *t.Index)
		}
	}
	return cnierr.New(cnierr.Damaged, checking, t.Addr.String(),
		"remove the address from the other interface, which rocectl gids shows; until then start programs with the output of rocectl env --container on the node",
		"%s has %d RoCE v2 entries for it, so another interface on this node has the address too: %s; %s",
		portName(g.op.Device), len(have), at(have), which)
}

// damaged returns a finding that only a new pod corrects for certain.
func (g gid) damaged(subject, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, checking, subject,
		"check with rocectl gids, and delete the pod so that it is created again", format, args...)
}

// MovedError says that the entry of an address has another GID index than ADD found. A
// failover of a bond or a reset of the NIC moves the entries of all pods on a port.
type MovedError struct {
	Port    string // as rdma link calls it: mlx5_0/1
	Addr    netip.Addr
	Was, Is int
}

func (e *MovedError) Error() string {
	return fmt.Sprintf("its index changed from %d to %d", e.Was, e.Is)
}

// NewIndex is what to do after a MovedError.
const NewIndex = "restart the programs in the pod with the new index of rocectl env, or delete the pod"

func (g gid) moved(addr netip.Addr, was, is int) error {
	return cnierr.New(cnierr.Damaged, checking, addr.String(), NewIndex, "%w",
		&MovedError{Port: portName(g.op.Device), Addr: addr, Was: was, Is: is})
}

func at(entries []gidtable.Entry) string {
	var out []string
	for _, e := range entries {
		out = append(out, fmt.Sprintf("index %d of %s", e.Index, e.Netdev))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
