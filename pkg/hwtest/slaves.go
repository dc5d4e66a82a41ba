// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

// slaves is the folder that has, for each bond that the step failover has changed, the
// slave that was active: Clean makes it active again.
func (b Bench) slaves() string { return b.StateDir + ".bonds" }

// activeFile is the file of sysfs that has the active slave of a bond.
func activeFile(bond string) string {
	return filepath.Join("/sys/class/net", bond, "bonding/active_slave")
}

// activate makes a slave of a bond the active one. What is active now is on record first.
func (b Bench) activate(bond, now, next string) error {
	if err := trusted.MakeFolder(b.slaves(), 0o700); err != nil {
		return err
	}
	if err := trusted.Replace(filepath.Join(b.slaves(), bond), []byte(now), 0o600); err != nil {
		return err
	}
	return write(activeFile(bond), next)
}

// restoreSlaves makes the slaves active again that were it before a failover.
func (b Bench) restoreSlaves() error {
	bonds, err := os.ReadDir(b.slaves())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, f := range bonds {
		record := filepath.Join(b.slaves(), f.Name())
		slave, err := os.ReadFile(record)
		if err == nil {
			err = write(activeFile(f.Name()), string(slave))
		}
		if errors.Is(err, fs.ErrNotExist) { // the bond is gone, or the record was not complete
			err = nil
		}
		if err != nil {
			errs = append(errs, cnierr.New(cnierr.IO, "make the slave active that was it before the failover of", f.Name(),
				"choose one yourself, then remove "+record, "%q: %w", slave, err))
			continue
		}
		errs = append(errs, os.Remove(record))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.Remove(b.slaves())
}

// write writes to a file that is there.
func write(name, text string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
