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

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const writing = "write ranges of pool"

// Write writes the file of a pool in one step: a reader finds the old file or the new
// one. Only one process may write at a time. It returns Bug for a file that Read
// would refuse. Other errors are IO. Write does not sync: if a power failure destroys
// the file, the agent writes it again when it starts.
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
	if err := errors.Join(trusted.Sweep(path), trusted.Replace(path, content, 0o600)); err != nil {
		return ioError(f.Pool, err)
	}
	return nil
}

// Remove removes the file of a pool: the node owns nothing of it. It is no error if
// there is no file.
func (s Store) Remove(poolName string) error {
	if err := os.Remove(s.path(poolName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return ioError(poolName, err)
	}
	return nil
}

func ioError(poolName string, err error) error {
	return cnierr.New(cnierr.IO, writing, poolName, "", "%w", err)
}

// content returns the content of the file. It checks the file as a configuration, and
// then as a reader, which checks less.
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
