// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Attachments are those of a node, from their records. They are tested in package attach,
// with the machine that its verbs are tested on.
type Attachments struct {
	attach.Node
	// RoutingOnly limits Lost and Repair to what only steers packets (plan.Op.Routing).
	RoutingOnly bool
}

// patience is how long Reset waits for one attachment.
const patience = 20 * time.Second

// CheckRecord is Check from the record alone, without the configuration of the
// network. It does not ask other IPAM plugins, because they need the configuration.
// Without a record, the error contains record.ErrNotExist. changed is what other
// programs have set, and what is no damage.
func (n Attachments) CheckRecord(ctx context.Context, at conf.Attachment) (changed []error, err error) {
	err = n.Standing(ctx, at, "", func(pod *attach.Pod, rec record.Record) error {
		found := attach.Examine(ctx, pod, rec.Plan, nil)
		changed = append(pod.Renamed, found.Changed...)
		return errors.Join(append(found.Damage, n.Addresses.CheckRecord(ctx, rec))...)
	})
	return changed, err
}

// Lost returns what Repair would do to an attachment. It returns nothing when nothing
// is missing, and an error for damage that Repair can do nothing about. It changes nothing.
func (n Attachments) Lost(ctx context.Context, at conf.Attachment) (plan.Ops, error) {
	var ops plan.Ops
	err := n.Standing(ctx, at, "", func(pod *attach.Pod, rec record.Record) (err error) {
		ops, err = n.lost(ctx, pod, rec)
		if ops = ops.Changes(); len(ops) == 0 && err == nil {
			err = errors.Join(attach.Examine(ctx, pod, rec.Plan, nil).Damage...) // what only a look finds
		}
		return err
	})
	return ops, err
}

// Repair makes again, from the record, what CHECK finds missing of an attachment. It
// changes nothing else in the pod, and nothing without our mark. What other programs
// have set stays. It returns what it did. After an error, this is still in place.
//
// It refuses an attachment if an address is not leased to it any more, and each rail with
// an interface that exists but is different, or has another name: the kernel could only
// replace it, and the pod would lose its connections.
func (n Attachments) Repair(ctx context.Context, at conf.Attachment) (plan.Ops, error) {
	var done plan.Ops
	err := n.Standing(ctx, at, "", func(pod *attach.Pod, rec record.Record) (err error) {
		ops, refused := n.lost(ctx, pod, rec)
		if slices.ContainsFunc(ops, plan.Is[plan.Align]) {
			release, err := n.Records.LockGIDs(ctx)
			if err != nil {
				return err
			}
			defer release()
		}
		if err := pod.RDMA.LookBefore(rec.Plan.Ops, ops); err != nil {
			return err
		}
		done, err = redo(ctx, pod, ops)
		done = done.Changes()
		if err != nil || refused != nil {
			return errors.Join(err, refused)
		}
		if err := errors.Join(attach.Examine(ctx, pod, rec.Plan, nil).Damage...); err != nil || len(pod.Remade) == 0 {
			return err
		}
		return n.Records.Save(rec) // the devices as they are now
	})
	if errors.Is(err, kernel.ErrNetnsGone) {
		err = errors.Join(err, n.withRecord(ctx, at, func(rec record.Record) error { return n.GiveBack(ctx, rec) }))
	}
	return done, err
}

// redo undoes and does each operation, and returns those that it did. It undoes first,
// because what is there but different can be in the way, as a route that lost its source
// with the address (fib6_remove_prefsrc). What programs of the pod use stays.
func redo(ctx context.Context, x plan.Executor, ops plan.Ops) (done plan.Ops, err error) {
	for i, op := range ops {
		if !op.Stays() {
			if err := x.Undo(ctx, op); err != nil {
				return ops[:i], err
			}
		}
		if err := x.Do(ctx, op); err != nil {
			return ops[:i], err
		}
	}
	return ops, nil
}

