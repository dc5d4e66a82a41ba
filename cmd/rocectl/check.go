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
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// patience limits the work on one attachment, including the wait for a call of the
// runtime.
const patience = 30 * time.Second

// unknownStatus is the exit status of a check that finds no damage, but cannot look at
// everything.
const unknownStatus = 2

const noAttachments = "# this node has no attachments"

func checkCommand(node *nodeFlags) *cobra.Command {
	var s selection
	var format cli.Format
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Compare the attachments of this node's pods with their records",
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, keys, err := node.chosen(cmd, args, s)
			if err != nil {
				return err
			}
			found, damage := check(cmd.Context(), n, keys)
			err = format.Print(cmd.OutOrStdout(), found, func(w io.Writer) error { return writeFindings(w, found) })
			return errors.Join(err, damage)
		},
	}
	s.register(cmd)
	format.Register(cmd)
	return cmd
}

// finding is what check says of one attachment, or of one object of it.
type finding struct {
	report.Answer
	err error // of a problem
}

func newFinding(of string, verdict report.Verdict, found string) finding {
	return finding{Answer: report.Answer{Check: "attachment", Finding: report.Finding{Verdict: verdict, Of: of, Found: found}}}
}

func problemOf(of string, err error) finding {
	f := newFinding(of, report.Problem, err.Error())
	f.Fix, f.err = hint(err), err
	return f
}

// check returns the findings of each attachment, and an error if there is damage, or if it
// cannot tell.
func check(ctx context.Context, n attach.Node, keys []conf.Attachment) ([]finding, error) {
	out := []finding{}
	wrong, checked, unknown := 0, 0, 0
	for _, k := range keys {
		rec, err := n.Records.Load(k)
		of := label(k, rec)
		if err == nil && ended(rec) { // CheckRecord reports an error, because it holds the lock
			out = append(out, newFinding(of, report.OK, state(rec)))
			continue
		}
		changed, err := within(ctx, k, repair.Attachments{Node: n}.CheckRecord)
		if errors.Is(err, record.ErrNotExist) {
			continue // deleted since it was listed
		}
		if hidden := visible(rec); hidden != nil && (errors.Is(err, kernel.ErrNetnsGone) || errors.Is(err, fs.ErrPermission)) {
			unknown++
			f := newFinding(of, report.CannotTell, hidden.Error())
			f.Missing = hint(hidden)
			out = append(out, f)
			continue
		}
		checked++
		for _, c := range changed {
			out = append(out, newFinding(of, report.OK, "changed by another program: "+c.Error()))
		}
		if err == nil {
			out = append(out, newFinding(of, report.OK, "ok"))
			continue
		}
		wrong++
		for _, e := range cnierr.Each(err) {
			out = append(out, problemOf(of, e))
		}
	}
	switch {
	case wrong > 0:
		return out, cnierr.New(cnierr.Damaged, "check attachments", "", "rocectl repair shows what it would restore",
			"%d of %d differ from their records", wrong, checked)
	case unknown > 0:
		return out, cli.StatusError(unknownStatus)
	}
	return out, nil
}

// writeFindings writes a line for each finding. A pod may have chosen the names in it.
func writeFindings(w io.Writer, all []finding) error {
	var lines strings.Builder
	moved := movedIndexes{}
	for _, f := range all {
		if !moved.take(f) {
			fmt.Fprintln(&lines, f)
		}
	}
	moved.print(&lines)
	if len(all) == 0 {
		fmt.Fprintln(&lines, noAttachments)
	}
	_, err := io.WriteString(w, lines.String())
	return cli.Written(err)
}

// String returns a line.
func (f finding) String() string {
	found := f.Found
	if f.Verdict == report.CannotTell {
		found = "cannot tell: " + found
	}
	if does := f.Fix + f.Missing; does != "" { // it has one of them
		found += "; " + does
	}
	return report.Printable(f.Of + ": " + found)
}

// within limits the work on one attachment.
func within[T any](ctx context.Context, k conf.Attachment, do func(context.Context, conf.Attachment) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx, k)
}

// findingLine returns a finding and what to do about it, in one line. A pod may have chosen
// the names in it.
func findingLine(err error) string {
	return report.Printable(fmt.Sprintf("%v; %s", err, hint(err)))
}

func hint(err error) string { return cnierr.CNI("rocectl", err).Details }

// movedIndexes are the findings about GID indexes that changed, by RDMA port. One event
// of a NIC changes those of all its pods, so they are printed together.
type movedIndexes map[string][]movedIndex

type movedIndex struct {
	finding
	what *rdma.MovedError
}

// take keeps a finding if it is about an index that changed.
func (m movedIndexes) take(f finding) bool {
	what, is := errors.AsType[*rdma.MovedError](f.err)
	if is {
		m[what.Port] = append(m[what.Port], movedIndex{f, what})
	}
	return is
}

// print writes one line for each port, or one for each finding if they are all of one
// attachment.
func (m movedIndexes) print(w io.Writer) {
	for _, port := range slices.Sorted(maps.Keys(m)) {
		var of, texts []string
		for _, i := range m[port] {
			if !slices.Contains(of, i.Of) {
				of = append(of, i.Of)
			}
			texts = append(texts, fmt.Sprintf("%s: %s from %d to %d", i.Of, i.what.Addr, i.what.Was, i.what.Is))
		}
		if len(of) == 1 {
			for _, i := range m[port] {
				fmt.Fprintln(w, i)
			}
			continue
		}
		fmt.Fprintf(w, "%s: GID indexes of %d attachments changed, as after a failover of a bond or a reset of the NIC: %s; %s\n",
			port, len(of), strings.Join(texts, ", "), rdma.NewIndex)
	}
}
