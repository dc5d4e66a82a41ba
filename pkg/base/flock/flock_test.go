// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
)

// file opens a file that is left open: one that was waited for in vain is
// Wait's to close.
func file(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestALockIsWaitedFor(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	holder, waiter := file(t, path), file(t, path)
	if err := Wait(t.Context(), holder, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got, err := Try(waiter, unix.LOCK_SH); got || err != nil {
		t.Fatalf("Try of a lock that is held: %v, %v", got, err)
	}
	done := make(chan error)
	go func() { done <- Wait(t.Context(), waiter, unix.LOCK_EX) }()
	flocktest.UntilBlocked(t, path, done)
	select {
	case err := <-done:
		t.Fatalf("two have the lock: %v", err)
	default:
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got, err := Try(file(t, path), unix.LOCK_SH); got || err != nil {
		t.Errorf("Try of the lock that was waited for: %v, %v", got, err)
	}
}

func TestAWaitEndsWithItsContextAndTakesNothingAlong(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	holder, waiter, next := file(t, path), file(t, path), file(t, path)
	if err := Wait(t.Context(), holder, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("time is up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := Wait(ctx, waiter, unix.LOCK_EX); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Wait(t.Context(), next, unix.LOCK_EX); err != nil {
		t.Errorf("the lock that no process waits for was kept: %v", err)
	}
}

func TestSharersShare(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	for _, f := range []*os.File{file(t, path), file(t, path)} {
		if got, err := Try(f, unix.LOCK_SH); !got || err != nil {
			t.Errorf("got %v, %v", got, err)
		}
	}
	// So do those that have waited for the lock.
	path = filepath.Join(t.TempDir(), "lock")
	holder, waiter, done := file(t, path), file(t, path), make(chan error)
	if err := Wait(t.Context(), holder, unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	go func() { done <- Wait(t.Context(), waiter, unix.LOCK_SH) }()
	flocktest.UntilBlocked(t, path, done)
	if err := errors.Join(holder.Close(), <-done); err != nil {
		t.Fatal(err)
	}
	if got, err := Try(file(t, path), unix.LOCK_SH); !got || err != nil {
		t.Errorf("beside one that has waited: %v, %v", got, err)
	}
}

func TestAFileThatWasReplacedIsNotCurrent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	f := file(t, path)
	if !Current(f, path) {
		t.Error("the file is at its path")
	}
	if err := errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path)); err != nil {
		t.Fatal(err)
	}
	if Current(f, path) {
		t.Error("there is a link at the path")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if Current(f, path) {
		t.Error("there is no file at the path")
	}
	file(t, path)
	if Current(f, path) {
		t.Error("there is another file at the path")
	}
}

func TestAClosedFileCannotBeLocked(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	f := file(t, path)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Wait(t.Context(), f, unix.LOCK_EX); !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v, want %v", err, unix.EBADF)
	}
	if got, err := Try(f, unix.LOCK_EX); got || !errors.Is(err, unix.EBADF) {
		t.Errorf("Try: %v, %v, want %v", got, err, unix.EBADF)
	}
	f, err := os.OpenFile(path, unix.O_PATH, 0) // it is open, and cannot be locked
	if err != nil {
		t.Fatal(err)
	}
	if err := Wait(t.Context(), f, unix.LOCK_EX); !errors.Is(err, unix.EBADF) {
		t.Errorf("got %v, want %v", err, unix.EBADF)
	}
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after an error the file is left open: %v", err)
	}
}
