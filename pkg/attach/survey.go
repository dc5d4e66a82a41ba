// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/rdma"
)

// survey is what an attachment is made of: its rails, and why some are left
// out.
type survey struct {
	rails   []plan.Rail
	leftOut []string
	// file is what the node may lease of a RailPool.
	file nodefile.File
	// kept says that the rails have the addresses that are kept for the pod. Other
	// ones it gets with ordinary.
	kept     nodefile.Answer
	ordinary []plan.Rail
}

// survey reads what the plan needs and fails early for what must fail. A rail
// whose NIC cannot serve is left out as long as enough others can.
func (n Node) survey(ctx context.Context, k *pod, req conf.Request) (survey, error) {
	if err := n.Delegate.Installed(req.IPAM.Type); err != nil {
		return survey{}, err
	}
	facts, faults, err := k.Facts(ctx, req)
	if err != nil {
		return survey{}, err
	}
	each := req.Each()
	for i, one := range each {
		if faults[i] != nil {
			faults[i] = n.whoHas(one, faults[i])
			continue
		}
		if err := free(one, facts[i]); err != nil {
			return survey{}, err
		}
		facts[i].Node = n.ID
		facts[i].RDMA, faults[i] = n.device(ctx, k.rdma, one, facts[i].Parent)
	}
	return n.choose(req, facts, faults)
}

// choose returns the rails without faults, with their subnets.
func (n Node) choose(req conf.Request, facts []plan.Facts, faults []error) (survey, error) {
	var s survey
	var errs []error
	each, subnets := req.Each(), fromMasters(req, facts, faults)
	for i, fault := range faults {
		if fault == nil {
			continue
		}
		if req.Rails == nil {
			return s, fault
		}
		fault = inRail(each[i].Rail, each[i].IfName, fault)
		errs = append(errs, fault)
		if code := cnierr.CodeOf(fault); code != cnierr.BadParent && code != cnierr.NoRDMA {
			return s, errors.Join(errs...)
		}
		s.leftOut = append(s.leftOut, fault.Error())
	}
	if serve := len(each) - len(errs); serve < req.MinRails {
		if req.MinRails < len(each) {
			errs = slices.Insert(errs, 0, error(cnierr.New(cnierr.CodeOf(errs[0]), "use rails", "minRails", "", "want %d of %d, got %d", req.MinRails, len(each), serve)))
		}
		return s, errors.Join(errs...)
	}
	req, err := n.addressed(req, &s, facts, subnets, faults)
	if err != nil {
		return s, err
	}
	for i, one := range req.Each() {
		if faults[i] == nil {
			s.rails = append(s.rails, plan.Rail{Request: one, Facts: facts[i]})
		}
	}
	if err := distinct(s.rails); err != nil {
		return s, err
	}
	for _, why := range s.leftOut {
		n.Log.Warn("a rail is left out", "container", req.ContainerID, "interface", req.IfName, "why", why)
	}
	return s, nil
}

// keep returns a survey with the addresses that are kept for the pod instead of
// ordinary ones, if there are such.
func (n Node) keep(ctx context.Context, req conf.Request, s survey) (survey, error) {
	kept, granted, err := n.Agent.Keep(ctx, req, s.file, s.rails[0].Facts.Parent.Addrs)
	if err != nil || !granted.Granted() {
		return s, err
	}
	s.kept, s.ordinary, s.rails = granted, s.rails, slices.Clone(s.rails)
	for i := range s.rails {
		one := &s.rails[i].Request
		*one = kept.Each()[one.Rail]
	}
	return s, nil
}

// distinct refuses a NIC that two rails have, by an altname or a selector: the
// configuration shows only when both have it by the same words.
func distinct(rails []plan.Rail) error {
	for i, r := range rails {
		for _, other := range rails[:i] {
			if r.Facts.Parent.Name != other.Facts.Parent.Name {
				continue
			}
			err := cnierr.New(cnierr.BadConfig, "use master", string(r.Facts.Parent.Name), "give each rail a NIC of its own",
				"it is that of rail %d", other.Request.Rail)
			return inRail(r.Request.Rail, r.Request.IfName, err)
		}
	}
	return nil
}

// addressed returns the request with the subnets of each rail, where they
// follow from the NICs, from a table of the node or from a RailPool, of which it
// tells the survey.
func (n Node) addressed(req conf.Request, s *survey, facts []plan.Facts, subnets [][]conf.Subnet, faults []error) (conf.Request, error) {
	switch {
	case req.IPAM.RailPool != nil:
		var err error
		if s.file, err = n.Agent.Ranges.Read(req.IPAM.Pool); err != nil {
			return req, err
		}
		return OfRailPool(req, s.file, facts[0].Parent.Addrs)
	case req.IPAM.Table != "":
		return n.fromTable(req)
	case req.IPAM.FromMaster == nil:
		return req, nil
	}
	if slices.ContainsFunc(faults, func(err error) bool { return err != nil }) {
		// The subnet of a NIC that is gone is not known: an address that none of
		// the others has is taken for one of it, and left out with it.
		known := slices.Concat(subnets...)
		req.IPAM.Requested = slices.DeleteFunc(slices.Clone(req.IPAM.Requested), func(a netip.Addr) bool {
			return !slices.ContainsFunc(known, func(s conf.Subnet) bool { return s.Prefix.Contains(a) })
		})
	}
	return req.WithSubnets(subnets)
}

// fromMasters returns the subnets of the NICs, if asked for; to have none is a fault.
func fromMasters(req conf.Request, facts []plan.Facts, faults []error) [][]conf.Subnet {
	if req.IPAM.FromMaster == nil {
		return nil
	}
	subnets := make([][]conf.Subnet, len(facts))
	for i, f := range facts {
		if faults[i] == nil {
			subnets[i], faults[i] = req.IPAM.FromMaster.Subnets(string(f.Parent.Name), f.Parent.Addrs)
		}
	}
	return subnets
}

// fromTable gives the rails the subnets that the table has.
func (n Node) fromTable(req conf.Request) (conf.Request, error) {
	b, err := n.ReadFile(req.IPAM.Table)
	if err != nil {
		return req, cnierr.New(cnierr.BadConfig, "read table of rails", req.IPAM.Table,
			"put the file of ipam.table on every node", "%w", err)
	}
	subnets, err := conf.ParseTable(req.IPAM.Table, b, n.Name)
	if err != nil {
		return req, err
	}
	return req.WithSubnets(subnets)
}

// whoHas returns the fault about a parent, or, if that was selected by an RDMA
// device that a pod has, who has it.
func (n Node) whoHas(req conf.Request, fault error) error {
	if !errors.Is(fault, rdma.ErrNoDevice) {
		return fault
	}
	return cmp.Or(n.held(plan.Link{}, req.Parent.RDMA), fault)
}

// free refuses a name that a link of the pod has which we did not make.
func free(req conf.Request, f plan.Facts) error {
	if !f.Pod.Taken || f.Adopted != nil {
		return nil
	}
	return cnierr.New(cnierr.BadEnv, "add interface", string(req.IfName),
		"choose another interface name in the pod's networks annotation, or ifName in rails",
		"the pod has an interface of this name, which is none of this attachment")
}

// inRail names the rail that an error is about.
func inRail(number int, name conf.LinkName, err error) error {
	subject := fmt.Sprint(number)
	if name != "" { // STATUS knows no names
		subject += fmt.Sprintf(" (%s)", name)
	}
	return cnierr.In("rail", subject, err)
}
