// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// devices are the names of RDMA devices with one port each, as the kernel tells them: the first one
// is that of r0. In shared mode, all namespaces have them.
type devices struct {
	names     []string
	exclusive byte // 0 if it is
}

func (d devices) Close() {}

func (d devices) Dump(context.Context, nlsock.Request) (rows [][]byte, err error) {
	for i, name := range d.names {
		row := nlsock.AppendText(nlsock.AppendNumber(nil, 1, uint32(i+1)), 2, name)
		rows = append(rows, nlsock.AppendText(nlsock.AppendNumber(row, 3, 1), 67, "roce"))
	}
	return rows, nil
}

func (d devices) Exchange(_ context.Context, reqs ...nlsock.Request) (out []nlsock.Reply, err error) {
	for _, r := range reqs {
		row := nlsock.AppendNumber(nil, 66, uint32(d.exclusive))
		if r.Type&0x3ff == 5 { // of a port
			row = nlsock.AppendText(nlsock.AppendNumber(nlsock.AppendNumber(nil, 12, uint32(nldev.Active)), 50, 7), 51, "r0")
		}
		out = append(out, nlsock.Reply{Rows: [][]byte{row}})
	}
	return out, nil
}

// TestPortsAreThoseOfTheKernelWithTheirTables: of two ports, the second has no table.
func TestPortsAreThoseOfTheKernelWithTheirTables(t *testing.T) {
	t.Parallel()
	const dir = "class/infiniband/mlx5_0/"
	sys := fstest.MapFS{
		dir + "hca_type": {Data: []byte("MT4129\n")}, dir + "ports/1/gids/0": {Data: []byte("fe80:0000:0000:0000:0000:0000:0000:0001")},
		dir + "ports/1/gid_attrs/types/0": {Data: []byte("RoCE v2")}, dir + "ports/1/gid_attrs/ndevs/0": {Data: []byte("r0")},
	}
	var dials error
	of := func(mode byte) *rdma.Subsystem {
		s := rdma.New(rdma.Config{
			Sys: sys, Enter: func(fn func() error) error { return fn() },
			Dial: func() (*nldev.Conn, error) {
				if dials != nil {
					return nil, dials
				}
				return nldev.New(devices{[]string{"mlx5_0", "mlx5_1"}, mode}), nil
			},
		})
		t.Cleanup(s.Close)
		return s
	}
	port := func(index uint32, name string) Port {
		p := nldev.Port{Number: 1, State: nldev.Active, NetdevIndex: 7, Netdev: "r0"}
		return Port{Match: discover.Match{Device: nldev.Device{Index: index, Name: name, Protocol: "roce", Ports: []nldev.Port{p}}, Port: p, Link: "r0"}}
	}
	want := []Port{port(1, "mlx5_0"), port(2, "mlx5_1")}
	want[0].Model, want[0].Size = "MT4129", 1
	want[0].Entries = []gidtable.Entry{{GID: netip.MustParseAddr("fe80::1"), Type: gidtable.RoCEv2, Netdev: "r0"}}
	inPod, err := usable(t.Context(), of(1))
	if err != nil {
		t.Fatal(err)
	}
	for reader, mode := range map[plan.Place]byte{plan.Host: 1, plan.Pod: 0} { // the host reads its own files in both modes
		got, err := Ports(t.Context(), of(mode), plan.Host, reader)
		if err != nil {
			t.Fatal(err)
		}
		for _, ports := range [][]Port{got, inPod} {
			if diff := cmp.Diff(want, ports, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("mode %d (-want +got)\n%s", mode, diff)
			}
		}
	}
	sys[dir+"ports/1/gids/0"] = &fstest.MapFile{Data: []byte("no GID")}
	if _, err := Ports(t.Context(), of(1), plan.Host, plan.Host); err == nil {
		t.Error("a table that cannot be read has no entries")
	}
	dials = unix.EPROTONOSUPPORT
	_, err = Ports(t.Context(), of(1), plan.Host, plan.Host)
	if cnierr.CodeOf(err) != cnierr.NoRDMA || !strings.Contains(err.Error(), "the network namespace has none: the kernel has no RDMA") {
		t.Errorf("without RDMA: got %v", err)
	}
	dials = unix.EIO
	for _, ask := range []func() ([]Port, error){
		func() ([]Port, error) { return Ports(t.Context(), of(1), plan.Host, plan.Host) },
		func() ([]Port, error) { return usable(t.Context(), of(1)) },
	} {
		if ports, err := ask(); err == nil || cnierr.CodeOf(err) == cnierr.NoRDMA || len(ports) > 0 {
			t.Errorf("the kernel does not answer: got %v, %v", ports, err)
		}
	}
}
