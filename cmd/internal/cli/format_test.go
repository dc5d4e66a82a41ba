// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// TestOneResultInEachFormat prints two rows as a command with a table does, and a text as a
// command without one.
func TestOneResultInEachFormat(t *testing.T) {
	t.Parallel()
	type row struct {
		Pod string `json:"pod"`
		GID int    `json:"gid,omitempty"`
	}
	rows := []row{{"ml/trainer-0", 7}, {"c\x1b2", 0}}
	table := &cobra.Command{Use: "show"}
	var f Format
	f.RegisterTable(table)
	table.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.Print(cmd.OutOrStdout(), rows, func(w io.Writer) error {
			t := f.Table(w, []string{"POD", "GID"}, "AGE")
			for _, r := range rows {
				t.Row(r.Pod, r.GID, "1s")
			}
			t.Row("short")
			return t.Print()
		})
	}
	text := &cobra.Command{Use: "env"}
	var of Format
	of.Register(text)
	text.RunE = func(cmd *cobra.Command, _ []string) error {
		return of.Print(cmd.OutOrStdout(), rows, func(w io.Writer) error { _, err := fmt.Fprintln(w, "a text"); return err })
	}
	const asJSON = `[
  {
    "pod": "ml/trainer-0",
    "gid": 7
  },
  {
    "pod": "c\u001b2"
  }
]
`
	const asYAML = "- gid: 7\n  pod: ml/trainer-0\n- pod: \"c\\e2\"\n"
	for _, c := range []struct {
		cmd        *cobra.Command
		args, want string
	}{
		{table, "", "POD           GID\nml/trainer-0  7\nc?2           0\nshort\n"},
		{table, "-o wide", "POD           GID  AGE\nml/trainer-0  7    1s\nc?2           0    1s\nshort\n"},
		{table, "-owide --no-headers", "ml/trainer-0  7  1s\nc?2           0  1s\nshort\n"},
		{table, "-o json", asJSON},
		{table, "--output=yaml", asYAML},
		{text, "", "a text\n"},
		{text, "-o json", asJSON},
		{text, "-o yaml", asYAML},
		{table, "-o xml", `invalid argument "xml" for "-o, --output" flag: choose json, yaml or wide`},
		{text, "-o wide", `invalid argument "wide" for "-o, --output" flag: choose json or yaml`},
	} {
		var out strings.Builder
		root := &cobra.Command{Use: "rocectl", SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(c.cmd)
		root.SetOut(&out)
		root.SetArgs(append([]string{c.cmd.Name()}, strings.Fields(c.args)...))
		if err := root.Execute(); err != nil {
			out.WriteString(err.Error())
		}
		if diff := cmp.Diff(c.want, out.String()); diff != "" {
			t.Errorf("%s %s (-want +got)\n%s", c.cmd.Name(), c.args, diff)
		}
	}
}

// TestADocumentThatCannotBeWrittenIsAnError in each format: a script must not take an empty file
// for an empty result.
func TestADocumentThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, name := range []string{"", "json", "yaml"} {
		err := Format{Name: name}.Print(full, []int{1}, func(w io.Writer) error { _, err := fmt.Fprintln(w, "a text"); return err })
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("-o %s: %v", name, err)
		}
	}
}
