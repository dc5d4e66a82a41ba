// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nested returns an attribute that contains others.
func nested(typ uint16, parts ...[]byte) []byte {
	var body []byte
	for _, p := range parts {
		body = append(body, p...)
	}
	b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(body)))
	return append(binary.NativeEndian.AppendUint16(b, typ), body...)
}

func setting(typ uint16, vf, value uint32) []byte {
	return nested(typ, binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, vf), value))
}

// TestVFsHaveTheSettingsThatTheirPFTells has a list as rtnl_fill_vfinfo makes it. A driver
// that does not know a setting tells -1.
func TestVFsHaveTheSettingsThatTheirPFTells(t *testing.T) {
	t.Parallel()
	const unknown = ^uint32(0)
	list := nested(unix.IFLA_VFINFO_LIST,
		nested(nl.IFLA_VF_INFO, nested(nl.IFLA_VF_MAC, make([]byte, 36)), setting(nl.IFLA_VF_SPOOFCHK, 0, 1), setting(nl.IFLA_VF_TRUST, 0, 0)),
		nested(nl.IFLA_VF_INFO, setting(nl.IFLA_VF_SPOOFCHK, 1, 0), setting(nl.IFLA_VF_TRUST, 1, 1), nested(nl.IFLA_VF_SPOOFCHK, u32(1))),
		nested(9, setting(nl.IFLA_VF_SPOOFCHK, 9, 1)), // what kernels to come may list
		nested(nl.IFLA_VF_INFO, setting(nl.IFLA_VF_SPOOFCHK, 2, unknown), setting(nl.IFLA_VF_TRUST, 2, unknown)))
	info := nested(unix.IFLA_LINKINFO, nested(unix.IFLA_INFO_KIND, []byte("veth")))
	message := slices.Concat(make([]byte, unix.SizeofIfInfomsg), info, list)
	want := []VF{{Number: 0, SpoofCheck: true, Untrusted: true}, {Number: 1}, {Number: 2}}
	if diff := cmp.Diff(want, parseVFs(message)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for n := range len(message) - unix.SizeofIfInfomsg {
		parseVFs(message[:unix.SizeofIfInfomsg+n]) // does not panic
	}
}
