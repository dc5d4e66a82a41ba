// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
)

func showCommand(node *nodeFlags) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show",
		Short:   "Show the attachments of this node's pods, as recorded",
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

// attachments returns all records that can be read, and what is wrong with
// those that cannot.
func attachments(s record.Store) ([]record.Record, error) {
	rows := []record.Record{}
	keys, err := s.List()
	errs := []error{err}
	for _, k := range keys {
		r, err := s.Load(k.ContainerID, k.IfName)
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
	fmt.Fprintln(t, "POD\tINTERFACE\tADDRESSES\tMASTER\tTABLES\tNETWORK\tSTATE")
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join([]string{
			podOr(r.Pod.String(), string(r.ContainerID)), string(r.IfName), addresses(r.Plan), parent(r.Plan),
			tables(r.Plan), r.Network, state(r),
		}, "\t"))
	}
	return t.Flush()
}

// podOr names a pod, or the container when the runtime named no pod.
func podOr(pod, container string) string {
	if pod != "" {
		return pod
	}
	return container
}

func addresses(p plan.Plan) string {
	out := make([]string, 0, len(p.Addresses))
	for _, a := range p.Addresses {
		out = append(out, a.Prefix.String())
	}
	return orDash(strings.Join(out, ","))
}

func parent(p plan.Plan) string {
	for _, op := range p.Ops {
		if m, ok := op.(plan.Macvlan); ok {
			return string(m.Parent)
		}
	}
	return "-"
}

func tables(p plan.Plan) string {
	var out []string
	for _, op := range p.Ops {
		r, ok := op.(plan.Rule)
		if !ok || r.Table == 0 {
			continue
		}
		if t := fmt.Sprint(r.Table); len(out) == 0 || out[len(out)-1] != t {
			out = append(out, t)
		}
	}
	return orDash(strings.Join(out, ","))
}

// state tells attachments apart whose ADD did not finish, or that an earlier
// boot of the node ended.
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
