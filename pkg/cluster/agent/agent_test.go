// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// bubble runs a test with a clock that goes on when nothing else does.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

func TestStartClaimsABlockAndWritesTheFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.holds("compute", 1)
		n.healthy()
		if lists, creates := n.store.Calls(blocktest.List), n.store.Calls(blocktest.Create); lists != 2 || creates != 1 || n.store.Calls(blocktest.Touch) != 0 {
			t.Errorf("%d lists and %d creates, want 2 and 1", lists, creates)
		}
		own := n.blocks()[0]
		n.counts(
			`roce_cni_block_size{block="`+own+`",pool="compute"} 16`, `roce_cni_block_free{block="`+own+`",pool="compute"} 16`,
			`roce_cni_block_claims_total{pool="compute"} 1`, `roce_cni_block_claim_lists_total{pool="compute"} 1`,
			`roce_cni_pool_ready{pool="compute"} 1`,
			`roce_cni_rail_up{device="mlx5_0",netdev="ens1",rail="0"} 1`, `roce_cni_rail_up{device="mlx5_1",netdev="ens2",rail="1"} 1`,
			`roce_cni_rail_ready{device="mlx5_0",netdev="ens1",rail="0"} 1`, `roce_cni_rail_ready{device="mlx5_1",netdev="ens2",rail="1"} 0`,
			`roce_cni_rail_traffic_total{device="mlx5_0",direction="sent",netdev="ens1",rail="0",unit="bytes"} 1500`,
			`roce_cni_rail_traffic_total{device="mlx5_0",direction="received",netdev="ens1",rail="0",unit="bytes"} 7`,
			`roce_cni_rail_gids_used{device="mlx5_1",netdev="ens2",rail="1"} 2`, `roce_cni_rail_gids_size{device="mlx5_1",netdev="ens2",rail="1"} 32`,
			`roce_cni_blocks_lost_total{pool="compute"} 0`,
		)
		pass(32 * time.Second)
		if want := (block.Usage{Size: 16, Free: 16}); len(n.reports) != 1 || n.reports[0].Usage != want || n.reports[0].block != own {
			t.Errorf("reports %+v", n.reports)
		}
	})
}

func TestTheHintIsTheNodesOwnAddress(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.hint = netip.MustParseAddr("10.1.0.37")
		n.run()
		if diff := cmp.Diff([]string{"compute-37"}, n.blocks()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestARestartInTheSameBootLeavesTheFileAsItIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.stop()
		path := filepath.Join(n.dir, "pools/compute/ranges")
		before, err := os.Stat(path)
		must(t, err)
		n.goAway(true)
		n.run()
		n.idle(10 * time.Minute)
		n.holds("compute", 1)
		n.goAway(false)
		pass(10 * time.Second)
		if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("it is another file, error %v", err)
		}
		if got := n.store.Calls(blocktest.Create); got != 1 || n.store.Calls(blocktest.Touch) == 0 {
			t.Errorf("%d creates, %d touches", got, n.store.Calls(blocktest.Touch))
		}
	})
}

func TestAfterABootNothingIsLeasedBeforeTheServerWasAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.stop()
		n.boot = "22222222-2222-4222-8222-222222222222"
		n.goAway(true)
		before := len(n.log.String())
		n.run()
		n.idle(10 * time.Minute)
		if _, err := n.files().Read("compute"); cnierr.CodeOf(err) != cnierr.TryAgain {
			t.Errorf("there is a file of this boot, error %v", err)
		}
		n.says(503, "RailPool compute", "of another boot")
		pass(300 * time.Millisecond) // between two checks of the files
		joined := func() bool { return strings.Contains(n.log.String()[before:], "the node has a block") }
		n.goAway(false)
		for end := n.now() + 10*time.Second; !joined() && n.now() < end; {
			pass(10 * time.Millisecond)
		}
		n.holds("compute", 1) // at once
		n.healthy()
		if len(n.blocks()) != 1 || n.store.Calls(blocktest.Touch) == 0 {
			t.Errorf("blocks %v, %d touches", n.blocks(), n.store.Calls(blocktest.Touch))
		}
	})
}

