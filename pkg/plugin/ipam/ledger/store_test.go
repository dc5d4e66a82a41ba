// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// give leases an address to owner n.
func give(t testing.TB, s Store, n int) {
	t.Helper()
	must(t, s.Update(t.Context(), always(func(l *Ledger) { l.Give(owner(n), Spot{"a", addr(n)}) })))
}

// holdings counts what a store holds, in the way that do looks at it.
func holdings(t testing.TB, do func(context.Context, func(*Ledger) error) error) (int, error) {
	t.Helper()
	n := 0
	err := do(t.Context(), always(func(l *Ledger) { n = len(slices.Collect(l.Holdings())) }))
	return n, err
}

// end returns the transaction in which owner n releases its leases.
func end(n int) func(*Ledger) error {
	return always(func(l *Ledger) { l.Retire(l.Holding(owner(n).Key()), func(Place) State { return Released }) })
}

func files(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestUpdateMakesPrivateFilesAndFolders(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	s.Dir = filepath.Join(s.Dir, "run", "roce")
	give(t, s, 1)
	if got, want := files(t, s.Dir), []string{dbName, lockName}; !slices.Equal(got, want) {
		t.Errorf("got the files %q, want %q", got, want)
	}
	for path, want := range map[string]fs.FileMode{
		filepath.Dir(s.Dir): fs.ModeDir | 0o700, s.Dir: fs.ModeDir | 0o700, s.db(): 0o600, s.lock(): 0o600,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestNoOtherCallMakesAnything(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]func(Store) string{
		"no folder":    func(s Store) string { return filepath.Join(s.Dir, "none") },
		"empty folder": func(s Store) string { return s.Dir },
		"lost database": func(s Store) string {
			give(t, s, 1)
			must(t, os.Remove(s.db()))
			return s.Dir
		},
	} {
		s, _ := store(t)
		root := s.Dir
		s.Dir = dir(s)
		before := files(t, root)
		var coded *cnierr.Error // none: the callers decide what it means
		if _, err := holdings(t, s.View); !errors.Is(err, ErrNone) || errors.As(err, &coded) {
			t.Errorf("%s: View: got %v", name, err)
		}
		if _, err := holdings(t, s.Existing); !errors.Is(err, ErrNone) || errors.As(err, &coded) {
			t.Errorf("%s: Existing: got %v", name, err)
		}
		if n, err := holdings(t, s.Try); n != 0 || err != nil {
			t.Errorf("%s: Try: got %d, %v", name, n, err)
		}
		if got := files(t, root); !slices.Equal(got, before) {
			t.Errorf("%s: there is now %q, and was %q", name, got, before)
		}
	}
}

func TestTryForgets(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	err := s.Try(t.Context(), always(func(l *Ledger) { l.Give(owner(2), Spot{"a", addr(2)}) }))
	must(t, err)
	if n, err := holdings(t, s.View); n != 1 || err != nil {
		t.Errorf("got %d holdings, %v; want 1", n, err)
	}
}

func TestViewNeedsNoPermissionToWrite(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	before, err := os.Stat(s.db())
	must(t, err)
	for _, path := range []string{s.db(), s.lock()} {
		must(t, os.Chmod(path, 0o400))
	}
	if n, err := holdings(t, s.View); n != 1 || err != nil {
		t.Errorf("got %d holdings, %v; want 1", n, err)
	}
	if n, err := holdings(t, s.Try); n != 1 || err != nil {
		t.Errorf("got %d holdings, %v; want 1", n, err)
	}
	if after, err := os.Stat(s.db()); err != nil || after.ModTime() != before.ModTime() {
		t.Errorf("the database has changed (%v)", err)
	}
}

func TestLeasesEndWithTheBoot(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	s.BootID = boot2
	for name, do := range map[string]func(context.Context, func(*Ledger) error) error{"View": s.View, "Existing": s.Existing} {
		if _, err := holdings(t, do); !errors.Is(err, ErrNone) {
			t.Errorf("%s: got %v, want %v", name, err, ErrNone)
		}
	}
	if n, err := holdings(t, s.Try); n != 0 || err != nil {
		t.Errorf("Try: got %d, %v", n, err)
	}
	if n, err := holdings(t, s.Update); n != 0 || err != nil {
		t.Errorf("Update: got %d holdings, %v", n, err)
	}
	s.BootID = boot1
	if n, err := holdings(t, s.Update); n != 0 || err != nil {
		t.Errorf("the first boot again: got %d holdings, %v", n, err)
	}
}

// After a power failure the database of the last boot can hold anything.
func TestRubbishOfAnotherBootIsThrownAway(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	must(t, os.WriteFile(s.db(), []byte("rubbish"), 0o600))
	if _, err := holdings(t, s.Update); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("in the same boot: got %v, want code %d", err, cnierr.Unreadable)
	}
	s.BootID = boot2
	if _, err := holdings(t, s.View); !errors.Is(err, ErrNone) {
		t.Errorf("before the first lease: got %v, want no database", err)
	}
	give(t, s, 2)
	if n, err := holdings(t, s.View); n != 1 || err != nil {
		t.Errorf("got %d holdings, %v; want 1", n, err)
	}
}

func TestALostLockFileEndsNoLease(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	must(t, os.Remove(s.lock()))
	if n, err := holdings(t, s.Update); n != 1 || err != nil {
		t.Errorf("got %d holdings, %v; want 1", n, err)
	}
	must(t, os.Remove(s.lock()))
	s.BootID = boot2
	if n, err := holdings(t, s.Update); n != 0 || err != nil {
		t.Errorf("in another boot: got %d holdings, %v; want none", n, err)
	}
}

// If the lock file had the new boot ID by then, the next call would take the database of the
// last boot for one of this boot.
func TestTheBootIsNotedOnlyWhenWhatIsOfAnotherOneIsGone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{dbName, dbName + ".damaged"} {
		s, _ := store(t)
		give(t, s, 1)
		must(t, os.RemoveAll(filepath.Join(s.Dir, name)))
		must(t, os.MkdirAll(filepath.Join(s.Dir, name, "stays"), 0o700))
		s.BootID = boot2
		if _, err := holdings(t, s.Update); cnierr.CodeOf(err) != cnierr.IO {
			t.Errorf("%s cannot be removed: got %v, want code %d", name, err, cnierr.IO)
		}
		if b, err := os.ReadFile(s.lock()); string(b) != boot1 {
			t.Errorf("%s cannot be removed: the lock file has %q, %v", name, b, err)
		}
	}
}

