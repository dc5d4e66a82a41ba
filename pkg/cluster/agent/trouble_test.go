// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// silent fails the test if /healthz or /metrics says that.
func (n *node) silent(path, text string) {
	n.t.Helper()
	if _, body := n.get(path); strings.Contains(body, text) {
		n.t.Errorf("%s says %q:\n%s", path, text, body)
	}
}

func TestAnAgentThatHasHeardNothingIsNotHealthy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		config := n.config()
		config.Watch = func(ctx context.Context, _ func(agent.View)) error { <-ctx.Done(); return ctx.Err() }
		n.runWith(config)
		pass(time.Minute)
		n.says(503, "the RailPools and the Node object have not been read yet")
		n.counts("roce_cni_cluster_seen 0")
		n.silent("/metrics", "roce_cni_pool_ready{")
	})
}

// TestAPoolWhoseBlocksAreNotKnownHasNoNumbers has no answer since the boot.
func TestAPoolWhoseBlocksAreNotKnownHasNoNumbers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.goAway(true)
		n.run()
		pass(time.Minute)
		n.counts(`roce_cni_pool_ready{pool="compute"} 0`)
		for _, name := range []string{"block_assert_age_seconds{", "pool_orphan_slots{", "block_size{"} {
			n.silent("/metrics", "roce_cni_"+name)
		}
	})
}

// TestADeletedPoolIsNoPoolThatPodsWaitFor has a pod that keeps the pool.
func TestADeletedPoolIsNoPoolThatPodsWaitFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 1)
		n.change(func(v *agent.View) { v.Pools[0].Deleted = true })
		pass(2 * time.Second)
		n.says(200, "RailPool compute: it was deleted")
		n.silent("/metrics", "roce_cni_pool_ready{")
	})
}

// TestBlocksOfAPoolThatVanishedAreConfirmedWhilePodsNeedThem has an operator take the finalizer
// off the pool.
func TestBlocksOfAPoolThatVanishedAreConfirmedWhilePodsNeedThem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 1)
		n.change(func(v *agent.View) { v.Pools = nil })
		pass(10 * time.Second)
		before := n.store.Calls(blocktest.Touch)
		n.idle(40 * time.Minute)
		if got := n.store.Calls(blocktest.Touch) - before; got < 6 || n.reports[len(n.reports)-1].Used != 1 {
			t.Errorf("%d asserts in 40 minutes, reports %v", got, n.reports)
		}
		n.counts(`roce_cni_block_used{block="` + n.blocks()[0] + `",pool="compute"} 1`)
	})
}

// TestABlockOfADeletedPoolThatCannotBeReleasedIsTriedAgain has two blocks. One cannot be deleted,
// and the lists fail after that. An operator has deleted a third one meanwhile.
func TestABlockOfADeletedPoolThatCannotBeReleasedIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 14)
		pass(10 * time.Second)
		n.mustLease("compute", 15, 28)
		pass(10 * time.Second)
		own := n.blocks()
		if len(own) != 3 {
			t.Fatalf("it has %v, want three blocks", own)
		}
		var mu sync.Mutex
		stuck, deletes, away := true, 0, false
		n.store.Fault = func(op blocktest.Op, name string) blocktest.Fault {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case op == blocktest.Delete && name == own[0] && stuck:
				deletes++
				return blocktest.Refused
			case op == blocktest.List && away:
				return blocktest.Refused
			}
			return blocktest.None
		}
		set := func(s, a bool) {
			mu.Lock()
			defer mu.Unlock()
			stuck, away = s, a
		}
		n.ends(1, 28)
		n.change(func(v *agent.View) { v.Pools = nil })
		n.idle(10 * time.Minute)
		if diff := cmp.Diff(own[:1], n.blocks()); diff != "" {
			t.Errorf("blocks (-want +got)\n%s", diff)
		}
		n.says(200, "RailPool compute: deleted pool: ", "the server is busy")
		mu.Lock()
		if deletes < 2 || deletes > 12 {
			t.Errorf("%d requests for the block in some minutes", deletes)
		}
		mu.Unlock()
		set(true, true)
		n.idle(10 * time.Minute)
		n.says(200, "RailPool compute: deleted pool: ")
		set(false, false)
		n.idle(10 * time.Minute)
		n.healthy()
		if got := n.blocks(); got != nil {
			t.Errorf("it has %v", got)
		}
	})
}

// racing is a store with blocks that an operator deletes just before the agent does.
type racing struct{ *blocktest.Mem }

func (r racing) Delete(ctx context.Context, name, uid, version string) error {
	if err := r.Mem.Delete(ctx, name, uid, version); err != nil {
		return err
	}
	return r.Mem.Delete(ctx, name, uid, version)
}

func TestABlockOfADeletedPoolThatIsGoneIsReleased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		config := n.config()
		config.Store = racing{n.store}
		n.runWith(config)
		n.change(func(v *agent.View) { v.Pools = nil })
		n.idle(10 * time.Minute)
		n.healthy()
		n.logs("released a block of a deleted pool")
	})
}

// TestTheFileOfADeletedPoolThatCannotBeRemovedKeepsItsBlocks has a folder in the place of the file.
func TestTheFileOfADeletedPoolThatCannotBeRemovedKeepsItsBlocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		own, path := n.blocks(), filepath.Join(n.dir, "pools/compute/ranges")
		must(t, errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "x"), 0o700)))
		n.change(func(v *agent.View) { v.Pools = nil })
		n.idle(10 * time.Minute)
		n.says(200, "RailPool compute: deleted pool: ", "compute")
		if diff := cmp.Diff(own, n.blocks()); diff != "" {
			t.Errorf("blocks (-want +got)\n%s", diff)
		}
		must(t, os.RemoveAll(path))
		n.idle(15 * time.Minute)
		n.healthy()
		if got := n.blocks(); got != nil {
			t.Errorf("it has %v", got)
		}
	})
}

