// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/parent"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

const adopting = "adopt interface"

// adoptFacts is Facts for a link that another plugin has made.
func (k *Kernel) adoptFacts(ctx context.Context, req conf.Request) (plan.Facts, error) {
	name := req.Rails[0].IfName
	l, err := k.pod.LinkByName(ctx, string(name))
	if err == nil {
		err = adoptable(l)
	}
	if err != nil {
		return plan.Facts{}, classify(adopting, string(name), err, absent())
	}
	facts := plan.Facts{Adopted: &plan.Adopted{MAC: parent.MAC(l), MTU: l.MTU, NoARP: l.Flags&unix.IFF_NOARP != 0}}
	if req.RDMA.Mode != conf.RDMAOff {
		host, err := k.pod.NSID(ctx, k.hostNS.FD())
		if err == nil {
			facts.Parent, err = parent.Carrier(ctx, parent.Pod{Links: k.pod, Host: k.host, NSID: host}, l, req.Prev.Device)
		}
		if err != nil {
			return plan.Facts{}, classify(adopting, l.Name, err)
		}
	}
	in, err := k.viewPod(ctx)
	if err != nil {
		return plan.Facts{}, classify("read facts of", k.path, err)
	}
	facts.Pod = in.of(name)
	return facts, nil
}

// absent is the meaning of the error when the link does not exist.
func absent() meaning {
	return meaning{
		unix.ENODEV, cnierr.BadConfig,
		"check the plugin before roce in the list: its result names this interface. A device without a network interface, as for DPDK, needs no roce",
	}
}

// adoptable refuses links that cannot be used for RoCE.
func adoptable(l rtnl.Link) error {
	switch {
	case l.Type == unix.ARPHRD_INFINIBAND:
		return cnierr.New(cnierr.NoRDMA, adopting, l.Name,
			"switch the port to Ethernet (mlxconfig LINK_TYPE_P1=2), or remove roce from the list: InfiniBand does not need it",
			"its link layer is InfiniBand, and RoCE needs Ethernet")
	case l.Type != unix.ARPHRD_ETHER:
		return cnierr.New(cnierr.BadConfig, adopting, l.Name,
			"put roce behind a plugin that makes Ethernet interfaces", "its link layer is %s, and RoCE needs Ethernet", l.Encap())
	}
	return nil
}

// adoptedHost is HostFacts for a link that another plugin makes before roce
// runs.
func adoptedHost(req conf.Request) plan.Facts {
	return plan.Facts{
		Adopted: plan.FromPrev(*req.Prev),
		Parent:  plan.Link{Name: req.Rails[0].IfName, Device: req.Prev.Device, InPod: true},
		Pod:     plan.PodFacts{IPv6: hasIPv6()},
	}
}

// adopt executes plan.Adopt.
type adopt struct {
	namespace
	op plan.Adopt
}

// settling is the longest time that duplicate address detection may take: a
// delay and a probe, each of up to a second (addrconf_dad_kick, RFC 4862
// section 5.4), and some reserve.
const settling = 4 * time.Second

func (a adopt) do(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for {
		is, err := a.look(ctx)
		switch {
		case err != nil:
			return classify(adopting, string(a.op.Link), err, absent())
		case is.otherMAC != nil:
			return cnierr.New(cnierr.TryAgain, adopting, string(a.op.Link), "", "%w", is.otherMAC)
		case is.what != "":
			return cnierr.New(is.code, adopting, string(a.op.Link), is.hint, "%s", is.what)
		case !is.unsure.IsValid():
			return nil
		}
		select {
		case <-ctx.Done():
			return cnierr.New(cnierr.TryAgain, adopting, string(a.op.Link), "", "duplicate address detection for %s has not finished", is.unsure)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// undo does nothing: the link is not ours.
func (a adopt) undo(context.Context) error { return nil }

func (a adopt) check(ctx context.Context) error {
	const action = "check adopted interface"
	is, err := a.look(ctx)
	switch {
	case errors.Is(err, unix.ENODEV):
		return cnierr.New(cnierr.Damaged, action, string(a.op.Link),
			"delete the pod: only the plugin that made the interface can make it again", "the pod has no such interface")
	case err != nil:
		return classify(action, string(a.op.Link), err)
	}
	var errs []error
	if is.otherMAC != nil {
		errs = append(errs, damaged(action, string(a.op.Link), []string{a.ip("link set dev %s address %s", a.op.Link, a.op.MAC)}, "%w", is.otherMAC))
	}
	if is.what != "" {
		errs = append(errs, cnierr.New(cnierr.Damaged, action, string(a.op.Link), is.hint, "%s", is.what))
	}
	return errors.Join(errs...)
}

// looks is what is wrong with an adopted link. what is "" if nothing is wrong with its
// addresses.
type looks struct {
	otherMAC *ChangedError // nil: it has the MAC
	code     cnierr.Code
	what     string
	hint     string     // with the command that corrects it
	unsure   netip.Addr // an address that the kernel has not finished duplicate detection for
}

func (a adopt) look(ctx context.Context) (looks, error) {
	l, err := a.conn.LinkByName(ctx, string(a.op.Link))
	if err != nil {
		return looks{}, err
	}
	var out looks
	if mac := parent.MAC(l); mac != a.op.MAC {
		out.otherMAC = &ChangedError{Property: MAC, Want: a.op.MAC.String(), Got: mac.String()}
	}
	there, err := a.conn.Addresses(ctx, l.Index)
	if err != nil {
		return looks{}, err
	}
	for _, p := range a.op.Addresses {
		i := slices.IndexFunc(there, func(is rtnl.Address) bool { return is.Prefix == p })
		switch {
		case i < 0:
			out.code, out.what = cnierr.BadConfig, fmt.Sprintf("want %s on it, got %s", p, list(there))
			out.hint = "restore it: " + a.ip("addr add %s dev %s", p, a.op.Link)
			return out, nil
		case there[i].Flags&unix.IFA_F_DADFAILED != 0:
			out.code, out.what = cnierr.AddressTaken, fmt.Sprintf("duplicate address detection failed for %s: another machine has it", p)
			return out, nil
		case there[i].Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_OPTIMISTIC) == unix.IFA_F_TENTATIVE:
			out.unsure = p.Addr()
		}
	}
	return out, nil
}
