// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
	"github.com/roce-cni/roce-cni/pkg/trusted"
)

const writing = "write ranges of pool"

// Write puts the file of a pool in place in one step: a reader finds the file of
// before or this one. There must be one writer at a time. It refuses what Read
// would not read, with Bug. Other errors are IO. Nothing is synced: what a power
// failure takes is written again when the agent starts.
func (s Store) Write(f File) error {
	path := s.path(f.Pool)
	content, err := f.content(s.BootID)
	if err != nil {
		return cnierr.New(cnierr.Bug, writing, f.Pool, "", "%w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return ioError(f.Pool, err)
	}
	fresh := path + ".new"
	if err := trusted.CreateInside(fresh, content, 0o600); err != nil {
		return ioError(f.Pool, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return ioError(f.Pool, err)
	}
	return nil
}

// Remove takes the file of a pool away: the node owns nothing of it. That there
// is none is no error.
func (s Store) Remove(poolName string) error {
	if err := os.Remove(s.path(poolName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError(poolName, err)
	}
	return nil
}

func ioError(poolName string, err error) error {
	return cnierr.New(cnierr.IO, writing, poolName, "", "%w", err)
}

// content is the file's. It is judged as a configuration is, and then as a
// reader does, which has less time.
func (f File) content(bootID string) ([]byte, error) {
	form := f.form(bootID)
	content, err := json.MarshalIndent(form, "", "  ")
	if err != nil {
		return nil, err
	}
	faults := &strict.Faults{}
	if name, err := json.Marshal(f.Pool); err == nil {
		pool.Name(faults.ValueAt("pool", name), "", faults)
	}
	for i, r := range form.Rails {
		if subnets, err := json.Marshal(r.Subnets); err == nil {
			pool.Subnets(faults.ValueAt(fmt.Sprintf("rails[%d].subnets", i), subnets), i, faults)
		}
	}
	if err := faults.Err("", ""); err != nil {
		return nil, err
	}
	_, _, err = parse(content)
	return append(content, '\n'), err
}