// A kill can come between any two steps of making a database.
func TestWhatAKilledCreationLeavesIsOvercome(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(Store) error{
		"an empty lock":       func(s Store) error { return os.WriteFile(s.lock(), nil, 0o600) },
		"half a boot id":      func(s Store) error { return os.WriteFile(s.lock(), []byte("boo"), 0o600) },
		"more than a boot id": func(s Store) error { return os.WriteFile(s.lock(), []byte(boot2+"\n"), 0o600) },
		"half a new database": func(s Store) error { return os.WriteFile(s.db()+".new-0123456789abcdef", make([]byte, 4096), 0o600) },
		"a new database": func(s Store) error {
			f, err := os.Create(s.db() + ".new-fedcba9876543210")
			if err != nil {
				return err
			}
			return s.blank(f)
		},
	} {
		s, _ := store(t)
		must(t, leave(s))
		give(t, s, 1)
		if n, err := holdings(t, s.View); n != 1 || err != nil {
			t.Errorf("%s: got %d holdings, %v; want 1", name, n, err)
		}
		if got, want := files(t, s.Dir), []string{dbName, lockName}; !slices.Equal(got, want) {
			t.Errorf("%s: got the files %q, want %q", name, got, want)
		}
	}
}

// Nothing is wrong with such a database: the programs are too old.
func TestADatabaseOfANewerVersionIsNewerAndNotDamaged(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	err := s.Update(t.Context(), always(func(l *Ledger) { l.meta.put([]byte("version"), []byte{version + 1}) }))
	must(t, err)
	rebuild := func(ctx context.Context, _ func(*Ledger) error) error {
		return s.Rebuild(ctx, func(why error) (func(*Ledger), error) {
			t.Errorf("it counts as damaged: %v", why)
			return nil, nil
		})
	}
	for name, use := range map[string]func(context.Context, func(*Ledger) error) error{
		"Update": s.Update, "Existing": s.Existing, "View": s.View, "Try": s.Try, "Rebuild": rebuild,
	} {
		err := use(t.Context(), func(*Ledger) error { return nil })
		if e := cnierr.CNI("roce", err); e.Code != uint(cnierr.Unreadable) || !strings.Contains(e.Msg, "newer") || !strings.Contains(e.Details, "install the version") {
			t.Errorf("%s: got %+v", name, e)
		}
	}
}

