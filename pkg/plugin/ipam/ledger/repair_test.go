// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// damage returns what is wrong with a database, nil if nothing is.
func damage(t *testing.T, s Store) (why error) {
	t.Helper()
	err := s.Rebuild(t.Context(), func(is error) (func(*Ledger), error) {
		why = is
		return nil, nil
	})
	must(t, err)
	return why
}

func TestWhatContradictsItselfIsDamaged(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Ledger){
		"an older version":        func(l *Ledger) { l.meta.put([]byte("version"), []byte{version - 1}) },
		"a lease that no run has": func(l *Ledger) { l.takeFromRun(Spot{"a", addr(1)}) },
		"a run without lease":     func(l *Ledger) { l.addToRun(Spot{"a", addr(9)}) },
		"a lease of two":          func(l *Ledger) { l.Save(Holding{owner(7), []Place{{Spot: Spot{"a", addr(1)}}}}) },
		"an address in quarantine without its owner": func(l *Ledger) {
			l.lastOwner.del(appendAddr(lastOwnerKey("a", owner(2).Identity()), addr(2)))
		},
		"an owner without its address in quarantine": func(l *Ledger) {
			l.lastOwner.put(appendAddr(lastOwnerKey("a", owner(8).Identity()), addr(8)), appendTime(nil, 1))
		},
		"an owner with another quarantine": func(l *Ledger) {
			l.lastOwner.put(appendAddr(lastOwnerKey("a", owner(2).Identity()), addr(2)), appendTime(nil, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := store(t)
			give(t, s, 1)
			give(t, s, 2)
			must(t, s.Update(t.Context(), end(2)))
			if why := damage(t, s); why != nil {
				t.Fatalf("the sound database: %v", why)
			}
			must(t, s.Update(t.Context(), always(spoil)))
			if why := damage(t, s); !errors.Is(why, errDamaged) {
				t.Errorf("got %v, want damage", why)
			}
		})
	}
}

// A kill can come right after the damaged database got its second name. The next ADD must
// not find that there is no database: it would make an empty one and lease every address
// again.
func TestADatabaseThatIsOpenStaysWhereItIs(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	must(t, s.keep())
	if n, err := holdings(t, s.Update); n != 1 || err != nil {
		t.Errorf("got %d holdings, %v; want 1", n, err)
	}
}

func TestTheDamagedFileEndsWithTheBoot(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	must(t, s.keep())
	s.BootID = boot2
	give(t, s, 2)
	if got, want := files(t, s.Dir), []string{dbName, lockName}; !slices.Equal(got, want) {
		t.Errorf("got the files %q, want %q", got, want)
	}
}

func TestARebuildThatCannotBeFilledChangesNothing(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	must(t, s.Update(t.Context(), always(func(l *Ledger) { l.addToRun(Spot{"a", addr(9)}) })))
	before := files(t, s.Dir)
	err := s.Rebuild(t.Context(), func(error) (func(*Ledger), error) {
		return func(l *Ledger) {
			h := Holding{owner(1), []Place{{Spot: Spot{"a", addr(1)}}}}
			l.Restore(h)
			l.Restore(h)
		}, nil
	})
	if cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("got %v", err)
	}
	if after := files(t, s.Dir); len(after) != len(before) {
		t.Errorf("there is now %q", after)
	}
	if why := damage(t, s); why == nil {
		t.Error("the damaged database is gone")
	}
}

// What the lock file said may be that the leases are of this boot.
func TestALockFileWithoutBootIDEndsNoLease(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"one byte":           "x",
		"half a boot id":     boot1[:20],
		"a wrong byte in it": "x" + boot1[1:],
		"a hyphen too many":  "-" + boot1[1:],
		"a newline behind":   boot1 + "\n",
		"nothing but zeros":  string(make([]byte, len(boot1))),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := store(t)
			give(t, s, 1)
			must(t, os.WriteFile(s.lock(), []byte(content), 0o600))
			for name, do := range map[string]func(context.Context, func(*Ledger) error) error{
				"View": s.View, "Existing": s.Existing, "Try": s.Try, "Update": s.Update,
			} {
				if n, err := holdings(t, do); cnierr.CodeOf(err) != cnierr.Unreadable {
					t.Errorf("%s: got %d holdings, %v; want code %d", name, n, err, cnierr.Unreadable)
				}
			}
			if why := damage(t, s); !errors.Is(why, errDamaged) {
				t.Errorf("got %v, want damage", why)
			}
			if b, err := os.ReadFile(s.lock()); string(b) != content {
				t.Errorf("the lock file has now %q, %v", b, err)
			}
			err := s.Rebuild(t.Context(), func(error) (func(*Ledger), error) {
				return func(l *Ledger) { l.Restore(Holding{owner(1), []Place{{Spot: Spot{"a", addr(1)}}}}) }, nil
			})
			must(t, err)
			if n, err := holdings(t, s.Update); n != 1 || err != nil {
				t.Errorf("rebuilt: got %d holdings, %v; want 1", n, err)
			}
			if b, err := os.ReadFile(s.lock()); string(b) != boot1 {
				t.Errorf("rebuilt: the lock file has %q, %v", b, err)
			}
		})
	}
}
