// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ledger

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// lockFile opens path and takes a flock(2) on it, unix.LOCK_EX or LOCK_SH. It
// waits in the kernel, not by polling, for as long as ctx allows. Closing the
// file gives the lock back; so does the end of the process, however it ends.
func lockFile(ctx context.Context, path string, flags, how int) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, flags, 0o600)
		if err != nil {
			return nil, err
		}
		if err := wait(ctx, f, how); err != nil {
			return nil, err
		}
		// Nobody of ours removes the file, but a state folder that is wiped
		// while we wait would leave us with a lock that no other call sees.
		if same(f, path) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// wait takes the lock, or closes f and returns why not.
func wait(ctx context.Context, f *os.File, how int) error {
	err := flock(f, how|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return errors.Join(&fs.PathError{Op: "flock", Path: f.Name(), Err: err}, f.Close())
	}
	done := make(chan error, 1)
	go func() { done <- flock(f, how) }()
	select {
	case err := <-done:
		if err != nil {
			return errors.Join(&fs.PathError{Op: "flock", Path: f.Name(), Err: err}, f.Close())
		}
		return nil
	case <-ctx.Done():
		// A blocked flock cannot be called off: whenever it ends, what it got
		// is given back at once. The end of the process does the same.
		go func() {
			defer f.Close()
			<-done //nolint:errcheck // nobody is left to tell
		}()
		return cnierr.New(cnierr.TryAgain, "lock leases", f.Name(),
			"wait: the runtime tries again by itself; fuser -v on the file tells who holds it",
			"another call holds it: %w", context.Cause(ctx))
	}
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// same says whether path still names the open file.
func same(f *os.File, path string) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	here, err := f.Stat()
	return err == nil && os.SameFile(here, there)
}
