// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package cli runs the programs that have commands and flags: it prints their errors with
// hints, and knows the exit status. table.go has the form of what they print.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// StatusError is an error without a message, because it is already printed: the program ends
// with this exit status.
type StatusError int

func (s StatusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Wait returns after d, or with the context's error when that ends.
func Wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// Output returns the standard output. With $NO_COLOR (no-color.org) it is no terminal for
// package report.
func Output(stdout *os.File) io.Writer {
	if os.Getenv("NO_COLOR") != "" {
		return struct{ io.Writer }{stdout}
	}
	return stdout
}

// Run runs the command that the user called, prints its error where root prints errors,
// and returns the exit status. Root prints neither errors nor usage itself.
func Run(root *cobra.Command) int {
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetVersionTemplate("{{.DisplayName}} {{.Version}}\n")
	called, err := root.ExecuteC()
	if err == nil && called.HasParent() && !called.Runnable() && !called.Flags().Changed("help") {
		err = unknownVerb(called) // cobra has printed the help
	}
	if err == nil {
		return 0
	}
	PrintError(root.ErrOrStderr(), called, err)
	status := StatusError(1)
	_ = errors.As(err, &status)
	return int(status)
}

// unknownVerb is the error of a command that does nothing without the name of another one.
func unknownVerb(called *cobra.Command) error {
	args := called.Flags().Args()
	if len(args) == 0 {
		return fmt.Errorf("%q needs the name of a command", called.CommandPath())
	}
	suggestions := ""
	called.SuggestionsMinimumDistance = 2 // as cobra has it for a command of the root
	if like := called.SuggestionsFor(args[0]); len(like) > 0 {
		suggestions = "\nDid you mean this?\n\t" + strings.Join(like, "\n\t")
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], called.CommandPath(), suggestions)
}

// PrintError prints an error of a command and its hint. It prints each of several joined
// errors, but no StatusError.
func PrintError(w io.Writer, called *cobra.Command, err error) {
	program := called.Root().Name()
	for _, err := range cnierr.Each(err) {
		if errors.As(err, new(StatusError)) {
			continue
		}
		if !errors.As(err, new(*cnierr.Error)) {
			text := fmt.Sprintf("%s: %v\nhint: %s --help shows the usage\n", program, err, called.CommandPath())
			for line := range strings.Lines(text) {
				if line != "\n" { // cobra has some around its suggestions
					fmt.Fprint(w, line)
				}
			}
			continue
		}
		c := cnierr.CNI(program, err)
		for line := range strings.Lines(c.Msg + "\nhint: " + c.Details + "\n") {
			fmt.Fprintln(w, report.Printable(strings.TrimSuffix(line, "\n"))) // a pod may have chosen names in it
		}
	}
}
