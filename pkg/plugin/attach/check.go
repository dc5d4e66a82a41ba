// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Check reports everything about an attachment that is not as ADD made it, and for
// each finding the command that restores it. It changes nothing. It does not report
// what other programs have set: the MTU and the settings of the interface, and its MAC
// unless that differs from the MAC that the runtime knows.
func (n Node) Check(ctx context.Context, req conf.Request) error {
	return n.Standing(ctx, req.Attachment, req.Netns, func(pod *Pod, rec record.Record) error {
		damage := Examine(ctx, pod, rec.Plan, req.MACs).Damage
		return errors.Join(append(damage, n.Addresses.Check(ctx, req, rec))...)
	})
}

// Standing runs fn with the record of an attachment that ADD finished. While fn runs,
// the container's lock is held and the namespace is open. path is that of the
// namespace now; "" means the recorded one.
func (n Node) Standing(ctx context.Context, at conf.Attachment, path string, fn func(*Pod, record.Record) error) error {
	unlock, err := n.Records.Lock(ctx, at.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()

	rec, err := n.Records.Load(at)
	if errors.Is(err, record.ErrNotExist) {
		return notAdded(at, "container %q has %w", at.ContainerID, err)
	}
	if err != nil {
		return err
	}
	if !rec.Committed {
		return notAdded(at, "its record for container %q is unfinished", at.ContainerID)
	}
	pod, err := n.openRecorded(path, rec)
	if err != nil {
		return err
	}
	defer pod.Close()
	if pod.ID() != rec.NetnsID {
		return cnierr.New(cnierr.Damaged, "check namespace", cmp.Or(path, rec.Netns), "delete the pod: its namespace was replaced",
			"it is not the one that ADD worked in")
	}
	if rec.Plan.Ops, err = pod.recognise(ctx, rec.Plan.Ops); err != nil {
		return err
	}
	return fn(pod, rec)
}

// openRecorded opens a namespace that the runtime named, or, for "", the
// recorded one, also when only a process or a mount has it.
func (n Node) openRecorded(path string, rec record.Record) (*Pod, error) {
	recorded := path == ""
	if recorded {
		path = cmp.Or(netns.Find(rec.Netns, rec.NetnsID), rec.Netns)
	}
	pod, err := n.open(path, rec.Attachment)
	// A recorded /proc/PID/ns/net may be that of a process of the host by now.
	if errors.Is(err, kernel.ErrNetnsGone) || recorded && errors.Is(err, kernel.ErrHostNetns) {
		return nil, cnierr.New(cnierr.Damaged, "check namespace", rec.Netns,
			"wait: the pod is gone, and the runtime's DEL or GC removes the rest; where neither comes, rocectl forget does", "%w", kernel.ErrNetnsGone)
	}
	return pod, err
}

func notAdded(at conf.Attachment, format string, args ...any) error {
	return cnierr.New(cnierr.Damaged, "check interface", string(at.IfName),
		"delete the pod: its ADD did not finish, or was undone, on this node", format, args...)
}

// Findings is how an attachment differs from what ADD made. With several rails, an
// error about one of them names it.
type Findings struct {
	Damage []error
	// Changed is what other programs have set. The attachment works with it.
	Changed []error
}

// Examine looks at every operation of a plan. told has the MACs that the runtime
// expects of the interfaces. Another MAC is then damage, whatever the plan says.
func Examine(ctx context.Context, x plan.Executor, p plan.Plan, told map[conf.LinkName]conf.MAC) Findings {
	if len(p.Interfaces) < 2 {
		return examineOps(ctx, x, p.Ops, told)
	}
	out := examineOps(ctx, x, p.OfNone(), nil)
	for _, i := range p.Interfaces {
		of := examineOps(ctx, x, p.Of(i), told)
		for _, err := range of.Damage {
			out.Damage = append(out.Damage, InRail(i.Rail, i.Name, err))
		}
		for _, err := range of.Changed {
			out.Changed = append(out.Changed, InRail(i.Rail, i.Name, err))
		}
	}
	return out
}

func examineOps(ctx context.Context, x plan.Executor, ops plan.Ops, told map[conf.LinkName]conf.MAC) Findings {
	var out Findings
	for _, op := range ops {
		mac, known := told[op.Link()]
		if known {
			op = op.WithMAC(mac)
		}
		damage, changed := Divide(x.Check(ctx, op))
		for _, err := range changed {
			var c *kernel.ChangedError
			if errors.As(err, &c); known && c.Property == kernel.MAC {
				out.Damage = append(out.Damage, err)
			} else {
				out.Changed = append(out.Changed, err)
			}
		}
		out.Damage = append(out.Damage, damage...)
	}
	return out
}

// Divide divides the findings of a check into damage and what others have changed.
func Divide(err error) (damage, changed []error) {
	for _, e := range cnierr.Each(err) {
		var c *kernel.ChangedError
		switch {
		case e == nil:
		case errors.As(e, &c):
			changed = append(changed, e)
		default:
			damage = append(damage, e)
		}
	}
	return damage, changed
}

// Status says why an ADD of the network would fail now, whatever the pod, or, with
// conf.AnyRail, why no rail would work:
// cnierr.NotAvailable, or cnierr.Limited when running pods have lost their network
// too, because the master is missing or down.
func (n Node) Status(ctx context.Context, req conf.Request) error {
	unlock, err := n.Records.Lock(ctx, "status")
	if err != nil {
		return cnierr.Unavailable(err)
	}
	unlock()
	if req, err = n.withServices(req); err != nil {
		return cnierr.Unavailable(err)
	}
	if req.Match == nil && req.Rails[0].Parent.Default() && req.IPAM.Type == "" {
		return cnierr.Unavailable(n.statusMode(ctx, req)) // roce adopts an interface that another plugin makes later
	}
	nameless := slices.ContainsFunc(req.Rails, func(r conf.Rail) bool { return r.Parent.Name == "" })
	if req.LinkInContainer && (nameless || req.IPAM.FromMaster != nil || req.IPAM.RailPool != nil) {
		return cnierr.Unavailable(n.statusMode(ctx, req)) // only the pod has this interface and its addresses
	}
	rails, err := n.Machine.Facts(ctx, req)
	if err != nil {
		return cnierr.Unavailable(err)
	}
	r := n.Machine.RDMA("", nil)
	defer r.Close()
	for i, one := range req.Rails {
		if errors.Is(rails[i].Fault, rdma.ErrNoDevice) && n.heldByPod(plan.Link{}, one.Parent.RDMA) != nil {
			rails[i].Fault = errServes
		}
		if rails[i].Fault != nil {
			continue
		}
		device, err := n.device(ctx, r, req, one, rails[i].Parent)
		if cnierr.CodeOf(err) != cnierr.RDMAHeld { // a pod has it
			rails[i].Fault = cmp.Or(err, hasPlace(r, req, device))
		}
	}
	if req.Status.Rails == conf.AnyRail {
		req.MinRails = 1
	}
	claim, _, err := n.claim(req, rails)
	if err != nil {
		return lease.StatusError(req, err)
	}
	if len(claim.Rails()) == 0 { // pods have all that can serve
		return nil
	}
	return claim.Status(ctx)
}
