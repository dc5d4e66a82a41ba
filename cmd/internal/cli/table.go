// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Table aligns the cells of rows. An empty cell is a dash. A pod, a NIC or another host may
// have chosen words of a cell, so only what a terminal does not obey is printed.
type Table struct {
	w       *tabwriter.Writer
	columns int
}

// NewTable returns a table with these heads of its columns.
func NewTable(w io.Writer, heads ...string) Table { return Format{}.Table(w, heads) }

// Row adds a row, which may be shorter than others. Cells without a column are left out.
func (t Table) Row(cells ...any) {
	row := make([]string, min(len(cells), t.columns))
	for i := range row {
		row[i] = cmp.Or(report.Printable(fmt.Sprint(cells[i])), "-")
	}
	t.line(row)
}

func (t Table) line(cells []string) { fmt.Fprintln(t.w, strings.Join(cells, "\t")) }

// Print prints the table: it needs all rows to align them.
func (t Table) Print() error { return Written(t.w.Flush()) }

// Written returns an error about what could not be printed; nil for nil.
func Written(err error) error {
	if err != nil {
		return cnierr.New(cnierr.IO, "write", "standard output", "", "%w", err)
	}
	return nil
}
