// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

func TestTablesArePrintedWithTheirOwners(t *testing.T) {
	t.Parallel()
	pod := gids.Owner{Pod: conf.Pod{Namespace: "ml", Name: "trainer-0"}, ContainerID: "c1", Link: "net1"}
	bare := gids.Owner{ContainerID: "c2", Link: "net1"}
	addr := netip.MustParseAddr("172.16.0.5")
	const linkLocal, mapped = "fe80:0000:0000:0000:5054:00ff:fe00:0a01", "0000:0000:0000:0000:0000:ffff:ac10:0005"
	tables := []gids.Table{
		{Device: "mlx5_0", Port: 1, Netdev: "ens1f0", Size: 256, Twice: map[netip.Addr][]int{addr: {3, 7}}, Entries: []gids.Entry{
			{Index: 0, GID: linkLocal, Type: gidtable.RoCEv1, Netdev: "ens1f0", Owners: []gids.Owner{{Link: "ens1f0"}}},
			{Index: 1, GID: linkLocal, Type: gidtable.RoCEv2, Netdev: "ens1f0", Owners: []gids.Owner{{Link: "ens1f0"}}},
			{Index: 3, GID: mapped, IPv4: addr, Type: gidtable.RoCEv2, Netdev: "net1", Owners: []gids.Owner{pod, bare}},
			{Index: 7, GID: mapped, IPv4: addr, Type: gidtable.RoCEv2, Netdev: "eth1"},
		}},
		{Device: "mlx5_1", Port: 1, Netdev: "ens2f0", Size: 256, Hidden: true},
		{Device: "mlx5_2", Port: 1, Holder: &pod, Size: 1, Entries: []gids.Entry{{Index: 0, GID: linkLocal}}},
		{Device: "mlx5_4", Port: 1, Netdev: "ens3f0"},
		{Device: "mlx5_3", Port: 1, Holder: &pod, Missing: true},
	}
	const want = `DEVICE  PORT  INDEX  GID                                      IPV4        TYPE  POD              INTERFACE
mlx5_0  1     0      fe80:0000:0000:0000:5054:00ff:fe00:0a01  -           v1    host             ens1f0
mlx5_0  1     1      fe80:0000:0000:0000:5054:00ff:fe00:0a01  -           v2    host             ens1f0
mlx5_0  1     3      0000:0000:0000:0000:0000:ffff:ac10:0005  172.16.0.5  v2    ml/trainer-0,c2  net1,net1
mlx5_0  1     7      0000:0000:0000:0000:0000:ffff:ac10:0005  172.16.0.5  v2    ?                eth1
# mlx5_0/1 on ens1f0: 4 of 256 entries used, 252 free: room for 126 more pods with one IPv4 address, or for 42 with an IPv6 address too
# mlx5_0/1: 172.16.0.5 appears 2 times, at 3 and 7
# mlx5_1/1 on ens2f0: 0 of 256 entries used, 256 free: room for 256 more pods with one IPv4 address, or for 85 with an IPv6 address too
# mlx5_1/1: the driver shows each network namespace only its own entries: those of namespaces without a pod on record are not counted
mlx5_2  1     0      fe80:0000:0000:0000:5054:00ff:fe00:0a01  -           -     ?                -
# mlx5_2/1, in pod ml/trainer-0: 1 of 1 entries used, 0 free: room for 0 more pods with one IPv4 address, or for 0 with an IPv6 address too
# mlx5_4/1 on ens3f0: it has no GID table, so RoCE is off: devlink dev param show, devlink dev eswitch show
# mlx5_3 was moved to pod ml/trainer-0; neither that nor the host has it now: lsns -t net shows the processes that keep a namespace, ip netns exec NAME rdma dev its devices
`
	var out bytes.Buffer
	if err := writeTables(cli.Format{}, &out, tables); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	rows := func(text string) []string {
		var out []string
		for line := range strings.Lines(text) {
			out = append(out, strings.Join(strings.Fields(line), " ")) // the columns may be narrower
		}
		return out
	}
	out.Reset()
	if err := writeTables(cli.Format{NoHeaders: true}, &out, tables); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rows(want)[1:], rows(out.String())); diff != "" {
		t.Errorf("without heads (-want +got)\n%s", diff)
	}
}

// TestAFlagWithoutValueIsNoQuestionAboutTheHost is about a script with an
// empty variable: it would take the host's answer for the pod's.
func TestAFlagWithoutValueIsNoQuestionAboutTheHost(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"--netns=", "--container=", "--ifname=", "--pid=0", "--pid=-1", ""} {
		cmd := root(io.Discard, io.Discard)
		cmd.SetArgs([]string{"env", "--state-dir", t.TempDir(), arg})
		err := cmd.Execute()
		flag, _, _ := strings.Cut(arg, "=") // of the argument POD, any text
		if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: got %v, want code %d and the flag's name", arg, err, cnierr.BadConfig)
		}
	}
}
