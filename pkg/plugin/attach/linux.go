// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/probe"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// Linux is the Machine that a program runs on. It opens nothing before a verb needs it.
type Linux struct {
	Sys, Proc fs.FS     // the roots of sysfs and procfs
	Rand      io.Reader // for the mark in our frames
	// Records has the lock for moves of RDMA devices, and who has an address.
	Records record.Store
	// TakeInUse is that of the node's settings.
	TakeInUse bool
	Log       *slog.Logger
}

// Open implements Machine.
func (l Linux) Open(path string) (Kernel, error) { return kernel.Open(path, l.Sys) }

// OpenHost implements Machine.
func (Linux) OpenHost() (Kernel, error) { return kernel.OpenHost() }

// MakeNetns implements Machine. It also makes the folder, which is that of ip-netns(8).
func (Linux) MakeNetns(path string) error {
	err := os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // as ip-netns(8) makes it
	if err == nil {
		err = netns.Make(path)
	}
	if err != nil {
		return cnierr.New(cnierr.IO, "make network namespace", path, netns.NeedsRoot, "%w", err)
	}
	return nil
}

// RemoveNetns implements Machine.
func (Linux) RemoveNetns(path string) error {
	if err := netns.Remove(path); err != nil {
		return cnierr.New(cnierr.IO, "remove network namespace", path, netns.NeedsRoot, "%w", err)
	}
	return nil
}

// Facts implements Machine.
func (l Linux) Facts(ctx context.Context, req conf.Request) ([]plan.RailFacts, error) {
	return kernel.HostFacts(ctx, req, l.Sys)
}

// Wire implements Machine.
func (l Linux) Wire(k Kernel) plan.Single {
	return &probe.Prober{Enter: k.Enter, EnterHost: k.EnterHost, Log: l.Log, Rand: l.Rand}
}

// RDMA implements Machine.
func (l Linux) RDMA(path string, enter func(func() error) error) RDMA {
	owners := func() map[netip.Addr]string { return Owners(l.Records) }
	return rdma.New(rdma.Config{
		Sys: l.Sys, Proc: l.Proc, Enter: enter, Netns: plan.NetnsName(path), Lock: l.Records.LockMoves, TakeInUse: l.TakeInUse, Log: l.Log, Owners: owners,
	})
}
