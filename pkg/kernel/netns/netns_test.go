// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netns

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestANamespaceIsNotGoneBecauseWeCannotLook(t *testing.T) {
	t.Parallel()
	for errno, gone := range map[unix.Errno]bool{
		unix.ENOENT: true, unix.ENOTDIR: true, unix.ENAMETOOLONG: true, unix.ELOOP: true,
		unix.EMFILE: false, unix.ENFILE: false, unix.EACCES: false, unix.EPERM: false, unix.ENOMEM: false,
	} {
		if err := goneUnless(errno); errors.Is(err, ErrGone) != gone || !errors.Is(err, errno) {
			t.Errorf("%v: got %v, want gone: %v", errno, err, gone)
		}
	}
}
