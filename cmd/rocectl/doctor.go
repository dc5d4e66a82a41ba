// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/doctor"
)

// exitStatus ends the program with a status and without a message: what there is to
// say has been printed.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func doctorCommand(node *nodeFlags) *cobra.Command {
	var asJSON bool
	var agentURL string
	var peers int
	cmd := &cobra.Command{
		Use:   "doctor [CHECK...]",
		Short: "Check whether this node can run RoCE pods, and say how to correct what is wrong",
		Long: `Check whether this node can run RoCE pods, and say how to correct what is wrong.
Nothing is changed. Run it as root on the node: what it may not read it cannot tell.

Each check has one of three answers: "ok"; "problem", with why it matters and the
command that mends it; "cannot tell", with what is missing to tell. Mend problems
from the first one on: later ones often follow from it. With names of checks, only
these run.

The exit status is 0 if all is ok, 1 if there is a problem, and 2 if there is no
problem but something could not be told.

` + listChecks(),
		Example: `  rocectl doctor
  rocectl doctor rdma-mtu gid-table --json`,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, names []string) error {
			checks, err := chosen(names)
			if err != nil {
				return err
			}
			boot, err := plugin.BootID()
			if err != nil {
				return err
			}
			book, err := node.book()
			if err != nil {
				return err
			}
			live := doctor.Live(nodefile.Store{Dir: node.stateDir, BootID: boot}, book, agentURL)
			live.Peers = peers
			var answers []doctor.Answer
			for a := range doctor.Run(cmd.Context(), live, checks) {
				answers = append(answers, a)
				if asJSON {
					continue
				}
				if err := doctor.WriteText(cmd.OutOrStdout(), a); err != nil {
					return cnierr.New(cnierr.IO, "write", "standard output", "", "%w", err)
				}
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), answers)
			} else {
				fmt.Fprintln(cmd.OutOrStdout(), "# "+doctor.Summary(answers))
			}
			if status := doctor.Status(answers); err == nil && status != 0 {
				return exitStatus(status)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&agentURL, "agent", "http://127.0.0.1:9482/healthz", "the `URL` at which rocectl agent tells its health")
	cmd.Flags().IntVar(&peers, "peers", 0, "check that the neighbour tables have room for this `NUMBER` of peers of each leased address (default: what is used now)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print as JSON")
	return cmd
}

// chosen returns the checks of these names, all for none.
func chosen(names []string) ([]doctor.Check, error) {
	all := doctor.Checks()
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c doctor.Check) bool { return c.Name == name }) {
			return nil, fmt.Errorf("check %q: there is none of this name", name)
		}
	}
	return slices.DeleteFunc(all, func(c doctor.Check) bool { return !slices.Contains(names, c.Name) }), nil
}

// listChecks returns a line for each check.
func listChecks() string {
	width := 0
	for _, c := range doctor.Checks() {
		width = max(width, len(c.Name))
	}
	var b strings.Builder
	b.WriteString("The checks are:\n")
	for _, c := range doctor.Checks() {
		fmt.Fprintf(&b, "\n  %-*s  %s", width, c.Name, c.Asks)
	}
	return b.String()
}
