// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

func gidsCommand(node *nodeFlags) *cobra.Command {
	var format cli.Format
	cmd := &cobra.Command{
		Use:     "gids",
		Short:   "Show the GID tables of the node's RDMA devices, and the owners of the entries",
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := node.folder()
			if err != nil {
				return err
			}
			rows, unreadable := attachments(in.records)
			tables, err := node.devices(slices.DeleteFunc(rows, ended)).Tables(cmd.Context())
			if err == nil && len(tables) == 0 {
				err = cnierr.New(cnierr.NoRDMA, "show", "GID tables",
					"load the driver of the node's RDMA NICs; rdma link shows their devices", "the node has no RDMA device")
			}
			if err == nil {
				uses, fault := node.uses(cmd.Context()) // the tables are true without them
				addHeld(tables, uses)
				err = format.Print(cmd.OutOrStdout(), tables, func(w io.Writer) error {
					writeErr := writeTables(format, w, tables)
					writeStrangers(w, uses)
					return errors.Join(writeErr, fault)
				})
			}
			return errors.Join(err, unreadable)
		},
	}
	format.RegisterTable(cmd)
	return cmd
}

func writeTables(f cli.Format, w io.Writer, tables []gids.Table) error {
	var b bytes.Buffer
	t := f.Table(&b, []string{"DEVICE", "PORT", "INDEX", "GID", "IPV4", "TYPE", "POD", "INTERFACE"})
	entries := 0
	for _, g := range tables {
		entries += len(g.Entries)
		for _, e := range g.Entries {
			t.Row(gidRow(g, e)...)
		}
	}
	if err := t.Print(); err != nil {
		return err
	}
	lines := slices.Collect(strings.Lines(b.String()))
	heads := len(lines) - entries
	out, lines := strings.Join(lines[:heads], ""), lines[heads:]
	for _, g := range tables {
		out += strings.Join(lines[:len(g.Entries)], "") + gidSummary(g)
		lines = lines[len(g.Entries):]
	}
	_, err := io.WriteString(w, out)
	return cli.Written(err)
}

// addHeld adds to the tables of the host which indexes without an entry the users of their
// devices may hold.
func addHeld(tables []gids.Table, uses []usage.Use) {
	for _, u := range uses {
		for _, h := range u.Held {
			for i, t := range tables {
				used := slices.ContainsFunc(t.Entries, func(e gids.Entry) bool { return e.Index == h.Index })
				if t.Holder == nil && t.Device == h.Device && t.Port == h.Port && !used {
					tables[i].Held = append(t.Held, gids.Held{Index: h.Index, Pod: u.Pod, ContainerID: u.ContainerID, Processes: u.Processes})
				}
			}
		}
	}
}

// writeStrangers names the programs in namespaces without a record that have queue pairs. The
// index of such a queue pair is not known.
func writeStrangers(w io.Writer, uses []usage.Use) {
	for _, u := range uses {
		for _, p := range u.Processes {
			if u.Kind == usage.Unknown && u.Total() > 0 && p.Netns != 0 {
				fmt.Fprintf(w, "# %s: %s has queue pairs, and is in a network namespace without a record: its GID index stays taken until it ends, even without an entry\n",
					u.Device, report.Printable(p.String()))
			}
		}
	}
}

func gidRow(g gids.Table, e gids.Entry) []any {
	var pods, links []string
	for _, o := range e.Owners {
		pods, links = append(pods, o.String()), append(links, string(o.Link))
	}
	switch {
	case e.Filler:
		pods, links = []string{"filler of roce"}, []string{e.Netdev}
	case len(e.Owners) == 0:
		pods, links = []string{"?"}, []string{e.Netdev}
	}
	ipv4 := ""
	if e.IPv4.IsValid() {
		ipv4 = e.IPv4.String()
	}
	kind := strings.NewReplacer(gidtable.RoCEv2, "v2", gidtable.RoCEv1, "v1").Replace(e.Type)
	return []any{g.Device, g.Port, e.Index, e.GID, ipv4, kind, strings.Join(pods, ","), strings.Join(links, ",")}
}

func gidSummary(g gids.Table) string {
	g.Device, g.Netdev = report.Printable(g.Device), conf.LinkName(report.Printable(string(g.Netdev)))
	name, where := fmt.Sprintf("%s/%d", g.Device, g.Port), ""
	switch {
	case g.Missing:
		return fmt.Sprintf("# %s was moved to pod %s; neither that nor the host has it now: lsns -t net shows the processes that keep a namespace, "+
			"ip netns exec NAME rdma dev its devices\n", g.Device, g.Holder.String())
	case g.Holder != nil:
		where = ", in pod " + g.Holder.String()
	case g.Netdev != "":
		where = " on " + string(g.Netdev)
	}
	if g.Size == 0 {
		return fmt.Sprintf("# %s%s: it has no GID table, so RoCE is off: devlink dev param show, devlink dev eswitch show\n", name, where)
	}
	free, held := g.Size-len(g.Entries)-len(g.Held), ""
	if len(g.Held) > 0 {
		held = fmt.Sprintf(", %d perhaps held", len(g.Held))
	}
	width := 1 // entries of an address
	if slices.ContainsFunc(g.Entries, func(e gids.Entry) bool { return e.Type == gidtable.RoCEv1 }) {
		width = 2
	}
	out := fmt.Sprintf("# %s%s: %d of %d entries used%s, %d free: %s\n", name, where, len(g.Entries), g.Size, held, free, gidtable.Room(free, width))
	for _, h := range g.Held {
		out += fmt.Sprintf("# %s: index %d, which %s has lost, stays taken while a queue pair uses it: %s\n",
			name, h.Index, report.Printable(cmp.Or(h.Pod.String(), string(h.ContainerID))), report.Printable(processes(h.Processes)))
	}
	fillers := slices.DeleteFunc(slices.Clone(g.Entries), func(e gids.Entry) bool { return !e.Filler })
	if len(fillers) > 0 {
		out += fmt.Sprintf("# %s: %d of them are fillers, which make the indexes of pods equal on all NICs; ip netns del %s frees them\n", name, len(fillers), filepath.Base(plan.FillerNetns))
	}
	if g.Hidden {
		out += fmt.Sprintf("# %s: the driver shows each network namespace only its own entries: those of namespaces without a pod on record are not counted\n", name)
	}
	for _, a := range slices.SortedFunc(maps.Keys(g.Twice), netip.Addr.Compare) {
		out += fmt.Sprintf("# %s: %s appears %d times, at %s\n", name, a, len(g.Twice[a]), gidtable.Numbers(g.Twice[a]))
	}
	return out
}
