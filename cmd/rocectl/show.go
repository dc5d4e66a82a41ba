// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func showCommand(node *nodeFlags) *cobra.Command {
	var s selection
	var format cli.Format
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the attachments of this node's pods, from their records",
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := node.folder()
			if err != nil {
				return err
			}
			rows, failed := attachments(in.records)
			only := s.of(args)
			rows = slices.DeleteFunc(rows, func(r record.Record) bool { return !only.has(r) })
			if len(rows) == 0 && only != (selection{}) {
				return errors.Join(only.missing(), failed)
			}
			err = format.Print(cmd.OutOrStdout(), rows, func(w io.Writer) error {
				return writeAttachments(format, w, rows, in.records.Dir)
			})
			return errors.Join(err, failed)
		},
	}
	s.register(cmd)
	format.RegisterTable(cmd)
	return cmd
}

// lastCalls returns the last call of each verb of rocectl heal for each attachment. Without the
// file of the calls nothing is known.
func lastCalls(stateDir string) (heals, alarms map[conf.Attachment]calls.Call) {
	heals, alarms = map[conf.Attachment]calls.Call{}, map[conf.Attachment]calls.Call{}
	all, _, _ := calls.File{Dir: stateDir}.After("")
	for _, c := range all {
		switch c.Verb {
		case calls.Heal:
			heals[c.Attachment] = c
		case calls.Alarm:
			alarms[c.Attachment] = c
		}
	}
	return heals, alarms
}

func writeAttachments(f cli.Format, w io.Writer, rows []record.Record, stateDir string) error {
	healed, alarms := lastCalls(stateDir)
	t := f.Table(w, []string{"POD", "INTERFACE", "ADDRESSES", "MASTER", "RDMA", "GID INDEX", "TABLES", "NETWORK", "STATE"}, "CONTAINER", "NETNS", "TRACE")
	for _, r := range rows {
		pod := cmp.Or(r.Pod.String(), string(r.ContainerID))
		for _, i := range interfaces(r) {
			t.Row(pod, i.Name, addresses(i), parent(r.Plan, i), port(r.Plan, i), indexes(r.Plan, i), tables(r.Plan, i), r.Network, state(r), r.ContainerID, plan.NetnsName(r.Netns), r.Trace)
		}
		for v := range plan.All[plan.Veth](r.Plan.Ops) {
			t.Row(pod, v.PodEnd, "", v.Name, "", "", "", r.Network, "link to the node", r.ContainerID, plan.NetnsName(r.Netns), r.Trace)
		}
		if c, is := healed[r.Attachment]; is {
			says := "healed " + c.At.Format(time.DateTime) + ": " + strings.Join(c.Made(), ", ")
			if c.Code != 0 {
				says = "not healed " + c.At.Format(time.DateTime) + ": " + report.Printable(c.Error)
			}
			t.Row(pod, "", says)
		}
		if c, is := alarms[r.Attachment]; is {
			t.Row(pod, "", "alarm "+c.At.Format(time.DateTime)+": "+report.Printable(c.Error))
		}
		for _, why := range r.LeftOut {
			t.Row(pod, "", "left out: "+why)
		}
	}
	return t.Print()
}

// state marks an attachment if its ADD did not finish, or if an earlier boot of the
// node ended it.
func state(r record.Record) string {
	switch {
	case ended(r):
		return "ended by a reboot"
	case !r.Committed:
		return "unfinished"
	}
	return "attached"
}

// interfaces returns the interfaces of an attachment. If the attachment was never
// planned, it is the interface of the request.
func interfaces(r record.Record) []plan.Interface {
	if len(r.Plan.Interfaces) == 0 {
		return []plan.Interface{{Name: r.IfName}}
	}
	return r.Plan.Interfaces
}

// rdmaDevice returns the RDMA device that carries the interface, the zero value if none does.
func rdmaDevice(p plan.Plan, i plan.Interface) plan.RDMADevice {
	for g := range plan.All[plan.GID](p.Ops) {
		if g.Targets[0].Link == i.Name {
			return g.Device
		}
	}
	return plan.RDMADevice{}
}

// port returns the port of the RDMA device that carries the interface, as rdma link
// prints it.
func port(p plan.Plan, i plan.Interface) string {
	if d := rdmaDevice(p, i); d.Name != "" {
		return fmt.Sprintf("%s/%d", d.Name, d.Port)
	}
	return ""
}

// indexes returns the GID index that each address of the interface had when it was
// attached.
func indexes(p plan.Plan, i plan.Interface) string {
	var out []string
	for g := range plan.All[plan.GID](p.Ops) {
		for _, t := range g.Targets {
			if t.Link == i.Name && t.Index != nil {
				out = append(out, fmt.Sprint(*t.Index))
			}
		}
	}
	return strings.Join(out, ",")
}

// attachments returns all records that can be read, and the errors of those that
// cannot.
func attachments(s record.Store) ([]record.Record, error) {
	rows := []record.Record{}
	var errs []error
	for r, err := range s.All() {
		if err != nil {
			errs = append(errs, err)
			continue
		}
		rows = append(rows, r)
	}
	return rows, errors.Join(errs...)
}

// ended says whether an earlier boot of the node ended the attachment: the
// store returns its record without operations.
func ended(r record.Record) bool { return len(r.Plan.Ops) == 0 }

// joined returns texts of values, with a separator between them.
func joined[T any](all []T, separator string, text func(T) string) string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = text(v)
	}
	return strings.Join(out, separator)
}

func addresses(i plan.Interface) string {
	return joined(i.Addresses, ",", func(a plan.LeasedAddress) string { return a.Prefix.String() })
}

func parent(p plan.Plan, i plan.Interface) string {
	for m := range plan.All[plan.Child](p.Ops) {
		if m.Name == i.Name {
			return string(m.Parent)
		}
	}
	return ""
}

// tables returns the routing tables for packets from the addresses of the interface.
func tables(p plan.Plan, i plan.Interface) string {
	var out []string
	for r := range plan.All[plan.Rule](p.Ops.At(plan.Pod)) {
		if r.Table == 0 {
			continue
		}
		mine := func(a plan.LeasedAddress) bool { return a.Prefix.Addr() == r.From.Addr() }
		if t := fmt.Sprint(r.Table); slices.ContainsFunc(i.Addresses, mine) && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return strings.Join(out, ",")
}
