// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

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

// Procfs lets the Kernel look for other namespaces in another folder than /proc.
func (k *Kernel) Procfs(dir string) { k.procfs = dir }

// Through lets the kernel answer through other sockets, in the host and in the pod.
func (k *Kernel) Through(with func(nlsock.Socket) nlsock.Socket) error {
	exchange := func(conn **rtnl.Conn) error {
		sock, err := nlsock.Dial(unix.NETLINK_ROUTE)
		if err == nil {
			(*conn).Close()
			*conn = rtnl.New(with(sock))
		}
		return err
	}
	return errors.Join(k.EnterHost(func() error { return exchange(&k.host) }), k.Enter(func() error { return exchange(&k.pod) }))
}