// lost returns the operations of a record that are not in place, in their order. If
// addresses are among them, the recorded conflict probe comes before them, because
// another host may have taken them. Nothing else is sent on the wire: the gateway was
// there when the pod started, and neighbours know the MAC.
func (n Attachments) lost(ctx context.Context, pod *attach.Pod, rec record.Record) (plan.Ops, error) {
	if err := n.Addresses.CheckRecord(ctx, rec); err != nil {
		return nil, err
	}
	ops, err := missing(ctx, pod, rec.Plan.Ops)
	if err != nil && len(rec.Plan.Interfaces) > 1 {
		ops, err = missingOfRails(ctx, pod, rec.Plan)
	}
	if n.RoutingOnly {
		var more error
		ops, more = routing(rec.Plan, ops)
		err = errors.Join(err, more)
	}
	return withProbe(rec.Plan.Ops, withAlignment(rec.Plan.Ops, ops)), err
}

// missingOfRails returns what is missing of the rails that can be restored, and why the
// others cannot: a NIC that is gone must not stop the repair of the other seven rails.
func missingOfRails(ctx context.Context, pod *attach.Pod, p plan.Plan) (plan.Ops, error) {
	var can []plan.Interface
	var errs []error
	for _, i := range p.Interfaces {
		_, err := missing(ctx, pod, p.Of(i))
		if err == nil {
			can = append(can, i)
		}
		errs = append(errs, attach.InRail(i.Rail, i.Name, err))
	}
	ops, err := missing(ctx, pod, p.Of(can...))
	return ops, errors.Join(append(errs, err)...)
}

// routing returns what is missing of the interfaces that miss nothing but what steers
// packets. The error says what the others miss: without it, their routes cannot be made.
func routing(p plan.Plan, lost plan.Ops) (plan.Ops, error) {
	p.Ops = lost
	var errs []error
	part := func(name conf.LinkName, ops plan.Ops) plan.Ops {
		i := slices.IndexFunc(ops, func(op plan.Op) bool { return !op.Routing() })
		if i < 0 {
			return ops
		}
		errs = append(errs, cnierr.New(cnierr.Damaged, "heal interface", string(cmp.Or(ops[i].Link(), name)),
			`rocectl repair POD --yes makes it again; with "heal": "all" in the settings of the node that is done by itself`,
			"it misses more than routes and rules: %s", ops[i].Name()))
		return nil
	}
	out := part("", p.OfNone())
	for _, i := range p.Interfaces {
		out = append(out, part(i.Name, p.Of(i))...)
	}
	return out, errors.Join(errs...)
}

// missing returns the operations that are not in place. It returns an error if one of
// them cannot be done again.
func missing(ctx context.Context, pod *attach.Pod, recorded plan.Ops) (plan.Ops, error) {
	damage, changed := make([]error, len(recorded)), make([]error, len(recorded))
	var ops plan.Ops
	for i, op := range recorded {
		d, c := attach.Divide(pod.Check(ctx, op))
		damage[i], changed[i] = errors.Join(d...), errors.Join(c...)
		ops = append(ops, raising(op, c)...)
	}
	var remade conf.LinkName // the other end of a pair that is made again
	for i, op := range recorded {
		finding := damage[i]
		if pair, ok := op.Kind.(plan.Veth); ok && finding != nil {
			remade = pair.PodEnd
		}
		if finding == nil && op.Link() == remade && remade != "" {
			ops = append(ops, op)
		}
		if _, ok := op.Kind.(plan.Sysctl); ok && changed[i] != nil && untouched(recorded, damage, op.Link()) {
			finding = errors.Join(finding, changed[i])
		}
		if finding == nil {
			continue
		}
		if cnierr.CodeOf(finding) != cnierr.Damaged {
			return nil, finding
		}
		if err := restorable(ctx, pod, op, finding, changed[i]); err != nil {
			return nil, err
		}
		ops = append(ops, fixFor(op, finding))
	}
	return ops, nil
}

// raising returns the operation that gives a link its MTU again, none if the kernel has not
// lowered it with that of the NIC.
func raising(op plan.Op, changed []error) plan.Ops {
	var c *kernel.ChangedError
	i := slices.IndexFunc(changed, func(err error) bool { return errors.As(err, &c) && c.Raise > 0 })
	if i < 0 {
		return nil
	}
	return plan.Ops{{Place: op.Place, Kind: plan.Up{Link: op.Link(), MTU: c.Raise}}}
}

// untouched says that a link is down and has no address: a Repair that was interrupted has
// made it again, and no program has set anything on it yet.
func untouched(recorded plan.Ops, damage []error, link conf.LinkName) bool {
	for i, op := range recorded {
		switch op.Kind.(type) {
		case plan.Up, plan.Address:
			if op.Link() == link && damage[i] == nil {
				return false
			}
		}
	}
	return true
}

