// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// adoptFacts is Facts for a link that another plugin has made.
func (k *FakeKernel) adoptFacts(req conf.Request) (plan.Facts, error) {
	name := req.Rails[0].IfName
	l, err := k.pod.adoptable(name)
	if err != nil {
		return plan.Facts{}, err
	}
	facts := plan.Facts{Adopted: &plan.Adopted{MAC: l.mac, MTU: l.mtu}, Pod: k.pod.facts(name)}
	if req.RDMA.Mode == conf.RDMAOff {
		return facts, nil
	}
	facts.Parent = plan.Link{Name: l.name, MAC: l.mac, MTU: l.mtu, Device: req.Prev.Device, InPod: true}
	if p := l.parent; p != nil {
		facts.Parent = plan.Link{Name: p.name, MAC: p.mac, MTU: p.mtu, Device: req.Prev.Device}
	}
	return facts, nil
}

func (s *Space) adoptable(name conf.LinkName) (*iface, error) {
	const action = "adopt interface"
	switch l := s.link(name); {
	case l == nil:
		return nil, cnierr.New(cnierr.BadConfig, action, string(name), "", "no such device")
	case l.kind == "loopback":
		return nil, cnierr.New(cnierr.BadConfig, action, string(name), "", "its link layer is not Ethernet")
	default:
		return l, nil
	}
}

type adopt struct{ op plan.Adopt }

func (a adopt) do(s *Space) error {
	code, err := a.look(s)
	if err != nil {
		return cnierr.New(code, "adopt interface", string(a.op.Link), "", "%w", err)
	}
	return nil
}

func (adopt) undo(*Space) error { return nil }

func (a adopt) check(s *Space) error {
	if _, err := a.look(s); err != nil {
		return s.damaged("check adopted interface", string(a.op.Link), a.op, "%w", err)
	}
	return nil
}

// look returns what differs from the operation.
func (a adopt) look(s *Space) (cnierr.Code, error) {
	l := s.link(a.op.Link)
	if l == nil {
		return cnierr.BadConfig, errors.New("no such device")
	}
	for _, p := range a.op.Addresses {
		if !slices.Contains(l.addrs, p) {
			return cnierr.BadConfig, fmt.Errorf("want %s on it, got %v", p, l.addrs)
		}
	}
	if l.mac != a.op.MAC {
		return cnierr.TryAgain, &kernel.ChangedError{Property: kernel.MAC, Want: a.op.MAC.String(), Got: l.mac.String()}
	}
	return 0, nil
}
