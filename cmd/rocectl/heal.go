// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/rocectl/cluster"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/cluster/counts"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
	"github.com/roce-cni/roce-cni/pkg/tool/foreign"
	"github.com/roce-cni/roce-cni/pkg/tool/heal"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
	"github.com/roce-cni/roce-cni/pkg/tool/usage"
)

// settingsEvery is how often rocectl heal reads the settings of the node.
const settingsEvery = 30 * time.Second

const tracing = "/sys/kernel/tracing"

func healCommand(node *nodeFlags) *cobra.Command {
	return &cobra.Command{
		Use:     "heal",
		Short:   "Repair what pods lose as soon as they lose it, until it is stopped",
		Args:    cobra.NoArgs,
		PreRunE: node.mustExist,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			for ctx.Err() == nil {
				now, err := readDuties()
				if err != nil {
					log.Error("nothing is healed before the settings of the node are correct", "error", err)
				}
				if err := healAs(ctx, cmd.ErrOrStderr(), log, node, now); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// duties is what the settings of the node want of rocectl heal.
type duties struct {
	heal                settings.Heal
	count, tellForeigns bool
}

// readDuties returns what the settings want. Settings with a fault want nothing.
func readDuties() (duties, error) {
	s, err := settings.Load(settingsFile)
	if err != nil {
		return duties{heal: settings.HealOff}, err
	}
	return duties{s.Heal, s.CountPods, s.TellForeignGID}, nil
}

func (d duties) changed(ctx context.Context) {
	for cli.Wait(ctx, settingsEvery) == nil {
		if now, _ := readDuties(); now != d { // a fault is logged when it begins to count
			return
		}
	}
}

// healAs does its duties until the context ends, or the settings are others.
func healAs(ctx context.Context, w io.Writer, log *slog.Logger, node *nodeFlags, now duties) error {
	log.Info("healing", "heal", now.heal)
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	if !now.tellForeigns {
		if err := foreign.Remove(tracing); err != nil {
			log.Warn("the probe of a healer that was killed stays: docs/rdma.md says how to remove it", "error", err)
		}
	}
	if now == (duties{heal: settings.HealOff}) {
		now.changed(ctx)
		return nil
	}
	dir, err := node.dir()
	if err != nil {
		return err
	}
	if err := trusted.MakeFolder(dir, 0o700); err != nil {
		return err
	}
	now.watch(ctx, &all, log, node, dir)
	if now.heal == settings.HealOff {
		now.changed(ctx)
		return nil
	}
	n, err := node.open(w)
	if err != nil {
		return err
	}
	file := calls.File{Dir: dir}
	if err := writableSettings(); err != nil {
		return err
	}
	kernel, err := heal.Watch(file)
	if err != nil {
		return err
	}
	h := heal.New(heal.Config{
		Node: repair.Attachments{Node: n, RoutingOnly: now.heal == settings.HealRoutes}, Records: n.Records, Calls: file, Number: kernel.Number, All: now.heal == settings.HealAll, Clock: cluster.Clock(), Log: log,
	})
	defer kernel.Close()
	all.Go(func() { kernel.Run(ctx, h) })
	all.Go(func() { now.changed(ctx); stop() })
	h.Run(ctx)
	return nil
}

// watch starts what looks at the queue pairs of pods. dir is the state folder.
func (d duties) watch(ctx context.Context, all *sync.WaitGroup, log *slog.Logger, node *nodeFlags, dir string) {
	if d.count {
		all.Go(func() { usage.Count(ctx, counts.File{Dir: dir}, log, node.uses, cli.Wait) })
	}
	if d.tellForeigns {
		watcher := foreign.New(foreign.Config{
			Tracing: tracing, Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc"), Calls: calls.File{Dir: dir},
			Records: func() ([]record.Record, error) {
				n, unreadable, err := node.usage()
				return n.Records, errors.Join(err, unreadable)
			},
			Clock: cluster.Clock(), Log: log,
		})
		all.Go(func() { watcher.Run(ctx) })
	}
}

// writableSettings makes /proc/sys writable where it is not: container runtimes mount it
// read-only. That is so in the mount namespace of the container alone.
func writableSettings() error {
	const path = "/proc/sys"
	var on unix.Statfs_t
	err := unix.Statfs(path, &on)
	if err == nil && on.Flags&unix.ST_RDONLY != 0 {
		err = unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
	if err != nil {
		return cnierr.New(cnierr.IO, "make writable", path, "give the container CAP_SYS_ADMIN, and no AppArmor profile, as conf-examples/deploy/heal.yaml does", "%w", err)
	}
	return nil
}
