// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program roce is the CNI plugin. On ADD it gives a pod one or more rails: a macvlan
// child of a RoCE NIC for each, with addresses, routes and RDMA. Behind another plugin it
// uses the interface of that plugin instead. On DEL it removes what ADD made.
//
// It only connects the packages. The order of an ADD is in pkg/plugin/attach/add.go.
package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/cmd/internal/thisnode"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/delegate"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// policyFile is where the policy of the node is. The linker sets another path in
// programs for tests; nothing sets it in one that runs.
var policyFile = "/etc/roce/policy.json" //nolint:gochecknoglobals // the linker can set a variable of a package, and nothing else

func main() {
	os.Exit(plugin.Main("roce", plugin.Verbs{Add: add, Del: del, Check: check, GC: gc, Status: status}))
}

func add(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.Parse(plugin.Input("ADD", args))
	if err != nil {
		return err
	}
	parent, err := plugin.Allowed(policyFile, req)
	if err != nil {
		return err
	}
	return with(args, req.StateDir, req.Log, func(n attach.Node) error {
		n.Parent = parent
		res, err := n.Add(ctx, req)
		if err != nil {
			return err
		}
		if err := types.PrintResult(res, req.CNIVersion); err != nil {
			return errors.Join(plugin.Untold(err), n.Del(context.WithoutCancel(ctx), conf.DelOf(req)))
		}
		return nil
	})
}

func del(ctx context.Context, args *skel.CmdArgs) error {
	d, err := conf.ParseDel(plugin.Input("DEL", args))
	if err != nil {
		return err
	}
	log, _, err := plugin.OpenLog(conf.Log{Level: "info"})
	if err != nil {
		return err
	}
	d, hasState, unknown := plugin.AllowedDel(policyFile, d, log)
	if !hasState {
		return with(args, conf.DefaultStateDir, conf.Log{Level: "info"}, func(n attach.Node) error { return errors.Join(unknown, n.DelMarked(ctx, d)) })
	}
	return with(args, d.StateDir, conf.Log{Level: "info"}, func(n attach.Node) error { return n.Del(ctx, d) })
}

func check(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.Parse(plugin.Input("CHECK", args))
	if err != nil {
		return err
	}
	if _, err := plugin.Allowed(policyFile, req); err != nil {
		return err
	}
	return with(args, req.StateDir, req.Log, func(n attach.Node) error { return n.Check(ctx, req) })
}

func gc(ctx context.Context, args *skel.CmdArgs) error {
	g, err := conf.ParseGC(plugin.Input("GC", args))
	if err != nil {
		return err
	}
	log, _, err := plugin.OpenLog(conf.Log{Level: "info"})
	if err != nil {
		return err
	}
	if g, err = plugin.AllowedGC(policyFile, g, log); err != nil {
		return err
	}
	return with(args, g.StateDir, conf.Log{Level: "info"}, func(n attach.Node) error { return n.GC(ctx, g) })
}

func status(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.Parse(plugin.Input("STATUS", args))
	if err != nil {
		return err
	}
	if _, err := plugin.Allowed(policyFile, req); err != nil {
		return cnierr.Unavailable(err)
	}
	return with(args, req.StateDir, req.Log, func(n attach.Node) error { return n.Status(ctx, req) })
}

// with runs a verb on the node that this process runs on.
func with(args *skel.CmdArgs, stateDir string, l conf.Log, verb func(attach.Node) error) error {
	log, closeLog, err := plugin.OpenLog(l)
	if err != nil {
		return err
	}
	defer closeLog()
	id, name, err := plugin.NodeID()
	if err != nil {
		return err
	}
	boot, err := plugin.BootID()
	if err != nil {
		return err
	}
	records := record.Store{Dir: stateDir, BootID: boot}
	n := thisnode.New(records, func(path string) string { return path }, log)
	n.ID = id
	files := nodefile.Store{Dir: stateDir, BootID: boot}
	n.Services = files.Services
	n.Addresses = lease.Allocator{
		Book: plugin.Book(stateDir, boot, log, func(ctx context.Context, o ipam.Owner) {
			n.ForgetReaped(ctx, o.Attachment(), o.Netns.ID)
		}),
		Program:  conf.PluginType,
		Plugins:  delegate.Plugins{Path: filepath.SplitList(args.Path), Environ: os.Environ(), Stderr: os.Stderr, Guard: records.Guard},
		Agent:    files,
		Now:      plugin.BootTime,
		NodeName: name,
		ReadFile: trusted.Read,
		Log:      log,
	}
	return verb(n)
}