func TestPodsGetAddressesWhileTheServerIsUnreachableAndTheNodeClaimsAfterwards(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.goAway(true)
		n.mustLease("compute", 1, 15)
		n.idle(40 * time.Minute)
		n.holds("compute", 1)
		n.healthy()
		n.counts(`roce_cni_block_used{block="` + n.blocks()[0] + `",pool="compute"} 15`)
		n.goAway(false)
		pass(20 * time.Second)
		n.holds("compute", 2)
	})
}

// TestManyNodesWithTwoAgentsEachHaveOneBlockEach has two agents on each node, as
// when an old one goes more slowly than the new one comes.
func TestManyNodesWithTwoAgentsEachHaveOneBlockEach(t *testing.T) {
	bubble(t, func(t *testing.T) {
		nodes := 64
		if testing.Short() {
			nodes = 16
		}
		c := newCluster(compute(t))
		var all []*node
		for i := range nodes {
			a := c.node(t, fmt.Sprintf("n%d", i))
			b := &node{cluster: c, t: t, name: a.name, dir: a.dir, boot: a.boot}
			all = append(all, a, b)
		}
		for _, n := range all {
			n.begin(n.config())
		}
		pass(5 * time.Second)
		c.idle(time.Minute)
		seen := map[string]string{}
		for _, n := range all {
			n.holds("compute", 1)
			for _, b := range n.blocks() {
				if other := seen[b]; other != "" && other != n.name {
					t.Errorf("%s is %s's and %s's", b, other, n.name)
				}
				seen[b] = n.name
			}
		}
		if len(seen) != nodes || len(c.store.Snapshot()) != nodes {
			t.Errorf("%d blocks have an owner, %d are there, want %d", len(seen), len(c.store.Snapshot()), nodes)
		}
	})
}

func TestALostBlockLeavesTheFileAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 3)
		before := n.holds("compute", 1)
		lost := n.store.Snapshot()[0]
		thief := lost
		thief.Spec.NodeName, thief.Spec.MachineID, thief.UID = "thief", "machine-of-thief", "another"
		n.store.Restore([]block.Block{thief})
		pass(7 * time.Minute)
		after := n.holds("compute", 1)
		if before.Rails[0][0].Ranges[0] == after.Rails[0][0].Ranges[0] {
			t.Errorf("it has %v still", after.Rails[0][0].Ranges)
		}
		n.counts(`roce_cni_blocks_lost_total{pool="compute"} 1`)
		n.logs("thief")
		for range 2 {
			n.says(200, "3 host indexes", "this node does not own: "+lost.Name, "delete", "container c1, container c2")
			n.counts(`roce_cni_pool_orphan_slots{pool="compute"} 3`)
			n.stop()
			n.run() // it finds that out again
			pass(2 * time.Second)
		}
		for i := range 3 {
			n.release(fmt.Sprintf("c%d", i+1))
		}
		pass(3 * time.Second)
		n.healthy()
		n.counts(`roce_cni_pool_orphan_slots{pool="compute"} 0`)
	})
}

// TestANodeWithoutBlocksLeasesNothing has a pool of one block, which another node
// gets: there is no other one that would replace the file.
func TestANodeWithoutBlocksLeasesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/28"}]}]}`)).node(t, "n1")
		n.run()
		n.holds("compute", 1)
		thief := n.store.Snapshot()[0]
		thief.Spec.NodeName, thief.Spec.MachineID, thief.UID = "thief", "machine-of-thief", "another"
		n.store.Restore([]block.Block{thief})
		pass(7 * time.Minute)
		if f, err := n.files().Read("compute"); err == nil {
			t.Errorf("it still leases %v", f.Rails)
		}
	})
}

