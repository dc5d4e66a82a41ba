// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// CreateAside is what Do falls back to on kernels before 6.15.
func (k *Kernel) CreateAside(ctx context.Context, op plan.Child) error {
	m := child{namespace{Kernel: k, conn: k.pod}, op}
	parents, err := children{m}.parents(ctx, m.doing("add"))
	if err != nil {
		return err
	}
	return m.createAside(ctx, parents[0])
}
