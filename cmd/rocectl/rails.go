// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/lldp"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
)

type nodePort struct {
	nic.Details
	Pods   []string        `json:"pods"`
	Switch *lldp.Neighbour `json:"switch,omitempty"` // nil: not asked, or not heard
}

type railsFlags struct {
	format    cli.Format
	lldp, all bool
	wait      time.Duration
	cluster   cluster.Fleet
}

// railsCommand returns the command. As a plugin of kubectl it is about the cluster.
func railsCommand(node *nodeFlags, plugin bool) *cobra.Command {
	var f railsFlags
	cmd := &cobra.Command{
		Use:   "rails",
		Short: "Show the RoCE NICs of this node, or of all nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.listens(cmd); err != nil {
				return err
			}
			if f.all {
				return f.cluster.Show(cmd.Context(), cmd.OutOrStdout(), f.format)
			}
			if err := notOfNode(cmd, "differences", "kubeconfig", "context"); err != nil {
				return err
			}
			if err := node.mustExist(cmd, args); err != nil {
				return err
			}
			return f.run(cmd, node)
		},
	}
	f.register(cmd, plugin)
	return cmd
}

func (f *railsFlags) register(cmd *cobra.Command, plugin bool) {
	f.format.RegisterTable(cmd)
	cmd.Flags().BoolVar(&f.lldp, "lldp", false, "listen for the switches' LLDP frames")
	cmd.Flags().DurationVar(&f.wait, "lldp-wait", lldp.Interval+5*time.Second, "the longest `TIME` to listen")
	cmd.Flags().BoolVar(&f.all, "cluster", plugin, "show the rails of all nodes")
	cmd.Flags().BoolVar(&f.cluster.Differences, "differences", false, "with --cluster, show only what differs")
	f.cluster.Register(cmd, "with --cluster, ")
}

// listens refuses flags about LLDP that would have no effect.
func (f *railsFlags) listens(cmd *cobra.Command) error {
	for _, name := range []string{"lldp", "lldp-wait"} {
		switch given := cmd.Flags().Changed(name); {
		case given && f.all:
			return cnierr.New(cnierr.BadConfig, "use flag", "--"+name,
				"run rocectl rails --lldp on the node; or start the agents with --lldp (agent.lldp of the chart), and leave this flag out: then the switches of all nodes are shown",
				"the agents of the nodes listen, and this command does not")
		case given && !f.lldp && name == "lldp-wait":
			return cnierr.New(cnierr.BadConfig, "use flag", "--"+name, "add --lldp", "it has no effect without --lldp")
		}
	}
	return nil
}

// notOfNode refuses flags that only a command about the cluster reads.
func notOfNode(cmd *cobra.Command, flags ...string) error {
	for _, name := range flags {
		if cmd.Flags().Changed(name) {
			return cnierr.New(cnierr.BadConfig, "use flag", "--"+name, "add --cluster", "it is about the cluster, and this is about one node")
		}
	}
	return nil
}

func (f railsFlags) run(cmd *cobra.Command, node *nodeFlags) error {
	n, err := nic.Live(cmd.Context())
	if err != nil {
		return err
	}
	in, err := node.folder()
	if err != nil {
		return err
	}
	rows, unreadable := attachments(in.records)
	ports := withPods(n.Inventory(), rows)
	if len(ports) == 0 {
		return errors.Join(cnierr.New(cnierr.NoRDMA, "show", "rails",
			"load the driver of the node's RDMA NICs; rocectl doctor says what is missing", "the node has no RDMA device"), unreadable)
	}
	var unheard error
	if f.lldp {
		unheard = f.listen(cmd, ports)
	}
	err = f.format.Print(cmd.OutOrStdout(), ports, func(w io.Writer) error { return f.write(w, ports) })
	return errors.Join(err, unheard, unreadable)
}

// listen adds what the switches say. The errors are about single NICs.
func (f railsFlags) listen(cmd *cobra.Command, ports []nodePort) error {
	var links []string
	for _, p := range ports {
		if p.Ethernet() {
			links = append(links, p.Cables()...)
		}
	}
	slices.Sort(links)
	links = slices.Compact(links)
	if len(links) == 0 {
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "# listening for LLDP on %d NICs, for %s at most; ^C ends it\n", len(links), f.wait)
	ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	ctx, end := context.WithTimeout(ctx, f.wait)
	defer end()
	heard, err := lldp.Listen(ctx, links)
	for i := range ports {
		ports[i].Switch = lldp.Behind(ports[i].Cables(), heard)
	}
	return err
}

func withPods(ports []nic.Details, rows []record.Record) []nodePort {
	out := make([]nodePort, 0, len(ports))
	for _, p := range ports {
		pods := []string{}
		for _, r := range rows {
			if uses(r.Plan, p) {
				pods = append(pods, cmp.Or(r.Pod.String(), string(r.ContainerID)))
			}
		}
		slices.Sort(pods)
		out = append(out, nodePort{Details: p, Pods: slices.Compact(pods)})
	}
	return out
}

func uses(p plan.Plan, port nic.Details) bool {
	for m := range plan.All[plan.Child](p.Ops) {
		if port.Netdev != "" && (m.Parent == port.Netdev || m.VLAN.NIC == port.Netdev) {
			return true
		}
	}
	for m := range plan.All[plan.Move](p.Ops) {
		if m.Device.Name == port.Device {
			return true
		}
	}
	return false
}

// write prints the table. It has the columns of the switch if they were asked for.
func (f railsFlags) write(w io.Writer, ports []nodePort) error {
	heads := []string{"RAIL", "NETDEV", "RDMA", "LAYER", "STATE", "SPEED", "MTU", "ADDRESS", "GPU", "ID", "GIDS FREE", "PODS"}
	if f.lldp {
		heads = append(heads, "SWITCH", "SWITCH PORT")
	}
	t := f.format.Table(w, heads, "MODEL", "PCI", "NUMA", "DRIVER", "FIRMWARE")
	for _, p := range ports {
		row := columns(p)
		if f.lldp {
			var n lldp.Neighbour
			if p.Switch != nil {
				n = *p.Switch
			}
			row = append(row, n.Switch, n.Port)
		}
		t.Row(append(row, p.Model, p.PCI, orMissing(p.NUMA), strings.TrimSpace(p.Name+" "+p.Version), p.Firmware)...)
	}
	return t.Print()
}

func columns(p nodePort) []any {
	gids := ""
	if p.GIDs.Size > 0 {
		gids = fmt.Sprintf("%d of %d", p.GIDs.Free(), p.GIDs.Size)
		if p.GIDs.Hidden {
			gids = "at most " + gids
		}
	}
	state := p.State
	if p.Bond != "" {
		state += " in " + p.Bond
	}
	return []any{
		orMissing(p.Rail), p.Netdev, p.String(), p.LinkLayer, state, nic.Rate(p.Speed), number(p.MTU), joined(p.Addresses, ",", netip.Prefix.String),
		nearest(p.GPUs), strings.Trim(p.VendorID+":"+p.DeviceID, ":"), gids, len(p.Pods),
	}
}

func nearest(gpus []nic.GPU) string {
	if len(gpus) == 0 {
		return ""
	}
	return joined(gpus, ",", func(g nic.GPU) string { return g.Name }) + " " + string(gpus[0].Distance)
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func orMissing(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
