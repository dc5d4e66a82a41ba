// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/kv"
)

// Damaged is the name that a damaged database gets when another one replaces
// it. The file stays until the next boot, so that you can find out what
// happened.
func (s Store) Damaged() string { return s.db() + ".damaged" }

// Rebuild calls fn if the database cannot be read or contradicts itself. It has the
// database alone, and passes the reason. What fn returns fills an empty database, which
// then replaces the damaged one. If that is nil, everything stays as it is. If the
// database is sound, or if there is none, Rebuild does nothing and does not call fn.
//
// If the process is killed at any moment, either the damaged database or the whole new
// one is there.
func (s Store) Rebuild(ctx context.Context, fn func(why error) (fill func(*Ledger) error, err error)) error {
	return s.locked(ctx, os.O_RDWR, unix.LOCK_EX, func(lock *os.File) error {
		why := s.ours(lock)
		if why == nil {
			why = s.transact(os.O_RDONLY, kv.Read, (*Ledger).check)
		}
		if !errors.Is(why, kv.ErrDamaged) {
			return why
		}
		fill, err := fn(why)
		if err != nil || fill == nil {
			return err
		}
		err = s.replace(func(file *os.File) error {
			if err := s.fill(file, fill); err != nil {
				return err
			}
			return s.keep()
		})
		if err != nil {
			return err
		}
		return s.sign(lock)
	})
}

// fill makes a new file a database and fills it.
func (s Store) fill(file *os.File, fill func(*Ledger) error) error {
	if err := s.blank(file); err != nil {
		return err
	}
	again, err := os.OpenFile(file.Name(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return kv.Transact(again, kv.WriteHollow, s.bind(fill))
}

// keep gives the damaged database a second name. The first name stays until the
// new database takes it, so that a database always exists: a missing one would
// count as empty.
func (s Store) keep() error {
	if err := os.Remove(s.Damaged()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Link(s.db(), s.Damaged())
}

// Restore stores a holding of a database that was lost.
func (l *Ledger) Restore(h Holding) error {
	for _, p := range h.Places {
		if err := l.addToRun(p.Spot); err != nil {
			return err
		}
	}
	return l.Save(h)
}

// check checks everything: first that the tables can be read, then that they
// agree, and last the pages, because Check requires this order.
func (l *Ledger) check() error {
	if err := l.checkTables(); err != nil {
		return err
	}
	return l.tx.Check()
}

func (l *Ledger) checkTables() error {
	spots := map[Spot]bool{}
	add := func(s Spot) error {
		if spots[s] {
			return kv.Damagef("address %v of pool %q exists twice", s.Addr, s.Pool)
		}
		spots[s] = true
		return nil
	}
	for h, err := range l.Holdings() {
		for _, p := range h.Places {
			err = errors.Join(err, add(p.Spot))
		}
		if err != nil {
			return err
		}
	}
	atRest := 0
	for r, err := range l.AllQuarantined() {
		if err == nil {
			err = add(r.Spot)
		}
		if err == nil && r.State != Conflicted {
			atRest++
			err = l.checkLast(r)
		}
		if err != nil {
			return err
		}
	}
	for _, err := range l.Asides() {
		if err != nil {
			return err
		}
	}
	return errors.Join(l.checkCount(atRest), l.checkRuns(spots))
}

func (l *Ledger) checkLast(r Quarantined) error {
	v, err := l.lastOwner.Get(appendAddr(lastOwnerKey(r.Pool, r.Owner.Identity()), r.Addr))
	if err == nil && !bytes.Equal(v, appendTime(nil, r.Freed)) {
		err = kv.Damagef("address %v of pool %q is in quarantine in one table only", r.Addr, r.Pool)
	}
	return err
}

func (l *Ledger) checkCount(atRest int) error {
	for _, err := range l.lastOwner.In(kv.Span{}) {
		if err != nil {
			return err
		}
		atRest--
	}
	if atRest != 0 {
		return kv.Damagef("%d addresses are in quarantine in one table only", -atRest)
	}
	return nil
}

// checkRuns checks that the runs contain all used addresses and no other.
func (l *Ledger) checkRuns(spots map[Spot]bool) error {
	for it, err := range l.run.In(kv.Span{}) {
		if err != nil {
			return err
		}
		k := reader{b: it.Key}
		pool, last := k.string(), k.addr()
		r, err := l.Run(pool, last)
		if err != nil {
			return err
		}
		for a := r.First; ; a = a.Next() {
			if !spots[Spot{pool, a}] {
				return kv.Damagef("address %v of pool %q is in a run, but neither leased nor in quarantine", a, pool)
			}
			delete(spots, Spot{pool, a})
			if a == r.Last {
				break
			}
		}
	}
	for s := range spots {
		return kv.Damagef("address %v of pool %q is in no run", s.Addr, s.Pool)
	}
	return nil
}
