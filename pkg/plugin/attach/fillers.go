// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/align"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// fillers is the namespace of the node's fillers (plan.Align), which is opened when it is
// needed. Who changes something there holds the lock of the GID tables.
type fillers struct {
	machine Machine
	path    string
	kernel  Kernel // nil: not open
	rdma    RDMA
}

// side implements align.Aligner.Node.
func (f *fillers) side(make bool) (*align.Side, error) {
	if f.kernel != nil {
		return &align.Side{Kernel: f.kernel, Tables: f.rdma}, nil
	}
	k, err := f.machine.Open(f.path)
	if errors.Is(err, kernel.ErrNetnsGone) {
		if !make {
			return nil, nil
		}
		if err := f.machine.MakeNetns(f.path); err != nil {
			return nil, err
		}
		k, err = f.machine.Open(f.path)
	}
	if err != nil {
		return nil, err
	}
	f.kernel, f.rdma = k, f.machine.RDMA(f.path, k.Enter)
	return &align.Side{Kernel: f.kernel, Tables: f.rdma}, nil
}

func (f *fillers) close() {
	if f.kernel != nil {
		f.rdma.Close()
		f.kernel.Close()
		f.kernel = nil
	}
}

// drop deletes the record of an attachment that is gone. If the settings of the node say so,
// the node's fillers go with the last one that needs them. The attachment is gone in any case,
// and its next DEL would not look for fillers, so an error about them is only logged.
func (n Node) drop(ctx context.Context, rec record.Record) error {
	if err := n.Records.Delete(rec.Attachment); err != nil || !n.RemoveFillers || !needsFillers(rec) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLockTime)
	defer cancel()
	if err := n.removeFillers(ctx); err != nil {
		n.Log.Warn("the fillers of the GID tables stay", "error", err)
	}
	return nil
}

// removeFillers removes the node's fillers unless an attachment needs them. The record of an
// attachment is older than its first filler, so none that is being made is missed.
func (n Node) removeFillers(ctx context.Context) error {
	release, err := n.Records.LockGIDs(ctx)
	if err != nil {
		return err
	}
	defer release()
	for rec, err := range n.Records.All() {
		if err != nil || needsFillers(rec) {
			return nil //nolint:nilerr // a record that cannot be read may be of such an attachment
		}
	}
	return n.Machine.RemoveNetns(n.Fillers)
}

func needsFillers(rec record.Record) bool {
	for range plan.All[plan.Align](rec.Plan.Ops) {
		return true
	}
	return false
}

// clearFillers removes the fillers of a port that was made again: one may be at the index of
// a pod. The next attachments make the indexes equal again.
func (n Node) clearFillers(ctx context.Context, d plan.RDMADevice) error {
	f := fillers{machine: n.Machine, path: n.Fillers}
	defer f.close()
	node, err := f.side(false)
	if err != nil || node == nil {
		return err
	}
	return align.Clear(ctx, *node, d)
}
