// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"slices"
)

// Nodes has all Node objects: for each name the machine-id that it reports
// (status.nodeInfo.machineID), "" while it reports none.
type Nodes map[string]string

// OwnerState is the state of the owner of a block.
type OwnerState string

// The states of an owner. Replaced: the machine was installed again or got another
// machine-id, and has the same name. Its Node object reports another machine-id than
// the block.
const (
	Here     OwnerState = "here"
	Gone     OwnerState = "gone"
	Replaced OwnerState = "replaced"
)

// Owner returns the state of the owner of a block. A Node object without machine-id
// may be that of the owner.
func (n Nodes) Owner(owner Owner) OwnerState {
	machine, there := n[owner.NodeName]
	switch {
	case !there:
		return Gone
	case machine != "" && machine != owner.MachineID:
		return Replaced
	}
	return Here
}

// Abandoned says whether an owner is gone with all its pods, or was replaced. A replaced
// machine runs none of its old pods: pods that are bound to its name are those of the new
// machine. bound has the names of Missing that pods are bound to. If there are no nodes at
// all, the list is probably wrong, and no owner is abandoned.
func (n Nodes) Abandoned(owner Owner, bound map[string]bool) bool {
	state := n.Owner(owner)
	return len(n) > 0 && (state == Replaced || state == Gone && !bound[owner.NodeName])
}

// Owners returns the owners of blocks.
func Owners(blocks []Block) (out []Owner) {
	for _, b := range blocks {
		out = append(out, b.Spec.Owner)
	}
	return out
}

// Missing returns the names of owners without a Node object, in order. Look must know
// whether pods are bound to these names.
func (n Nodes) Missing(owners []Owner) []string {
	var out []string
	for _, o := range owners {
		if n.Owner(o) == Gone {
			out = append(out, o.NodeName)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// OwnerNow asks for the state of an owner. machine is Claimer.Machine. The errors are
// those of machine.
func OwnerNow(ctx context.Context, machine func(ctx context.Context, node string) (string, error), owner Owner) (OwnerState, error) {
	id, err := machine(ctx, owner.NodeName)
	switch {
	case errors.Is(err, ErrNotFound):
		return Gone, nil
	case err != nil:
		return Here, err
	}
	return Nodes{owner.NodeName: id}.Owner(owner), nil
}
