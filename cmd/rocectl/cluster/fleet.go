// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Fleet shows the rails of all nodes.
type Fleet struct {
	Kubectl
	Differences bool // only these
}

// reports is what the cluster has: the reports of nodes, and all nodes by name.
type reports struct {
	Nodes       []fleet.Node       `json:"nodes"`
	Unreported  []string           `json:"unreported"` // nodes without a report
	Differences []fleet.Difference `json:"differences"`
}

// Show prints the rails and what differs.
func (f Fleet) Show(ctx context.Context, w io.Writer, as cli.Format) error {
	all, err := f.read(ctx)
	if err != nil {
		return err
	}
	return as.Print(w, all, func(w io.Writer) error { return f.write(as, w, all) })
}

// reportTime is how long Reports waits for nodes.
const reportTime = 20 * time.Second

// Reports returns what nodes have reported, by name, and the names of nodes without a report.
// It waits some seconds for the reports of agents that have just started, and says so to w.
func (f Fleet) Reports(ctx context.Context, w io.Writer) (nodes []fleet.Node, unreported []string, err error) {
	for ends := time.Now().Add(reportTime); ; {
		all, err := f.read(ctx)
		if err != nil || len(all.Unreported) == 0 || time.Now().After(ends) {
			return all.Nodes, all.Unreported, err
		}
		fmt.Fprintf(w, "# waiting for the reports of %d nodes\n", len(all.Unreported))
		if err := cli.Wait(ctx, reportTime/4); err != nil {
			return nil, nil, err
		}
	}
}

func (f Fleet) read(ctx context.Context) (reports, error) {
	var objects []kube.RailNode
	var nodes []kube.Node
	err := f.Kubectl.read(ctx, func(api *kube.API) (err error) {
		if objects, err = api.RailNodes(ctx); err == nil {
			nodes, err = api.Nodes(ctx)
		}
		return err
	})
	return reportsOf(objects, nodes), err
}

// reportsOf puts together what nodes have reported. The Node of a report may be gone
// for a moment.
func reportsOf(objects []kube.RailNode, nodes []kube.Node) reports {
	out := reports{Nodes: []fleet.Node{}, Unreported: []string{}, Differences: []fleet.Difference{}}
	for i := range objects {
		n := fleet.Node{Name: objects[i].Name, Report: objects[i].Status.Report}
		slices.SortFunc(n.Rails, func(a, b fleet.Rail) int { return cmp.Compare(a.Rail, b.Rail) })
		out.Nodes = append(out.Nodes, n)
	}
	slices.SortFunc(out.Nodes, func(a, b fleet.Node) int { return cmp.Compare(a.Name, b.Name) })
	for _, n := range nodes {
		if !slices.ContainsFunc(objects, func(o kube.RailNode) bool { return o.Name == n.Name }) {
			out.Unreported = append(out.Unreported, n.Name)
		}
	}
	slices.Sort(out.Unreported)
	out.Differences = append(out.Differences, fleet.Compare(out.Nodes)...)
	return out
}

func (f Fleet) write(as cli.Format, w io.Writer, all reports) error {
	if !f.Differences {
		t := as.Table(w, []string{"NODE", "RAIL", "NETDEV", "RDMA", "STATE", "SPEED", "MTU", "GPU", "ID", "SWITCH", "SWITCH PORT"}, "MODEL", "PCI", "DRIVER", "FIRMWARE", "QOS")
		for _, n := range all.Nodes {
			for _, r := range n.Rails {
				t.Row(n.Name, r.Rail, r.Netdev, fmt.Sprintf("%s/%d", r.Device, r.Port), r.State, nic.Rate(r.Speed), r.MTU,
					strings.TrimSpace(strings.Join(r.GPUs, ",")+" "+r.Distance), strings.Trim(r.Vendor+":"+r.DeviceID, ":"), r.Switch, r.SwitchPort, nic.Model(r.Vendor, r.DeviceID), r.PCI, r.Driver, r.Firmware, r.QoS)
			}
			if len(n.Rails) == 0 {
				t.Row(n.Name, "none")
			}
		}
		for _, n := range all.Unreported {
			t.Row(n, "no report: kubectl -n roce-cni get pods -o wide shows whether an agent runs there")
		}
		if err := t.Print(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	if missing := len(all.Unreported); missing > 0 {
		fmt.Fprintf(w, "# without a report, so not compared: %s\n", report.Count(missing, "node"))
	}
	switch {
	case len(all.Nodes) == 0:
		fmt.Fprintln(w, "# no agent has reported the NICs of its node")
		return nil
	case len(all.Differences) == 0:
		fmt.Fprintln(w, "# no rail differs from the same rail of most nodes")
		return nil
	}
	t := as.Table(w, []string{"NODE", "RAIL", "WHAT DIFFERS", "IS", "MOST HAVE"})
	for _, d := range all.Differences {
		var rails []string
		for _, r := range d.Rails {
			rails = append(rails, fmt.Sprint(r))
		}
		t.Row(d.Node, strings.Join(rails, ","), d.What, d.Is, d.Most)
	}
	return t.Print()
}
