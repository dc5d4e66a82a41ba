// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Format is the form in which a command prints its result: -o and --no-headers, as kubectl
// has them.
type Format struct {
	// Name is "" for a text for people, or "wide", "json" or "yaml".
	Name string
	// NoHeaders leaves out the heads of tables.
	NoHeaders bool
}

// Register adds -o to a command that prints a text.
func (f *Format) Register(cmd *cobra.Command) { f.register(cmd, "json", "yaml") }

// RegisterTable adds -o and --no-headers to a command that prints tables.
func (f *Format) RegisterTable(cmd *cobra.Command) {
	f.register(cmd, "json", "yaml", "wide")
	cmd.Flags().BoolVar(&f.NoHeaders, "no-headers", false, "print tables without the names of the columns")
}

func (f *Format) register(cmd *cobra.Command, known ...string) {
	value := choice{&f.Name, known}
	cmd.Flags().VarP(value, "output", "o", "print in this `FORMAT`: "+value.all())
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(known, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// Document says whether the result is a document for programs.
func (f Format) Document() bool { return f.Name == "json" || f.Name == "yaml" }

// Print prints v as one document if -o asks for it, and otherwise what text prints.
func (f Format) Print(w io.Writer, v any, text func(io.Writer) error) error {
	if !f.Document() {
		return text(w)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	b = append(b, '\n')
	if err == nil && f.Name == "yaml" {
		b, err = yaml.JSONToYAML(b)
	}
	if err == nil {
		_, err = w.Write(b)
	}
	return Written(err)
}

// Table returns a table with these columns, and with the wide ones behind them if -o asks for
// them. A row has the cells of all.
func (f Format) Table(w io.Writer, heads []string, wide ...string) Table {
	if f.Name == "wide" {
		heads = slices.Concat(heads, wide)
	}
	t := Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0), len(heads)}
	if !f.NoHeaders {
		t.line(heads)
	}
	return t
}

// Rows prints values as one document if -o asks for it, and otherwise as a table: row returns the
// cells of one.
func Rows[T any](f Format, w io.Writer, all []T, row func(T) []any, heads []string, wide ...string) error {
	return f.Print(w, all, func(w io.Writer) error {
		t := f.Table(w, heads, wide...)
		for _, one := range all {
			t.Row(row(one)...)
		}
		return t.Print()
	})
}

// choice is a flag that has one of some values. It implements pflag.Value.
type choice struct {
	value *string
	known []string
}

func (c choice) String() string { return *c.value }

func (choice) Type() string { return "string" }

func (c choice) Set(name string) error {
	if !slices.Contains(c.known, name) {
		return fmt.Errorf("choose %s", c.all())
	}
	*c.value = name
	return nil
}

func (c choice) all() string {
	last := len(c.known) - 1
	return strings.Join(c.known[:last], ", ") + " or " + c.known[last]
}
