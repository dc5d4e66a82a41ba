// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

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

// Busy returns the containers that another call works on now. What that call has done
// so far may not be in a record yet. Errors: cnierr.IO.
func (s Store) Busy() ([]conf.ContainerID, error) {
	containers, err := s.containers()
	if err != nil {
		return nil, err
	}
	var out []conf.ContainerID
	for _, id := range containers {
		path := filepath.Join(s.folder(id), lockName)
		free, err := lockable(path)
		if err != nil {
			return nil, ioError("look at lock", path, err)
		}
		if !free {
			out = append(out, id)
		}
	}
	return out, nil
}

// lockable says whether the lock is free. Without a lock file it is free.
func lockable(path string) (bool, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return flock.Try(f, unix.LOCK_SH)
}

// guardTime is how long Lock waits for guards. A program may run longer, or a child
// of it that never ends may have the guard. Neither must block a pod for ever.
const guardTime = 10 * time.Second

// Guard returns a file for a program that is started with the container's lock held
// and inherits it. Lock waits while any process has this file open. So when the
// process that started the program is killed, the next call does not overtake the
// program. The caller closes the file. Errors: cnierr.IO.
func (s Store) Guard(id conf.ContainerID) (*os.File, error) {
	path := filepath.Join(s.folder(id), lockName)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, ioError("guard container", path, err)
	}
	if err := lockOpenFile(f, unix.F_OFD_SETLKW, unix.F_RDLCK); err != nil {
		_ = f.Close()
		return nil, ioError("guard container", path, err)
	}
	return f, nil
}

// awaitGuards waits until there is no guard at the path of a lock file, or
// enough time has passed. The wait itself cannot be interrupted, as in flock.
func awaitGuards(ctx context.Context, path string, enough time.Duration) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	if err := lockOpenFile(f, unix.F_OFD_SETLK, unix.F_WRLCK); !errors.Is(err, unix.EAGAIN) {
		return errors.Join(err, f.Close())
	}
	wait, cancel := context.WithTimeout(ctx, enough)
	defer cancel()
	gone := make(chan error, 1)
	go func() {
		gone <- lockOpenFile(f, unix.F_OFD_SETLKW, unix.F_WRLCK)
		_ = f.Close()
	}()
	select {
	case err := <-gone:
		return err
	case <-wait.Done():
		return ctx.Err()
	}
}

// lockOpenFile locks the open file description. Programs that inherit the file share
// it. flock(2) does not see this lock (fcntl(2), "Open file description locks").
func lockOpenFile(f *os.File, how int, kind int16) error {
	for {
		err := unix.FcntlFlock(f.Fd(), how, &unix.Flock_t{Type: kind})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
