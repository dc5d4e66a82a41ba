// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"

	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
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

// Unused is about a link of the host. Undo asks it of VLANs, which not every kernel has.
func (k *Kernel) Unused(ctx context.Context, l rtnl.Link) error { return k.unused(ctx, l) }

// Flood makes each dump of the pod too large to be kept, as a program of the pod can do with
// some thousand links that have many alternative names. sock is one of the pod.
func (k *Kernel) Flood(sock nlsock.Socket) { k.pod = rtnl.New(flooded{sock}) }

type flooded struct{ nlsock.Socket }

func (flooded) Dump(context.Context, nlsock.Request) ([][]byte, error) {
	return nil, nlsock.ErrTooMuch
}
