// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// guarded returns a store in which a program has the guard of a container that no
// process works on any more, and what ends that program.
func guarded(t *testing.T) (s Store, end func()) {
	t.Helper()
	s = saved(t) // without a record the folder would go
	release, err := s.Lock(t.Context(), "c1")
	must(t, err)
	guard, err := s.Guard("c1")
	must(t, err)
	cmd := exec.Command("cat")
	cmd.ExtraFiles = []*os.File{guard}
	in, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	end = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	must(t, guard.Close())
	release()
	return s, end
}

func TestLockWaitsForTheProgramThatHasTheGuard(t *testing.T) {
	t.Parallel()
	s, end := guarded(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Lock(ctx, "c1"); err == nil || cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	cancel()
	if _, ok, err := s.TryLock(ctx, "c1"); ok || cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("TryLock: got %t, %v, want code %d", ok, err, cnierr.TryAgain)
	}
	if err := s.Sweep(ctx); err != nil {
		t.Errorf("Sweep of a container with a record: %v", err)
	}
	other, err := s.Lock(t.Context(), "c2")
	if err != nil {
		t.Fatalf("another container: %v", err)
	}
	other()
	end()
	release, err := s.Lock(t.Context(), "c1")
	if err != nil {
		t.Fatalf("after the program has ended: %v", err)
	}
	release()
}

func TestGuardDoesNotKeepALockForEver(t *testing.T) {
	t.Parallel()
	s, end := guarded(t)
	defer end()
	path := filepath.Join(s.folder("c1"), lockName)
	if err := awaitGuards(t.Context(), path, 10*time.Millisecond); err != nil {
		t.Error(err)
	}
}

func TestGuardNeedsTheLock(t *testing.T) {
	t.Parallel()
	s := empty(t)
	if _, err := s.Guard("c1"); !errors.Is(err, fs.ErrNotExist) || cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want code %d", err, cnierr.IO)
	}
	if err := awaitGuards(t.Context(), filepath.Join(s.folder("c1"), lockName), 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("guards of no lock: got %v", err)
	}
}
