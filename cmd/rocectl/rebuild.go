// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/roce-cni/roce-cni/pkg/attach"
	"github.com/roce-cni/roce-cni/pkg/ipam"
	"github.com/roce-cni/roce-cni/pkg/kernel/nsscan"
	"github.com/roce-cni/roce-cni/pkg/rebuild"
)

// repairLeases rebuilds the lease database if it is damaged, or only says what
// that would do, and returns whether it is.
func repairLeases(ctx context.Context, w io.Writer, node attach.Node, yes bool) (damaged bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n := rebuild.Node{
		Book: node.Addresses.Book, Records: node.Records,
		Scan: func(ctx context.Context) (nsscan.Result, error) { return nsscan.Scan(ctx, "/proc", os.DirFS("/sys")) },
	}
	do, says := n.Plan, "--yes rebuilds it, and then checks the attachments"
	if yes {
		do, says = n.Do, "rebuilt"
	}
	r, err := do(ctx)
	if err != nil || r.Why == nil {
		return false, err
	}
	fmt.Fprintf(w, "# lease database: %v: %s\n# the damaged file is kept as %s; %d network namespaces were read\n", r.Why, says, r.Kept, r.Looked)
	if r.Hidden > 0 {
		fmt.Fprintf(w, "# %d processes cannot be looked at: addresses in their namespaces may be leased again; run as root on the node itself\n", r.Hidden)
	}
	return true, writeFindings(w, r.Entries)
}

// writeFindings prints what a rebuilt database has.
func writeFindings(w io.Writer, found []ipam.Finding) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "# POOL\tADDRESS\tSTATE\tOF\tINTERFACE\tKNOWN FROM")
	for _, f := range found {
		fmt.Fprintf(t, "# %s\t%s\t%s\t%s\t%s\t%s\n", f.Pool, f.Addr, f.State, f.Owner, f.Owner.IfName, f.From)
	}
	return t.Flush()
}
