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
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/lldp"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
)

func TestRailsArePrintedWithTheirPods(t *testing.T) {
	t.Parallel()
	rail, numa := 0, 1
	ports := []nic.Details{
		{
			Rail: &rail, Netdev: "ens1f0np0", PCI: "0000:13:00.0", NUMA: &numa, Device: "mlx5_7", Number: 1, LinkLayer: "Ethernet", State: "ACTIVE",
			Speed: 400000, MTU: 9000, Addresses: []netip.Prefix{netip.MustParsePrefix("172.16.11.1/24")}, VendorID: "15b3", DeviceID: "1021", Model: "ConnectX-7",
			Driver: nic.Driver{Name: "mlx5_core", Version: "6.8.0", Firmware: "28.39.1002 (MT_0000000838)"},
			GPUs:   []nic.GPU{{Name: "GPU0", Distance: nic.PIX}, {Name: "GPU1", Distance: "SYS"}},
			GIDs:   nic.GIDs{Used: 5, Size: 256},
		},
		{Netdev: "ens2", Device: "mlx5_8", Number: 1, LinkLayer: "Ethernet", State: "DOWN", Bond: "bond0", Speed: 2500, GIDs: nic.GIDs{Used: 4, Size: 256, Hidden: true}},
		{Device: "mlx5_9", Number: 2, State: "AWAY"},
	}
	on := plan.Plan{Ops: plan.InPod(plan.Child{Parent: "ens1f0np0"})}
	rows := []record.Record{
		{Pod: conf.Pod{Namespace: "ml", Name: "b"}, Plan: on},
		{Attachment: conf.Attachment{ContainerID: "c1"}, Plan: on},
		{Pod: conf.Pod{Namespace: "ml", Name: "b"}, Plan: on},
		{Pod: conf.Pod{Namespace: "ml", Name: "a"}, Plan: plan.Plan{Ops: plan.InPod(plan.Child{Parent: "ens1f0np0.11", VLAN: conf.VLAN{NIC: "ens1f0np0", ID: 11}})}},
		{Pod: conf.Pod{Namespace: "ml", Name: "x"}, Plan: plan.Plan{Ops: plan.InPod(plan.Move{Device: plan.RDMADevice{Name: "mlx5_9"}})}},
	}
	got := withPods(ports, rows)
	var pods [][]string
	for _, p := range got {
		pods = append(pods, p.Pods)
	}
	if diff := cmp.Diff([][]string{{"c1", "ml/a", "ml/b"}, {}, {"ml/x"}}, pods); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var out bytes.Buffer
	if err := (railsFlags{}).write(&out, got); err != nil {
		t.Fatal(err)
	}
	const want = `RAIL  NETDEV     RDMA      LAYER     STATE          SPEED  MTU   ADDRESS         GPU            ID         GIDS FREE           PODS
0     ens1f0np0  mlx5_7/1  Ethernet  ACTIVE         400G   9000  172.16.11.1/24  GPU0,GPU1 PIX  15b3:1021  251 of 256          3
-     ens2       mlx5_8/1  Ethernet  DOWN in bond0  2.5G   -     -               -              -          at most 252 of 256  0
-     -          mlx5_9/2  -         AWAY           -      -     -               -              -          -                   1
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}

	got[0].Switch = &lldp.Neighbour{Switch: "leaf-03", Port: "swp12"}
	out.Reset()
	if err := (railsFlags{lldp: true, format: cli.Format{Name: "wide"}}).write(&out, got); err != nil {
		t.Fatal(err)
	}
	const wide = `PODS  SWITCH   SWITCH PORT  MODEL       PCI           NUMA  DRIVER           FIRMWARE
3     leaf-03  swp12        ConnectX-7  0000:13:00.0  1     mlx5_core 6.8.0  28.39.1002 (MT_0000000838)
0     -        -            -           -             -     -                -
1     -        -            -           -             -     -                -
`
	from := strings.Index(out.String(), "PODS")
	var ends strings.Builder
	for line := range strings.Lines(out.String()) {
		ends.WriteString(line[from:])
	}
	if diff := cmp.Diff(wide, ends.String()); diff != "" {
		t.Errorf("wide, with LLDP (-want +got)\n%s", diff)
	}
}

// TestRailsObeyNoNameOfANIC: a NIC or a device that was in a pod comes back under the name that
// the pod gave it.
func TestRailsObeyNoNameOfANIC(t *testing.T) {
	t.Parallel()
	const evil = "n\x1b[2J\n\u202e"
	var out bytes.Buffer
	ports := []nodePort{{Details: nic.Details{Netdev: evil, Device: evil, Bond: evil}, Switch: &lldp.Neighbour{Switch: evil}}}
	if err := (railsFlags{lldp: true}).write(&out, ports); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.ContainsAny(got, "\x1b\u202e") || strings.Count(got, "\n") != 2 {
		t.Errorf("a name controls the terminal: %q", got)
	}
}

// TestFlagsOfRailsThatHaveNoEffectAreRefused: "kubectl roce rails" is about the cluster
// without a flag that says so.
func TestFlagsOfRailsThatHaveNoEffectAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plugin bool
		args   []string
		want   string
	}{
		"LLDP of all nodes":                   {true, []string{"--lldp", "--kubeconfig", "/dev/null"}, `use flag "--lldp": the agents`},
		"LLDP of all nodes, by rocectl":       {false, []string{"--cluster", "--lldp", "--kubeconfig", "/dev/null"}, `use flag "--lldp": the agents`},
		"time to listen, of all nodes":        {true, []string{"--lldp-wait", "3s", "--kubeconfig", "/dev/null"}, `use flag "--lldp-wait": the agents`},
		"time to listen, but not to listen":   {false, []string{"--lldp-wait", "3s"}, `use flag "--lldp-wait": it has no effect without --lldp`},
		"differences of one node":             {false, []string{"--differences"}, `use flag "--differences": it is about the cluster`},
		"differences of one node, by kubectl": {true, []string{"--cluster=false", "--differences"}, `use flag "--differences": it is about the cluster`},
	} {
		cmd := railsCommand(&nodeFlags{stateDir: t.TempDir()}, c.plugin)
		cmd.SetArgs(c.args)
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), c.want) || cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
