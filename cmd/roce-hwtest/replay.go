// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/hwtest"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func replayCommand() *cobra.Command {
	var keep string
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Run the steps that change nothing on a file of roce-hwtest, in place of this node",
		Long: `Run the steps that change nothing on a file of roce-hwtest, in place of this node: the
answers of the kernel are those in the file. It needs no privileges. Then it prints what
the file says that is different now, as comments.

With --keep the files are then written to a folder, if they could be replayed. In pkg/hwtest/testdata they are
a test: docs/hardware.md.`,
		Example: `  roce-hwtest replay roce-hwtest.tar.gz`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if files, err := os.ReadDir(keep); err == nil && len(files) > 0 {
				return cnierr.New(cnierr.IO, "keep files in", keep, "name a folder that is empty, or not there: --keep", "it has files")
			}
			scratch, err := os.MkdirTemp("", "roce-hwtest")
			if err != nil {
				return cnierr.New(cnierr.IO, "make folder in", os.TempDir(), "", "%w", err)
			}
			defer func() { _ = os.RemoveAll(scratch) }()
			files, tree := scratch+"/files", scratch+"/sys"
			if err := errors.Join(os.Mkdir(files, 0o700), os.Mkdir(tree, 0o700)); err != nil {
				return cnierr.New(cnierr.IO, "make folder in", scratch, "", "%w", err)
			}
			if err := extract(args[0], files); err != nil {
				return err
			}
			n, r, end, err := hwtest.Open(files, tree)
			if err != nil {
				return unreadable(args[0], err)
			}
			defer end()
			status, err := replay(cmd.Context(), cmd, n, r)
			if cnierr.CodeOf(err) == cnierr.IO { // of the recorded kernel, not of this node
				return unreadable(args[0], err)
			}
			if err != nil {
				return err
			}
			if keep != "" {
				if err := os.CopyFS(keep, os.DirFS(files)); err != nil {
					return cnierr.New(cnierr.IO, "keep files in", keep, "name another folder: --keep", "%w", err)
				}
			}
			if status != 0 {
				return cli.StatusError(status)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&keep, "keep", "", "write the files into this new `FOLDER`, too")
	return cmd
}

func unreadable(file string, err error) error {
	return cnierr.New(cnierr.IO, "read", file, "name a file that roce-hwtest has written", "%w", err)
}

func extract(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return unreadable(file, err)
	}
	defer f.Close()
	if err := hwtest.Unpack(f, dir); err != nil {
		return unreadable(file, err)
	}
	return nil
}

// replay prints the answers, and those of the file that are others. It compares the steps
// that the file has: an earlier version has fewer. It returns the exit status.
func replay(ctx context.Context, cmd *cobra.Command, n hwtest.Node, r hwtest.Results) (int, error) {
	out := cmd.OutOrStdout()
	var answers []report.Answer
	was := map[[2]string][]report.Verdict{}
	steps := map[string]bool{}
	for _, a := range r.Answers {
		steps[a.Check] = true
		key := [2]string{a.Check, a.Of}
		was[key] = append(was[key], a.Verdict)
	}
	var others []string
	_, err := n.Look(ctx, func(a hwtest.Answer) {
		answers = append(answers, a.Answer)
		_ = report.WriteText(out, a.Answer) // standard output is closed: then so is the rest
		if !steps[a.Check] {
			return
		}
		key := [2]string{a.Check, a.Of}
		if then := was[key]; len(then) == 0 || then[0] != a.Verdict {
			others = append(others, fmt.Sprintf("# %s %s: %q now, %q in the file", a.Check, a.Of, a.Verdict, then))
			return
		}
		was[key] = was[key][1:]
	})
	if err != nil {
		return 0, err
	}
	of := fmt.Sprintf("# %s; Linux %s, %s, roce-hwtest %s", report.Summary(answers), r.Stack.Kernel, r.Date, r.Version)
	for _, line := range append([]string{of}, others...) {
		fmt.Fprintln(out, report.Printable(line)) // the file is of another person
	}
	return report.Status(answers), nil
}
