// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

func showCommand(node *nodeFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the attachments of this node's pods, from their records",
		Long: `Show the attachments of this node's pods, from their records. The GID index is the
one that each address had when it was attached; rocectl check says if it has changed,
and rocectl gids shows what the tables have now.`,
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, _ []string) error {
			records, err := node.records()
			if err != nil {
				return err
			}
			rows, failed := attachments(records)
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), rows)
			} else {
				err = writeAttachments(cmd.OutOrStdout(), rows)
			}
			if err != nil {
				return err
			}
			return failed
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the records as JSON")
	return cmd
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

func writeAttachments(w io.Writer, rows []record.Record) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "POD\tINTERFACE\tADDRESSES\tMASTER\tRDMA\tGID INDEX\tTABLES\tNETWORK\tSTATE")
	for _, r := range rows {
		for _, i := range interfaces(r) {
			fmt.Fprintln(t, strings.Join([]string{
				podOr(r.Pod.String(), string(r.ContainerID)), string(i.Name), addresses(i), parent(r.Plan, i),
				port(r.Plan, i), indexes(r.Plan, i), tables(r.Plan, i), r.Network, state(r),
			}, "\t"))
		}
		for v := range plan.All[plan.Veth](r.Plan.Ops) {
			fmt.Fprintln(t, strings.Join([]string{
				podOr(r.Pod.String(), string(r.ContainerID)), string(v.PodEnd), "-", string(v.Name), "-", "-", "-", r.Network, "link to the node",
			}, "\t"))
		}
		for _, why := range r.LeftOut {
			fmt.Fprintf(t, "%s\t%s\tleft out: %s\n", podOr(r.Pod.String(), string(r.ContainerID)), "-", why)
		}
	}
	return t.Flush()
}

// interfaces returns the interfaces of an attachment. If the attachment was never
// planned, it is the interface of the request.
func interfaces(r record.Record) []plan.Interface {
	if len(r.Plan.Interfaces) == 0 {
		return []plan.Interface{{Name: r.IfName}}
	}
	return r.Plan.Interfaces
}

// podOr returns the name of the pod, or the container if the runtime named no pod.
func podOr(pod, container string) string {
	if pod != "" {
		return pod
	}
	return container
}

func addresses(i plan.Interface) string {
	out := make([]string, 0, len(i.Addresses))
	for _, a := range i.Addresses {
		out = append(out, a.Prefix.String())
	}
	return orDash(strings.Join(out, ","))
}

func parent(p plan.Plan, i plan.Interface) string {
	for m := range plan.All[plan.Child](p.Ops) {
		if m.Name == i.Name {
			return string(m.Parent)
		}
	}
	return "-"
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
	return orDash(strings.Join(out, ","))
}

func rdmaDevice(p plan.Plan, i plan.Interface) string {
	for g := range plan.All[plan.GID](p.Ops) {
		if g.Targets[0].Link == i.Name {
			return g.Device.Name
		}
	}
	return "-"
}

// port returns the port of the RDMA device that carries the interface, as rdma link
// prints it.
func port(p plan.Plan, i plan.Interface) string {
	for g := range plan.All[plan.GID](p.Ops) {
		if g.Targets[0].Link == i.Name {
			return fmt.Sprintf("%s/%d", g.Device.Name, g.Device.Port)
		}
	}
	return "-"
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
	return orDash(strings.Join(out, ","))
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
	return "made"
}

// ended says whether an earlier boot of the node ended the attachment: the
// store returns its record without operations.
func ended(r record.Record) bool { return len(r.Plan.Ops) == 0 }

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return cnierr.New(cnierr.IO, "write", "standard output", "", "%w", err)
	}
	return nil
}
