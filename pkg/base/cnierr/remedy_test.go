// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnierr

import (
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWhoIsNotRootIsToldSo(t *testing.T) {
	t.Parallel()
	denied := New(IO, "open", "/run/roce", "", "%w", &fs.PathError{Op: "open", Path: "/run/roce", Err: unix.EACCES})
	const root = "run it as root"
	for _, c := range []struct {
		err    error
		code   Code
		asRoot bool
		want   bool
	}{
		{denied, IO, false, true},
		{fmt.Errorf("show: %w", denied), IO, false, true},
		{denied, IO, true, false},
		{denied, Unreadable, false, false},
		{New(IO, "open", "/run/roce", "", "%w", unix.ENOSPC), IO, false, false},
	} {
		if got := remedy(c.code, c.err, c.asRoot); (got == root) != c.want {
			t.Errorf("%v, code %d, as root %v: %q", c.err, c.code, c.asRoot, got)
		}
	}
}
