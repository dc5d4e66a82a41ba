// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
)

// hold takes the lock as another process would.
func hold(t testing.TB, s Store) (free func()) {
	t.Helper()
	f, err := os.OpenFile(s.lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	must(t, err)
	return func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestALockedStoreIsWaitedForAsLongAsTheContextAllows(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	free := hold(t, s)
	for name, do := range map[string]func(context.Context, func(*Ledger) error) error{
		"Update": s.Update, "Existing": s.Existing, "View": s.View, "Try": s.Try,
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		err := do(ctx, func(*Ledger) error { t.Errorf("%s ran without the lock", name); return nil })
		if cnierr.CodeOf(err) != cnierr.TryAgain || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: got %v, want code %d", name, err, cnierr.TryAgain)
		}
		cancel()
	}
	done := make(chan error)
	go func() { done <- s.Update(context.Background(), func(*Ledger) error { return nil }) }()
	free()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// Those that gave up get the lock in the end, and must give it back.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Update(ctx, func(*Ledger) error { return nil }); err != nil {
		t.Error(err)
	}
}

// A lock on a file that has been removed excludes no other process. So a
// process that has waited for it must wait for the file that replaced it.
func TestALockFileThatIsReplacedIsWaitedForAgain(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	free := hold(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- s.Update(ctx, func(*Ledger) error { t.Error("the update has not waited for the new lock"); return nil })
	}()
	flocktest.UntilBlocked(t, s.lock(), done)
	must(t, os.Remove(s.lock()))
	freeNew := hold(t, s)
	free()
	flocktest.UntilBlocked(t, s.lock(), done)
	cancel()
	if err := <-done; cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	freeNew()
}

// bbolt's own tool, for example.
func TestADatabaseThatAForeignProgramHasOpenIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	give(t, s, 1)
	f, err := os.Open(s.db())
	must(t, err)
	defer f.Close()
	must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
	if err := s.View(t.Context(), always(func(*Ledger) {})); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
}

func TestALockThatIsALinkIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := store(t)
	must(t, os.Symlink(os.DevNull, s.lock()))
	if err := s.Update(t.Context(), func(*Ledger) error { return nil }); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want code %d", err, cnierr.IO)
	}
}
