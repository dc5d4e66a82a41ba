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
	"crypto/rand"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
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
	os.Exit(plugin.Main("roce", plugin.Verbs{Add: add, Del: del, Check: check, GC: gc, Status: status}))
}

func add(ctx context.Context, args *skel.CmdArgs) (err error) {
	in := plugin.Input("ADD", args)
	note := plugin.Note(in)
	defer func() { note.End(settingsFile, err) }()
	req, err := conf.Parse(in)
	if err != nil {
		return err
	}
	note.Network, note.Pod = req.Network, req.Pod
	return with(args, req, func(n attach.Node) error {
		note.StateDir, n.Took = n.Records.Dir, note.Took
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

func del(ctx context.Context, args *skel.CmdArgs) (err error) {
	in := plugin.Input("DEL", args)
	note := plugin.Note(in)
	defer func() { note.End(settingsFile, err) }()
	d, err := conf.ParseDel(in)
	if err != nil {
		return err
	}
	note.Network, note.Pod = d.Network, d.Pod
	s, d, err := plugin.SettingsForDEL(settingsFile, d, plugin.Log(os.Stderr, slog.LevelInfo))
	if err != nil {
		return err
	}
	note.StateDir = s.StateDir
	log, closeLog, err := plugin.OpenLog(s.Log)
	defer closeLog()
	if err != nil {
		log.Warn("the log of the settings cannot be used", "error", err)
	}
	n, err := node(args, s, nil, log)
	if err != nil {
		return err
	}
	n.Held = note.Held
	return n.Del(ctx, d)
}

func check(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.Parse(plugin.Input("CHECK", args))
	if err != nil {
		return err
	}
	return with(args, req, func(n attach.Node) error { return n.Check(ctx, req) })
}

func gc(ctx context.Context, args *skel.CmdArgs) error {
	g, err := conf.ParseGC(plugin.Input("GC", args))
	if err != nil {
		return err
	}
	s, err := plugin.Settings(settingsFile)
	if err != nil {
		return err
	}
	return on(args, s, nil, func(n attach.Node) error { return n.GC(ctx, plugin.ForGC(s, g, n.Log)) })
}

func status(ctx context.Context, args *skel.CmdArgs) error {
	req, err := conf.Parse(plugin.Input("STATUS", args))
	if err != nil {
		return err
	}
	ready := false
	err = with(args, req, func(n attach.Node) error {
		ready = true
		return n.Status(ctx, req)
	})
	if !ready {
		return cnierr.Unavailable(err)
	}
	return err
}

// with runs a verb on the node that this process runs on, if the settings of the node
// allow the request.
func with(args *skel.CmdArgs, req conf.Request, verb func(attach.Node) error) error {
	s, err := plugin.Settings(settingsFile)
	if err != nil {
		return err
	}
	parent, err := plugin.Allowed(s, req)
	if err != nil {
		return err
	}
	return on(args, s, parent, verb)
}

// on runs a verb on the node, with the log of its settings.
func on(args *skel.CmdArgs, s settings.Node, parent func(plan.Link) error, verb func(attach.Node) error) error {
	log, closeLog, err := plugin.OpenLog(s.Log)
	if err != nil {
		return err
	}
	defer closeLog()
	n, err := node(args, s, parent, log)
	if err != nil {
		return err
	}
	return verb(n)
}

// node returns the node that this process runs on. parent says whether a NIC may be the
// parent in an ADD.
func node(args *skel.CmdArgs, s settings.Node, parent func(plan.Link) error, log *slog.Logger) (n attach.Node, err error) {
	id, name, err := plugin.NodeID()
	if err != nil {
		return n, err
	}
	boot, err := plugin.BootID()
	if err != nil {
		return n, err
	}
	records, files := record.Store{Dir: s.StateDir, BootID: boot}, nodefile.Store{Dir: s.StateDir, BootID: boot}
	n = attach.Node{
		ID:      id,
		Machine: attach.Linux{Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc"), Rand: rand.Reader, Records: records, TakeInUse: s.TakeInUse, Log: log},
		Fillers: plan.FillerNetns, RemoveFillers: s.RemoveFillers,
		AllowParent: parent,
		Services:    files.Services,
		Addresses: lease.Allocator{
			Book: plugin.Book(s.StateDir, boot, log, func(ctx context.Context, o ipam.Owner) {
				n.ForgetReaped(ctx, o.Attachment(), o.Netns.ID)
			}),
			Program:  conf.PluginType,
			Plugins:  lease.Plugins{Path: filepath.SplitList(args.Path), Environ: os.Environ(), Stderr: os.Stderr, Guard: records.Guard},
			Agent:    files,
			Now:      plugin.BootTime,
			Table:    s.Table,
			NodeName: name,
			ReadFile: trusted.Read,
			Log:      log,
		},
		Now:     plugin.BootTime,
		Records: records,
		Trace:   plugin.Trace(),
		Log:     log,
	}
	return n, nil
}
