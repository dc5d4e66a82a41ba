// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// device returns the RDMA device behind the parent, nil if no RDMA work is
// asked for. Errors are those of rdma.Subsystem.Facts, and RDMAHeld when
// another attachment of this node has the device.
func (n Node) device(ctx context.Context, r RDMA, req conf.Request, rail conf.Rail, parent plan.Link) (*plan.RDMA, error) {
	if req.RDMA.Mode == conf.RDMAOff {
		return nil, nil
	}
	found, err := r.Facts(ctx, req.RDMA, parent, parent.InPod || req.LinkInContainer)
	if errors.Is(err, rdma.ErrNoDevice) {
		return nil, cmp.Or(n.heldByPod(parent, rail.Parent.RDMA), err)
	}
	if err != nil {
		return nil, err
	}
	return &found, nil
}

// hasPlace is RDMA.HasPlace for the device of a rail, if the request waits for GIDs in the
// table of the host; nil is no device.
func hasPlace(r RDMA, req conf.Request, device *plan.RDMA) error {
	if device == nil || req.RDMA.GID != conf.Require || req.LinkInContainer {
		return nil
	}
	return r.HasPlace(device.Device)
}

// heldByPod returns an error that names the attachment to which the RDMA device of a
// parent, or the one that was selected by its name, was moved; nil if there is none.
// A link in a pod may have the same name as the parent and be another link.
func (n Node) heldByPod(parent plan.Link, selected string) error {
	var owner record.Record
	var has plan.Move
	for rec, m := range n.moves() {
		d := m.Device
		same := parent.OnNode() != "" && m.Parent == parent.OnNode() ||
			parent.Device != "" && (d.PCI == parent.Device || d.Auxiliary == parent.Device) ||
			selected != "" && d.Name == selected
		if same && rec.Saved >= owner.Saved {
			owner, has = rec, m
		}
	}
	if owner.ContainerID == "" {
		return nil
	}
	return cnierr.New(cnierr.RDMAHeld, "move RDMA device", has.Device.Name,
		"delete the pod that has it (in exclusive mode, each RDMA device serves one interface of one pod), or use the shared mode: rdma system set netns shared, which works only while no other network namespace exists",
		"%s has it, for its interface %q", owner.Who(), owner.IfName)
}

// moves returns each recorded move of an RDMA device. It skips a record that cannot be
// read.
func (n Node) moves() iter.Seq2[record.Record, plan.Move] {
	return func(yield func(record.Record, plan.Move) bool) {
		for rec, err := range n.Records.All() {
			if err != nil {
				continue
			}
			for m := range plan.All[plan.Move](rec.Plan.Ops) {
				if !yield(rec, m) {
					return
				}
			}
		}
	}
}

// withoutMoved returns the operations of a record without the moves of devices that
// another attachment has since then. The kernel moves a device back when its namespace
// ends, so the next pod may have it before the DEL of the last one.
func (n Node) withoutMoved(rec record.Record) plan.Ops {
	if !slices.ContainsFunc(rec.Plan.Ops, plan.Is[plan.Move]) {
		return rec.Plan.Ops
	}
	lost := map[plan.RDMADevice]bool{}
	for other, m := range n.moves() {
		if other.Saved > rec.Saved {
			lost[identity(m)] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(rec.Plan.Ops), func(op plan.Op) bool {
		m, ok := op.Kind.(plan.Move)
		return ok && lost[identity(m)]
	})
}

// identity returns the part of a recorded device that stays the same, also if a pod renames
// it, or its driver makes it again.
func identity(m plan.Move) plan.RDMADevice {
	return plan.RDMADevice{Name: m.Device.Name, GUID: m.Device.GUID, PCI: m.Device.PCI, Auxiliary: m.Device.Auxiliary}
}

// statusMode returns an error if the request names a mode and the node has the other
// one.
func (n Node) statusMode(ctx context.Context, req conf.Request) error {
	if req.RDMA.Mode != conf.RDMAShared && req.RDMA.Mode != conf.RDMAExclusive {
		return nil
	}
	r := n.Machine.RDMA("", nil)
	defer r.Close()
	return r.Mode(ctx, req.RDMA.Mode)
}
