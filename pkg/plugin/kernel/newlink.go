// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// create makes the links and marks them. One sendmsg has all messages, so that
// no signal comes between a link and its mark. It uses the pod's socket, so
// that the kernel makes the links in the pod.
func (r children) create(ctx context.Context, on []parentage) error {
	if len(r) == 0 {
		return nil
	}
	var changes []rtnl.Change
	for i, m := range r {
		changes = append(changes, m.creation(string(m.op.Name), on[i]), m.marking())
	}
	answers := r[0].conn.Batch(ctx, changes...)
	for i, m := range r {
		if err := m.created(ctx, on[i], answers[2*i], answers[2*i+1]); err != nil {
			return err
		}
	}
	return nil
}

// created interprets what the kernel answers about making and marking the link.
func (m child) created(ctx context.Context, p parentage, making, marking error) error {
	switch {
	case errors.Is(making, unix.EEXIST):
		return m.createAside(ctx, p)
	case making != nil:
		return m.refused(making)
	case marking != nil:
		return errors.Join(classify(m.doing("mark"), string(m.op.Name), marking), children{m}.undo(context.WithoutCancel(ctx)))
	}
	return nil
}

// createAside makes the link under a name that no other link has and renames
// it. Kernels before 6.15 make a link in the namespace of its parent and then
// move it (rtnl_newlink_create: link_net ? : tgt_net). So a link of the host
// with our name is in the way. If the process dies before the rename, the link
// keeps its first name until the pod is gone.
func (m child) createAside(ctx context.Context, p parentage) error {
	name := m.nameAside()
	if err := m.conn.Do(ctx, m.creation(name, p)); err != nil {
		return m.refused(err)
	}
	l, err := m.conn.LinkByName(ctx, name)
	if err != nil {
		return classify(m.doing("rename"), name, err)
	}
	if err := m.conn.Do(ctx, rtnl.Rename(l.Index, string(m.op.Name), m.op.Mark)); err != nil {
		return errors.Join(classify(m.doing("rename"), string(m.op.Name), err),
			remove(context.WithoutCancel(ctx), m.conn, []rtnl.Link{l}, nil))
	}
	return nil
}

// nameAside returns a name that no other link has. It follows from the operation, so that
// undo finds the link of a process that died.
func (m child) nameAside() string {
	if m.op.Mode != conf.L2 {
		return "rc" + hex.EncodeToString(m.op.MAC[:])
	}
	sum := sha256.Sum256([]byte(m.op.Mark)) // ipvlans share a MAC
	return "rc" + hex.EncodeToString(sum[:6])
}

// creation returns the change that makes the link under a name.
func (m child) creation(name string, p parentage) rtnl.Change {
	if m.op.Mode == conf.L2 {
		return rtnl.AddIpvlan(rtnl.Ipvlan{Name: name, Lower: p.ask, MTU: m.op.MTU, Mode: string(m.op.Mode)})
	}
	spec := rtnl.Macvlan{Name: name, Lower: p.ask, MTU: m.op.MTU, Mode: string(m.op.Mode), BCQueueLen: m.op.BCQueueLen}
	if !m.op.MAC.IsZero() {
		spec.Address = m.op.MAC[:]
	}
	return rtnl.AddMacvlan(spec)
}

// marking returns the change that marks the link. It uses the name of the link,
// because the index is not known until the kernel answers.
func (m child) marking() rtnl.Change { return rtnl.SetAlias(string(m.op.Name), m.op.Mark) }

// remove removes links of a pod, in one group if possible. all are the links
// that are there.
func remove(ctx context.Context, pod *rtnl.Conn, doomed, all []rtnl.Link) error {
	var errs []error
	for i, err := range pod.DeleteLinks(ctx, doomed, all) {
		errs = append(errs, classify(deleting, doomed[i].Name, err))
	}
	return errors.Join(errs...)
}

// refused says why the kernel did not create the link.
func (m child) refused(err error) error {
	return classify(m.doing("add"), string(m.op.Name), fmt.Errorf("on %q: %w", m.op.Parent, err),
		meaning{unix.ENODEV, cnierr.BadParent, "ip link shows whether the master was renamed or removed"},
		meaning{unix.EBUSY, cnierr.BadParent, "a NIC has either macvlans or ipvlans: use one kind of child for all networks of the master; if the master is a port of a bridge, bond or switch, use the interface of that bridge, bond or switch as master; if it has a passthru child, delete that pod first; fillers of its GID table are macvlans, too: ip netns del roce-gids, while no pod uses its rdma.gidIndex"},
		meaning{unix.EINVAL, cnierr.BadParent, "use an Ethernet master and an MTU of at most the master's; a passthru child must be the only child of its master, also of fillers of its GID table: ip netns del roce-gids"},
		meaning{unix.EOPNOTSUPP, cnierr.Unsupported, "load the driver on the node: modprobe " + m.op.Mode.Kind()},
		meaning{unix.EEXIST, cnierr.TryAgain, "another process made a link of the same name: " + cnierr.Again},
	)
}

// ethernet returns the link's address, zero if it has no Ethernet address.
func ethernet(l rtnl.Link) conf.MAC {
	if len(l.Address) != len(conf.MAC{}) {
		return conf.MAC{}
	}
	return conf.MAC(l.Address)
}
