// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package thisnode builds the node that a program runs on, from the kernel, the wire,
// RDMA and the records.
//
// It opens nothing before a verb needs it. The source of addresses differs between
// programs, so the caller sets it. It is separate from package plugin, because
// roce-ipam links none of this. Everything is in this file.
package thisnode

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// New returns the node with these records. name returns the name of the namespace at
// a path for commands in hints. The caller still sets Addresses, and ID for the verbs
// that make attachments.
func New(records record.Store, name func(path string) string, log *slog.Logger) attach.Node {
	sys := os.DirFS("/sys")
	return attach.Node{
		Open:     func(path string) (attach.Kernel, error) { return kernel.Open(path, sys) },
		OpenHost: func() (attach.Kernel, error) { return kernel.OpenHost() },
		Find:     netns.Find,
		Wire: func(k attach.Kernel) plan.Single {
			return &probe.Prober{Enter: k.Enter, EnterHost: k.EnterHost, Log: log, Rand: rand.Reader}
		},
		RDMA: func(path string, enter func(func() error) error) attach.RDMA {
			return rdma.New(rdma.Config{Sys: sys, Proc: os.DirFS("/proc"), Enter: enter, Netns: name(path), Lock: records.LockMoves, Log: log})
		},
		Host: func(ctx context.Context, req conf.Request) ([]plan.RailFacts, error) {
			return kernel.HostFacts(ctx, req, sys)
		},
		Now:     plugin.BootTime,
		Records: records,
		Log:     log,
	}
}
