// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Program minimal is a CNI plugin that makes only what the kernel must have: a macvlan in
// the pod's namespace with an address, up, a rule and a table of two routes. It is written
// as one would with the netlink library, and promises nothing: no lease, no record, no check,
// no undo.
//
// Program bench measures roce against it, so that the distance is what the promises of roce
// cost, and not what a process costs.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"runtime"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// network is the configuration.
type network struct {
	types.NetConf
	Master  string       `json:"master"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway"`
}

const table = 100

func main() {
	runtime.LockOSThread()
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del}, version.All, "minimal")
}

// handles opens a socket of the namespace that the plugin runs in, and one of the pod's.
func handles(path string) (node, pod *netlink.Handle, ns netns.NsHandle, err error) {
	if ns, err = netns.GetFromPath(path); err != nil {
		return nil, nil, ns, err
	}
	if pod, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err != nil {
		return nil, nil, ns, err
	}
	node, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	return node, pod, ns, err
}

func add(args *skel.CmdArgs) error {
	var n network
	if err := json.Unmarshal(args.StdinData, &n); err != nil {
		return err
	}
	node, pod, ns, err := handles(args.Netns)
	if err != nil {
		return err
	}
	parent, err := node.LinkByName(n.Master)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.Namespace = args.IfName, parent.Attrs().Index, netlink.NsFd(int(ns))
	if err := node.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
		return err
	}
	link, err := pod.LinkByName(args.IfName)
	if err != nil {
		return err
	}
	subnet := &net.IPNet{IP: n.Address.Addr().AsSlice(), Mask: net.CIDRMask(n.Address.Bits(), 32)}
	if err := pod.AddrAdd(link, &netlink.Addr{IPNet: subnet}); err != nil {
		return err
	}
	if err := pod.LinkSetUp(link); err != nil {
		return err
	}
	if err := routes(pod, link.Attrs().Index, n); err != nil {
		return err
	}
	return types.PrintResult(&current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: args.IfName, Sandbox: args.Netns}},
		IPs:        []*current.IPConfig{{Address: *subnet, Interface: current.Int(0)}},
	}, n.CNIVersion)
}

// routes makes the rule for the address, and its table.
func routes(pod *netlink.Handle, index int, n network) error {
	if err := pod.RuleAdd(rule(n)); err != nil {
		return err
	}
	masked := n.Address.Masked()
	subnet := &net.IPNet{IP: masked.Addr().AsSlice(), Mask: net.CIDRMask(masked.Bits(), 32)}
	if err := pod.RouteAdd(&netlink.Route{LinkIndex: index, Table: table, Dst: subnet, Scope: netlink.SCOPE_LINK}); err != nil {
		return err
	}
	return pod.RouteAdd(&netlink.Route{LinkIndex: index, Table: table, Gw: n.Gateway.AsSlice()})
}

func rule(n network) *netlink.Rule {
	r := netlink.NewRule()
	r.Table, r.Priority = table, 32000
	r.Src = &net.IPNet{IP: n.Address.Addr().AsSlice(), Mask: net.CIDRMask(32, 32)}
	return r
}

func del(args *skel.CmdArgs) error {
	var n network
	if err := json.Unmarshal(args.StdinData, &n); err != nil {
		return err
	}
	_, pod, _, err := handles(args.Netns)
	if err != nil {
		return err
	}
	link, err := pod.LinkByName(args.IfName)
	if err != nil {
		return err
	}
	if err := pod.RuleDel(rule(n)); err != nil {
		return err
	}
	if err := pod.LinkDel(link); err != nil {
		return fmt.Errorf("delete %s: %w", args.IfName, err)
	}
	return nil
}
