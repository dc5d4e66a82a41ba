// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Package report colours what goes to a file that is a terminal.
func TestWithoutColoursTheOutputIsNoFile(t *testing.T) {
	for _, noColor := range []string{"", "1"} {
		t.Setenv("NO_COLOR", noColor)
		if _, isFile := Output(os.Stdout).(*os.File); isFile != (noColor == "") {
			t.Errorf("NO_COLOR=%q: the output is a file: %v", noColor, isFile)
		}
	}
}

// TestAUserIsToldHowACallEnded: each error has its hint and goes to standard error, and scripts see the
// status. A call without a command, or for the version, is none with an error.
func TestAUserIsToldHowACallEnded(t *testing.T) {
	t.Parallel()
	bad := func(of string) error { return cnierr.New(cnierr.BadConfig, "read", of, "write\x1b\n"+of, "no") }
	const said = "rocectl[7] read \"%s\": no\nhint: write?\n%[1]s\n"
	for _, c := range []struct {
		args   string
		err    error
		status int
		errOut string
	}{
		{args: ""},
		{args: "--version"},
		{args: "pool --help"},
		{args: "pool list"},
		{args: "pool list", err: StatusError(3), status: 3},
		{
			args: "pool list",
			err:  errors.Join(bad("a"), StatusError(2), errors.Join(bad("b"), errors.New("c"))), status: 2,
			errOut: fmt.Sprintf(said, "a") + fmt.Sprintf(said, "b") + "rocectl: c\nhint: rocectl pool list --help shows the usage\n",
		},
		{args: "pool list", err: bad("a"), status: 1, errOut: fmt.Sprintf(said, "a")},
		{args: "pool", status: 1, errOut: "rocectl: \"rocectl pool\" needs the name of a command\nhint: rocectl pool --help shows the usage\n"},
		{args: "pool lst x", status: 1, errOut: "rocectl: unknown command \"lst\" for \"rocectl pool\"\nDid you mean this?\n\tlist\nhint: rocectl pool --help shows the usage\n"},
		{args: "pool release", status: 1, errOut: "rocectl: unknown command \"release\" for \"rocectl pool\"\nhint: rocectl pool --help shows the usage\n"},
		{args: "pol", status: 1, errOut: "rocectl: unknown command \"pol\" for \"rocectl\"\nDid you mean this?\n\tpool\nhint: rocectl --help shows the usage\n"},
	} {
		var out, errOut strings.Builder
		root := &cobra.Command{Use: "rocectl", Version: "v1", SilenceErrors: true, SilenceUsage: true}
		pool := &cobra.Command{Use: "pool"}
		pool.AddCommand(&cobra.Command{Use: "list", RunE: func(*cobra.Command, []string) error { return c.err }})
		root.AddCommand(pool)
		root.SetOut(&out)
		root.SetErr(&errOut)
		root.SetArgs(append([]string{}, strings.Fields(c.args)...)) // nil would be the test's own
		status := Run(root)
		if diff := cmp.Diff(c.errOut, errOut.String()); status != c.status || diff != "" {
			t.Errorf("%q: status %d, want %d (-want +got)\n%s", c.args, status, c.status, diff)
		}
		if c.args == "--version" && out.String() != "rocectl v1\n" || c.args == "" && !strings.Contains(out.String(), "pool") {
			t.Errorf("%q prints %q", c.args, out.String())
		}
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	if err := Wait(t.Context(), time.Nanosecond); err != nil {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := Wait(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