// fixFor returns the operation to do again for a finding. For an address that lacks
// only the route to its subnet, it is that route: undoing the address would remove
// all its other routes too (fib_sync_down_addr).
func fixFor(op plan.Op, finding error) plan.Op {
	a, ok := op.Kind.(plan.Address)
	if !ok || !errors.Is(finding, kernel.ErrNoSubnetRoute) {
		return op
	}
	r := plan.Route{Link: a.Link, Table: plan.MainTable, Dst: a.Prefix.Masked(), Metric: 256} // IP6_RT_PRIO_ADDRCONF
	if a.Prefix.Addr().Is4() {
		r.Scope, r.Src, r.Metric = plan.ScopeLink, a.Prefix.Addr(), 0
	}
	return plan.Op{Place: op.Place, Kind: r}
}

// restorable returns the finding if Do cannot make the thing again: a link that
// another plugin made, a link that is there but different, or a rule that is there
// behind one of another program. changed is what other programs have set.
func restorable(ctx context.Context, pod *attach.Pod, op plan.Op, finding, changed error) error {
	if op.Foreign() || errors.Is(finding, kernel.ErrOutranked) || errors.Is(finding, kernel.ErrDifferent) {
		return finding
	}
	if link, ok := op.Parent(); ok {
		var c *kernel.ChangedError
		if errors.As(changed, &c) && c.Property == kernel.Master {
			link.Rails[0].Parent.Name = conf.LinkName(c.Got)
		}
		return makeable(ctx, pod, link, finding)
	}
	return nil
}

// makeable returns the finding if the link exists, under any name. It returns nil if
// the link is gone: then it can be made.
func makeable(ctx context.Context, pod *attach.Pod, link conf.Request, finding error) error {
	if errors.Is(finding, kernel.ErrRenamed) {
		return finding
	}
	facts, err := plan.Only(pod.Facts(ctx, link))
	if err != nil {
		return err
	}
	if facts.Pod.Taken {
		return finding
	}
	return nil
}

// withProbe inserts the recorded conflict probe before the first lost address. It asks
// only for the lost addresses.
func withProbe(recorded, lost plan.Ops) plan.Ops {
	first := slices.IndexFunc(lost, plan.Is[plan.Address])
	if first < 0 {
		return lost
	}
	stands := func(t plan.Target) bool {
		return !slices.ContainsFunc(lost, func(op plan.Op) bool {
			a, ok := op.Kind.(plan.Address)
			return ok && a.Prefix.Addr() == t.Addr
		})
	}
	for _, op := range recorded {
		c, ok := op.Kind.(plan.Conflict)
		if !ok {
			continue
		}
		c.Targets = slices.DeleteFunc(slices.Clone(c.Targets), stands)
		if len(c.Targets) > 0 {
			return slices.Insert(lost, first, plan.Op{Place: op.Place, Kind: c})
		}
	}
	return lost
}

// withAlignment inserts, behind the lost addresses, an alignment that gives them the GID
// indexes that ADD found, which the programs of the pod use. A device in the pod needs
// none: it has only the pod's entries.
func withAlignment(recorded, lost plan.Ops) plan.Ops {
	var rails []plan.AlignRail
	for _, op := range recorded {
		g, ok := op.Kind.(plan.GID)
		if !ok || op.Place != plan.Host {
			continue
		}
		if r := lostRail(g, lost); len(r.Addresses) > 0 {
			for c := range plan.All[plan.Child](recorded) {
				if c.Name == r.Link {
					r.Fillers = c.Fillers()
				}
			}
			rails = append(rails, r)
		}
	}
	if len(rails) == 0 {
		return lost
	}
	behind := len(lost)
	for !plan.Is[plan.Address](lost[behind-1]) {
		behind--
	}
	return slices.Insert(slices.Clone(lost), behind, plan.InPod(plan.Align{Index: conf.AnyIndex, Rails: rails})...)
}

