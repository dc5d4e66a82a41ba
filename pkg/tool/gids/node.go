// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/look"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Node is the node to look at, or a pod on it.
type Node struct {
	Sys     fs.FS           // root of sysfs, as the calling thread's namespace sees it
	Records []record.Record // of the attachments on the node; nil in a pod
}

// Namespace is what programs in a network namespace can use.
type Namespace struct {
	Rails []Rail
	// Out is the interface of the default route, OutAddr its address: see look.View.
	Out     conf.LinkName
	OutAddr netip.Addr
}

// Here returns the rails of the calling thread's namespace. If an interface is given,
// it returns only the rails of that interface. It needs no privileges. Errors: those
// of Find, cnierr.IO.
func (n Node) Here(ctx context.Context, only conf.LinkName) (Namespace, error) {
	here, err := look.Here(ctx)
	if err != nil {
		return Namespace{}, err
	}
	s := rdma.New(rdma.Config{Sys: n.Sys})
	defer s.Close()
	ports, err := Ports(ctx, s, rdma.Host, rdma.Host)
	if err != nil {
		return Namespace{}, err
	}
	on, err := addrs(here, only)
	if err != nil {
		return Namespace{}, err
	}
	rails, err := Find(ports, on, Hints{Slaves: here.Slaves, Out: here.Out})
	return Namespace{rails, here.Out, here.OutAddr}, err
}

// At returns the rails of the namespace at a path. Otherwise it is as Here. It needs
// root.
func (n Node) At(ctx context.Context, netns string, only conf.LinkName) (Namespace, error) {
	k, err := kernel.Open(netns, n.Sys)
	if errors.Is(err, kernel.ErrHostNetns) {
		return n.Here(ctx, only)
	}
	if err != nil {
		return Namespace{}, unreachable(netns, err)
	}
	defer k.Close()
	host, err := look.Here(ctx)
	if err != nil {
		return Namespace{}, err
	}
	var pod look.View
	err = k.Enter(func() (err error) {
		pod, err = look.Here(ctx)
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
	on, err := addrs(pod, only)
	if err != nil {
		return Namespace{}, err
	}
	rails, err := Find(ports, on, Hints{Slaves: append(host.Slaves, pod.Slaves...), Recorded: n.recorded(k.ID(), only), Out: pod.Out})
	return Namespace{rails, pod.Out, pod.OutAddr}, err
}

// usable returns the ports that a pod can use, with the entries that it sees. In
// shared mode, only the host sees the interfaces of the ports.
func usable(ctx context.Context, s *rdma.Subsystem) ([]Port, error) {
	sys, err := s.System(ctx, rdma.Pod)
	if err != nil {
		return nil, err
	}
	if sys.Exclusive {
		return Ports(ctx, s, rdma.Pod, rdma.Pod)
	}
	return Ports(ctx, s, rdma.Host, rdma.Pod)
}

// unreachable returns the error for a namespace that cannot be entered, with a hint
// for the user of rocectl.
func unreachable(netns string, err error) error {
	const action = "open network namespace"
	switch {
	case errors.Is(err, fs.ErrPermission):
		return cnierr.New(cnierr.IO, action, netns, "run it as root on the node, or without --netns, --pid and --container in the pod", "%w", fs.ErrPermission)
	case errors.Is(err, kernel.ErrNetnsGone):
		return cnierr.New(cnierr.BadNetns, action, netns,
			"ip netns list has the names that --netns takes, lsns -t net the PIDs for --pid, and rocectl show --json the IDs for --container", "%w", cause(err))
	}
	return err
}

// addrs returns the addresses of an interface, or of all interfaces for "". Errors:
// BadConfig when the interface has none.
func addrs(v look.View, only conf.LinkName) ([]Addr, error) {
	var out []Addr
	var others []string
	for _, a := range v.Addrs {
		switch {
		case only == "" || only == a.Link:
			out = append(out, Addr(a))
		case !slices.Contains(others, string(a.Link)):
			others = append(others, string(a.Link))
		}
	}
	if len(out) == 0 && only != "" {
		slices.Sort(others)
		return nil, cnierr.New(cnierr.BadConfig, "look at interface", string(only), "ip address in the pod shows its interfaces",
			"no interface of this name has an address; with addresses are: %s", cmp.Or(strings.Join(others, ", "), "none"))
	}
	return out, nil
}

// recorded returns what ADD found for the addresses of a pod. If an interface is
// given, it returns only what ADD found for that interface.
func (n Node) recorded(id netns.ID, only conf.LinkName) map[Addr]Recorded {
	out := map[Addr]Recorded{}
	for _, r := range n.Records {
		if r.NetnsID != id {
			continue
		}
		maps.Copy(out, recorded(r))
	}
	maps.DeleteFunc(out, func(a Addr, _ Recorded) bool { return only != "" && a.Link != only })
	return out
}

// recorded returns what ADD found for the addresses of an attachment.
func recorded(r record.Record) map[Addr]Recorded {
	out := map[Addr]Recorded{}
	for g := range plan.All[plan.GID](r.Plan.Ops) {
		for _, t := range g.Targets {
			out[Addr{t.Link, t.Addr}] = Recorded{g.Device.Name, t.Index}
		}
	}
	return out
}
