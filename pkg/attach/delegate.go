// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
)

// Delegate leases from another IPAM plugin, which it runs as the CNI
// specification says (SPEC.md section 4).
type Delegate struct {
	Exec invoke.Exec // nil: run the programs
	Path []string    // CNI_PATH
	Args string      // CNI_ARGS
}

// NeedsLink implements Leaser: dhcp asks through the interface.
func (Delegate) NeedsLink() bool { return true }

// Acquire implements Leaser. An error of the plugin keeps its code.
func (d Delegate) Acquire(ctx context.Context, req conf.Request, _ plan.Facts) (plan.Lease, error) {
	path, err := d.find(req.IPAM.Type)
	if err != nil {
		return plan.Lease{}, err
	}
	args := d.call("ADD", string(req.ContainerID), string(req.IfName), req.Netns)
	res, err := invoke.ExecPluginWithResult(ctx, path, req.IPAM.Raw, args, d.Exec)
	if err != nil {
		return plan.Lease{}, pluginError("lease addresses from IPAM plugin", req.IPAM.Type, err)
	}
	lease, err := fromResult(res)
	if err != nil {
		return plan.Lease{}, cnierr.New(cnierr.Decode, "read result of IPAM plugin", req.IPAM.Type,
			"see that plugin's documentation and its configuration in ipam", "%w", err)
	}
	return lease, nil
}

// Reject implements Leaser: the protocol has no word for "another one".
func (Delegate) Reject(context.Context, conf.Request, []plan.Target) (bool, error) { return false, nil }

// Release implements Leaser. It runs DEL with the configuration that ADD had.
func (d Delegate) Release(ctx context.Context, rec record.Record) error {
	path, err := d.find(rec.IPAM)
	if err != nil {
		return err
	}
	args := d.call("DEL", string(rec.ContainerID), string(rec.IfName), rec.Netns)
	if err := invoke.ExecPluginWithoutResult(ctx, path, rec.Config, args, d.Exec); err != nil {
		return pluginError("release addresses of IPAM plugin", rec.IPAM, err)
	}
	return nil
}

// GC forwards a GC to the plugin (SPEC.md, "GC").
func (d Delegate) GC(ctx context.Context, gc conf.GC) error {
	return d.forward(ctx, "collect leases of IPAM plugin", gc.IPAM, "GC", []byte(gc.Raw))
}

// Status forwards a STATUS to the plugin.
func (d Delegate) Status(ctx context.Context, req conf.Request) error {
	return d.forward(ctx, "ask status of IPAM plugin", req.IPAM.Type, "STATUS", req.IPAM.Raw)
}

// Check forwards a CHECK to the plugin.
func (d Delegate) Check(ctx context.Context, req conf.Request) error {
	path, err := d.find(req.IPAM.Type)
	if err != nil {
		return err
	}
	args := d.call("CHECK", string(req.ContainerID), string(req.IfName), req.Netns)
	if err := invoke.ExecPluginWithoutResult(ctx, path, req.IPAM.Raw, args, d.Exec); err != nil {
		return pluginError("check leases of IPAM plugin", req.IPAM.Type, err)
	}
	return nil
}

// forward runs a verb that is about no attachment.
func (d Delegate) forward(ctx context.Context, op, plugin, verb string, stdin []byte) error {
	path, err := d.find(plugin)
	if err != nil {
		return err
	}
	if err := invoke.ExecPluginWithoutResult(ctx, path, stdin, d.call(verb, "", "", ""), d.Exec); err != nil {
		return pluginError(op, plugin, err)
	}
	return nil
}

func (d Delegate) find(plugin string) (string, error) {
	path, err := invoke.FindInPath(plugin, d.Path)
	if err != nil {
		return "", cnierr.New(cnierr.BadConfig, "find IPAM plugin", plugin,
			"install it beside roce, or set ipam.type to "+conf.PoolType, "it is in no folder of CNI_PATH: %w", err)
	}
	return path, nil
}

func (d Delegate) call(verb, id, ifName, netns string) *invoke.Args {
	return &invoke.Args{
		Command: verb, ContainerID: id, IfName: ifName, NetNS: netns, PluginArgsStr: d.Args,
		Path: strings.Join(d.Path, string(filepath.ListSeparator)),
	}
}

// pluginError keeps the code and the hint that a plugin gave its error.
func pluginError(op, plugin string, err error) error {
	var e *types.Error
	if !errors.As(err, &e) {
		return cnierr.New(cnierr.IO, op, plugin, "run the plugin by hand: it did not answer as the CNI specification says", "%w", err)
	}
	return &cnierr.Error{Code: cnierr.Code(e.Code), Op: op, Subject: plugin, Hint: e.Details, Err: errors.New(e.Msg)}
}

// fromResult returns the addresses and routes of an IPAM result, of any
// version.
func fromResult(r types.Result) (plan.Lease, error) {
	res, err := current.NewResultFromResult(r)
	if err != nil {
		return plan.Lease{}, err
	}
	if len(res.IPs) == 0 {
		return plan.Lease{}, errors.New("it has no address")
	}
	lease := plan.Lease{DNS: res.DNS}
	for _, ip := range res.IPs {
		p, ok := prefixOf(ip.Address)
		if !ok {
			return plan.Lease{}, fmt.Errorf("address %q is not a prefix", ip.Address.String())
		}
		gw, _ := addrOf(ip.Gateway)
		lease.Addresses = append(lease.Addresses, plan.LeasedAddress{Prefix: p, Gateway: gw})
	}
	for _, r := range res.Routes {
		dst, ok := prefixOf(r.Dst)
		if !ok {
			return plan.Lease{}, fmt.Errorf("route destination %q is not a prefix", r.Dst.String())
		}
		via, _ := addrOf(r.GW)
		lease.Routes = append(lease.Routes, conf.Route{
			Dst: dst.Masked(), Via: via, MTU: r.MTU, AdvMSS: r.AdvMSS, Priority: r.Priority, Table: r.Table, Scope: r.Scope,
		})
	}
	return lease, nil
}

func prefixOf(n net.IPNet) (netip.Prefix, bool) {
	a, ok := addrOf(n.IP)
	ones, bits := n.Mask.Size()
	if !ok || ones > a.BitLen() || bits == 0 {
		return netip.Prefix{}, false
	}
	if bits != a.BitLen() { // an IPv4 address with a mask of 128 bits
		ones -= bits - a.BitLen()
	}
	p := netip.PrefixFrom(a, ones)
	return p, p.IsValid()
}

func addrOf(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	return a.Unmap(), ok
}