// lostRail returns the lost addresses of an interface, in the order of their
// indexes: the kernel gives each the lowest index that is free.
func lostRail(g plan.GID, lost plan.Ops) plan.AlignRail {
	r := plan.AlignRail{Link: g.Targets[0].Link, Device: g.Device, Wait: g.Wait}
	targets := slices.DeleteFunc(slices.Clone(g.Targets), func(t plan.GIDTarget) bool { return t.Index == nil })
	slices.SortFunc(targets, func(a, b plan.GIDTarget) int { return cmp.Compare(*a.Index, *b.Index) })
	for _, t := range targets {
		for a := range plan.All[plan.Address](lost) {
			if a.Link == t.Link && a.Prefix.Addr() == t.Addr {
				r.Addresses, r.At = append(r.Addresses, a.Prefix), append(r.At, *t.Index)
			}
		}
	}
	return r
}

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
func (n Attachments) Remade(ctx context.Context) []Remade {
	var all []Remade
	for rec, err := range n.Records.All() {
		if err != nil {
			continue
		}
		_ = n.Standing(ctx, rec.Attachment, "", func(pod *attach.Pod, rec record.Record) error {
			for _, op := range rec.Plan.Ops {
				g, ok := op.Kind.(plan.GID)
				if !ok || !pod.Remade[g.Device] {
					continue
				}
				i := slices.IndexFunc(all, func(r Remade) bool { return r.Device.SamePort(g.Device) })
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

// Reset takes the addresses of all pods, and the fillers of the node, off ports that were made
// again, because each pod may sit at the index of another one. Then repair is to set those of
// the pods again, each at its own index. What used the indexes ended with the device.
//
// Pods that repair leaves without addresses get them back, at any index, also when the context
// has ended: the error says so. It leaves out a port that programs use again (RDMAHeld).
func (n Attachments) Reset(ctx context.Context, ports []Remade, repair func([]conf.Attachment) error) error {
	var errs []error
	off := map[conf.Attachment]plan.Ops{}
	for _, r := range ports {
		errs = append(errs, n.clear(ctx, r, off))
	}
	errs = append(errs, repair(slices.SortedFunc(maps.Keys(off), func(a, b conf.Attachment) int {
		return cmp.Or(cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.IfName, b.IfName))
	})))
	for at, ops := range off {
		errs = append(errs, n.putBack(context.WithoutCancel(ctx), at, ops))
	}
	return errors.Join(errs...)
}

const resetting = "set GID indexes again on"

// clear takes the addresses and the fillers off a port, unless programs use it, and adds to off
// what it took from each pod.
func (n Attachments) clear(ctx context.Context, r Remade, off map[conf.Attachment]plan.Ops) error {
	host := n.Machine.RDMA("", nil)
	defer host.Close()
	users, err := host.Users(ctx, plan.OnHost(plan.Port{Device: r.Device}), netns.ID{})
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return cnierr.New(cnierr.RDMAHeld, resetting, r.String(), "end the programs and repeat the command, or delete the pods with other indexes",
			"it was made again, and programs use it since: %s", cnierr.Some(users))
	}
	errs := []error{n.clearFillers(ctx, r.Device)}
	for _, at := range r.Pods {
		errs = append(errs, n.soon(ctx, at, func(ctx context.Context, pod *attach.Pod, rec record.Record) error {
			release, err := n.Records.LockGIDs(ctx) // after the container's lock, which an ADD holds that waits for this one
			if err != nil {
				return err
			}
			defer release()
			takes := addressesOn(rec.Plan.Ops, r.Device)
			off[at] = append(off[at], takes...)
			left := removeFillers(ctx, pod.Kernel, pod.RDMA, r.Device) // of a repair that was killed
			return errors.Join(left, pod.Kernel.Undo(ctx, takes...))
		}))
	}
	return errors.Join(errs...)
}

// putBack sets the addresses that clear took off a pod, and the routes that went with them, if
// the repair has not. It does not ask the wire: the pod has had them until now.
func (n Attachments) putBack(ctx context.Context, at conf.Attachment, took plan.Ops) error {
	return n.soon(ctx, at, func(ctx context.Context, pod *attach.Pod, rec record.Record) error {
		back := false
		var errs []error
		for _, op := range rec.Plan.Ops {
			if !op.Routing() && !slices.ContainsFunc(took, op.Same) {
				continue
			}
			if damage, _ := attach.Divide(pod.Check(ctx, op)); len(damage) > 0 {
				back = true
				_, err := redo(ctx, pod, plan.Ops{op})
				errs = append(errs, err)
			}
		}
		if err := errors.Join(errs...); err != nil || !back {
			return cnierr.In("give addresses back to", rec.Who(), err)
		}
		return cnierr.New(cnierr.Damaged, resetting, rec.Who(),
			"when the cause is gone, repeat rocectl repair --yes for the recorded indexes, or delete the pod",
			"its repair failed, and its addresses are set again at the GID indexes that were free")
	})
}

// soon works on an attachment as Standing does, but does not wait for long. It does nothing for
// one that is gone.
func (n Attachments) soon(ctx context.Context, at conf.Attachment, fn func(context.Context, *attach.Pod, record.Record) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := n.Standing(ctx, at, "", func(pod *attach.Pod, rec record.Record) error { return fn(ctx, pod, rec) })
	if errors.Is(err, record.ErrNotExist) || errors.Is(err, kernel.ErrNetnsGone) {
		return nil
	}
	return err
}

// addressesOn returns the operations that set the addresses with entries on a port.
func addressesOn(ops plan.Ops, d plan.RDMADevice) plan.Ops {
	return slices.DeleteFunc(slices.Clone(ops), func(op plan.Op) bool {
		a, ok := op.Kind.(plan.Address)
		for g := range plan.All[plan.GID](ops) {
			if ok && g.Device.SamePort(d) && slices.ContainsFunc(g.Targets, func(t plan.GIDTarget) bool { return t.Link == a.Link && t.Addr == a.Prefix.Addr() }) {
				return false
			}
		}
		return true
	})
}

// clearFillers removes the node's fillers of a port that was made again: one may be at the
// index of a pod. The next attachments make the indexes equal again.
func (n Attachments) clearFillers(ctx context.Context, d plan.RDMADevice) error {
	release, err := n.Records.LockGIDs(ctx)
	if err != nil {
		return err
	}
	defer release()
	k, err := n.Machine.Open(n.Fillers)
	if errors.Is(err, kernel.ErrNetnsGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer k.Close()
	tables := n.Machine.RDMA(n.Fillers, k.Enter)
	defer tables.Close()
	return removeFillers(ctx, k, tables, d)
}

// removeFillers removes all fillers of a port that are in a namespace.
func removeFillers(ctx context.Context, k attach.Kernel, tables attach.RDMA, d plan.RDMADevice) error {
	entries, _, err := tables.Before(plan.Pod, d, math.MaxInt)
	if err != nil {
		return err
	}
	var fillers plan.Ops
	for _, e := range entries {
		if plan.FillerRange.Contains(e.GID) {
			fillers = append(fillers, plan.InPod(plan.Address{Link: conf.LinkName(e.Netdev), Prefix: netip.PrefixFrom(e.GID, e.GID.BitLen())})...)
		}
	}
	if len(fillers) == 0 {
		return nil
	}
	return k.Undo(ctx, fillers...)
}

// Forget removes what is left of an attachment of a pod that is gone: its leases, its
// record, and what it did on the host. It is for a DEL that never comes. The caller knows
// that the namespaces of the node are visible. Errors: those of MustBeGone.
func (n Attachments) Forget(ctx context.Context, at conf.Attachment) error {
	return n.withRecord(ctx, at, func(rec record.Record) error {
		if err := n.MustBeGone(rec); err != nil {
			return err
		}
		return n.Remove(ctx, rec, "", n.Addresses.Release)
	})
}

// withRecord runs fn with the record of an attachment. While fn runs, the container's
// lock is held.
func (n Attachments) withRecord(ctx context.Context, at conf.Attachment, fn func(record.Record) error) error {
	unlock, err := n.Records.Lock(ctx, at.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	rec, err := n.Records.Load(at)
	if err != nil {
		return err
	}
	return fn(rec)
}

// MustBeGone returns an error of code TryAgain if the namespace of an attachment exists.
func (n Attachments) MustBeGone(rec record.Record) error {
	pod, err := n.OpenAgain(rec, "")
	if err != nil || pod == nil {
		return err
	}
	pod.Close()
	return cnierr.New(cnierr.TryAgain, "forget interface", string(rec.IfName), "delete the pod: DEL removes the interface",
		"the namespace %q of its pod exists", rec.Netns)
}
