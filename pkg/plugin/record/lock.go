// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// lockName is the lock file in a container's folder. The names of records end in
// suffix, so no record can have this name.
const lockName = "lock"

// Lock waits until no other process works on the container, and no program that a
// killed process left behind (Guard). It returns the release. Attachments of one pod
// share the lock, because each chooses its table number from what it sees in the pod.
//
// Release removes the lock file and the folder when the container has no record left,
// so that nothing remains of a container that is gone. For this reason, Lock checks
// after a wait that its file is still the lock file.
//
// Errors: cnierr.TryAgain when ctx is over first, cnierr.IO.
func (s Store) Lock(ctx context.Context, id conf.ContainerID) (release func(), err error) {
	path := filepath.Join(s.folder(id), lockName)
	for {
		f, err := openLock(path)
		if err != nil {
			return nil, ioError("lock container", path, err)
		}
		if err := flock.Wait(ctx, f, unix.LOCK_EX); err != nil {
			return nil, lockError("lock container", string(id), path, err)
		}
		if !flock.Current(f, path) {
			_ = f.Close()
			if err := ctx.Err(); err != nil {
				return nil, lockError("lock container", string(id), path, err)
			}
			continue
		}
		if err := awaitGuards(ctx, path, guardTime); err != nil {
			s.unlock(id, f)
			return nil, lockError("lock container", string(id), path, err)
		}
		return func() { s.unlock(id, f) }, nil
	}
}

// TryLock is Lock if no other process works on the container now. Otherwise it returns
// ok false, and nothing is locked. Errors: those of Lock.
func (s Store) TryLock(ctx context.Context, id conf.ContainerID) (release func(), ok bool, err error) {
	path := filepath.Join(s.folder(id), lockName)
	switch free, err := lockable(path); {
	case err != nil:
		return nil, false, ioError("look at lock", path, err)
	case !free:
		return nil, false, nil
	}
	release, err = s.Lock(ctx, id)
	return release, err == nil, err
}

// LockMoves waits until no other process moves an RDMA device between
// namespaces. Errors: those of Store.Lock.
func (s Store) LockMoves(ctx context.Context) (release func(), err error) {
	return s.lock(ctx, "lock RDMA moves", "moves.lock")
}

// LockGIDs waits until no other process adds or removes the GIDs of several
// rails. Errors: those of Store.Lock.
func (s Store) LockGIDs(ctx context.Context) (release func(), err error) {
	return s.lock(ctx, "lock GID tables", "gids.lock")
}

// LockShared waits until no other process does or undoes operations that
// attachments share. Errors: those of Store.Lock.
func (s Store) LockShared(ctx context.Context) (release func(), err error) {
	return s.lock(ctx, "lock shared operations", "shared.lock")
}

// lock takes a lock. Its file is never removed. Others than root must not be able to change
// the folder.
func (s Store) lock(ctx context.Context, action, file string) (release func(), err error) {
	if err := trusted.MakeFolder(s.Dir, 0o700); err != nil {
		return nil, ioError(action, s.Dir, err)
	}
	path := filepath.Join(s.Dir, file)
	f, err := openLock(path)
	if err != nil {
		return nil, ioError(action, path, err)
	}
	if err := flock.Wait(ctx, f, unix.LOCK_EX); err != nil {
		return nil, lockError(action, path, path, err)
	}
	return func() { _ = f.Close() }, nil
}

// openLock opens the lock file. Another process may remove the folder between any two
// steps. openLock then tries again, but not for ever, because a path that can never
// be made looks the same.
func openLock(path string) (f *os.File, err error) {
	for range 1000 {
		if err = os.MkdirAll(filepath.Dir(path), 0o700); err == nil {
			f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
	return nil, err
}

// unlock removes what killed calls have left of records that they did not finish: only
// who has the lock writes records. If no record is left, it also removes the lock file and
// the folder. Then it releases the lock. A failure does no harm: the folder is not empty
// while a record is there, and an empty folder is harmless.
func (s Store) unlock(id conf.ContainerID, f *os.File) {
	defer f.Close()
	entries, err := os.ReadDir(s.folder(id))
	if err != nil {
		return
	}
	recorded := false
	for _, e := range entries {
		switch {
		case trusted.IsFresh(e.Name()):
			_ = os.Remove(filepath.Join(s.folder(id), e.Name()))
		case e.Name() != lockName:
			recorded = true
		}
	}
	if !recorded {
		_ = os.Remove(f.Name())
		_ = os.Remove(s.folder(id))
	}
}

func lockError(action, subject, path string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return cnierr.New(cnierr.TryAgain, action, subject,
			cnierr.Again+"; if the error stays, fuser "+shell.Word(path)+" names the process",
			"another call holds it and still runs")
	}
	return ioError(action, path, err)
}
