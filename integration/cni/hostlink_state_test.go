// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// TestTheRuleStaysForPodsOfAnotherStateFolder has two networks of the node with hostLink
// and different state folders.
func TestTheRuleStaysForPodsOfAnotherStateFolder(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	before := l.lookPlain(t)
	pods := l.linkedPods(t, 1)
	p := l.bare(t)
	conf := linkedTo(l.node, cnitest.Subnet4(0)).With("ipam.subnets.0.ranges", []any{"172.16.10.130-172.16.10.140"}).
		With("stateDir", filepath.Join(t.TempDir(), "other"))
	other := l.attach(conf, p, "eth0")
	addr := addrs(other.mustAdd(t))[0]
	p.serve(t, netip.AddrPortFrom(addr, 8080))

	pods[0].mustDel(t)
	if got, want := l.rules(t), []string{"500: from all lookup 8200 proto 82"}; !slices.Equal(got, want) {
		t.Errorf("rules of the node after the DEL in the other folder: %v, want %v", got, want)
	}
	l.mustSee(t, "a probe", netip.AddrPortFrom(addr, 8080), "172.16.10.1", "10.0.0.7")
	if err := other.check(t); err != nil {
		t.Errorf("CHECK after the DEL in the other folder: %v", err)
	}
	other.mustDel(t)
	l.unchangedPlain(t, before)
}

// TestDELOfALinkWorksOnAFullDisk has a state folder without space for any file.
func TestDELOfALinkWorksOnAFullDisk(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	before := l.lookPlain(t)
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Fatal(err)
	}
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
