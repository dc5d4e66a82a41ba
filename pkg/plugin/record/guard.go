// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

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
