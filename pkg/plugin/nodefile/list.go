// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Pools returns the names of the pools that have a file, in order. The file may be of
// any boot. Errors: IO.
func (s Store) Pools() ([]string, error) {
	dir := s.pools()
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, cnierr.New(cnierr.IO, "list the pools in", dir, "", "%w", err)
	}
	defer root.Close() //nolint:errcheck // nothing was written to it
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, cnierr.New(cnierr.IO, "list the pools in", dir, "", "%w", err)
	}
	var out []string
	for _, e := range entries {
		if _, err := root.Lstat(ranges(e.Name())); err == nil && e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Quarantines returns the quarantine of each RailPool that has a valid file, by the name
// of the pool that has its leases. Errors: IO.
func (s Store) Quarantines() (map[string]time.Duration, error) {
	pools, err := s.Pools()
	out := map[string]time.Duration{}
	for _, name := range pools {
		if f, err := s.Read(name); err == nil { // the readers of a file report its faults
			out[pool.OfRailPool(name)] = f.Quarantine
		}
	}
	return out, err
}
