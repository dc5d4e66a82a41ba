// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program roce-ipam is a CNI IPAM plugin: the address pools of roce for
// other main plugins, such as sriov, ipvlan and host-device.
//
// It leases and releases; it never touches a link, and cannot ask the wire,
// because at its turn there may be no link to ask on.
package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// settingsFile is where the settings of the node are. The linker sets another path in
// programs for tests; nothing sets it in one that runs.
var settingsFile = conf.SettingsFile //nolint:gochecknoglobals // the linker can set a variable of a package, and nothing else

func main() {
	os.Exit(plugin.Main("roce-ipam", plugin.Verbs{Add: add, Del: del, Check: check, GC: gc, Status: status}))
}

func add(ctx context.Context, args *skel.CmdArgs) error {
	in := plugin.Input("ADD", args)
	req, err := conf.ParseIPAM(in)
	if err != nil {
		return err
	}
	s, err := allowed(req)
	if err != nil {
		return err
	}
	log, closeLog, err := plugin.OpenLog(s.Log)
	if err != nil {
		return err
	}
	defer closeLog()
	var facts plan.Facts // those that need no link
	if facts.Pod.Netns, err = kernel.NetnsID(req.Netns); err != nil {
		return err
	}
	if facts.HostAddrs, err = kernel.HostAddrs(ctx); err != nil {
		return err
	}
	addresses, err := allocator(s.StateDir, conf.Program(in), log)
	if err != nil {
		return err
	}
	if err := notTwice(ctx, addresses, req, facts.Pod.Netns); err != nil {
		return err
	}
	claim, err := addresses.Claim(req, []plan.RailFacts{{Facts: facts}})
	if err != nil {
		return err
	}
	rails, err := claim.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := types.PrintResult(rails[0].Lease.Result(), req.CNIVersion); err != nil {
		rec := record.Record{Network: req.Network, Attachment: req.Attachment, Netns: req.Netns, NetnsID: facts.Pod.Netns, IPAM: conf.PoolType}
		return errors.Join(plugin.Untold(err), addresses.ReleaseUnfinished(context.WithoutCancel(ctx), rec))
	}
	return nil
}

// notTwice refuses an ADD of an interface that has its address already. CNI forbids to call
// ADD twice without DEL (SPEC.md). Upstream's ptp, which asks for the address first, would
// then fail at the interface and call DEL, and the running pod would lose its lease.
func notTwice(ctx context.Context, addresses lease.Allocator, req conf.Request, ns netns.ID) error {
	has, err := kernel.HasAddress(ctx, req.Netns, req.IfName)
	if err != nil || !has || addresses.CheckHeld(ctx, req, ns) != nil {
		return err
	}
	return cnierr.New(cnierr.BadConfig, "lease address for", string(req.IfName), "call DEL before ADD: delete the pod",
		"the interface is in container %q, with its address: ADD was called twice", req.ContainerID)
}

func del(ctx context.Context, args *skel.CmdArgs) error {
	in := plugin.Input("DEL", args)
	d, err := conf.ParseDel(in)
	if err != nil {
		return err
	}
	log := plugin.Log(os.Stderr, slog.LevelInfo)
	s, d, err := plugin.SettingsForDEL(settingsFile, d, log)
	if err != nil {
		return err
	}
	addresses, err := allocator(s.StateDir, conf.Program(in), log)
	if err != nil {
		return err
	}
	// The runtime called this program, so the addresses are from our pools, even if
	// ipam.type names another plugin.
	rec := record.Record{Network: d.Network, Attachment: d.Attachment, Netns: d.Netns, IPAM: conf.PoolType}
	if id, err := kernel.NetnsID(d.Netns); err == nil {
		rec.NetnsID = id
	}
	return addresses.ReleaseUnfinished(ctx, rec)
}

// check returns an error if an address of the main plugin is not leased to the
// attachment any more.
func check(ctx context.Context, args *skel.CmdArgs) error {
	in := plugin.Input("CHECK", args)
	req, err := conf.ParseIPAM(in)
	if err != nil {
		return err
	}
	addresses, err := looking(in, req)
	if err != nil {
		return err
	}
	netns, err := kernel.NetnsID(req.Netns)
	if err != nil {
		return err
	}
	return addresses.CheckHeld(ctx, req, netns)
}

// gc releases the leases of the network's attachments that are not valid any more.
func gc(ctx context.Context, args *skel.CmdArgs) error {
	in := plugin.Input("GC", args)
	g, err := conf.ParseGC(in)
	if err != nil {
		return err
	}
	g.IPAM = conf.PoolType // the runtime called this program, so the addresses are from our pools
	s, err := plugin.Settings(settingsFile)
	if err != nil {
		return err
	}
	addresses, err := allocator(s.StateDir, conf.Program(in), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	held, err := addresses.Held(ctx, g)
	errs := []error{err}
	for _, k := range held {
		if !slices.Contains(g.Valid, k) {
			errs = append(errs, addresses.ReleaseHeld(ctx, g, k))
		}
	}
	return errors.Join(errs...)
}

func status(ctx context.Context, args *skel.CmdArgs) error {
	in := plugin.Input("STATUS", args)
	req, err := conf.ParseIPAM(in)
	if err != nil {
		return err
	}
	addresses, err := looking(in, req)
	if err != nil {
		return cnierr.Unavailable(err)
	}
	var facts plan.Facts
	if facts.HostAddrs, err = kernel.HostAddrs(ctx); err != nil {
		return err
	}
	claim, err := addresses.Claim(req, []plan.RailFacts{{Facts: facts}})
	if err != nil {
		return lease.StatusError(req, err)
	}
	return claim.Status(ctx)
}

// allowed returns the settings of the node, and an error for a request that they do not
// allow.
func allowed(req conf.Request) (settings.Node, error) {
	s, err := plugin.Settings(settingsFile)
	if err != nil {
		return s, err
	}
	_, err = plugin.Allowed(s, req)
	return s, err
}

// looking returns the allocator of this node for a call that changes nothing, if the
// settings allow the request.
func looking(in conf.Input, req conf.Request) (lease.Allocator, error) {
	s, err := allowed(req)
	if err != nil {
		return lease.Allocator{}, err
	}
	return allocator(s.StateDir, conf.Program(in), slog.New(slog.DiscardHandler))
}

// allocator returns the allocator of this node. It leases no address in quarantine,
// because this program cannot send a conflict probe. program is the type of the plugin
// that called.
func allocator(stateDir, program string, log *slog.Logger) (lease.Allocator, error) {
	boot, err := plugin.BootID()
	return lease.Allocator{
		Book: plugin.Book(stateDir, boot, log, nil), Program: program, RefuseQuarantined: true, Agent: nodefile.Store{Dir: stateDir, BootID: boot},
		Now: plugin.BootTime, Log: log,
	}, err
}
