// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [CODE]",
		Short: "Explain an error code, and what to do",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				for _, e := range cnierr.Table() {
					explain(cmd.OutOrStdout(), e)
				}
				return nil
			}
			code, err := strconv.ParseUint(args[0], 10, 32)
			if err != nil {
				return fmt.Errorf("code %q: not a number; the number is in the brackets of the message, as in roce[101]", args[0])
			}
			explain(cmd.OutOrStdout(), cnierr.Explain(cnierr.Code(code)))
			return nil
		},
	}
}

func explain(w io.Writer, e cnierr.Entry) {
	fmt.Fprintf(w, "%d  %s\n     %s\n", e.Code, e.Summary, e.Remedy)
}
