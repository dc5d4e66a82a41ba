// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package thisnode is the machine that a program runs on: its kernel, wire and RDMA.
//
// It opens nothing before a verb needs it. It is separate from package plugin, because
// roce-ipam links none of this. Everything is in this file.
package thisnode

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Machine implements attach.Machine.
type Machine struct {
	// Records has the lock for moves of RDMA devices.
	Records record.Store
	// Name returns the name of the namespace at a path for commands in hints.
	Name func(path string) string
	// TakeInUse is that of the node's settings.
	TakeInUse bool
	Log       *slog.Logger
}

// Open implements attach.Machine.
func (Machine) Open(path string) (attach.Kernel, error) { return kernel.Open(path, os.DirFS("/sys")) }

// OpenHost implements attach.Machine.
func (Machine) OpenHost() (attach.Kernel, error) { return kernel.OpenHost() }

// MakeNetns implements attach.Machine. It also makes the folder, which is that of ip-netns(8).
func (Machine) MakeNetns(path string) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // as ip-netns(8) makes it
	if err == nil {
		err = netns.Make(path)
	}
	if err != nil {
		return cnierr.New(cnierr.IO, "make network namespace", path, netns.NeedsRoot, "%w", err)
	}
	return nil
}

// RemoveNetns implements attach.Machine.
func (Machine) RemoveNetns(path string) error {
	if err := netns.Remove(path); err != nil {
		return cnierr.New(cnierr.IO, "remove network namespace", path, netns.NeedsRoot, "%w", err)
	}
	return nil
}

// Facts implements attach.Machine.
func (Machine) Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error) {
	return kernel.HostFacts(ctx, req, os.DirFS("/sys"))
}

// Wire implements attach.Machine.
func (m Machine) Wire(k attach.Kernel) plan.Single {
	return &probe.Prober{Enter: k.Enter, EnterHost: k.EnterHost, Log: m.Log, Rand: rand.Reader}
}

// RDMA implements attach.Machine.
func (m Machine) RDMA(path string, enter func(func() error) error) attach.RDMA {
	owners := func() map[netip.Addr]string { return attach.Owners(m.Records) }
	return rdma.New(rdma.Config{
		Sys: os.DirFS("/sys"), Proc: os.DirFS("/proc"), Enter: enter, Netns: m.Name(path), Lock: m.Records.LockMoves, TakeInUse: m.TakeInUse, Log: m.Log, Owners: owners,
	})
}
