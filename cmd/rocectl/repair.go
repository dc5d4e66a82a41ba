// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

func repairCommand(node *nodeFlags) *cobra.Command {
	var s selection
	var yes bool
	cmd := &cobra.Command{
		Use:     "repair",
		Short:   "Restore what this node's pods and its lease database have lost",
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, keys, err := node.chosen(cmd, args, s)
			if err != nil {
				return err
			}
			damaged, err := repairLeases(cmd.Context(), cmd.OutOrStdout(), n, yes)
			if err != nil || damaged && !yes {
				return err
			}
			all := repair.Attachments{Node: n}
			ports, says := all.Remade(cmd.Context()), "--yes sets"
			if yes {
				says = "repair sets"
			}
			for _, r := range ports {
				fmt.Fprintf(cmd.OutOrStdout(), "# %s was made again, and its %d attachments are not all in their GID indexes: %s their addresses again, each in its recorded index, unless programs use the port again\n", r, len(r.Pods), says)
			}
			if yes {
				return repairAll(cmd.Context(), cmd.OutOrStdout(), all, keys, ports)
			}
			return repairAttachments(cmd.Context(), cmd.OutOrStdout(), n.Records, keys, "lost; --yes restores it", all.Lost)
		},
	}
	s.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

// repairAll repairs attachments, and with them all pods of the ports that were made again. When
// it is interrupted, the pods get back the addresses that it took off.
func repairAll(ctx context.Context, w io.Writer, n repair.Attachments, keys []conf.Attachment, ports []repair.Remade) error {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	return n.Reset(ctx, ports, func(pods []conf.Attachment) error {
		more := slices.DeleteFunc(pods, func(at conf.Attachment) bool { return slices.Contains(keys, at) })
		return repairAttachments(ctx, w, n.Records, append(keys, more...), "restored", n.Repair)
	})
}

// repairAttachments calls do for each attachment and prints the operations that do
// returns. says describes what happened to them. repairAttachments goes on after
// failures and returns all of them. It leaves alone an attachment with a namespace that
// this process would not see: its pod may live.
func repairAttachments(ctx context.Context, w io.Writer, records record.Store, keys []conf.Attachment, says string,
	do func(context.Context, conf.Attachment) (plan.Ops, error),
) error {
	if len(keys) == 0 {
		fmt.Fprintln(w, noAttachments)
	}
	var errs []error
	unknown := false
	for _, k := range keys {
		rec, err := records.Load(k)
		if err == nil && ended(rec) {
			fmt.Fprintf(w, "# %s: %s\n", label(k, rec), state(rec))
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
			fmt.Fprintf(w, "# %s: %s\n%s\n", label(k, rec), says, strings.Join(ops.Commands(plan.NetnsName(rec.Netns)), "\n"))
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
	for _, e := range cnierr.Each(err) {
		out = append(out, fmt.Errorf("%s: %w", name, e))
	}
	return out
}

// repairLeases rebuilds the lease database if it is damaged, or only says what that
// would do. It returns whether the database is damaged. It rebuilds nothing where it
// would not see the namespaces of the pods.
func repairLeases(ctx context.Context, w io.Writer, node attach.Node, yes bool) (damaged bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n := repair.Node{
		Leases:  ledger.Store{Dir: node.Records.Dir, BootID: node.Records.BootID, Now: node.Now},
		Records: node.Records,
		Scan:    func(ctx context.Context) ([]repair.Namespace, int, error) { return repair.Scan(ctx, "/proc") },
	}
	do, says := n.Plan, "--yes rebuilds it, and then checks the attachments"
	hidden := hiddenPod(node.Records)
	switch {
	case hidden != nil:
		says = "cannot tell which addresses pods have: " + findingLine(hidden)
	case yes:
		do, says = n.Do, "rebuilt"
	}
	r, err := do(ctx)
	if err != nil || r.Why == nil {
		return false, err
	}
	fmt.Fprintf(w, "# lease database: %v: %s\n# the damaged file is kept as %s; %d network namespaces were read\n", r.Why, says, r.Kept, r.Looked)
	if r.Hidden > 0 {
		fmt.Fprintf(w, "# %d processes cannot be looked at: addresses in their namespaces may be leased again; run as root on the node itself\n", r.Hidden)
	}
	if err := writeRebuilt(w, r); err != nil || hidden == nil {
		return true, err
	}
	return true, cli.StatusError(unknownStatus)
}

// hiddenPod returns an error if this process would not see the namespace of one of the
// attachments.
func hiddenPod(records record.Store) error {
	for rec, err := range records.All() {
		if err != nil || ended(rec) { // the rebuild reports it
			continue
		}
		if err := visible(rec); err != nil {
			return err
		}
	}
	return nil
}

func writeRebuilt(w io.Writer, r repair.Rebuilt) error {
	t := cli.NewTable(w, "# POOL", "ADDRESS", "STATE", "OF", "INTERFACE", "KNOWN FROM")
	for _, h := range r.Leased {
		for _, p := range h.Places {
			t.Row("# "+p.Pool, p.Addr, ledger.Leased, h.Owner, h.Owner.IfName, "its record")
		}
	}
	for _, a := range r.Aside {
		t.Row("# -", a.Addr, ledger.SetAside, a.Owner, a.Owner.IfName, "its namespace")
	}
	return t.Print()
}

func forgetCommand(node *nodeFlags) *cobra.Command {
	var s selection
	var yes bool
	cmd := &cobra.Command{
		Use:     "forget",
		Short:   "Remove records and leases of pods that are gone",
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.container == "" && len(args) == 0 {
				return cnierr.New(cnierr.BadConfig, "forget attachment", "", "name a pod, or a container with --container; rocectl show lists them", "no pod is named")
			}
			n, keys, err := node.chosen(cmd, args, s)
			if err != nil {
				return err
			}
			all := repair.Attachments{Node: n}
			says, do := "its pod is gone; --yes forgets it", func(_ context.Context, rec record.Record) error { return all.MustBeGone(rec) }
			if yes {
				says, do = "forgotten", func(ctx context.Context, rec record.Record) error { return all.Forget(ctx, rec.Attachment) }
			}
			return forget(cmd.Context(), cmd.OutOrStdout(), n.Records, keys, says, do)
		},
	}
	s.register(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

// forget calls do for each attachment that this process can see to be gone. says
// describes what happened then.
func forget(ctx context.Context, w io.Writer, records record.Store, keys []conf.Attachment, says string, do func(context.Context, record.Record) error) error {
	var errs []error
	for _, k := range keys {
		rec, err := records.Load(k)
		if err == nil {
			err = cannotTell(visible(rec))
		}
		if err == nil {
			err = do(ctx, rec)
		}
		if err != nil {
			errs = append(errs, labelled(label(k, rec), err)...)
			continue
		}
		fmt.Fprintf(w, "%s: %s\n", label(k, rec), says)
	}
	return errors.Join(errs...)
}

// cannotTell adds the exit status of a command that cannot tell to an error.
func cannotTell(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(err, cli.StatusError(unknownStatus))
}

// visible returns an error if this process would not see the namespace of an attachment.
func visible(rec record.Record) error {
	if err := repair.Visible(rec.Netns); err != nil {
		return cnierr.New(cnierr.IO, "look for namespace", rec.Netns, "as root, use the node itself, not a container", "cannot tell whether it exists: %w", err)
	}
	return nil
}
