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
func (s Store) Rebuild(ctx context.Context, fn func(why error) (fill func(*Ledger), err error)) error {
	return s.locked(ctx, os.O_RDWR, unix.LOCK_EX, func(lock *os.File) error {
		why := s.ours(lock)
		if why == nil {
			why = s.transact(os.O_RDONLY, read, (*Ledger).check)
		}
		if !errors.Is(why, errDamaged) {
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
func (s Store) fill(file *os.File, fill func(*Ledger)) error {
	if err := s.blank(file); err != nil {
		return err
	}
	again, err := os.OpenFile(file.Name(), os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return transact(again, writeHollow, s.bind(func(l *Ledger) error {
		fill(l)
		return nil
	}))
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
func (l *Ledger) Restore(h Holding) {
	for _, p := range h.Places {
		l.addToRun(p.Spot)
	}
	l.Save(h)
}

// check checks everything: first that the tables can be read and agree, and then the
// pages, because Check requires this order.
func (l *Ledger) check() error {
	spots := map[Spot]bool{}
	add := func(s Spot) {
		if spots[s] {
			fail(damagef("address %v of pool %q exists twice", s.Addr, s.Pool))
		}
		spots[s] = true
	}
	for h := range l.Holdings() {
		for _, p := range h.Places {
			add(p.Spot)
		}
	}
	owned := 0
	for r := range l.AllQuarantined() {
		add(r.Spot)
		if r.State == Conflicted {
			continue
		}
		owned++
		if !bytes.Equal(l.lastOwner.get(r.lastOwnerKey()), appendTime(nil, r.Freed)) {
			fail(damagef("address %v of pool %q is in quarantine in one table only", r.Addr, r.Pool))
		}
	}
	for range l.lastOwner.in(nil) {
		owned--
	}
	if owned != 0 {
		fail(damagef("%d addresses are in quarantine in one table only", -owned))
	}
	for range l.Asides() { // that each can be read
	}
	l.checkRuns(spots)
	return l.tx.check()
}

// checkRuns checks that the runs contain all used addresses and no other.
func (l *Ledger) checkRuns(spots map[Spot]bool) {
	for it := range l.run.in(nil) {
		k := reader{b: it.Key}
		pool, last := k.string(), k.addr()
		r := l.Run(pool, last)
		for a := r.First; ; a = a.Next() {
			if !spots[Spot{pool, a}] {
				fail(damagef("address %v of pool %q is in a run, but neither leased nor in quarantine", a, pool))
			}
			delete(spots, Spot{pool, a})
			if a == r.Last {
				break
			}
		}
	}
	for s := range spots {
		fail(damagef("address %v of pool %q is in no run", s.Addr, s.Pool))
	}
}
