// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package flock takes locks on open files with flock(2). It waits for them in the
// kernel, without polling, for as long as a context allows.
//
// It never creates or removes a file: the callers choose the file and its meaning. It
// stands below record and the ledger of leases. Everything is in this file.
package flock

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Wait takes the lock, unix.LOCK_EX or LOCK_SH. Closing the file releases it, and so
// does the end of the process. After an error f is closed now or later: the kernel's
// wait goes on when ctx ends. If that wait gets the lock, Wait releases it at once.
// Errors: ctx's cause, and a *fs.PathError with the kernel's errno.
func Wait(ctx context.Context, f *os.File, how int) error {
	got, err := Try(f, how)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if got {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- lock(f, how) }()
	select {
	case err := <-done:
		if err != nil {
			return errors.Join(err, f.Close())
		}
		return nil
	case <-ctx.Done():
		go func() {
			defer f.Close()
			<-done //nolint:errcheck // nobody is left to tell
		}()
		return context.Cause(ctx)
	}
}

// Try takes the lock if it is free, and says whether it did. Errors: a *fs.PathError
// with the kernel's errno.
func Try(f *os.File, how int) (bool, error) {
	err := lock(f, how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// Current says whether path still names the open file. The file may have been removed
// during the wait. Other processes do not see a lock on a removed file.
func Current(f *os.File, path string) bool {
	here, _ := f.Stat()
	there, _ := os.Lstat(path)
	return os.SameFile(here, there) // false for none
}

// lock is flock(2) without EINTR, which the Go runtime's own signals cause.
func lock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}
