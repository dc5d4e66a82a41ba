// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"cmp"
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// state is what the cluster has, from one list of each kind. The lists are from the
// API server's cache, and a moment may lie between them.
type state struct {
	pools  []kube.RailPool
	blocks []kube.RailBlock
	nodes  []kube.Node
}

// PoolsCommand returns the command that shows how full the RailPools are.
func PoolsCommand() *cobra.Command {
	var k Kubectl
	var by string
	cmd := &cobra.Command{
		Use:   "pools",
		Short: "Show how full the RailPools of the cluster are: by pool, block or node",
		Long: `Show how full the RailPools of the cluster are, and whether nodes can claim. The
numbers are those of the reaper, at most ten minutes old.

With --by block, show each RailBlock: its node, its addresses on the first rail, and how
full it is. A block has the same host indexes on all other rails. The numbers are those
of the agents, at most two minutes old.

With --by node, show which nodes have blocks, and which have none. A node without a
block has no addresses for pods, unless no RailPool selects it. Blocks of a node that
does not exist are freed after an hour.`,
		Example: `  kubectl roce pools
  kubectl roce pools --by node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write, known := map[string]func(io.Writer, state) error{"pool": writePools, "block": writeBlocks, "node": writeNodes}[by]
			if !known {
				return cnierr.New(cnierr.BadConfig, "read flag", "--by", "choose pool, block or node", "got %q", by)
			}
			var s state
			err := k.read(cmd.Context(), func(api *kube.API) (err error) {
				s, err = read(cmd.Context(), api)
				return err
			})
			if err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringVar(&by, "by", "pool", "a line for each `OBJECT`: pool, block or node")
	k.Register(cmd, "")
	return cmd
}

func read(ctx context.Context, api *kube.API) (s state, err error) {
	if s.pools, err = api.Pools().All(ctx); err != nil {
		return s, err
	}
	err = api.Blocks().Each(ctx, block.Query{Freshness: block.Cached}, func(b *kube.RailBlock) { s.blocks = append(s.blocks, *b) })
	if err != nil {
		return s, err
	}
	s.nodes, err = api.Nodes().All(ctx)
	slices.SortFunc(s.pools, func(a, b kube.RailPool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.blocks, func(a, b kube.RailBlock) int {
		return cmp.Or(strings.Compare(a.Spec.Pool, b.Spec.Pool), strings.Compare(a.Spec.Rack, b.Spec.Rack), cmp.Compare(a.Spec.Index, b.Spec.Index))
	})
	return s, err
}

func writePools(w io.Writer, s state) error {
	t := cli.NewTable(w, "POOL", "BLOCKS", "CLAIMED", "USED", "FREE", "STATE")
	for i := range s.pools {
		p := &s.pools[i]
		t.Row(p.Name, p.Status.Blocks, p.Status.Claimed, p.Status.Used, p.Status.Free, poolState(p))
	}
	return t.Print()
}

// poolState says whether nodes can claim, and what looks wrong.
func poolState(p *kube.RailPool) string {
	valid := meta.FindStatusCondition(p.Status.Conditions, kube.ValidCondition)
	attention := meta.FindStatusCondition(p.Status.Conditions, kube.AttentionCondition)
	switch {
	case valid == nil:
		return "not seen by the reaper yet: kubectl -n roce-cni get pods"
	case valid.Status != "True":
		return valid.Message
	case attention != nil && attention.Status == "True":
		return "look at it: " + attention.Message
	case p.Status.Free == 0:
		return "full"
	}
	return "ok"
}

func writeBlocks(w io.Writer, s state) error {
	t := cli.NewTable(w, "BLOCK", "NODE", "FIRST RAIL", "SIZE", "USED", "FREE", "CONFIRMED")
	now := time.Now()
	for i := range s.blocks {
		b := &s.blocks[i]
		t.Row(b.Name, b.Spec.NodeName, firstRail(s.pools, b.Object()), b.Status.Size, b.Status.Used, b.Status.Free, ago(b.Status.Asserted.Time, now))
	}
	return t.Print()
}

// firstRail returns the addresses of a block on the first rail, "?" if its pool is gone
// or has changed.
func firstRail(pools []kube.RailPool, b block.Block) string {
	i := slices.IndexFunc(pools, func(p kube.RailPool) bool { return p.Name == b.Spec.Pool })
	if i < 0 {
		return "?"
	}
	space, err := pools[i].Pool().Space(b.Spec.Rack)
	if err != nil {
		return "?"
	}
	rails, err := space.Rails([]block.Block{b})
	if err != nil || len(rails) == 0 {
		return "?"
	}
	return strings.Join(ranges(rails[0]), ", ")
}

func ranges(subnets []pool.Subnet) []string {
	var out []string
	for _, s := range subnets {
		for _, r := range s.Ranges {
			out = append(out, r.String())
		}
	}
	return out
}

// share is what a node has of a pool.
type share struct{ blocks, size, used, free int }

func writeNodes(w io.Writer, s state) error {
	shares := map[string]map[string]share{}
	exists := map[string]bool{}
	for _, n := range s.nodes {
		exists[n.Name], shares[n.Name] = n.Ready, map[string]share{}
	}
	for i := range s.blocks {
		b := &s.blocks[i]
		if shares[b.Spec.NodeName] == nil {
			shares[b.Spec.NodeName] = map[string]share{}
		}
		was := shares[b.Spec.NodeName][b.Spec.Pool]
		shares[b.Spec.NodeName][b.Spec.Pool] = share{was.blocks + 1, was.size + b.Status.Size, was.used + b.Status.Used, was.free + b.Status.Free}
	}
	t := cli.NewTable(w, "NODE", "IT IS", "POOL", "BLOCKS", "SIZE", "USED", "FREE")
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		ready, there := exists[name]
		is := map[bool]string{true: "Ready", false: "not Ready"}[ready]
		if !there {
			is = "gone"
		}
		if len(shares[name]) == 0 {
			t.Row(name, is, "", 0, 0, 0, 0)
		}
		for _, of := range slices.Sorted(maps.Keys(shares[name])) {
			x := shares[name][of]
			t.Row(name, is, of, x.blocks, x.size, x.used, x.free)
		}
	}
	return t.Print()
}
