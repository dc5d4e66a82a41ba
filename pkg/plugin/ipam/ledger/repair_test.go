// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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
		"a table that is missing": func(l *Ledger) { must(t, l.tx.tx.DeleteBucket([]byte("run"))); l.meta.changes++ },
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
		"an address that is set aside without its owner": func(l *Ledger) { l.meta.put(asideKey(addr(9)), []byte{valueVersion}) },
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
			why := damage(t, s)
			if !errors.Is(why, errDamaged) || name == "a table that is missing" && !strings.HasSuffix(why.Error(), "there is no table run") {
				t.Errorf("got %v, want damage", why)
			}
		})
	}
}

func TestARebuildThatIsRefusedChangesNothing(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	must(t, s.Update(t.Context(), always(func(l *Ledger) { l.addToRun(Spot{"a", addr(9)}) })))
	no := cnierr.New(cnierr.NotAvailable, "look at records", "", "", "no")
	err := s.Rebuild(t.Context(), func(error) (func(*Ledger), error) {
		return func(*Ledger) { t.Error("it is filled") }, no
	})
	if !errors.Is(err, no) || damage(t, s) == nil {
		t.Errorf("got %v", err)
	}
	if got, want := files(t, s.Dir), []string{dbName, lockName}; !slices.Equal(got, want) {
		t.Errorf("got the files %q, want %q", got, want)
	}
}

func TestADatabaseTakesItsNameOnlyWhenItIsWhole(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	no := errors.New("no")
	var file *os.File
	err := s.replace(func(f *os.File) error {
		file = f
		return no
	})
	if !errors.Is(err, no) || !errors.Is(file.Close(), os.ErrClosed) {
		t.Errorf("of a file that cannot be written: %v, or it stays open", err)
	}
	if got, want := files(t, s.Dir), []string{dbName, lockName}; !slices.Equal(got, want) {
		t.Errorf("got the files %q, want %q", got, want)
	}
	must(t, os.Remove(s.db()))
	must(t, os.Mkdir(s.db(), 0o700))
	if err := s.replace(s.blank); !errors.Is(err, unix.EEXIST) {
		t.Errorf("where a folder is: %v", err)
	}
	s.Dir += "/none"
	if err := s.replace(s.blank); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
}

// What is not written must not count as an empty database.
func TestAFileThatCannotBeWrittenBecomesNoDatabase(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	none := func() *os.File {
		path := filepath.Join(t.TempDir(), "file")
		must(t, os.WriteFile(path, nil, 0o400))
		f, err := os.Open(path)
		must(t, err)
		return f
	}
	var copied error
	must(t, s.View(t.Context(), always(func(l *Ledger) { copied = l.tx.copy(none()) })))
	for what, err := range map[string]error{
		"copy": copied, "blank": s.blank(none()), "copyTo": s.copyTo(none()), "fill": s.fill(none(), func(*Ledger) {}),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "twice"))
	must(t, err)
	if err := create(f, []string{"a", "a"}, func([]*table) {}); err == nil {
		t.Error("two tables of one name: no error")
	}
}

// A kill can come right after the damaged database got its second name. The next ADD must
// not find that there is no database: it would make an empty one and lease every address
// again.
func TestADatabaseThatIsOpenStaysWhereItIs(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	for range 2 { // an earlier repair may have left one
		must(t, s.keep())
	}
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
			damaged, err := os.ReadFile(s.db())
			must(t, err)
			err = s.Rebuild(t.Context(), func(error) (func(*Ledger), error) {
				return func(l *Ledger) { l.Restore(Holding{owner(1), []Place{{Spot: Spot{"a", addr(1)}}}}) }, nil
			})
			must(t, err)
			if kept, err := os.ReadFile(s.Damaged()); string(kept) != string(damaged) {
				t.Errorf("%d bytes of the damaged database are kept, want %d (%v)", len(kept), len(damaged), err)
			}
			if n, err := holdings(t, s.Update); n != 1 || err != nil {
				t.Errorf("rebuilt: got %d holdings, %v; want 1", n, err)
			}
			if b, err := os.ReadFile(s.lock()); string(b) != boot1 {
				t.Errorf("rebuilt: the lock file has %q, %v", b, err)
			}
		})
	}
}
