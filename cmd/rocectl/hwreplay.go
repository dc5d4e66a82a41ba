// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/doctor"
	"github.com/roce-cni/roce-cni/pkg/hwtest"
)

func replayCommand() *cobra.Command {
	var keep string
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Run the steps that change nothing on a file of hwtest, in place of this node",
		Long: `Run the steps that change nothing on a file of hwtest, in place of this node: the
answers of the kernel are those in the file. It needs no privileges. Then it prints what
the file says that is different now, as comments.

With --keep the files are also written to a folder. In pkg/hwtest/testdata they are
a test: docs/hardware.md.`,
		Example: `  rocectl hwtest replay roce-hwtest.tar.gz`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			scratch, err := os.MkdirTemp("", "rocectl")
			if err != nil {
				return cnierr.New(cnierr.IO, "make folder in", os.TempDir(), "", "%w", err)
			}
			defer func() { _ = os.RemoveAll(scratch) }()
			dir, tree := cmp.Or(keep, scratch+"/files"), scratch+"/sys"
			for _, d := range []string{dir, tree} {
				if err := os.MkdirAll(d, 0o755); err != nil { //nolint:gosec // a folder of the user
					return cnierr.New(cnierr.IO, "make folder", d, "name another one: --keep", "%w", err)
				}
			}
			if err := extract(args[0], dir); err != nil {
				return err
			}
			n, r, end, err := hwtest.Open(dir, tree)
			if err != nil {
				return unreadable(args[0], err)
			}
			defer end()
			return replay(cmd.Context(), cmd, n, r)
		},
	}
	cmd.Flags().StringVar(&keep, "keep", "", "write the files into this `FOLDER`, too")
	return cmd
}

func unreadable(file string, err error) error {
	return cnierr.New(cnierr.IO, "read", file, "name a file that rocectl hwtest has written", "%w", err)
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
// that the file has: an earlier version has fewer.
func replay(ctx context.Context, cmd *cobra.Command, n hwtest.Node, r hwtest.Results) error {
	out := cmd.OutOrStdout()
	var answers []doctor.Answer
	was := map[[2]string][]doctor.Verdict{}
	steps := map[string]bool{}
	for _, a := range r.Answers {
		steps[a.Check] = true
		key := [2]string{a.Check, a.Of}
		was[key] = append(was[key], a.Verdict)
	}
	var others []string
	_, err := n.Look(ctx, func(a hwtest.Answer) {
		answers = append(answers, a.Answer)
		_ = doctor.WriteText(out, a.Answer) // standard output is closed: then so is the rest
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
		return err
	}
	of := fmt.Sprintf("# %s; Linux %s, %s, rocectl %s", doctor.Summary(answers), r.Stack.Kernel, r.Date, r.Rocectl)
	for _, line := range append([]string{of}, others...) {
		fmt.Fprintln(out, doctor.Printable(line)) // the file is of another person
	}
	if status := doctor.Status(answers); status != 0 {
		return statusError(status)
	}
	return nil
}
