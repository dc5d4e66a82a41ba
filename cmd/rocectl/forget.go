// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

func forgetCommand(node *nodeFlags) *cobra.Command {
	var s selection
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "Remove records and leases of pods that are gone",
		Long: `Remove what is left of an attachment of a pod that is gone: its record, its leases, and
what it did on the host. Use it when the runtime's DEL will never come, for example
because the runtime has lost its state.

It refuses an attachment with a namespace that exists, and does nothing where the
namespaces of the node are not visible: the exit status is then 2. Without --yes nothing is changed: the
attachments that would be forgotten are shown.`,
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n, err := node.open(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if s.container == "" {
				return cnierr.New(cnierr.BadConfig, "forget attachment", "", "rocectl show --json lists the attachments, with the ids of their containers", "--container is missing")
			}
			keys, err := s.from(n.Records)
			if err != nil {
				return err
			}
			says, do := "its pod is gone; --yes forgets it", func(_ context.Context, rec record.Record) error { return n.MustBeGone(rec) }
			if yes {
				says, do = "forgotten", func(ctx context.Context, rec record.Record) error { return n.Forget(ctx, rec.Attachment) }
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
	if err := netns.Visible(rec.Netns); err != nil {
		return cnierr.New(cnierr.IO, "look for namespace", rec.Netns, "as root, use the node itself, not a container", "cannot tell whether it exists: %w", err)
	}
	return nil
}
