// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

func topCommand(node *nodeFlags) *cobra.Command {
	var format cli.Format
	var once bool
	cmd := &cobra.Command{
		Use:     "top",
		Short:   "Show what each pod has and sends on the RDMA devices, again every two seconds",
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			t := top{node: node, format: format, out: cmd.OutOrStdout()}
			if once || format.Document() {
				return t.once(ctx)
			}
			return t.run(ctx)
		},
	}
	format.RegisterTable(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "print one table")
	return cmd
}

// top is a run of rocectl top, with what was counted at the last two looks.
type top struct {
	node        *nodeFlags
	format      cli.Format
	out         io.Writer
	before, now map[usage.Source]usage.Traffic
}

func (t *top) once(ctx context.Context) error {
	if uses, err := t.look(ctx); uses == nil {
		return err
	}
	if cli.Wait(ctx, time.Second) != nil {
		return nil // the user has stopped it
	}
	uses, err := t.look(ctx)
	if uses == nil {
		return err
	}
	return errors.Join(t.format.Print(t.out, uses, func(w io.Writer) error { return t.write(w, uses, nil) }), err)
}

// run prints a table every two seconds until the user stops it. On a terminal each one
// takes the place of the last one.
func (t *top) run(ctx context.Context) error {
	for {
		uses, err := t.look(ctx)
		if uses == nil {
			return err
		}
		if report.Terminal(t.out) {
			fmt.Fprint(t.out, "\x1b[H\x1b[2J")
		}
		if err := t.write(t.out, uses, err); err != nil {
			return err
		}
		if cli.Wait(ctx, 2*time.Second) != nil {
			return nil
		}
	}
}

// look returns what users have now, with the rates since the last look, also if something of it
// could not be read. nil: nothing is known.
func (t *top) look(ctx context.Context) ([]usage.Use, error) {
	n, unreadable, err := t.node.usage()
	if err != nil {
		return nil, err
	}
	uses, err := n.Read(ctx)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, rdma.ErrNoDevice) {
		err = cnierr.New(cnierr.NoRDMA, "look for", "RDMA devices", "load the driver of the node's RDMA NICs; rdma dev shows their devices", "this network namespace has none")
	}
	t.before, t.now = t.now, n.Traffic(time.Now())
	usage.AddRates(uses, t.before, t.now)
	return uses, errors.Join(err, unreadable)
}

// usage returns the node for package usage, and the errors of records that cannot be read.
func (n *nodeFlags) usage() (out usage.Node, unreadable, err error) {
	in, err := n.folder()
	if err != nil {
		return usage.Node{}, nil, err
	}
	rows, unreadable := attachments(in.records)
	return usage.Node{
		Sys: n.sysfs(), Proc: os.DirFS("/proc"), Records: slices.DeleteFunc(rows, ended), BootID: in.records.BootID, Calls: calls.File{Dir: in.records.Dir}, Dial: n.dial,
	}, unreadable, nil
}

// uses returns what users have. The pod of a record that cannot be read is unknown.
func (n *nodeFlags) uses(ctx context.Context) ([]usage.Use, error) {
	node, _, err := n.usage()
	if err != nil {
		return nil, err
	}
	return node.Read(ctx)
}

// write writes the table, and below it what is missing in it.
func (t *top) write(w io.Writer, uses []usage.Use, missing error) error {
	table := t.format.Table(w, []string{"POD", "INTERFACE", "DEVICE", "QUEUE PAIRS", "CONTEXTS", "REGIONS", "MEMORY", "CONNECTIONS", "SENT", "RECEIVED"}, "CHARGED", "PROCESSES")
	for _, u := range uses {
		table.Row(u.User, u.Interface, u.Device, types(u.QueuePairs), u.Contexts, u.Regions, size(u.RegionBytes), u.Connections,
			u.Sent, u.Received, charged(u.Charged), processes(u.Processes))
	}
	if err := table.Print(); err != nil {
		return err
	}
	for i, u := range uses {
		sent, received := t.now[usage.Source{Device: u.Device}].Since(t.before[usage.Source{Device: u.Device}])
		if sent != nil && u.Sent == nil && (i == 0 || uses[i-1].Device != u.Device) {
			fmt.Fprintf(w, "# %s: all together send %s and receive %s\n", u.Device, sent, received)
		}
	}
	for _, err := range cnierr.Each(missing) {
		fmt.Fprintf(w, "# missing: %s\n", report.Printable(err.Error()))
	}
	dir, err := t.node.dir()
	if err != nil {
		return err
	}
	_, alarms := lastCalls(dir)
	for _, c := range slices.SortedFunc(maps.Values(alarms), func(a, b calls.Call) int { return a.At.Compare(b.At) }) {
		if time.Since(c.At) < time.Hour {
			fmt.Fprintf(w, "# alarm %s: %s: %s\n", c.At.Format(time.DateTime), cmp.Or(c.Pod, string(c.ContainerID), "no pod"), report.Printable(c.Error))
		}
	}
	return nil
}

// types returns numbers by type: "RC 2, UD 1".
func types(of map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(out, ", ")
}

// size returns bytes as people read them: "1.5 GiB".
func size(bytes uint64) string {
	value, units := float64(bytes), []string{"B", "KiB", "MiB", "GiB"}
	for value >= 1024 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	return fmt.Sprintf("%.4g %s", value, units[0])
}

func charged(c *usage.Charge) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%d handles, %d objects", c.Handles, c.Objects)
}

func processes(all []rdma.Process) string { return joined(all, ", ", rdma.Process.String) }
