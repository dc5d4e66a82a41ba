// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/elect"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
)

// leaseName is the name of the Lease that elects one of several processes.
const leaseName = "roce-cni-gc"

// gcFlags are the flags of rocectl gc.
type gcFlags struct {
	cluster, once, taint  bool
	namespace, kubeconfig string
	every, lull, rails    time.Duration
}

func gcCommand() *cobra.Command {
	var f gcFlags
	cmd := &cobra.Command{
		Use:   "gc --cluster",
		Short: "Free the blocks of nodes that are gone for good, and sum up RailPools and rails",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !f.cluster {
				return cnierr.New(cnierr.BadConfig, "use command", "gc", "write rocectl gc --cluster; the plugins themselves free leases of pods that are gone", "gc works only on a cluster")
			}
			if f.every < time.Second {
				return cnierr.New(cnierr.BadConfig, "use option", "--interval", "give a second or more, such as 10m", "%v would ask the API server without a pause", f.every)
			}
			api, err := connect(f.kubeconfig, nil)
			if err != nil {
				return err
			}
			ctx, stop, log := service(cmd.Context(), cmd.ErrOrStderr())
			defer stop()
			r := reconcile.New(reconcile.Config{
				Cluster: api, Store: api.Blocks(), Leases: api.Leases(), Every: f.every, Lull: f.lull, Rails: f.rails, Taint: f.taint,
				Clock: Clock(), Date: time.Now, Log: log,
			})
			if f.once {
				return overview(ctx, cmd.OutOrStdout(), r)
			}
			return f.lead(ctx, api, log, r.Run)
		},
	}
	f.register(cmd)
	return cmd
}

func (f *gcFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.cluster, "cluster", false, "manage the whole cluster")
	cmd.Flags().BoolVar(&f.once, "once", false, "show what would be freed, and what it waits for, and exit")
	cmd.Flags().StringVar(&f.namespace, "namespace", "roce-cni", "the `NAMESPACE` of the Lease")
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "a kubeconfig `FILE` to reach the API server (default: the service account of the pod)")
	cmd.Flags().DurationVar(&f.every, "interval", 10*time.Minute, "the `TIME` between two checks")
	cmd.Flags().DurationVar(&f.rails, "rails", time.Minute, "the `TIME` between two looks at the reports of rails; a Node is written once in five of them at most; 0 writes no Node")
	cmd.Flags().BoolVar(&f.taint, "rail-taint", false, "give nodes a taint while their rails cannot serve new pods; without it, the taint is removed")
	cmd.Flags().DurationVar(&f.lull, "lull", reconcile.Lull, "the `TIME` without any block before a deleted RailPool is removed; shorter times are for tests")
}

// lead runs work while this process has the Lease. It returns an error when the
// process has lost the Lease: what it remembers of the nodes is useless then, and a
// new process starts from nothing.
func (f gcFlags) lead(ctx context.Context, api *kube.API, log *slog.Logger, work func(context.Context) error) error {
	host, err := os.Hostname()
	if err != nil {
		return cnierr.New(cnierr.IO, "read", "host name", "", "%w", err)
	}
	lease := f.namespace + "/" + leaseName
	log = log.With("lease", lease)
	err = elect.Candidate{
		Lease: api.Election(f.namespace, leaseName), Name: host + "_" + rand.Text(),
		Clock: Clock(), Date: time.Now, Log: log,
	}.Lead(ctx, work)
	if ctx.Err() != nil {
		log.Info("stopped")
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "renew lease", lease, "start it again, as a Deployment does", "%w", err)
}
