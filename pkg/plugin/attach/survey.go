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

// survey is what ADD knows before it makes an attachment: the claim for the addresses
// of its rails, and why some rails are left out.
type survey struct {
	claim   *lease.Claim
	leftOut []string
}

// survey reads what the plan needs. It fails early if ADD must fail. It leaves out a
// rail with a NIC that cannot serve, as long as enough other rails can.
func (n Node) survey(ctx context.Context, k *pod, req conf.Request) (survey, error) {
	if err := n.Addresses.Installed(req.IPAM.Type); err != nil {
		return survey{}, err
	}
	rails, err := k.Facts(ctx, req)
	if err != nil {
		return survey{}, err
	}
	for i, one := range req.Rails {
		r := &rails[i]
		if r.Fault != nil {
			r.Fault = n.whoHas(one, r.Fault)
			continue
		}
		if err := cmp.Or(free(one, r.Facts), n.mayCarry(r.Facts)); err != nil {
			return survey{}, err
		}
		r.Node = n.ID
		r.RDMA, r.Fault = n.device(ctx, k.rdma, req, one, r.Parent)
	}
	return n.choose(req, rails)
}

// mayCarry refuses a NIC of the host that the node's policy does not allow. The
// policy is not about an interface of another plugin or of the pod.
func (n Node) mayCarry(f plan.Facts) error {
	if n.Parent == nil || f.Adopted != nil || f.Parent.InPod {
		return nil
	}
	return n.Parent(f.Parent)
}

// choose returns the rails without faults, with a claim to their addresses.
func (n Node) choose(req conf.Request, rails []plan.RailFacts) (survey, error) {
	var s survey
	var errs []error
	lease.CheckNICs(req, rails)
	all := len(req.Rails)
	for i, r := range rails {
		fault := r.Fault
		if fault == nil {
			continue
		}
		if all > 1 {
			fault = inRail(i, req.Rails[i].IfName, fault)
		}
		errs = append(errs, fault)
		code := cnierr.CodeOf(fault)
		if code != cnierr.BadParent && code != cnierr.NoRDMA || req.Linked(req.Rails[i]) { // without it the pod has no IP
			return s, errors.Join(errs...)
		}
		s.leftOut = append(s.leftOut, fault.Error())
	}
	if serve := all - len(errs); serve < req.MinRails {
		if req.MinRails < all {
			errs = slices.Insert(errs, 0, error(cnierr.New(cnierr.CodeOf(errs[0]), "use rails", "minRails", "", "want %d of %d, got %d", req.MinRails, all, serve)))
		}
		return s, errors.Join(errs...)
	}
	claim, err := n.Addresses.Claim(req, rails)
	if err != nil {
		return s, err
	}
	if err := distinct(claim.Rails()); err != nil {
		return s, err
	}
	s.claim = claim
	for _, why := range s.leftOut {
		n.Log.Warn("a rail is left out", "container", req.ContainerID, "interface", req.IfName, "why", why)
	}
	return s, nil
}

// distinct refuses a NIC that two rails share. They may name it in two ways, for
// example with an altname or a selector. The configuration alone shows the conflict
// only when both use the same words.
func distinct(rails []plan.Rail) error {
	for i, r := range rails {
		for _, other := range rails[:i] {
			if r.Facts.Parent.Name != other.Facts.Parent.Name {
				continue
			}
			err := cnierr.New(cnierr.BadConfig, "use master", string(r.Facts.Parent.Name), "give each rail its own NIC",
				"rail %d uses it, too", other.Number)
			return inRail(r.Number, r.IfName, err)
		}
	}
	return nil
}

// whoHas returns the fault about a parent. If an RDMA device selects the parent and a
// pod has that device, the fault names the pod.
func (n Node) whoHas(rail conf.Rail, fault error) error {
	if !errors.Is(fault, rdma.ErrNoDevice) {
		return fault
	}
	return cmp.Or(n.heldByPod(plan.Link{}, rail.Parent.RDMA), fault)
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

// inRail names the rail that an error is about.
func inRail(number int, name conf.LinkName, err error) error {
	subject := fmt.Sprint(number)
	if name != "" { // STATUS knows no names
		subject += fmt.Sprintf(" (%s)", name)
	}
	return cnierr.In("rail", subject, err)
}
