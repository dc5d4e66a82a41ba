// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// patience limits the work on one attachment, including the wait for a call of the
// runtime.
const patience = 30 * time.Second

// unknownStatus is the exit status of a check that finds no damage, but cannot look at
// everything.
const unknownStatus = 2

func checkCommand(node *nodeFlags) *cobra.Command {
	var s selection
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the attachments of this node's pods with their records",
		Long: `Compare the attachments of this node's pods with their records: link, settings,
addresses, routes, rules and leases. A runtime's CHECK does the same. Leases of
other IPAM plugins are not checked. Nothing is changed.

An intact attachment has the line "ok". Any other attachment has one line for each
object that is missing or different, with the command that restores it. The exit
status is then 1. GID indexes of several attachments that changed, as after a failover
of a bond, have one line for each RDMA port.

A MAC, an MTU or a setting of the interface that another program has set, for
example the plugin tuning, has a line of its own, and so has another name of a
shared RDMA device. It is no damage.

Where the namespaces of the node are not visible, as in a container, the answer is
"cannot tell". The exit status is then 2, unless there is damage elsewhere.`,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, keys, err := node.chosen(cmd, args, s)
			if err != nil {
				return err
			}
			return check(cmd.Context(), cmd.OutOrStdout(), n, keys)
		},
	}
	s.register(cmd)
	return cmd
}

// check prints the findings of each attachment, and returns an error if there is one.
func check(ctx context.Context, w io.Writer, n attach.Node, keys []conf.Attachment) error {
	wrong, checked, unknown := 0, 0, 0
	moved := movedIndexes{}
	for _, k := range keys {
		rec, err := n.Records.Load(k)
		switch {
		case err != nil:
			// CheckRecord reports it, because it holds the lock.
		case ended(rec):
			fmt.Fprintf(w, "%s: %s\n", label(k, rec), state(rec))
			continue
		}
		changed, err := checkOne(ctx, n, k)
		if errors.Is(err, record.ErrNotExist) {
			continue // deleted since it was listed
		}
		if hidden := visible(rec); hidden != nil && (errors.Is(err, kernel.ErrNetnsGone) || errors.Is(err, fs.ErrPermission)) {
			unknown++
			fmt.Fprintf(w, "%s: cannot tell: %s\n", label(k, rec), findingLine(hidden))
			continue
		}
		checked++
		for _, c := range changed {
			fmt.Fprintf(w, "%s: changed by another program: %s\n", label(k, rec), report.Printable(c.Error()))
		}
		if err == nil {
			fmt.Fprintf(w, "%s: ok\n", label(k, rec))
			continue
		}
		wrong++
		for _, finding := range cli.Each(err) {
			if !moved.take(label(k, rec), finding) {
				fmt.Fprintf(w, "%s: %s\n", label(k, rec), findingLine(finding))
			}
		}
	}
	moved.print(w)
	switch {
	case wrong == 0 && unknown == 0:
		return nil
	case wrong == 0:
		return cli.StatusError(unknownStatus)
	}
	return cnierr.New(cnierr.Damaged, "check attachments", "", "rocectl repair shows what it would restore",
		"%d of %d differ from their records", wrong, checked)
}

func checkOne(ctx context.Context, n attach.Node, k conf.Attachment) (changed []error, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return n.CheckRecord(ctx, k)
}

// findingLine returns a finding and what to do about it, in one line. A pod may have chosen
// the names in it.
func findingLine(err error) string {
	hint := cnierr.CNI("rocectl", err).Details
	return report.Printable(fmt.Sprintf("%v; %s", err, hint))
}

// movedIndexes are the findings about GID indexes that changed, by RDMA port. One event
// of a NIC changes those of all its pods, so they are printed together.
type movedIndexes map[string][]movedIndex

type movedIndex struct {
	label   string // of the attachment
	finding error
	what    *rdma.MovedError
}

// take keeps a finding of an attachment if it is about an index that changed.
func (m movedIndexes) take(label string, finding error) bool {
	var what *rdma.MovedError
	if !errors.As(finding, &what) {
		return false
	}
	m[what.Port] = append(m[what.Port], movedIndex{label, finding, what})
	return true
}

// print writes one line for each port, or one for each finding if they are all of one
// attachment.
func (m movedIndexes) print(w io.Writer) {
	for _, port := range slices.Sorted(maps.Keys(m)) {
		var of, texts []string
		for _, i := range m[port] {
			if !slices.Contains(of, i.label) {
				of = append(of, i.label)
			}
			texts = append(texts, fmt.Sprintf("%s: %s from %d to %d", i.label, i.what.Addr, i.what.Was, i.what.Is))
		}
		if len(of) == 1 {
			for _, i := range m[port] {
				fmt.Fprintf(w, "%s: %s\n", i.label, findingLine(i.finding))
			}
			continue
		}
		fmt.Fprintf(w, "%s: GID indexes of %d attachments changed, as after a failover of a bond or a reset of the NIC: %s; %s\n",
			port, len(of), strings.Join(texts, ", "), rdma.NewIndex)
	}
}
