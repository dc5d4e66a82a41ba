// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/rdma/gidtable"
)

// Place waits until the table of a device has a RoCE v2 entry for each address of set,
// and no entry for those of unset: see gidtable.Table.Settled. It returns the GID
// indexes. All addresses are the pod's own, and the device is in the host's namespace.
// Errors: NoRDMA when the device is gone, NoGID when the time is over.
func (s *Subsystem) Place(ctx context.Context, d plan.RDMADevice, wait time.Duration, set, unset []netip.Addr) (map[netip.Addr]int, error) {
	g := gid{s, Host, plan.GID{Device: d, Wait: wait}}
	for _, a := range set {
		g.op.Targets = append(g.op.Targets, plan.GIDTarget{Addr: a})
	}
	t, err := g.table()
	if err != nil {
		return nil, err
	}
	var found map[netip.Addr]int
	var settled bool
	err = g.at(Pod, func() (err error) {
		settled, err = poll(ctx, wait, gidInterval, func() (done bool, err error) {
			found, done, err = t.Settled(set, unset)
			return done, err
		})
		return err
	})
	switch {
	case errors.Is(err, gidtable.ErrNone):
		return nil, g.noTable(err)
	case err != nil:
		return nil, classify(waiting, g.missing(found), err)
	case !settled:
		return nil, g.timeout(found)
	}
	return found, nil
}

// Before returns the entries with an index below limit that a reader in a namespace
// sees: see gidtable.Table.Before. The device is in the host's namespace.
func (s *Subsystem) Before(reader Side, d plan.RDMADevice, limit int) (entries []Entry, size int, err error) {
	err = s.at(reader, func() (err error) {
		entries, size, err = gidtable.New(s.c.Sys, d.Name, d.Port).Before(limit)
		return err
	})
	return entries, size, classify("read GID table of", portName(d), err)
}
