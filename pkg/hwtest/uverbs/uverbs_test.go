// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package uverbs

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
)

// TestCallsHaveTheFormOfTheKernel compares with rdma_user_ioctl_cmds.h; virtual machines make
// the calls.
func TestCallsHaveTheFormOfTheKernel(t *testing.T) {
	t.Parallel()
	if a, d, s := unsafe.Offsetof(call{}.attrs), unsafe.Offsetof(call{}.driver), unsafe.Sizeof(attr{}); a != 24 || d != 16 || s != 16 {
		t.Errorf("attributes at %d, want 24; the driver at %d, want 16; an attribute has %d bytes, want 16", a, d, s)
	}
}

func TestEntriesAreReadAsTheKernelWritesThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		gid  string
		kind uint32
		want Entry
	}{
		{"::ffff:198.18.0.1", 2, Entry{7, netip.MustParseAddr("198.18.0.1"), gidtable.RoCEv2, 4}},
		{"2001:2::1", 1, Entry{7, netip.MustParseAddr("2001:2::1"), gidtable.RoCEv1, 4}},
		{"fe80::1", 0, Entry{7, netip.MustParseAddr("fe80::1"), gidtable.RoCEv1, 4}}, // InfiniBand, which sysfs calls so
	} {
		gid := netip.MustParseAddr(c.gid).As16()
		b := gid[:]
		for _, n := range []uint32{7, 2, c.kind, 4} {
			b = binary.NativeEndian.AppendUint32(b, n)
		}
		if port, got := parse(b); port != 2 || got != c.want {
			t.Errorf("port %d, %+v, want port 2, %+v", port, got, c.want)
		}
	}
}
