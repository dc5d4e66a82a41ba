// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nic

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
)

// TestDcbnlAnswer reads an answer as the kernel sends it (dcbnl_ieee_fill): PFC for
// priority 3, DSCP 26 mapped to it and to 4, and DSCP 46 to 5. Mappings of another kind, a priority
// and a DSCP that do not exist, and a short one are left out.
func TestDcbnlAnswer(t *testing.T) {
	t.Parallel()
	attr := func(typ byte, value ...byte) []byte {
		b := append([]byte{byte(4 + len(value)), 0, typ, 0}, value...)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
		return b
	}
	pfc := make([]byte, 136)
	pfc[0], pfc[1] = 8, 1<<3
	var apps []byte
	for _, app := range [][]byte{{5, 3, 26, 0}, {1, 2, 26, 0}, {5, 4, 26, 0}, {5, 8, 1, 0}, {5, 1, 64, 0}, {5, 1, 2}, {5, 5, 46, 0}} {
		apps = append(apps, attr(ieeeApp, app...)...)
	}
	ieee := append(attr(ieeePFC, pfc...), attr(ieeeApps, append(apps, attr(7, 5, 1, 7, 0)...)...)...)
	got, err := parseQoS(attr(dcbAttrIEEE, ieee...))
	if want := (QoS{PFC: 1 << 3, DSCP: [64]Priorities{26: 1<<3 | 1<<4, 46: 1 << 5}}); err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, short := range [][]byte{nil, attr(ieeePFC), attr(ieeePFC, 8)} {
		if got, err := parseQoS(attr(dcbAttrIEEE, short...)); !errors.Is(err, unix.EOPNOTSUPP) || got != (QoS{}) {
			t.Errorf("a driver without PFC has %v, %v", got, err)
		}
	}
	if got, err := parseQoS(attr(dcbAttrIEEE, attr(ieeePFC, 8, 1<<5)...)); err != nil || got != (QoS{PFC: 1 << 5}) {
		t.Errorf("a driver without more than PFC has %v, %v", got, err)
	}
	row := append([]byte{0, dcbCmdIEEEGet, 0, 0}, attr(dcbAttrIEEE, ieee...)...)
	sys := fstest.MapFS{}
	for i := range 8 {
		for _, side := range []string{"roce_rp", "roce_np"} {
			sys[fmt.Sprintf("class/net/ens1/ecn/%s/enable/%d", side, i)] = &fstest.MapFile{Data: []byte("1\n")}
		}
	}
	got.ECN, got.TellsECN = 255, true
	for _, c := range []struct {
		socket answer
		want   QoS
		err    error
	}{
		{answer{reply: nlsock.Reply{Rows: [][]byte{row}}}, got, nil},
		{answer{reply: nlsock.Reply{Err: unix.EOPNOTSUPP}}, QoS{}, unix.EOPNOTSUPP},
		{answer{reply: nlsock.Reply{Rows: [][]byte{row[:4]}}}, QoS{ECN: 255, TellsECN: true}, unix.EOPNOTSUPP},
		{answer{reply: nlsock.Reply{Rows: [][]byte{row[:3]}}}, QoS{}, unix.ENODATA},
		{answer{}, QoS{}, unix.ENODATA},
		{answer{err: unix.EPERM}, QoS{}, unix.EPERM},
	} {
		c.socket.t = t
		is, err := askQoS(c.socket, sys, "ens1")
		if is != c.want || !errors.Is(err, c.err) {
			t.Errorf("%+v: got %v, %v, want %v, %v", c.socket, is, err, c.want, c.err)
		}
	}
	if _, err := ReadQoS(fstest.MapFS{}, "lo"); err == nil {
		t.Error("the loopback interface has PFC")
	}
}

// answer is a socket that gives an answer about ens1.
type answer struct {
	reply nlsock.Reply
	err   error
	t     *testing.T
}

func (answer) Close() {}

func (answer) Dump(context.Context, nlsock.Request) ([][]byte, error) { return nil, unix.EOPNOTSUPP }

func (a answer) Exchange(_ context.Context, reqs ...nlsock.Request) ([]nlsock.Reply, error) {
	want := []nlsock.Request{{Type: unix.RTM_GETDCB, Body: append([]byte{0, dcbCmdIEEEGet, 0, 0, 9, 0, 1, 0}, "ens1\x00\x00\x00\x00"...)}}
	if diff := cmp.Diff(want, reqs); diff != "" {
		a.t.Errorf("asked (-want +got)\n%s", diff)
	}
	return []nlsock.Reply{a.reply}, a.err
}

// TestECNHasTwoSides: a priority has ECN if it is on as reaction point and as notification point.
func TestECNHasTwoSides(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{}
	for i := range 8 {
		for _, side := range []string{"roce_rp", "roce_np"} {
			on := i == 3 || i == 4 && side == "roce_np"
			sys[fmt.Sprintf("class/net/ens1/ecn/%s/enable/%d", side, i)] = &fstest.MapFile{Data: []byte(map[bool]string{true: "1\n", false: "0\n"}[on])}
		}
	}
	if on, told := readECN(sys, "ens1"); on != 1<<3 || !told {
		t.Errorf("got %s, %t", on, told)
	}
	if on, told := readECN(sys, "ens2"); on != 0 || told {
		t.Errorf("the kernel's driver tells ECN of priority %s", on)
	}
}

func TestQoSForPeople(t *testing.T) {
	t.Parallel()
	for want, q := range map[string]QoS{
		"PFC off": {DSCP: [64]Priorities{26: 1 << 3}},
		"PFC for priority 3,5-7, no DSCP there, ECN off":                     {PFC: 0xe8, TellsECN: true},
		"PFC for priority 3, DSCP 24,26-27,63 there, ECN for priority 0-1,3": {PFC: 1 << 3, DSCP: [64]Priorities{24: 8, 25: 1, 26: 8, 27: 8, 63: 9}, ECN: 0xb, TellsECN: true},
	} {
		if got := q.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestQoSOfABond is that of its slaves, because the bond has none.
func TestQoSOfABond(t *testing.T) {
	t.Parallel()
	s := tree{fstest.MapFS{}}
	off, silent := map[string]bool{}, ""
	n := Node{Sys: s.MapFS, QoS: func(netdev string) (QoS, error) {
		if netdev == "bond0" {
			t.Error("the bond is asked")
		}
		if netdev == silent {
			return QoS{}, unix.EOPNOTSUPP
		}
		return QoS{PFC: map[bool]Priorities{false: 1 << 3}[off[netdev]]}, nil
	}}
	n.nic(s, "pci0000:00/0000:00:01.0/0000:01:00.0", "ens1f0np0", "mlx5_bond_0", 0)
	n.nic(s, "pci0000:00/0000:00:01.0/0000:01:00.1", "ens1f1np1", "gone", 0)
	n.RDMA.Devices = n.RDMA.Devices[:1]
	n.bond(9, 0, 1)
	for _, want := range []string{"PFC for priority 3, no DSCP there", "PFC for priority 3, no DSCP there / PFC off"} {
		if got := n.Inventory()[0].QoS; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		off["ens1f1np1"] = true
	}
	if silent = "ens1f1np1"; n.Inventory()[0].QoS != "" {
		t.Errorf("got %q, and a slave does not tell", n.Inventory()[0].QoS)
	}
}
