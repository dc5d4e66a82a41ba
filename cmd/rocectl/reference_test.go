// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestReferencePageIsCurrent compares docs/rocectl.md with the help texts of
// the commands.
func TestReferencePageIsCurrent(t *testing.T) {
	t.Parallel()
	equalsFile(t, filepath.Join("..", "..", "docs", "rocectl.md"), reference())
}

func reference() string {
	cmd := root(io.Discard, io.Discard)
	var b strings.Builder
	fmt.Fprintf(&b, `# rocectl

<!-- made by make gen from cmd/rocectl -->

%s. Each command prints the same text with --help.
Errors are explained by `+"`rocectl explain CODE`"+` and in [errors.md](errors.md).
`, cmd.Short)
	for _, g := range cmd.Groups() {
		var links []string
		for _, c := range cmd.Commands() {
			if c.GroupID == g.ID {
				links = append(links, linksTo(c)...)
			}
		}
		fmt.Fprintf(&b, "\n- %s\n  %s", g.Title, strings.Join(links, ",\n  "))
	}
	b.WriteString("\n")
	describe(&b, cmd)
	return b.String()
}

// linksTo returns links to the sections of a command, or of the ones that it groups.
func linksTo(cmd *cobra.Command) []string {
	if cmd.Runnable() {
		path := cmd.CommandPath()
		return []string{fmt.Sprintf("[%s](#%s)", strings.TrimPrefix(path, "rocectl "), strings.ReplaceAll(path, " ", "-"))}
	}
	var links []string
	for _, c := range cmd.Commands() {
		links = append(links, linksTo(c)...)
	}
	return links
}

// describe writes a section for each command below cmd that does something.
func describe(b *strings.Builder, cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		if !c.Runnable() {
			describe(b, c)
			continue
		}
		fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
		b.WriteString(indented("  " + strings.TrimSuffix(c.UseLine(), " [flags]") + "\n"))
		fmt.Fprintf(b, "\n%s\n", cmp.Or(c.Long, c.Short+"."))
		if flags := c.LocalNonPersistentFlags(); flags.HasFlags() {
			fmt.Fprintf(b, "\n%s", indented(flags.FlagUsages()))
		}
		if c.Example != "" {
			fmt.Fprintf(b, "\nFor example:\n\n%s", indented(c.Example+"\n"))
		}
		describe(b, c)
	}
}

// indented makes lines the code of a Markdown document.
func indented(lines string) string {
	var b strings.Builder
	for line := range strings.Lines(lines) {
		b.WriteString("  " + line) // two blanks of cobra's are there
	}
	return b.String()
}

// TestCommandsRefuseMoreArgumentsThanTheyTake: a second pod, or a flag without its dashes, is not ignored.
func TestCommandsRefuseMoreArgumentsThanTheyTake(t *testing.T) {
	t.Parallel()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		takesMany := strings.Contains(cmd.Use, "...") || cmd.Hidden
		if cmd.Runnable() && !takesMany && cmd.ValidateArgs([]string{"a", "b", "c"}) == nil {
			t.Errorf("%s takes three arguments", cmd.UseLine())
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(root(io.Discard, io.Discard))
}
