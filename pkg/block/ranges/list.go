// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ranges

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// Pools returns the names of the pools that have a file, of whatever boot, in
// order. Errors: IO.
func (s Store) Pools() ([]string, error) {
	dir := filepath.Join(s.Dir, "pools")
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, cnierr.New(cnierr.IO, "list the pools in", dir, "", "%w", err)
	}
	var out []string
	for _, e := range entries {
		if _, err := os.Stat(s.path(e.Name())); err == nil {
			out = append(out, e.Name())
		}
	}
	return out, nil
}
