// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Remade is a port of a shared RDMA device that was made again since ADD, as a reset of
// the NIC does. The entries of its pods came back in another order, so some pods have
// other GID indexes.
type Remade struct {
	Device plan.RDMADevice // as it is now
	Pods   []conf.Attachment
	moved  bool // a pod has another index
}

// String returns the port as rdma link calls it.
func (r Remade) String() string { return fmt.Sprintf("%s/%d", r.Device.Name, r.Device.Port) }

// Remade returns the ports of the node on which a pod has another GID index because the
// device was made again. It changes nothing. An attachment that cannot be looked at is left
// out: its own repair says why.
func (n Node) Remade(ctx context.Context) []Remade {
	var all []Remade
	for rec, err := range n.Records.All() {
		if err != nil {
			continue
		}
		_ = n.standing(ctx, rec.Attachment, "", func(pod *pod, rec record.Record) error {
			for _, op := range rec.Plan.Ops {
				g, is := op.Kind.(plan.GID)
				if !is || !pod.remade[g.Device] {
					continue
				}
				i := slices.IndexFunc(all, func(r Remade) bool { return samePort(r.Device, g.Device) })
				if i < 0 {
					i, all = len(all), append(all, Remade{Device: g.Device})
				}
				all[i].Pods = append(all[i].Pods, rec.Attachment)
				var was *rdma.MovedError
				all[i].moved = errors.As(pod.Check(ctx, op), &was) || all[i].moved
			}
			return nil
		})
	}
	return slices.DeleteFunc(all, func(r Remade) bool { return !r.moved })
}

func samePort(a, b plan.RDMADevice) bool { return a.Index == b.Index && a.Port == b.Port }

// Clear takes the addresses of all pods, and the fillers of the node, off a port that was made
// again. Each pod may sit at the index of another one, so only then Repair can give each its
// own. What used the indexes ended with the device. Errors: RDMAHeld if programs use the
// device again.
func (n Node) Clear(ctx context.Context, r Remade) error {
	const action = "set GID indexes again on"
	host := n.Machine.RDMA("", nil)
	defer host.Close()
	users, err := host.Users(ctx, plan.OnHost(plan.Port{Device: r.Device}), netns.ID{})
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return cnierr.New(cnierr.RDMAHeld, action, r.String(), "end the programs and repeat the command, or delete the pods with other indexes",
			"it was made again, and programs use it since: %s", strings.Join(users, ", "))
	}
	release, err := n.Records.LockGIDs(ctx)
	if err != nil {
		return err
	}
	defer release()
	errs := []error{n.clearFillers(ctx, r.Device)}
	for _, at := range r.Pods {
		errs = append(errs, n.standing(ctx, at, "", func(pod *pod, rec record.Record) error {
			return pod.Kernel.Undo(ctx, addressesOn(rec.Plan.Ops, r.Device)...)
		}))
	}
	return errors.Join(errs...)
}

// addressesOn returns the operations that set the addresses with entries on a port.
func addressesOn(ops plan.Ops, d plan.RDMADevice) plan.Ops {
	return slices.DeleteFunc(slices.Clone(ops), func(op plan.Op) bool {
		a, is := op.Kind.(plan.Address)
		for g := range plan.All[plan.GID](ops) {
			if is && samePort(g.Device, d) && slices.ContainsFunc(g.Targets, func(t plan.GIDTarget) bool { return t.Link == a.Link && t.Addr == a.Prefix.Addr() }) {
				return false
			}
		}
		return true
	})
}
