// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"context"
	"errors"
	"slices"
)

// Nodes is the Node objects there are: for each name the machine-id that it
// reports (status.nodeInfo.machineID), "" while it reports none.
type Nodes map[string]string

// OwnerState is what has become of the owner of a block.
type OwnerState string

// The states of an owner. A machine that was Replaced was installed anew, or has got another
// machine-id, under the name that it had: its Node object reports another one.
const (
	Here     OwnerState = "here"
	Gone     OwnerState = "gone"
	Replaced OwnerState = "replaced"
)

// Owner says what has become of the owner of a block. A Node object that reports
// no machine-id may be the owner's.
func (n Nodes) Owner(owner Spec) OwnerState {
	machine, there := n[owner.NodeName]
	switch {
	case !there:
		return Gone
	case machine != "" && machine != owner.MachineID:
		return Replaced
	}
	return Here
}

// Missing returns the names under which there are blocks and no Node object, in
// order: those of which Look must know whether pods are bound to them.
func (n Nodes) Missing(blocks []Block) []string {
	var out []string
	for _, b := range blocks {
		if n.Owner(b.Spec) == Gone {
			out = append(out, b.Spec.NodeName)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// OwnerNow asks what has become of an owner; machine is Claimer's. The errors are
// machine's.
func OwnerNow(ctx context.Context, machine func(ctx context.Context, node string) (string, error), owner Spec) (OwnerState, error) {
	id, err := machine(ctx, owner.NodeName)
	switch {
	case errors.Is(err, ErrNotFound):
		return Gone, nil
	case err != nil:
		return Here, err
	}
	return Nodes{owner.NodeName: id}.Owner(owner), nil
}
