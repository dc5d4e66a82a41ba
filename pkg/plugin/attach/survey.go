// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

// survey reads what the plan needs: the facts of each rail, or why the rail cannot be
// made. It returns the request with the CIDRs of the cluster's Services. It fails early if
// ADD must fail.
func (n Node) survey(ctx context.Context, pod *Pod, req conf.Request) (conf.Request, []plan.RailFacts, error) {
	req, err := n.withServices(req)
	if err != nil {
		return req, nil, err
	}
	if err := n.Addresses.Plugins.Installed(req.IPAM.Type); err != nil {
		return req, nil, err
	}
	rails, err := pod.Facts(ctx, req)
	if err != nil {
		return req, nil, err
	}
	for i, one := range req.Rails {
		r := &rails[i]
		if errors.Is(r.Fault, rdma.ErrNoDevice) { // an RDMA device selects the parent
			r.Fault = cmp.Or(n.heldByPod(plan.Link{}, one.Parent.RDMA), r.Fault)
		}
		if r.Fault != nil {
			continue
		}
		if err := cmp.Or(free(one, r.Facts), n.mayCarry(r.Facts)); err != nil {
			return req, nil, err
		}
		r.Node = n.ID
		r.RDMA, r.Fault = n.device(ctx, pod.RDMA, req, one, r.Parent)
		if req.MinRails < len(req.Rails) { // only of a rail that can be left out: it takes a file for each place
			r.Fault = cmp.Or(r.Fault, hasPlace(pod.RDMA, req, r.RDMA))
		}
	}
	return req, rails, nil
}

// withServices replaces "auto" in hostLink.routes by the CIDRs that the agent has written
// to a file.
func (n Node) withServices(req conf.Request) (conf.Request, error) {
	if req.HostLink == nil || !req.HostLink.Auto {
		return req, nil
	}
	cidrs, err := n.Services()
	if err != nil {
		return req, err
	}
	return req.WithServices(cidrs)
}

// mayCarry refuses a NIC of the host that the node's policy does not allow. The
// policy is not about an interface of another plugin or of the pod.
func (n Node) mayCarry(f plan.Facts) error {
	if n.AllowParent == nil || f.Adopted != nil || f.Parent.InPod {
		return nil
	}
	return n.AllowParent(f.Parent)
}

// claim returns a claim to the addresses of the rails without faults. It leaves out a rail
// with a NIC that cannot serve, as long as enough other rails can, and says why.
func (n Node) claim(req conf.Request, rails []plan.RailFacts) (claim *lease.Claim, leftOut []string, err error) {
	lease.CheckNICs(req, rails)
	if leftOut, err = enough(req, rails); err != nil {
		return nil, nil, err
	}
	if claim, err = n.Addresses.Claim(req, rails); err != nil {
		return nil, nil, err
	}
	if err := distinct(req, claim.Rails()); err != nil {
		return nil, nil, err
	}
	for _, why := range leftOut {
		n.Log.Warn("a rail is left out", "container", req.ContainerID, "interface", req.IfName, "why", why)
	}
	return claim, leftOut, nil
}

// errServes is the fault of a rail of a STATUS that counts as one that serves: a pod has its
// device, so nothing else is known of it.
var errServes = errors.New("a pod has the device")

// enough returns the faults of rails that can be left out. It returns an error if the
// other rails are not enough.
func enough(req conf.Request, rails []plan.RailFacts) (leftOut []string, err error) {
	var errs []error
	all := len(req.Rails)
	for i, r := range rails {
		fault := r.Fault
		if fault == nil || errors.Is(fault, errServes) {
			continue
		}
		if all > 1 {
			fault = InRail(i, req.Rails[i].IfName, fault)
		}
		errs = append(errs, fault)
		code := cnierr.CodeOf(fault)
		if code != cnierr.BadParent && code != cnierr.NoRDMA && code != cnierr.NoGID || req.Linked(req.Rails[i]) { // this rail is the pod's eth0
			return nil, errors.Join(errs...)
		}
		leftOut = append(leftOut, fault.Error())
	}
	serve := all - len(errs)
	if serve >= req.MinRails {
		return leftOut, nil
	}
	if req.MinRails < all {
		errs = slices.Insert(errs, 0, error(cnierr.New(cnierr.CodeOf(errs[0]), "use rails", "minRails", "", "want %d of %d, got %d", req.MinRails, all, serve)))
	}
	return nil, errors.Join(errs...)
}

// Preview returns what an ADD would plan. The caller gives the facts of the node and
// of the pod, in the form of Kernel.Facts. Preview changes nothing, as long as the
// node's agent has answered already. It does not ask other IPAM plugins: for them the
// plan is without addresses.
func (n Node) Preview(ctx context.Context, req conf.Request, facts []plan.RailFacts) (plan.Plan, error) {
	req, err := n.withServices(req)
	if err != nil {
		return plan.Plan{}, err
	}
	claim, _, err := n.claim(req, facts)
	if err != nil {
		return plan.Plan{}, err
	}
	rails, err := claim.Preview(ctx)
	if err != nil {
		return plan.Plan{}, err
	}
	return plan.Make(req, rails)
}

// distinct refuses a NIC that two rails share, under whatever names, and a promised GID
// index for two rails with one RDMA port, such as two VLANs of a NIC.
func distinct(req conf.Request, rails []plan.Rail) error {
	for i, r := range rails {
		for _, other := range rails[:i] {
			var err error
			switch {
			case r.Facts.Parent.Name == other.Facts.Parent.Name:
				err = cnierr.New(cnierr.BadConfig, "use master", string(r.Facts.Parent.Name), "give each rail its own NIC",
					"rail %d uses it, too", other.Number)
			case req.RDMA.GIDIndex != conf.AnyIndex && onePort(r.Facts.RDMA, other.Facts.RDMA):
				err = cnierr.New(cnierr.BadConfig, "use master", string(r.Facts.Parent.Name), "set rdma.gidIndex to any, or give each rail its own NIC",
					"its RDMA port is that of rail %d, and in one GID table no two addresses have the same index", other.Number)
			default:
				continue
			}
			return InRail(r.Number, r.IfName, err)
		}
	}
	return nil
}

// onePort says whether two rails have one RDMA port. A preview can have devices without an
// index.
func onePort(a, b *plan.RDMA) bool {
	return a != nil && b != nil && a.Device.Name == b.Device.Name && a.Device.SamePort(b.Device)
}

// free refuses the name of a link in the pod that we did not make.
func free(rail conf.Rail, f plan.Facts) error {
	if !f.Pod.Taken || f.Adopted != nil {
		return nil
	}
	return cnierr.New(cnierr.BadEnv, "add interface", string(rail.IfName),
		"choose another interface name in the pod's networks annotation, or ifName in rails",
		"the pod has another interface of this name, which is not of this attachment")
}

// InRail names the rail that an error is about.
func InRail(number int, name conf.LinkName, err error) error {
	subject := fmt.Sprint(number)
	if name != "" { // STATUS knows no names
		subject += fmt.Sprintf(" (%s)", name)
	}
	return cnierr.In("rail", subject, err)
}
