// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel/rtnl"
)

// create makes the link and marks it. Both messages go in one sendmsg, so that
// no signal comes between them, and both on the pod's socket, so that the link
// is born there.
func (m macvlan) create(ctx context.Context, p parentage) error {
	errs := m.pod.Batch(ctx, m.creation(string(m.op.Name), p), m.marking())
	switch {
	case errors.Is(errs[0], unix.EEXIST):
		return m.createAside(ctx, p)
	case errs[0] != nil:
		return m.refused(errs[0])
	case errs[1] != nil:
		return errors.Join(classify("mark macvlan", string(m.op.Name), errs[1]), m.undo(context.WithoutCancel(ctx)))
	}
	return nil
}

// createAside makes the link under a name that nobody else has and renames it.
// Kernels before 6.15 make a link in the namespace of its parent and move it
// after that (rtnl_newlink_create: link_net ? : tgt_net), so a link of the host
// that has our name is in the way. A process that dies in between leaves the
// link under its first name until the pod is gone.
func (m macvlan) createAside(ctx context.Context, p parentage) error {
	name := "rc" + hex.EncodeToString(m.op.MAC[:])
	if err := m.pod.Do(ctx, m.creation(name, p)); err != nil {
		return m.refused(err)
	}
	l, err := m.pod.LinkByName(ctx, name)
	if err != nil {
		return classify("rename macvlan", name, err)
	}
	if err := m.pod.Do(ctx, rtnl.Rename(l.Index, string(m.op.Name), m.op.Mark)); err != nil {
		return errors.Join(classify("rename macvlan", string(m.op.Name), err),
			classify("delete macvlan", name, m.remove(context.WithoutCancel(ctx), l.Index)))
	}
	return nil
}

// creation returns the change that makes the link under a name.
func (m macvlan) creation(name string, p parentage) rtnl.Change {
	spec := rtnl.Macvlan{Name: name, Lower: p.ask, MTU: m.op.MTU, Mode: string(m.op.Mode), BCQueueLen: m.op.BCQueueLen}
	if !m.op.MAC.IsZero() {
		spec.Address = m.op.MAC[:]
	}
	return rtnl.AddMacvlan(spec)
}

// marking returns the change that marks the link. It goes by name, because the
// index is not known before the kernel has answered.
func (m macvlan) marking() rtnl.Change { return rtnl.SetAlias(string(m.op.Name), m.op.Mark) }

// remove deletes a link; that it is gone already is success.
func (m macvlan) remove(ctx context.Context, index int32) error {
	return ignore(m.pod.Do(ctx, rtnl.DeleteLink(index)), unix.ENODEV)
}

// refused says why the kernel did not create the link.
func (m macvlan) refused(err error) error {
	return classify("add macvlan", string(m.op.Name), fmt.Errorf("on %q: %w", m.op.Parent, err),
		meaning{unix.ENODEV, cnierr.BadParent, "ip link shows whether the master was renamed or removed"},
		meaning{unix.EBUSY, cnierr.BadParent, "the master is a port of a bridge, bond or switch, whose own interface is then the master to use, or it has a passthru child already"},
		meaning{unix.EINVAL, cnierr.BadParent, "the kernel refuses this combination: the master must be Ethernet, the MTU at most the master's, and a passthru child the only one"},
		meaning{unix.EOPNOTSUPP, cnierr.Unsupported, "load the driver on the node: modprobe macvlan"},
		meaning{unix.EEXIST, cnierr.TryAgain, "another process makes a link of that name; let the runtime try again"},
	)
}

// hostNSID returns the number by which the pod's namespace knows the host's,
// and gives it one if it has none.
func (k *Kernel) hostNSID(ctx context.Context) (int32, error) {
	id, err := k.pod.NSID(ctx, k.hostNS)
	if err != nil || id != rtnl.NoNSID {
		return id, err
	}
	// EEXIST: somebody else gave it one meanwhile.
	if err := ignore(k.pod.Do(ctx, rtnl.AddNSID(k.hostNS)), unix.EEXIST); err != nil {
		return 0, err
	}
	return k.pod.NSID(ctx, k.hostNS)
}

// ethernet returns the link's address, zero if it has no Ethernet address.
func ethernet(l rtnl.Link) conf.MAC {
	if len(l.Address) != len(conf.MAC{}) {
		return conf.MAC{}
	}
	return conf.MAC(l.Address)
}
