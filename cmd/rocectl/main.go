// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program rocectl is the operator's tool: it shows what an ADD would do,
// what was done on this node, which addresses are leased, and what an error
// means.
//
// Each command is one file of this folder.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
)

// version is set by the linker.
var version = "devel"

func main() {
	if err := root(os.Stdout, os.Stderr).Execute(); err != nil {
		printError(os.Stderr, err)
		os.Exit(1)
	}
}

func root(out, errOut io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use:           "rocectl",
		Short:         "Look after the RoCE attachments of this node's pods",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	cmd.CompletionOptions.HiddenDefaultCmd = true
	node := &nodeFlags{}
	cmd.PersistentFlags().StringVar(&node.stateDir, "state-dir", conf.DefaultStateDir, "folder of records and leases, as stateDir of the networks says")
	cmd.AddCommand(planCommand(node), showCommand(node), poolCommand(node), explainCommand())
	return cmd
}

// nodeFlags are the flags of all commands that look at this node.
type nodeFlags struct{ stateDir string }

// printError prints an error and its hint: lower case, no full stop, the
// program's name and the code first, as the plugin does.
func printError(w io.Writer, err error) {
	var e *cnierr.Error
	if !errors.As(err, &e) {
		fmt.Fprintf(w, "rocectl: %v\n", err)
		return
	}
	c := cnierr.CNI("rocectl", err)
	fmt.Fprintf(w, "%s\nhint: %s\n", c.Msg, c.Details)
}
