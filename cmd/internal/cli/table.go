// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Table aligns the cells of rows. An empty cell is a dash. A pod, a NIC or another host may
// have chosen words of a cell, so only what a terminal does not obey is printed.
type Table struct{ w *tabwriter.Writer }

// NewTable returns a table with these heads of its columns.
func NewTable(w io.Writer, heads ...string) Table {
	t := Table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	fmt.Fprintln(t.w, strings.Join(heads, "\t"))
	return t
}

// Row adds a row, which may be shorter than others.
func (t Table) Row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = cmp.Or(report.Printable(fmt.Sprint(c)), "-")
	}
	fmt.Fprintln(t.w, strings.Join(row, "\t"))
}

// Print prints the table: it needs all rows to align them.
func (t Table) Print() error { return written(t.w.Flush()) }

// JSON prints one document.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return written(e.Encode(v))
}

func written(err error) error {
	if err != nil {
		return cnierr.New(cnierr.IO, "write", "standard output", "", "%w", err)
	}
	return nil
}