// TestReportsThatFailAreSaidAndTriedAgain has a missing right, then no answer, and then a block that
// was written meanwhile, which the agent confirms at once.
func TestReportsThatFailAreSaidAndTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		var mu sync.Mutex
		var fault error = cnierr.New(cnierr.NotAvailable, "patch railblocks/status", "", "give the ServiceAccount the rights", "forbidden")
		set := func(err error) {
			mu.Lock()
			defer mu.Unlock()
			fault = err
		}
		config := n.config()
		report := config.Report
		config.Report = func(ctx context.Context, b block.Block, u block.Usage) error {
			mu.Lock()
			defer mu.Unlock()
			if fault != nil {
				return fault
			}
			return report(ctx, b, u)
		}
		n.runWith(config)
		pass(2 * time.Minute)
		n.says(200, "RailPool compute: status: ", "forbidden", "give the ServiceAccount the rights")
		for fault, most := range map[error]int{block.ErrUnknown: 1, block.ErrConflict: 3, block.ErrNotFound: 3} {
			set(fault)
			before := n.store.Calls(blocktest.Touch)
			pass(2 * time.Minute)
			n.healthy()
			if got := n.store.Calls(blocktest.Touch) - before; got > most || most > 1 && got == 0 {
				t.Errorf("%v: %d asserts in two minutes", fault, got)
			}
		}
		set(nil)
		pass(2 * time.Minute)
		if len(n.reports) != 1 {
			t.Errorf("reports %v", n.reports)
		}
	})
}

func TestANodeThatDoesNotKnowItsAddressesClaimsWithoutAHint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		config := n.config()
		config.Addresses = func(context.Context) ([]netip.Addr, error) { return nil, errors.New("no netlink") }
		n.runWith(config)
		n.holds("compute", 1)
		n.healthy()
		n.logs("it claims without a hint")
		n.logs("no netlink")
	})
}

// TestCallsThatCannotBeReadStopNothing has a folder in the place of the file, and no right to write
// the first of two Events.
func TestCallsThatCannotBeReadStopNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		file := filepath.Join(n.dir, "calls")
		must(t, os.MkdirAll(file, 0o700))
		config := n.config()
		tell := config.Tell
		config.Tell = func(ctx context.Context, node string, c calls.Call) error {
			if c.Pod == "ml/first" {
				return errors.New("events are forbidden")
			}
			return tell(ctx, node, c)
		}
		n.runWith(config)
		pass(20 * time.Second)
		n.counts(`roce_cni_calls_total{code="106",verb="ADD"} 0`)
		n.logs("the calls of the node cannot be counted")
		must(t, os.Remove(file))
		pass(10 * time.Second)
		for _, pod := range []string{"ml/first", "ml/second"} {
			must(t, (calls.File{Dir: n.dir}).Append(calls.Call{Verb: calls.Heal, Pod: pod, Steps: []calls.Step{{Name: "route"}}}))
		}
		pass(10 * time.Second)
		n.mu.Lock()
		defer n.mu.Unlock()
		if told := slices.Clone(n.healed); len(told) != 1 || told[0].Pod != "ml/second" {
			t.Errorf("told %+v", told)
		}
		n.logs("an Event of a pod cannot be written")
		n.logs("pod=ml/first")
	})
}

// TestADeletedPoolKeepsWhatItHasWhileTheLeasesCannotBeRead: pods may have addresses of it.
func TestADeletedPoolKeepsWhatItHasWhileTheLeasesCannotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 1)
		path := filepath.Join(n.dir, "leases.db")
		good, err := os.ReadFile(path)
		must(t, errors.Join(err, os.WriteFile(path, []byte("garbage"), 0o600)))
		n.change(func(v *agent.View) { v.Pools = nil })
		n.idle(15 * time.Minute)
		n.holds("compute", 1)
		n.says(503, "RailPool compute: deleted pool: ", path)
		if len(n.blocks()) != 1 {
			t.Errorf("it has %v", n.blocks())
		}
		must(t, os.WriteFile(path, good, 0o600))
		n.idle(10 * time.Minute)
		n.holds("compute", 1)
		n.healthy()
	})
}

// TestASweepThatFailsIsTriedSoon has a block of a pool that was deleted while the node was off, and
// no answer to the first search for such blocks.
func TestASweepThatFailsIsTriedSoon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.stop()
		must(t, n.files().Remove("compute"))
		n.boot = "22222222-2222-4222-8222-222222222222"
		n.change(func(v *agent.View) { v.Pools = nil })
		var failed atomic.Bool
		n.store.Fault = func(op blocktest.Op, pool string) blocktest.Fault {
			if op == blocktest.List && pool == "" && failed.CompareAndSwap(false, true) {
				return blocktest.Refused
			}
			return blocktest.None
		}
		n.run()
		n.idle(40 * time.Minute)
		if got := n.blocks(); got != nil || !failed.Load() {
			t.Errorf("it has %v", got)
		}
	})
}

// TestANodeFileThatCannotBeWrittenIsSaid has a file in the place of the folder of the pool.
func TestANodeFileThatCannotBeWrittenIsSaid(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		folder := filepath.Join(n.dir, "pools", "compute")
		must(t, errors.Join(os.MkdirAll(filepath.Dir(folder), 0o700), os.WriteFile(folder, nil, 0o600)))
		n.run()
		pass(time.Minute)
		n.says(503, "RailPool compute: file: ", "write ranges of pool", "not a directory")
		must(t, os.Remove(folder))
		pass(2 * time.Second)
		n.holds("compute", 1)
		n.healthy()
	})
}
