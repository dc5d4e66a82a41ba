// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"cmp"
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock"
)

// lockFile opens path and takes a lock on it, unix.LOCK_EX or LOCK_SH; see
// flock.Wait.
func lockFile(ctx context.Context, path string, flags, how int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := flock.Wait(ctx, f, how); err != nil {
			return nil, busy(ctx, path, err)
		}
		// No roce program removes the file. But if the state folder is wiped
		// while we wait, we would get a lock that no other call sees.
		if flock.Current(f, path) {
			return f, nil
		}
		if err := cmp.Or(f.Close(), ctx.Err()); err != nil {
			return nil, busy(ctx, path, err)
		}
	}
}

// busy returns the error of a wait that ctx has ended. It returns any other
// error unchanged.
func busy(ctx context.Context, path string, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return cnierr.New(cnierr.TryAgain, "lock leases", path,
		cnierr.Again+"; fuser -v on the file names the process that holds it", "another call holds it: %w", err)
}
