// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/conf"
)

// Sweep removes what killed calls left before they had written a record. It looks
// only at containers without record on which no process works. Nothing else was done
// for them, because the record comes first. Errors: cnierr.IO, cnierr.TryAgain.
func (s Store) Sweep(ctx context.Context) error {
	containers, err := s.containers()
	errs := []error{err}
	for _, id := range containers {
		errs = append(errs, s.sweep(ctx, id))
	}
	return errors.Join(errs...)
}

func (s Store) sweep(ctx context.Context, id conf.ContainerID) error {
	if recorded, err := s.recorded(id); recorded || err != nil {
		return err
	}
	release, ok, err := s.TryLock(ctx, id)
	if !ok || err != nil {
		return err
	}
	defer release()
	if recorded, err := s.recorded(id); recorded || err != nil {
		return err
	}
	return s.removeTorn(id)
}

// recorded says whether a container has a record.
func (s Store) recorded(id conf.ContainerID) (bool, error) {
	entries, err := readDir(s.folder(id))
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), suffix) }), err
}

// removeTorn removes the files of records that were only partly written.
func (s Store) removeTorn(id conf.ContainerID) error {
	entries, err := readDir(s.folder(id))
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(s.folder(id), e.Name())
		if !strings.HasSuffix(path, suffix+".tmp") {
			continue
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return ioError("delete record", path, err)
		}
	}
	return nil
}
