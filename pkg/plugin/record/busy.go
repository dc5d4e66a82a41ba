// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/flock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

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
