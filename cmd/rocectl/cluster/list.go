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
	var format cli.Format
	cmd := &cobra.Command{
		Use:   "pools",
		Short: "Show how full the RailPools of the cluster are: by pool, block or node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			show, known := map[string]func(cli.Format, io.Writer, state) error{"pool": printPools, "block": printBlocks, "node": printNodes}[by]
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
			return show(format, cmd.OutOrStdout(), s)
		},
	}
	cmd.Flags().StringVar(&by, "by", "pool", "a line for each `OBJECT`: pool, block or node")
	format.RegisterTable(cmd)
	k.Register(cmd, "")
	return cmd
}

func read(ctx context.Context, api *kube.API) (s state, err error) {
	if s.pools, err = api.Pools(ctx); err != nil {
		return s, err
	}
	err = api.EachBlock(ctx, block.Query{Freshness: block.Cached}, func(b *kube.RailBlock) { s.blocks = append(s.blocks, *b) })
	if err != nil {
		return s, err
	}
	s.nodes, err = api.Nodes(ctx)
	slices.SortFunc(s.pools, func(a, b kube.RailPool) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(s.blocks, func(a, b kube.RailBlock) int {
		return cmp.Or(strings.Compare(a.Spec.Pool, b.Spec.Pool), strings.Compare(a.Spec.Rack, b.Spec.Rack), cmp.Compare(a.Spec.Index, b.Spec.Index))
	})
	return s, err
}

// poolRow is a pool in the list.
type poolRow struct {
	Pool  string `json:"pool"`
	State string `json:"state"`
	kube.PoolStatus
}

func printPools(f cli.Format, w io.Writer, s state) error {
	rows := []poolRow{}
	for i := range s.pools {
		rows = append(rows, poolRow{s.pools[i].Name, poolState(&s.pools[i]), s.pools[i].Status})
	}
	return cli.Rows(f, w, rows, func(r poolRow) []any {
		return []any{r.Pool, r.Blocks, r.Claimed, r.Used, r.Free, r.State, r.Size, r.Quarantined, r.Reserved}
	}, []string{"POOL", "BLOCKS", "CLAIMED", "USED", "FREE", "STATE"}, "SIZE", "QUARANTINED", "RESERVED")
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
	case p.Status.Size == 0 && p.Spec.RackLabel != "":
		return "no node that it selects has a rack in its label " + p.Spec.RackLabel
	case p.Status.Free == 0:
		return "full"
	}
	return "ok"
}

// blockRow is a block in the list.
type blockRow struct {
	Block     string `json:"block"`
	Node      string `json:"node"`
	Pool      string `json:"pool"`
	Rack      string `json:"rack,omitempty"`
	FirstRail string `json:"firstRail"`
	kube.BlockStatus
}

func printBlocks(f cli.Format, w io.Writer, s state) error {
	rows := []blockRow{}
	for i := range s.blocks {
		b := &s.blocks[i]
		rows = append(rows, blockRow{b.Name, b.Spec.NodeName, b.Spec.Pool, b.Spec.Rack, firstRail(s.pools, b.Object()), b.Status})
	}
	now := time.Now()
	return cli.Rows(f, w, rows, func(r blockRow) []any {
		return []any{r.Block, r.Node, r.FirstRail, r.Size, r.Used, r.Free, ago(r.Asserted.Time, now), r.Quarantined, r.Pool, r.Rack}
	}, []string{"BLOCK", "NODE", "FIRST RAIL", "SIZE", "USED", "FREE", "CONFIRMED"}, "QUARANTINED", "POOL", "RACK")
}

// firstRail returns the addresses of a block on the first rail, "?" if its pool is gone
// or has changed.
func firstRail(pools []kube.RailPool, b block.Block) string {
	i := slices.IndexFunc(pools, func(p kube.RailPool) bool { return p.Name == b.Spec.Pool })
	if i < 0 {
		return "?"
	}
	var rails [][]pool.Subnet
	space, err := pools[i].Pool().Space(b.Spec.Rack)
	if err == nil {
		rails, err = space.Rails([]block.Block{b})
	}
	if err != nil || len(rails) == 0 {
		return "?"
	}
	var out []string
	for _, s := range rails[0] {
		for _, r := range s.Ranges {
			out = append(out, r.String())
		}
	}
	return strings.Join(out, ", ")
}

// nodeRow is what a node has of a pool. A node without a block has one row without a pool.
type nodeRow struct {
	Node   string `json:"node"`
	State  string `json:"state"` // Ready, not Ready or gone
	Pool   string `json:"pool,omitempty"`
	Blocks int    `json:"blocks"`
	Size   int    `json:"size"`
	Used   int    `json:"used"`
	Free   int    `json:"free"`
}

// nodeRows returns the rows by the name of the node, and then of the pool.
func nodeRows(s state) []nodeRow {
	states, owners := map[string]string{}, map[string]bool{}
	for _, n := range s.nodes {
		states[n.Name] = map[bool]string{true: "Ready", false: "not Ready"}[n.Ready]
	}
	rows := map[[2]string]nodeRow{}
	for i := range s.blocks {
		b := &s.blocks[i]
		node, pool := b.Spec.NodeName, b.Spec.Pool
		was := rows[[2]string{node, pool}]
		owners[node] = true
		rows[[2]string{node, pool}] = nodeRow{
			node, cmp.Or(states[node], "gone"), pool, was.Blocks + 1, was.Size + b.Status.Size, was.Used + b.Status.Used, was.Free + b.Status.Free,
		}
	}
	for name, state := range states {
		if !owners[name] {
			rows[[2]string{name}] = nodeRow{Node: name, State: state}
		}
	}
	out := slices.AppendSeq([]nodeRow{}, maps.Values(rows))
	slices.SortFunc(out, func(a, b nodeRow) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Pool, b.Pool)) })
	return out
}

func printNodes(f cli.Format, w io.Writer, s state) error {
	return cli.Rows(f, w, nodeRows(s), func(r nodeRow) []any {
		return []any{r.Node, r.State, r.Pool, r.Blocks, r.Size, r.Used, r.Free}
	}, []string{"NODE", "STATE", "POOL", "BLOCKS", "SIZE", "USED", "FREE"})
}
