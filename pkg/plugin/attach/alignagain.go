// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// returning inserts, behind the lost addresses, an alignment that gives them the GID
// indexes that ADD found, because the programs of the pod use these. It does so for
// shared devices: a device in the pod has only the pod's entries. Other addresses of the
// pod stay as they are.
func returning(recorded, lost plan.Ops) plan.Ops {
	var rails []plan.AlignRail
	for _, op := range recorded {
		g, ok := op.Kind.(plan.GID)
		if !ok || op.Place != plan.Host {
			continue
		}
		if r := returningRail(g, lost); len(r.Addresses) > 0 {
			rails = append(rails, r)
		}
	}
	if len(rails) == 0 {
		return lost
	}
	behind := len(lost)
	for !isAddress(lost[behind-1]) {
		behind--
	}
	return slices.Insert(slices.Clone(lost), behind, plan.InPod(plan.Align{Index: conf.AnyIndex, Rails: rails})...)
}

func isAddress(op plan.Op) bool { _, ok := op.Kind.(plan.Address); return ok }

func isAlign(op plan.Op) bool { _, ok := op.Kind.(plan.Align); return ok }

// returningRail returns the lost addresses of an interface, in the order of their
// indexes: the kernel gives each the lowest index that is free.
func returningRail(g plan.GID, lost plan.Ops) plan.AlignRail {
	r := plan.AlignRail{Link: g.Targets[0].Link, Device: g.Device, Wait: g.Wait}
	targets := slices.SortedFunc(slices.Values(g.Targets), func(a, b plan.GIDTarget) int { return cmp.Compare(index(a), index(b)) })
	for _, t := range targets {
		for a := range plan.All[plan.Address](lost) {
			if t.Index != nil && a.Link == t.Link && a.Prefix.Addr() == t.Addr {
				r.Addresses, r.At = append(r.Addresses, a.Prefix), append(r.At, *t.Index)
			}
		}
	}
	return r
}

func index(t plan.GIDTarget) int {
	if t.Index == nil {
		return -1
	}
	return *t.Index
}

// restore gives each address its former index, as far as that is free. The check that
// ends a repair reports the other ones, so an index that is not free is no error here.
// The addresses are set in any case.
func (a aligner) restore(ctx context.Context, rails []plan.AlignRail) error {
	var errs []error
	for _, r := range rails {
		f := &filling{AlignRail: r, at: make([]int, len(r.Addresses))}
		err := a.locate(ctx, f, 0, nil)
		for i := 0; err == nil && i < len(r.At); i++ {
			if f.at[i] < r.At[i] {
				err = a.raise(ctx, []*filling{f}, i, r.At[i])
			}
		}
		if code := cnierr.CodeOf(err); code == cnierr.NoGID || code == cnierr.NoRDMA {
			err = nil
		}
		errs = append(errs, err, a.empty(ctx, []*filling{f}), a.Kernel.Do(ctx, f.set(0)...))
	}
	return errors.Join(errs...)
}
