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

	"github.com/roce-cni/roce-cni/pkg/plan"
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
	Host func() (plan.NetnsID, error)
}

// LockMoves waits until no other process moves an RDMA device between
// namespaces. Errors: those of Store.Lock.
func (c Common) LockMoves(ctx context.Context) (release func(), err error) {
	return lockFile(ctx, "lock RDMA moves", filepath.Join(c.Dir, "moves.lock"))
}

// LockGIDs waits until no other process adds or removes the GIDs of several
// rails. Errors: those of Store.Lock.
func (c Common) LockGIDs(ctx context.Context) (release func(), err error) {
	return lockFile(ctx, "lock GID tables", filepath.Join(c.Dir, "gids.lock"))
}

// LockShared waits until no other process does or undoes operations that
// attachments share. Errors: those of Store.Lock.
func (c Common) LockShared(ctx context.Context) (release func(), err error) {
	return lockFile(ctx, "lock shared operations", filepath.Join(c.Dir, "shared.lock"))
}

// Enter notes that attachments of a state folder share operations. It is idempotent. The
// caller has LockShared. Errors: cnierr.IO.
func (c Common) Enter(stateDir string) error {
	path, err := c.entry(stateDir)
	if err != nil {
		return err
	}
	err = os.Symlink(stateDir, path)
	if errors.Is(err, fs.ErrExist) {
		_, err = os.Readlink(path)
	}
	if err != nil {
		return ioError("enter state folder", path, err)
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

// StateDirs returns the state folders that were entered. Without LockShared, a folder may come
// or go meanwhile. Errors: cnierr.IO.
func (c Common) StateDirs() ([]string, error) {
	prefix, err := c.prefix()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, ioError("list state folders", c.Dir, err)
	}
	var out []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		dir, err := os.Readlink(filepath.Join(c.Dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, ioError("read entry of state folder", c.Dir, err)
		}
		out = append(out, dir)
	}
	return out, nil
}

// entry returns the path of the entry of a state folder, which may be too long for a name.
func (c Common) entry(stateDir string) (string, error) {
	prefix, err := c.prefix()
	if err != nil {
		return "", err
	}
	return filepath.Join(c.Dir, fmt.Sprintf("%s%x", prefix, sha256.Sum256([]byte(stateDir)))), nil
}

func (c Common) prefix() (string, error) {
	host, err := c.Host()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("sharing-%d-%d-", host.Dev, host.Ino), nil
}
