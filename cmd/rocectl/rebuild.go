// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// repairLeases rebuilds the lease database if it is damaged, or only says what that
// would do. It returns whether the database is damaged. It rebuilds nothing where it
// would not see the namespaces of the pods.
func repairLeases(ctx context.Context, w io.Writer, node attach.Node, yes bool) (damaged bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n := repair.Node{
		Leases:  ledger.Store{Dir: node.Records.Dir, BootID: node.Records.BootID, Now: node.Now},
		Records: node.Records,
		Scan:    func(ctx context.Context) (repair.Found, error) { return repair.Scan(ctx, "/proc") },
	}
	do, says := n.Plan, "--yes rebuilds it, and then checks the attachments"
	hidden := hiddenPod(node.Records)
	switch {
	case hidden != nil:
		says = "cannot tell which addresses pods have: " + findingLine(hidden)
	case yes:
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
	if err := writeRebuilt(w, r); err != nil || hidden == nil {
		return true, err
	}
	return true, cli.StatusError(unknownStatus)
}

// hiddenPod returns an error if this process would not see the namespace of one of the
// attachments.
func hiddenPod(records record.Store) error {
	for rec, err := range records.All() {
		if err != nil || ended(rec) { // the rebuild reports it
			continue
		}
		if err := visible(rec); err != nil {
			return err
		}
	}
	return nil
}

// writeRebuilt prints what a rebuilt database has.
func writeRebuilt(w io.Writer, r repair.Rebuilt) error {
	t := cli.NewTable(w, "# POOL", "ADDRESS", "STATE", "OF", "INTERFACE", "KNOWN FROM")
	for _, h := range r.Leased {
		for _, p := range h.Places {
			t.Row("# "+p.Pool, p.Addr, ledger.Leased, h.Owner, h.Owner.IfName, "its record")
		}
	}
	for _, a := range r.Aside {
		t.Row("# -", a.Addr, ledger.SetAside, a.Owner, a.Owner.IfName, "its namespace")
	}
	return t.Print()
}