func TestAPeakOfLeasesLeavesNoHollowFile(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	const peak = 1200
	err := s.Update(t.Context(), always(func(l *Ledger) {
		for i := range peak {
			o := owner(i)
			o.PodUID = strings.Repeat("x", 1500) // two on a page
			l.Give(o, Spot{"a", addr(i)})
		}
	}))
	must(t, err)
	err = s.Existing(t.Context(), always(func(l *Ledger) {
		for h := range l.Holdings() {
			if h.Owner.ContainerID != "c1" {
				l.Retire(h, func(Place) State { return Conflicted })
			}
		}
		for r := range l.AllQuarantined() {
			l.Free(r)
		}
	}))
	must(t, err)
	hollow, _ := os.Stat(s.db())
	give(t, s, 2)
	solid, err := os.Stat(s.db())
	if err != nil || solid.Size() > 100_000 || hollow.Size() < 10*solid.Size() {
		t.Errorf("the file had %d bytes and has %d", hollow.Size(), solid.Size())
	}
	if n, err := holdings(t, s.View); n != 2 || err != nil {
		t.Errorf("got %d holdings, %v; want 2", n, err)
	}
}

func TestFailuresOfTheFileSystemAreCodeFive(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	file := Store{Dir: s.db(), BootID: s.BootID, Now: s.Now}
	folder, _ := store(t)
	must(t, os.Mkdir(folder.db(), 0o700))
	lock, _ := store(t)
	must(t, os.Mkdir(lock.lock(), 0o700))
	for _, c := range []struct {
		err  error
		want string
	}{
		{file.Update(t.Context(), nil), `mkdir "` + file.Dir + `": not a directory`},
		{file.View(t.Context(), nil), `open "` + file.lock() + `": not a directory`},
		{file.Existing(t.Context(), nil), `open "` + file.lock() + `": not a directory`},
		{file.Try(t.Context(), nil), `open "` + file.lock() + `": not a directory`},
		{folder.Update(t.Context(), nil), `open "` + folder.db() + `": is a directory`},
		{lock.View(t.Context(), nil), `read "` + lock.lock() + `": is a directory`},
	} {
		if cnierr.CodeOf(c.err) != cnierr.IO || c.err.Error() != c.want {
			t.Errorf("got %v, want code %d, %s", c.err, cnierr.IO, c.want)
		}
	}
}

// A file system that fills up in the middle of a transaction must leave the
// last one.
func TestAFullFileSystemChangesNothing(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	if err := unix.Mount("none", s.Dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(s.Dir, 0); err != nil {
			t.Error(err)
		}
	})
	leased := 0
	for ; ; leased++ {
		err := s.Update(t.Context(), always(func(l *Ledger) { l.Give(owner(leased), Spot{"a", addr(leased)}) }))
		if cnierr.CodeOf(err) == cnierr.IO {
			break
		}
		if err != nil || leased > 5000 {
			t.Fatalf("after %d leases: %v", leased, err)
		}
	}
	if n, err := holdings(t, s.View); n != leased || err != nil {
		t.Errorf("got %d holdings, %v; want %d", n, err, leased)
	}
	if err := s.Existing(t.Context(), end(0)); err != nil && cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want nil or code %d", err, cnierr.IO)
	}
	if _, err := holdings(t, s.View); err != nil {
		t.Error(err)
	}
}