// TestABlockThatTheServerHasForgottenIsMadeAgain has blocks that the node would
// not come by again if it looked for some: its hint is another one by then.
func TestABlockThatTheServerHasForgottenIsMadeAgain(t *testing.T) {
	for name, restart := range map[string]bool{"while the agent runs": false, "while it does not": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newCluster(compute(t)).node(t, "n1")
				n.hint = netip.MustParseAddr("10.1.0.37")
				n.run()
				n.mustLease("compute", 1, 14)
				pass(2 * time.Second)
				n.hint = netip.MustParseAddr("10.1.0.3")
				before, want := n.holds("compute", 2), n.blocks()
				if restart {
					n.stop()
				}
				n.store.Restore(n.store.Snapshot()[:0])
				if restart {
					n.run()
				}
				pass(7 * time.Minute)
				if diff := cmp.Diff(before, n.holds("compute", 2), netips()); diff != "" {
					t.Error(diff)
				}
				if diff := cmp.Diff(want, n.blocks()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

func TestMoreExclusionsAreWrittenDown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		first := n.holds("compute", 1).Rails[1][0].Ranges[0].First
		n.change(func(v *agent.View) {
			v.Pools = []block.Pool{poolOf(t, "compute", 1, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/22"}]},
				"reservations": [{"ranges": ["`+first.String()+`"], "reason": "a switch"}], "quarantine": "10s"}`)}
		})
		pass(2 * time.Second)
		f := n.holds("compute", 1)
		if len(f.Rails[1][0].Exclude) != 1 || f.Rails[1][0].Exclude[0].First != first || f.Quarantine != 10*time.Second {
			t.Errorf("%+v", f)
		}
	})
}

func TestAFileThatWasRemovedIsWrittenAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		for _, spoil := range []func(string) error{os.Remove, func(p string) error { return os.WriteFile(p, []byte("{"), 0o600) }} {
			must(t, spoil(filepath.Join(n.dir, "pools/compute/ranges")))
			n.says(503, "RailPool compute")
			pass(2 * time.Second)
			n.holds("compute", 1)
		}
	})
}

// TestAnAgentThatIsStoppedInAClaimDoesNotLoseABlock stops it while it is unknown
// whether the request was done.
func TestAnAgentThatIsStoppedInAClaimDoesNotLoseABlock(t *testing.T) {
	for name, fault := range map[string]blocktest.Fault{"which was done": blocktest.Landed, "which was not": blocktest.Lost} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newCluster(compute(t)).node(t, "n1")
				normal := n.store.Fault
				n.store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
					if op == blocktest.Create {
						return fault
					}
					return blocktest.None
				}
				n.run()
				n.stop()
				n.store.Fault = normal
				n.run()
				pass(time.Minute)
				n.holds("compute", 1)
				if got := n.blocks(); len(got) != 1 {
					t.Errorf("it has %v", got)
				}
			})
		})
	}
}

// hanging is a store that answers no list.
type hanging struct{ block.Store }

func (hanging) List(ctx context.Context, _ block.Query) ([]block.Block, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("%w: %w", block.ErrUnknown, ctx.Err())
}

func TestAnAgentThatIsStoppedInARequestEndsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		config := n.config()
		config.Store = hanging{n.store}
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan error, 1)
		go func() { got <- agent.New(config).Run(ctx) }()
		n.idle(10 * time.Minute)
		cancel()
		if err := <-got; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if strings.Contains(n.log.String(), "does not answer") || strings.Contains(n.log.String(), "WARN") {
			t.Errorf("it complains:\n%s", n.log.String())
		}
	})
}

// unconfirmed is a store that does not let this account write some blocks.
type unconfirmed struct {
	*blocktest.Mem
	denied atomic.Value // the name of the block that is denied; "": none; "all": each
	calls  atomic.Int64 // that were denied
}

func (d *unconfirmed) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	if denied := d.denied.Load(); denied == "all" || denied == name {
		d.calls.Add(1)
		return block.Block{}, cnierr.New(cnierr.NotAvailable, "assert block", name, "give the ServiceAccount the rights", "forbidden")
	}
	return d.Mem.Touch(ctx, name, uid)
}

// TestBlocksThatCannotBeConfirmedStayAndAreSeldomTried has two, of which the first one or both are
// denied.
func TestBlocksThatCannotBeConfirmedStayAndAreSeldomTried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		config := n.config()
		store := &unconfirmed{Mem: n.store}
		store.denied.Store("")
		config.Store = store
		n.runWith(config)
		first := n.blocks()[0]
		n.mustLease("compute", 1, 14)
		pass(2 * time.Second)
		n.holds("compute", 2)
		for denied, most := range map[string]int64{first: 16, "all": 2 * 16} {
			store.denied.Store(denied)
			denials, touches := store.calls.Load(), n.store.Calls(blocktest.Touch)
			n.idle(20 * time.Minute)
			n.holds("compute", 2)
			n.says(200, "RailPool compute: blocks: ", first, "give the ServiceAccount the rights")
			if got := store.calls.Load() - denials; got < most/4 || got > most {
				t.Errorf("%s: %d tries in 20 minutes, want %d at most", denied, got, most)
			}
			if got := n.store.Calls(blocktest.Touch) - touches; (got > 4) != (denied == first) {
				t.Errorf("%s: the others are confirmed %d times", denied, got)
			}
			store.denied.Store("")
			n.idle(7 * time.Minute) // the longest pause is 6:15
			n.healthy()
		}
	})
}

// TestTheFaultsOfOtherNodesBlocksAreLoggedToALimit, because a node that was taken over can write any.
func TestTheFaultsOfOtherNodesBlocksAreLoggedToALimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/16"}]}]}`)).node(t, "n1")
		for i := range 150 {
			foe := block.Spec{Pool: "compute", Index: 40 + i, Size: 17, Owner: block.Owner{NodeName: "foe", MachineID: "machine-of-n1"}}
			_, err := n.store.Create(t.Context(), block.Block{Name: fmt.Sprintf("compute-%d", 40+i), Spec: foe})
			must(t, err)
		}
		n.run()
		n.mustLease("compute", 1, 14)
		pass(2 * time.Second)
		n.holds("compute", 2)
		if got := strings.Count(n.log.String(), "a block of another node is wrong"); got != 100 {
			t.Errorf("it is logged %d times, want 100", got)
		}
	})
}

func TestAFullPoolIsReportedAndTriedAgain(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		c := newCluster(poolOf(t, "small", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/27"}]}]}`))
		var nodes []*node
		for i := range 3 {
			n := c.node(t, fmt.Sprintf("n%d", i))
			n.run()
			nodes = append(nodes, n)
		}
		poor := nodes[2]
		poor.says(503, "all 2 blocks of 16 host indexes have an owner")
		rich := c.store.Snapshot()[0]
		c.idle(15 * time.Minute)
		lists := c.store.Calls(blocktest.List)
		c.idle(15 * time.Minute)
		if more := c.store.Calls(blocktest.List) - lists; more > 2*5+6 { // two for each claim, and sweeps
			t.Errorf("%d lists in a quarter of an hour", more)
		}
		must(t, c.store.Delete(t.Context(), rich.Name, rich.UID, c.blockNamed(rich.Name).ResourceVersion))
		i := slices.IndexFunc(nodes, func(n *node) bool { return n.name == rich.Spec.NodeName })
		nodes[i].stop()
		c.idle(10 * time.Minute)
		poor.healthy()
	})
}

// denying is a store that gives this account no list.
type denying struct{ *blocktest.Mem }

func (d denying) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	if _, err := d.Mem.List(ctx, q); err != nil { // it counts
		return nil, err
	}
	return nil, cnierr.New(cnierr.NotAvailable, "list railblocks", "", "give the ServiceAccount the rights", "forbidden")
}

func TestAMissingRightIsReportedAndSeldomTried(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		config := n.config()
		config.Store = denying{n.store}
		n.runWith(config)
		n.says(503, "forbidden", "give the ServiceAccount the rights")
		n.idle(20 * time.Minute)
		if got := n.store.Calls(blocktest.List); got < 5 || got > 16 {
			t.Errorf("%d lists in 20 minutes", got)
		}
		if got := strings.Count(n.log.String(), "forbidden"); got != 1 {
			t.Errorf("it is said %d times:\n%s", got, n.log.String())
		}
	})
}
