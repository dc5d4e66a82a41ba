// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// TestShowSaysAllOfAnAttachment has a pod with two rails, both families, a link to the node and a
// rail that was left out, of which the last HEAL failed, and a pod that HEAL has repaired.
func TestShowSaysAllOfAnAttachment(t *testing.T) {
	t.Parallel()
	addr, index := netip.MustParseAddr, func(n int) *int { return &n }
	rail := func(n int, name conf.LinkName, prefixes ...string) plan.Interface {
		out := plan.Interface{Rail: n, Name: name}
		for _, p := range prefixes {
			out.Addresses = append(out.Addresses, plan.LeasedAddress{Prefix: netip.MustParsePrefix(p)})
		}
		return out
	}
	rule := func(from string, table uint32) plan.Rule {
		return plan.Rule{From: netip.MustParsePrefix(from), Table: table}
	}
	two := record.Record{
		Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "job"}, Network: "rails", Committed: true,
		Netns: "/run/netns/cni-1", Trace: "00-1", LeftOut: []string{"ens3: no carrier", "ens4: no carrier"},
	}
	two.Plan.Interfaces = []plan.Interface{rail(0, "net1", "10.1.0.2/24", "fd01::2/64"), rail(1, "net2", "10.2.0.2/24")}
	two.Plan.Ops = plan.InPod(
		plan.Child{Name: "net1", Parent: "ens1"}, plan.Child{Name: "net2", Parent: "ens2"},
		plan.GID{Device: plan.RDMADevice{Name: "mlx5_1", Port: 1}, Targets: []plan.GIDTarget{{Link: "net1", Addr: addr("10.1.0.2"), Index: index(3)}, {Link: "net1", Addr: addr("fd01::2"), Index: index(5)}}},
		plan.GID{Device: plan.RDMADevice{Name: "mlx5_2", Port: 2}, Targets: []plan.GIDTarget{{Link: "net2", Addr: addr("10.2.0.2")}}},
		rule("10.1.0.2/32", 100), rule("10.1.0.2/32", 0), rule("fd01::2/128", 100), rule("10.2.0.2/32", 101), rule("10.2.0.2/32", 102),
		plan.Veth{Name: "roce1", PodEnd: "host0"},
	)
	one := record.Record{Attachment: conf.Attachment{ContainerID: "c2", IfName: "eth1"}, Network: "other", Plan: plan.Plan{Ops: plan.InPod(plan.Child{Name: "eth1", Parent: "ens5"})}}
	kept := calls.File{Dir: t.TempDir()}
	at := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)
	steps := []calls.Step{{Name: "rule"}, {Name: "route"}}
	for _, c := range []calls.Call{
		{Verb: calls.Heal, Attachment: two.Attachment, Steps: steps},
		{Verb: calls.Heal, Attachment: two.Attachment, Code: 5, Error: "no such\ndevice", Steps: steps},
		{Verb: calls.Alarm, Attachment: two.Attachment, Error: "older"},
		{Verb: calls.Alarm, Attachment: two.Attachment, Error: "net1 is\ndown"},
		{Verb: calls.Heal, Attachment: one.Attachment, Steps: steps},
		{Verb: "ADD", Attachment: one.Attachment, Code: 5, Error: "not shown"},
	} {
		at = at.Add(time.Second)
		c.At = at
		if err := kept.Append(c); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := writeAttachments(cli.Format{Name: "wide"}, &out, []record.Record{two, one}, kept.Dir); err != nil {
		t.Fatal(err)
	}
	const want = `POD INTERFACE ADDRESSES MASTER RDMA GID INDEX TABLES NETWORK STATE CONTAINER NETNS TRACE
ml/job net1 10.1.0.2/24,fd01::2/64 ens1 mlx5_1/1 3,5 100 rails attached c1 cni-1 00-1
ml/job net2 10.2.0.2/24 ens2 mlx5_2/2 - 101,102 rails attached c1 cni-1 00-1
ml/job host0 - roce1 - - - rails link to the node c1 cni-1 00-1
ml/job - not healed 2026-11-25 10:00:02: no such?device
ml/job - alarm 2026-11-25 10:00:04: net1 is?down
ml/job - left out: ens3: no carrier
ml/job - left out: ens4: no carrier
c2 eth1 - ens5 - - - other unfinished c2 - -
c2 - healed 2026-11-25 10:00:05: rule, route
`
	var got strings.Builder
	for line := range strings.Lines(out.String()) {
		got.WriteString(strings.Join(strings.Fields(line), " ") + "\n") // the columns may be wider
	}
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