// TestLeasesAreReleasedOnAFullFileSystem: a DEL that fails there keeps its pod until an operator
// makes space.
func TestLeasesAreReleasedOnAFullFileSystem(t *testing.T) {
	t.Parallel()
	const rails = 16
	for _, pods := range []int{1, 2, 8, 40} {
		s, _ := store(t)
		if err := unix.Mount("none", s.Dir, "tmpfs", 0, "size=2m"); err != nil {
			t.Skipf("cannot mount a tmpfs: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(s.Dir, 0); err != nil {
				t.Error(err)
			}
		})
		for pod := range pods {
			err := s.Update(t.Context(), always(func(l *Ledger) {
				for rail := range rails {
					l.Give(owner(pod), Spot{"a", addr(1000*rail + pod)})
				}
			}))
			must(t, err)
		}
		fill, err := os.Create(filepath.Join(s.Dir, "fill"))
		for page := make([]byte, 4096); err == nil; {
			_, err = fill.Write(page)
		}
		must(t, fill.Close())
		for pod := range pods {
			if err := s.Existing(t.Context(), end(pod)); err != nil {
				t.Errorf("pod %d of %d: %v", pod, pods, err)
				break
			}
		}
	}
}

func TestErrorsOfTheCallerPass(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	mine := cnierr.New(cnierr.PoolExhausted, "lease", "a", "", "no")
	give(t, s, 1)
	for name, do := range map[string]func(context.Context, func(*Ledger) error) error{
		"Update": s.Update, "Existing": s.Existing, "View": s.View, "Try": s.Try,
	} {
		err := do(t.Context(), func(l *Ledger) error {
			if name == "Update" || name == "Existing" {
				l.Give(owner(2), Spot{"a", addr(2)})
			}
			return mine
		})
		if !errors.Is(err, mine) {
			t.Errorf("%s: got %v, want %v", name, err, mine)
		}
		if n, err := holdings(t, s.View); n != 1 || err != nil {
			t.Errorf("%s: %d holdings, %v: it has changed something", name, n, err)
		}
	}
	if err := s.Update(t.Context(), always(func(*Ledger) { fail(damagef("so it is")) })); cnierr.CodeOf(err) != cnierr.Unreadable {
		t.Errorf("got %v, want code %d", err, cnierr.Unreadable)
	}
}

func TestNoDatabaseIsMadeThroughALink(t *testing.T) {
	t.Parallel()
	legit := filepath.Join(t.TempDir(), "legit")
	must(t, os.WriteFile(legit, []byte("legit"), 0o600))
	for _, name := range []string{dbName, dbName + ".new", lockName} {
		s, _ := store(t)
		must(t, os.Symlink(legit, filepath.Join(s.Dir, name)))
		err := s.Update(t.Context(), always(func(l *Ledger) { l.Give(owner(1), Spot{"a", addr(1)}) }))
		if b, readErr := os.ReadFile(legit); readErr != nil || string(b) != "legit" {
			t.Errorf("a link at %s: behind it there is %q, %v (Update: %v)", name, b, readErr, err)
		}
	}
}

// TestANameThatIsTooLongDamagesNothing: a tenant chooses the name of a network, and the
// database has the length of a name in 16 bits.
func TestANameThatIsTooLongDamagesNothing(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	for i, long := range []int{1 << 15, 1<<16 - 1, 1 << 16, 70_000} {
		o := owner(i + 2)
		o.Network = strings.Repeat("n", long)
		err := s.Update(t.Context(), always(func(l *Ledger) { l.Give(o, Spot{"a", addr(i + 2)}) }))
		if tooLong := long >= 1<<16; tooLong != (err != nil) {
			t.Errorf("a name of %d bytes: %v", long, err)
		}
		if n, err := holdings(t, s.View); err != nil || n != min(3, i+2) {
			t.Errorf("after a name of %d bytes: %d holdings, %v", long, n, err)
		}
	}
}
