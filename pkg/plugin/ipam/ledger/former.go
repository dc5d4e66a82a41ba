// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// errFormer says that a database is of formerVersion and was opened for reading.
var errFormer = errors.New("the lease database is of the version before")

// Current returns the name that a pool of formerVersion has now. In formerVersion, the
// leases of a RailPool were in a pool with the RailPool's own name, which a
// configuration could write too. A pool counts as a RailPool if the node has its node
// file.
func (s Store) Current(former string) string {
	if !filepath.IsLocal(former) {
		return former
	}
	if _, err := os.Lstat(filepath.Join(s.Dir, "pools", former, "ranges")); err != nil {
		return former
	}
	return pool.OfRailPool(former)
}

// convert makes the tables those of this version. current returns the name that a pool
// of formerVersion has now.
func (l *Ledger) convert(current func(former string) string) error {
	if !l.former {
		return nil
	}
	if err := errors.Join(l.convertAsides(), l.renameLeased(current), l.renameResting(current)); err != nil {
		return err
	}
	l.former = false
	return l.meta.Put([]byte("version"), []byte{version})
}

// renameLeased changes the pools of all leases.
func (l *Ledger) renameLeased(current func(former string) string) error {
	for h, err := range l.Holdings() {
		if err != nil {
			return err
		}
		renamed := false
		for i, p := range h.Places {
			name := current(p.Pool)
			if name == p.Pool {
				continue
			}
			renamed = true
			if err := l.takeFromRun(p.Spot); err != nil {
				return err
			}
			h.Places[i].Pool = name
			if err := l.addToRun(h.Places[i].Spot); err != nil {
				return err
			}
		}
		if !renamed {
			continue
		}
		if err := l.Save(h); err != nil {
			return err
		}
	}
	return nil
}

// renameResting changes the pools of all addresses in quarantine.
func (l *Ledger) renameResting(current func(former string) string) error {
	var all []Quarantined
	for r, err := range l.AllQuarantined() {
		if err != nil {
			return err
		}
		if current(r.Pool) != r.Pool {
			all = append(all, r)
		}
	}
	for _, r := range all {
		if err := l.Free(r); err != nil {
			return err
		}
		r.Pool = current(r.Pool)
		if err := errors.Join(l.fileQuarantined(r), l.addToRun(r.Spot)); err != nil {
			return err
		}
	}
	return nil
}

// The first form of formerVersion had no table for addresses that are set aside. It
// leased them to their namespace in a pool of this name, and noted that under this key
// of the table meta.
const (
	pastPool = "*"
	pastKey  = "keeps"
)

// convertAsides sets aside what is leased in pastPool.
func (l *Ledger) convertAsides() error {
	if past, err := l.meta.Get([]byte(pastKey)); err != nil || past == nil {
		return err
	}
	for h, err := range l.Holdings() {
		if err != nil {
			return err
		}
		left := Holding{Owner: h.Owner}
		for _, p := range h.Places {
			if p.Pool != pastPool {
				left.Places = append(left.Places, p)
				continue
			}
			a := Aside{p.Addr, Owner{IfName: h.Owner.IfName, Netns: h.Owner.Netns}}
			if err := l.SetAside(a); err != nil {
				return err
			}
			if err := l.takeFromRun(p.Spot); err != nil {
				return err
			}
		}
		if len(left.Places) == len(h.Places) {
			continue
		}
		if err := l.Save(left); err != nil {
			return err
		}
	}
	for r, err := range l.Quarantined(pastPool) {
		if err != nil {
			return err
		}
		if err := l.Free(r); err != nil {
			return err
		}
	}
	return l.meta.Del([]byte(pastKey))
}
