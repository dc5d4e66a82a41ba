// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rail

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel"
	"github.com/roce-cni/roce-cni/pkg/kernel/view"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/rdma"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Node is the node that is looked at, or a pod on it.
type Node struct {
	Sys     fs.FS           // root of sysfs, as the calling thread's namespace sees it
	Records []record.Record // of the attachments that stand; nil in a pod
}

// Namespace is what programs in a network namespace can use.
type Namespace struct {
	Rails []Rail
	Out   conf.LinkName // see view.View
}

// Here returns the rails of the calling thread's namespace; with an interface,
// only of that. It needs no privileges. Errors: those of Find, cnierr.IO.
func (n Node) Here(ctx context.Context, only conf.LinkName) (Namespace, error) {
	here, err := view.Look(ctx)
	if err != nil {
		return Namespace{}, err
	}
	s := rdma.New(rdma.Config{Sys: n.Sys})
	defer s.Close()
	ports, err := Ports(ctx, s, rdma.Host)
	if err != nil {
		return Namespace{}, err
	}
	rails, err := Find(ports, addrs(here, only), Hints{Slaves: here.Slaves})
	return Namespace{rails, here.Out}, err
}

// At returns the rails of the namespace at a path, as Here does of its own. It
// needs root.
func (n Node) At(ctx context.Context, netns string, only conf.LinkName) (Namespace, error) {
	k, err := kernel.Open(netns, n.Sys)
	if errors.Is(err, kernel.ErrHostNetns) {
		return n.Here(ctx, only)
	}
	if err != nil {
		return Namespace{}, err
	}
	defer k.Close()
	host, err := view.Look(ctx)
	if err != nil {
		return Namespace{}, err
	}
	var pod view.View
	err = k.Enter(func() (err error) {
		pod, err = view.Look(ctx)
		return err
	})
	if err != nil {
		return Namespace{}, err
	}
	s := rdma.New(rdma.Config{Sys: n.Sys, Enter: k.Enter, Netns: netns})
	defer s.Close()
	ports, err := usable(ctx, s)
	if err != nil {
		return Namespace{}, err
	}
	rails, err := Find(ports, addrs(pod, only), Hints{Slaves: append(host.Slaves, pod.Slaves...), Recorded: n.recorded(k.ID())})
	return Namespace{rails, pod.Out}, err
}

// usable returns the ports that a pod can use. In shared mode it is the host
// that sees which interfaces they have.
func usable(ctx context.Context, s *rdma.Subsystem) ([]Port, error) {
	sys, err := s.System(ctx, rdma.Pod)
	if err != nil {
		return nil, err
	}
	if sys.Exclusive {
		return Ports(ctx, s, rdma.Pod)
	}
	return Ports(ctx, s, rdma.Host)
}

// addrs returns the addresses of an interface, of all for "".
func addrs(v view.View, only conf.LinkName) []Addr {
	var out []Addr
	for _, a := range v.Addrs {
		if only == "" || only == a.Link {
			out = append(out, Addr(a))
		}
	}
	return out
}

// recorded returns the devices that ADD found for the addresses of a pod.
func (n Node) recorded(id plan.NetnsID) map[netip.Addr]string {
	out := map[netip.Addr]string{}
	for _, r := range n.Records {
		if r.NetnsID != id {
			continue
		}
		for _, op := range r.Plan.Ops {
			g, ok := op.(plan.GID)
			if !ok {
				continue
			}
			for _, t := range g.Targets {
				out[t.Addr] = g.Device.Name
			}
		}
	}
	return out
}
