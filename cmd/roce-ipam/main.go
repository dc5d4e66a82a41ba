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
	"github.com/roce-cni/roce-cni/pkg/attach"
	"github.com/roce-cni/roce-cni/pkg/block/nodefile"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf"
	"github.com/roce-cni/roce-cni/pkg/kernel"
	"github.com/roce-cni/roce-cni/pkg/plan"
	"github.com/roce-cni/roce-cni/pkg/record"
	"github.com/roce-cni/roce-cni/pkg/result"
)

func main() {
	os.Exit(plugin.Main("roce-ipam", plugin.Verbs{Add: add, Del: del, Check: check, GC: gc, Status: status}))
}

func add(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.ParseIPAM(plugin.Input("ADD", args))
	if err != nil {
		return err
	}
	log, closeLog, err := plugin.OpenLog(req.Log)
	if err != nil {
		return err
	}
	defer closeLog()
	p, err := pools(req.StateDir, log)
	if err != nil {
		return err
	}
	ordinary, file, err := p.addressed(req)
	if err != nil {
		return err
	}
	req, granted, err := p.agent.Keep(ctx, req, file, nil)
	if err != nil {
		return err
	}
	if !granted.Granted() {
		req = ordinary
	}
	var facts plan.Facts
	if facts.Pod.Netns, err = kernel.NetnsID(req.Netns); err != nil {
		return err
	}
	if facts.HostAddrs, err = kernel.HostAddrs(ctx); err != nil {
		return err
	}
	rails, err := p.Acquire(ctx, req, []plan.Rail{{Request: req, Facts: facts}})
	if err != nil {
		return attach.Kept(granted, err)
	}
	if err := p.agent.Still(req.IPAM.Pool, granted); err != nil {
		rec := record.Record{ContainerID: req.ContainerID, IfName: req.IfName, Netns: req.Netns, NetnsID: facts.Pod.Netns}
		return errors.Join(err, p.Release(ctx, rec))
	}
	return types.PrintResult(result.OfLease(rails[0].Lease), req.CNIVersion)
}

func del(ctx context.Context, args *skel.CmdArgs) error {
	d, err := conf.ParseDel(plugin.Input("DEL", args))
	if err != nil {
		return err
	}
	p, err := pools(d.StateDir, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	rec := record.Record{ContainerID: d.ContainerID, IfName: d.IfName, Netns: d.Netns}
	if id, err := kernel.NetnsID(d.Netns); err == nil {
		rec.NetnsID = id
	}
	return errors.Join(p.Release(ctx, rec), p.agent.Forget(d))
}

// check says when an address that the main plugin was given is not leased to
// the attachment any more.
func check(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.ParseIPAM(plugin.Input("CHECK", args))
	if err != nil {
		return err
	}
	p, err := pools(req.StateDir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	netns, err := kernel.NetnsID(req.Netns)
	if err != nil {
		return err
	}
	held, err := p.Holds(ctx, req.Network, record.Key{ContainerID: req.ContainerID, IfName: req.IfName}, netns)
	if err != nil {
		return err
	}
	if !held {
		return cnierr.New(cnierr.Damaged, "check leases of container", string(req.ContainerID),
			"delete the pod: its address may be given to another one; rocectl pool list shows who has it",
			"network %q has none for interface %q", req.Network, req.IfName)
	}
	return nil
}

// gc releases what the network's attachments hold that are not valid any more.
func gc(ctx context.Context, args *skel.CmdArgs) error {
	g, err := conf.ParseGC(plugin.Input("GC", args))
	if err != nil {
		return err
	}
	p, err := pools(g.StateDir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	held, err := p.Held(ctx, g.Network)
	errs := []error{err}
	for _, k := range held {
		if !slices.Contains(g.Valid, conf.Attachment(k)) {
			errs = append(errs, p.Release(ctx, record.Record{ContainerID: k.ContainerID, IfName: k.IfName}))
		}
	}
	return errors.Join(errs...)
}

func status(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.ParseIPAM(plugin.Input("STATUS", args))
	if err != nil {
		return err
	}
	p, err := pools(req.StateDir, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	if req, _, err = p.addressed(req); err != nil {
		return cnierr.Unavailable(attach.UnlessOff(req, err))
	}
	var facts plan.Facts
	if facts.HostAddrs, err = kernel.HostAddrs(ctx); err != nil {
		return err
	}
	return cnierr.Unavailable(p.Status(ctx, req, []plan.Rail{{Request: req, Facts: facts}}))
}

// node is the pools of this node.
type node struct {
	attach.Pools
	agent attach.Agent
}

func pools(stateDir string, log *slog.Logger) (node, error) {
	boot, err := plugin.BootID()
	if err != nil {
		return node{}, err
	}
	return node{
		attach.Pools{Book: plugin.Book(stateDir, boot, log), RestedOnly: true},
		attach.Agent{Ranges: nodefile.Store{Dir: stateDir, BootID: boot}, Now: plugin.BootTime, Wait: plugin.Wait, Log: log},
	}, nil
}

// addressed returns the request with its subnets, which of a RailPool only the
// node knows: it has them in a file.
func (n node) addressed(req conf.Request) (conf.Request, nodefile.File, error) {
	if req.IPAM.RailPool == nil {
		return req, nodefile.File{}, nil
	}
	f, err := n.agent.Ranges.Read(req.IPAM.Pool)
	if err != nil {
		return req, f, err
	}
	req, err = attach.OfRailPool(req, f, nil)
	return req, f, err
}
