// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

// Common is the folder that all state folders of a node have in common. Networks with
// different state folders use the same NICs. So they take the same locks, and they see
// what the attachments of each other share on the host.
//
// A state folder in which an attachment has a shared operation is entered here, for the
// network namespace that the operation is done in: as a symbolic link to the folder.
type Common struct {
	// Dir is made on first use, 0700.
	Dir string
	// Host returns the network namespace of the host.
	Host func() (netns.ID, error)
}

// LockMoves waits until no other process moves an RDMA device between
// namespaces. Errors: those of Store.Lock.
func (c Common) LockMoves(ctx context.Context) (release func(), err error) {
	return c.lock(ctx, "lock RDMA moves", "moves.lock")
}

// LockGIDs waits until no other process adds or removes the GIDs of several
// rails. Errors: those of Store.Lock.
func (c Common) LockGIDs(ctx context.Context) (release func(), err error) {
	return c.lock(ctx, "lock GID tables", "gids.lock")
}

// LockShared waits until no other process does or undoes operations that
// attachments share. Errors: those of Store.Lock.
func (c Common) LockShared(ctx context.Context) (release func(), err error) {
	return c.lock(ctx, "lock shared operations", "shared.lock")
}

// lock takes a lock. Its file is never removed. Others than root must not be able to change
// the folder.
func (c Common) lock(ctx context.Context, action, file string) (release func(), err error) {
	if err := trusted.MakeFolder(c.Dir, 0o700); err != nil {
		return nil, ioError(action, c.Dir, err)
	}
	path := filepath.Join(c.Dir, file)
	f, err := openLock(path)
	if err != nil {
		return nil, ioError(action, path, err)
	}
	if err := flock.Wait(ctx, f, unix.LOCK_EX); err != nil {
		return nil, lockError(action, path, path, err)
	}
	return func() { _ = f.Close() }, nil
}

// Enter notes that attachments of a state folder share operations. It is idempotent. The
// caller has LockShared. Errors: cnierr.IO.
func (c Common) Enter(stateDir string) error {
	path, err := c.entry(stateDir)
	if err != nil {
		return err
	}
	const action = "enter state folder"
	switch err := os.Symlink(resolved(stateDir), path); {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrExist):
		return ioError(action, path, err)
	}
	if _, err := os.Readlink(path); err != nil {
		return cnierr.New(cnierr.IO, action, path, "remove it: only roce writes there", "it is no symbolic link")
	}
	return nil
}

// Leave notes that no attachment of a state folder shares operations any more. It is
// idempotent. The caller has LockShared. Errors: cnierr.IO.
func (c Common) Leave(stateDir string) error {
	path, err := c.entry(stateDir)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError("remove entry of state folder", path, err)
	}
	return nil
}

// Others returns the state folders that were entered, apart from one. Without LockShared, a
// folder may come or go meanwhile. Errors: cnierr.IO.
func (c Common) Others(stateDir string) ([]string, error) {
	prefix, err := c.prefix()
	if err != nil {
		return nil, err
	}
	own, err := c.entry(stateDir)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, ioError("list state folders", c.Dir, err)
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(c.Dir, e.Name())
		if !strings.HasPrefix(e.Name(), prefix) || e.Type()&fs.ModeSymlink == 0 || path == own {
			continue
		}
		dir, err := os.Readlink(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, ioError("read entry of state folder", path, err)
		}
		out = append(out, dir)
	}
	return out, nil
}

// entry returns the path of the entry of a state folder. The folder may be too long for a
// name. All paths of one folder have the same entry.
func (c Common) entry(stateDir string) (string, error) {
	prefix, err := c.prefix()
	if err != nil {
		return "", err
	}
	return filepath.Join(c.Dir, fmt.Sprintf("%s%x", prefix, sha256.Sum256([]byte(resolved(stateDir))))), nil
}

// resolved returns the path of a folder without symbolic links. A folder that is gone keeps
// its path, which is that of its entry.
func resolved(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

func (c Common) prefix() (string, error) {
	host, err := c.Host()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("sharing-%d-%d-", host.Dev, host.Ino), nil
}
