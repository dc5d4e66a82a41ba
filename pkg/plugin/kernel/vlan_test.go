// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// vlans is a Linux without VLANs that makes a macvlan for each, and shows macvlans as VLAN 7.
// What real VLANs do is in kerneltest.Suite, on kernels that have them.
type vlans struct{ nlsock.Socket }

// info returns the attribute with the kind of a link, and with one attribute of this kind.
func info(kind string, typ int, value []byte) []byte {
	a := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	a.AddRtAttr(unix.IFLA_INFO_KIND, []byte(kind))
	a.AddRtAttr(unix.IFLA_INFO_DATA, nil).AddRtAttr(typ, value)
	return a.Serialize()
}

// shown adds to each macvlan that it is of another kind, with one attribute.
func shown(rows [][]byte, kind string, typ int, value uint16) {
	for i, row := range rows {
		if bytes.Contains(row, []byte("macvlan")) {
			row = append(slices.Clone(row), make([]byte, -len(row)&3)...)
			rows[i] = append(row, info(kind, typ, binary.NativeEndian.AppendUint16(nil, value))...)
		}
	}
}

func (s vlans) Dump(ctx context.Context, req nlsock.Request) ([][]byte, error) {
	rows, err := s.Socket.Dump(ctx, req)
	shown(rows, "vlan", nl.IFLA_VLAN_ID, 7)
	return rows, err
}

func (s vlans) Exchange(ctx context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	const heads = 2 * unix.SizeofRtAttr
	for i, r := range reqs {
		if at := bytes.LastIndex(r.Body, []byte("vlan")); r.Type == unix.RTM_NEWLINK && r.Flags&unix.NLM_F_CREATE != 0 && at > heads {
			reqs[i].Body = append(slices.Clone(r.Body[:at-heads]), info("macvlan", unix.IFLA_MACVLAN_MODE, binary.NativeEndian.AppendUint32(nil, nl.MACVLAN_MODE_BRIDGE))...)
		}
	}
	replies, err := s.Socket.Exchange(ctx, reqs...)
	for _, r := range replies {
		shown(r.Rows, "vlan", nl.IFLA_VLAN_ID, 7)
	}
	return replies, err
}

// theVLAN is VLAN 7 of the NIC.
func theVLAN(t *testing.T, k *kernel.Kernel) plan.Ops {
	is := facts(t, k)
	return plan.OnHost(plan.VLAN{Name: "nic0.7", VLAN: conf.VLAN{ID: 7, NIC: nic}, Identity: plan.NIC{Index: is.Index, MAC: is.MAC}})
}

func TestWhatLinuxRefusesForAVLANIsSaid(t *testing.T) {
	t.Parallel()
	s := refusingAbove(t, func(s nlsock.Socket) nlsock.Socket { return vlans{s} })
	s.sweep(t, theVLAN(t, s.Kernel), true)
}

func TestAVLANThatIsDifferent(t *testing.T) {
	t.Parallel()
	s := refusingAbove(t, func(s nlsock.Socket) nlsock.Socket { return vlans{s} })
	op := theVLAN(t, s.Kernel)
	before := s.show(t)
	for script, tt := range map[string]struct {
		text    string      // of the finding
		refused cnierr.Code // of Do; 0: it restores the VLAN, or leaves it
		left    bool        // by Undo
	}{
		"link set nic0.7 down":                                      {"it is down", 0, false},
		"link set nic0.7 mtu 1400":                                  {"want MTU 1500, got 1400", 0, false},
		"link set nic0.7 alias theirs":                              {"want alias roce:vlan, got theirs", cnierr.TryAgain, true},
		"link del nic0.7":                                           {"no such interface", 0, false},
		"link del nic0.7\nlink add nic0.7 type bridge":              {"want kind vlan, got bridge", cnierr.TryAgain, true},
		"link set nic0.7 name other0\nlink set other0 alias theirs": {"no such interface", 0, true},
		"addr add 192.0.2.1/24 dev nic0.7":                          {"", 0, true},
	} {
		do(t, s.Kernel, op...)
		if err := s.Check(t.Context(), op...); err != nil {
			t.Errorf("before %s: %v", script, err)
		}
		for line := range strings.Lines(script) {
			s.node.IP(line)
		}
		err := s.Check(t.Context(), op...)
		if tt.text == "" && err != nil || tt.text != "" && (err == nil || cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), tt.text)) {
			t.Errorf("%s: got %v, want %q", script, err, tt.text)
		}
		if err := s.Do(t.Context(), op...); (err != nil) != (tt.refused != 0) || err != nil && cnierr.CodeOf(err) != tt.refused {
			t.Errorf("do after %s: got %v, want code %d", script, err, tt.refused)
		}
		if err := s.Undo(t.Context(), op...); err != nil && !errors.Is(err, kernel.ErrInUse) {
			t.Errorf("undo after %s: %v", script, err)
		}
		if now := s.show(t); (now != before) != tt.left {
			t.Errorf("after %s and undo:\n%s", script, now)
		}
		if tt.left {
			for _, name := range []string{"nic0.7", "other0"} {
				s.node.Exec("sh", "-c", "ip link del "+name+" 2>/dev/null || :")
			}
		}
	}
	do(t, s.Kernel, op...)
	if err := s.Check(t.Context(), plan.OnHost(op[0].Kind.(plan.VLAN).Settings())...); err != nil {
		t.Errorf("what the host must not do in the VLAN: %v", err)
	}
	s.node.IP("link set nic0 down")
	s.node.IP("link set nic0 name other0") // the NIC: its index and its MAC tell
	s.node.IP("link set other0 up")
	do(t, s.Kernel, op...)
	if err := s.Check(t.Context(), op...); err != nil {
		t.Errorf("with another name of the NIC: %v", err)
	}
	s.node.IP("addr add 192.0.2.1/24 dev nic0.7") // it is in use, also if that cannot be seen
	s.each(func() error { return s.Undo(t.Context(), op...) }, func(request int, err error) { said(t, fmt.Sprint("request ", request), err) })
	if err := s.Check(t.Context(), op...); err != nil {
		t.Errorf("a VLAN in use: %v", err)
	}
}
