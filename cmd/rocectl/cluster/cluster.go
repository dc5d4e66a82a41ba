// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package cluster has the commands of rocectl for clusters: the agent of each node,
// the reaper, the installer of the plugins, and what an operator looks at.
//
// It decides nothing about blocks: it reads flags, opens the node and the API server,
// and runs packages agent and reconcile. Read this file first. Each command has its
// own file; connect.go and pools.go talk to the API server.
package cluster

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"os/signal"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent/pace"
)

// Commands returns the commands of our pods. stateDir returns the state folder of the
// node, and is called when a command needs it.
func Commands(stateDir func() (string, error)) []*cobra.Command {
	return []*cobra.Command{
		agentCommand(stateDir), gcCommand(),
		installCommand(), uninstallCommand(stateDir),
	}
}

// service returns what a command needs that runs for ever: a context that ends with
// SIGTERM or an interrupt, and a log. The log of client-go goes there too.
func service(ctx context.Context, w io.Writer) (running context.Context, stop context.CancelFunc, log *slog.Logger) {
	log = slog.New(slog.NewTextHandler(w, nil))
	klog.SetSlogLogger(log)
	running, stop = signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	return running, stop, log
}

// spread returns a time around d.
func spread(d time.Duration) time.Duration {
	return pace.Clock{Rand: rand.Float64}.Spread(d)
}
