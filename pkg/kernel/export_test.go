// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plan"
)

// CreateAside is what Do falls back to on kernels before 6.15.
func (k *Kernel) CreateAside(ctx context.Context, op plan.Macvlan) error {
	m := macvlan{k, op}
	parents, err := macvlans{m}.parents(ctx, adding)
	if err != nil {
		return err
	}
	return m.createAside(ctx, parents[0])
}

// GoneUnless is what Open makes of the error about a path.
func GoneUnless(err error) error { return goneUnless(err) }

// RemoveTogether removes the links of these names as a group, chosen without a
// look at the groups that there are.
func (k *Kernel) RemoveTogether(ctx context.Context, names ...string) (together bool, err error) {
	var doomed []rtnl.Link
	for _, n := range k.pod.LinksByName(ctx, names...) {
		doomed = append(doomed, n.Link)
	}
	return removeTogether(ctx, k.pod, doomed, nil), remove(ctx, k.pod, doomed, nil)
}
