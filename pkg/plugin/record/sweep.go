// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package record

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
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
	release() // removes the folder, unless there is a record now
	return nil
}

// recorded says whether a container has a record.
func (s Store) recorded(id conf.ContainerID) (bool, error) {
	entries, err := readDir(s.folder(id))
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return strings.HasSuffix(e.Name(), suffix) }), err
}
