// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDELOfALinkWorksOnAFullDisk has a state folder without space for any file.
func TestDELOfALinkWorksOnAFullDisk(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	before := l.lookPlain(t)
	disk := t.TempDir()
	must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=512k,mode=0700"))
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	l.state = filepath.Join(disk, "state")
	pods := l.linkedPods(t, 2)
	fill, err := os.Create(filepath.Join(disk, "fill"))
	for page := make([]byte, 4096); err == nil; {
		_, err = fill.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	pods[0].mustDel(t)
	l.probed(t, pods[1], "after the DEL of another pod")
	pods[1].mustDel(t)
	pods[1].mustDel(t)
	l.unchangedPlain(t, before)
	l.nothingLeased(t)
}
