// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

func repairCommand(node *nodeFlags) *cobra.Command {
	var s selection
	var yes bool
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Restore what this node's pods and its lease database have lost",
		Long: `Restore what the attachments of this node's pods have lost: routes, rules,
addresses and settings, for example after an interface was taken down and up in
a pod; and interfaces that vanished, for example because the NIC's driver was
reloaded. It restores what check reports, from the records, and changes nothing
else. A lost address is restored only if no other host has it.

Without --yes nothing is changed: the commands that would do the same are shown.
A route of the attachment with other values is deleted first; check prints that
command too.

An interface with other values is not changed, because it would have to be
recreated. check prints the commands that correct it.

A lease database that cannot be read is rebuilt first, from the records and from
the addresses in all network namespaces of the node. An address that a namespace
has and no record explains is set aside: no pool leases it until its namespace is
gone. An intact database is not changed.

Where the namespaces of the node are not visible, as in a container, the answer is
"cannot tell", and nothing is changed. The exit status is then 2, unless there is
another error.`,
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := node.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			keys, err := s.from(n.Records)
			if err != nil {
				return err
			}
			damaged, err := repairLeases(cmd.Context(), cmd.OutOrStdout(), n, yes)
			if err != nil || damaged && !yes {
				return err
			}
			if yes {
				return repairAttachments(cmd.Context(), cmd.OutOrStdout(), n.Records, keys, "restored", n.Repair)
			}
			return repairAttachments(cmd.Context(), cmd.OutOrStdout(), n.Records, keys, "lost; --yes restores it", n.Lost)
		},
	}
	s.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

// repairAttachments calls do for each attachment and prints the operations that do
// returns. says describes what happened to them. repairAttachments goes on after
// failures and returns all of them. It leaves alone an attachment with a namespace that
// this process would not see: its pod may live.
func repairAttachments(ctx context.Context, w io.Writer, records record.Store, keys []conf.Attachment, says string,
	do func(context.Context, conf.Attachment) (plan.Ops, error),
) error {
	var errs []error
	unknown := false
	for _, k := range keys {
		rec, err := records.Load(k)
		if err == nil && ended(rec) {
			continue
		}
		if err == nil && visible(rec) != nil {
			unknown = true
			fmt.Fprintf(w, "# %s: cannot tell: %s\n", label(k, rec), findingLine(visible(rec)))
			continue
		}
		ops, err := within(ctx, k, do)
		switch {
		case errors.Is(err, record.ErrNotExist): // deleted since it was listed
			continue
		case err != nil:
			errs = append(errs, labelled(label(k, rec), err)...)
		case len(ops) == 0:
			fmt.Fprintf(w, "# %s: intact\n", label(k, rec))
		}
		if len(ops) > 0 {
			fmt.Fprintf(w, "# %s: %s\n%s\n", label(k, rec), says, strings.Join(ops.Commands(netnsName(rec.Netns)), "\n"))
		}
	}
	if unknown && len(errs) == 0 {
		return cli.StatusError(unknownStatus)
	}
	return errors.Join(errs...)
}

// labelled adds the attachment to each error, because main prints one line for each
// error.
func labelled(name string, err error) []error {
	var out []error
	for _, e := range cli.Each(err) {
		out = append(out, fmt.Errorf("%s: %w", name, e))
	}
	return out
}

func within(ctx context.Context, k conf.Attachment, do func(context.Context, conf.Attachment) (plan.Ops, error)) (plan.Ops, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx, k)
}
