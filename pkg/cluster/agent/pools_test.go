// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// gone fails the test unless there is no file of a pool.
func (n *node) gone(pool string) {
	n.t.Helper()
	if f, err := n.files().Read(pool); cnierr.CodeOf(err) != cnierr.TryAgain {
		n.t.Errorf("%s: error %v, the file has %v", n.name, err, f)
	}
}

func TestADeletedPoolIsGivenBackWhenNothingOfItIsLeased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 2)
		tenant := n.holds("compute", 1)
		tenant.Pool = "another" // which is no reason to keep this one
		must(t, n.leaseOf(tenant, "c9"))
		own := n.blocks()
		n.change(func(v *agent.View) { v.Pools = nil })
		n.idle(10 * time.Minute)
		n.holds("compute", 1)
		n.release("c1")
		n.release("c2")
		pass(100 * time.Second) // of 120
		n.holds("compute", 1)
		pass(40 * time.Second)
		n.gone("compute")
		if diff := cmp.Diff(own, n.blocks()); diff != "" {
			t.Errorf("an ADD may have read the file just before it went: %s", diff)
		}
		pass(3 * time.Minute)
		if got := n.blocks(); got != nil {
			t.Errorf("it has %v", got)
		}
		n.healthy()
		n.change(func(v *agent.View) { v.Pools = []block.Pool{compute(t)} })
		pass(2 * time.Second)
		n.holds("compute", 1)
	})
}

func TestAPoolThatComesBackIsKept(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		own := n.blocks()
		n.change(func(v *agent.View) { v.Pools = nil })
		pass(30 * time.Second)
		n.gone("compute")
		n.change(func(v *agent.View) { v.Pools = []block.Pool{compute(t)} })
		pass(2 * time.Second)
		n.holds("compute", 1)
		n.idle(10 * time.Minute)
		if diff := cmp.Diff(own, n.blocks()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestAnADDThatHadReadTheFileKeepsTheBlock leases after the file is gone.
func TestAnADDThatHadReadTheFileKeepsTheBlock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		f, err := n.files().Read("compute")
		must(t, err)
		n.change(func(v *agent.View) { v.Pools = nil })
		pass(30 * time.Second)
		n.gone("compute")
		must(t, n.leaseOf(f, "late"))
		n.idle(10 * time.Minute)
		if len(n.blocks()) != 1 {
			t.Error("the block of a pod was given back")
		}
		n.release("late")
		n.idle(10 * time.Minute)
		if got := n.blocks(); got != nil {
			t.Errorf("it has %v", got)
		}
	})
}

func TestAPoolDeletedWhileTheNodeWasOffIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t), poolOf(t, "second", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}]}`)).node(t, "n1")
		n.run()
		n.stop()
		must(t, errors.Join(n.files().Remove("compute"), n.files().Remove("second"))) // /run is empty after a boot
		n.boot = "22222222-2222-4222-8222-222222222222"
		former := n.store.Snapshot()[0] // of this machine, when it had another name
		former.Name, former.Spec.NodeName = "compute-60", "former"
		if _, err := n.store.Create(t.Context(), former); err != nil {
			t.Fatal(err)
		}
		n.change(func(v *agent.View) { v.Pools = nil })
		n.run()
		n.idle(20 * time.Minute)
		if got := n.store.Snapshot(); len(got) != 1 || got[0].Spec != former.Spec {
			t.Errorf("there are %v", got)
		}
	})
}

// TestTheQuarantineOfADeletedPoolIsThatOfItsFile has the agent not know the pool any more.
func TestTheQuarantineOfADeletedPoolIsThatOfItsFile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 1)
		n.stop()
		n.change(func(v *agent.View) { v.Pools = nil })
		n.run()
		n.release("c1")
		pass(100 * time.Second) // of 120
		n.holds("compute", 1)
		n.idle(10 * time.Minute)
		n.gone("compute")
		if got := n.blocks(); got != nil {
			t.Errorf("it has %v", got)
		}
	})
}

func TestANodeThatIsNotSelectedAnyMoreKeepsWhatItHas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := compute(t)
		p.Spec.NodeSelector = map[string]string{"gpu": "yes"}
		n := newCluster(p).node(t, "n1")
		n.run()
		n.gone("compute")
		n.healthy()
		n.change(func(v *agent.View) { v.Labels = map[string]string{"gpu": "yes"} })
		pass(2 * time.Second)
		n.mustLease("compute", 1, 10)
		n.change(func(v *agent.View) { v.Labels = nil })
		n.mustLease("compute", 11, 15)
		n.idle(40 * time.Minute)
		n.holds("compute", 1) // and claims no other
		n.healthy()
		n.logs("does not select this node any more")
		if got := n.store.Calls(blocktest.Touch); got < 6 {
			t.Errorf("%d asserts in 40 minutes", got)
		}
		for _, boot := range []string{n.boot, "22222222-2222-4222-8222-222222222222"} {
			n.stop()
			n.boot = boot
			n.run()
			n.holds("compute", 1) // at once, before the files are checked again
			pass(time.Minute)
			n.holds("compute", 1)
		}
	})
}

func TestAPoolThatIsWrongIsNoOtherPools(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bad := poolOf(t, "bad", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/33"}]}]}`)
		n := newCluster(bad, compute(t)).node(t, "n1")
		n.run()
		n.holds("compute", 1)
		n.says(503, "RailPool bad", "spec.rails[0].subnets[0]")
		n.logs("10.9.0.0/33")
		n.change(func(v *agent.View) {
			v.Pools = []block.Pool{compute(t), poolOf(t, "bad", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}]}`)}
		})
		pass(2 * time.Second)
		n.holds("bad", 1)
		n.healthy()
		n.change(func(v *agent.View) { v.Pools = []block.Pool{compute(t), bad} })
		n.idle(10 * time.Minute)
		n.holds("bad", 1)
		n.says(200, "RailPool bad")
	})
}

// TestAPoolThatWasFullIsClaimedOfWhenItIsWidened waits for no time that has grown with
// each try before.
func TestAPoolThatWasFullIsClaimedOfWhenItIsWidened(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		narrow := poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/22", "ranges": ["10.0.0.16/28"]}]}]}`)
		c := newCluster(narrow)
		c.node(t, "n1").run()
		n := c.node(t, "n2")
		n.run()
		n.idle(time.Hour)
		n.gone("compute")
		n.says(503, "claim", "1 blocks")
		narrow.Spec.Rails = []block.Rail{{Subnets: []block.Subnet{{Subnet: "10.0.0.0/22", Ranges: []string{"10.0.0.16-10.0.0.47"}}}}}
		n.change(func(v *agent.View) { v.Pools = []block.Pool{narrow} })
		pass(5 * time.Second)
		n.holds("compute", 1)
		n.healthy()
	})
}

func TestNothingIsReportedOfADeletedPool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bad := poolOf(t, "bad", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/33"}]}]}`)
		full := poolOf(t, "full", 3, `{"rails": [{"subnets": [{"subnet": "10.8.0.0/28"}]}]}`)
		n := newCluster(bad, compute(t), full).node(t, "n1")
		_, err := n.store.Create(t.Context(), block.Block{Name: "full-0", Spec: block.Spec{Pool: "full", Size: 16, Owner: block.Owner{NodeName: "n2", MachineID: "machine-of-n2"}}})
		must(t, err)
		n.run()
		n.says(503, "RailPool bad", "RailPool full: claim: ")
		n.change(func(v *agent.View) { v.Pools = []block.Pool{compute(t)} })
		pass(2 * time.Second)
		n.healthy()
	})
}

// lists is a store that counts what is read from etcd.
type lists struct {
	block.Store
	latest atomic.Int64
}

func (l *lists) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	if q.Freshness == block.Latest {
		l.latest.Add(1)
	}
	return l.Store.List(ctx, q)
}

// TestNodesGiveBackWhatTheyHaveOneByOne has all of a cluster give back a pool of which
// nothing was leased.
func TestNodesGiveBackWhatTheyHaveOneByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const nodes = 8
		c := newCluster(compute(t))
		store := &lists{Store: c.store}
		for i := range nodes {
			n := c.node(t, fmt.Sprintf("n%d", i))
			config := n.config()
			config.Store = store
			n.runWith(config)
		}
		c.change(func(v *agent.View) { v.Pools = nil })
		most := 0
		for range 200 {
			before := c.store.Calls(blocktest.Delete)
			pass(time.Second)
			most = max(most, c.store.Calls(blocktest.Delete)-before)
		}
		if got := len(c.store.Snapshot()); got != 0 || most > nodes/2 {
			t.Errorf("%d blocks are left, and %d were given back in a second", got, most)
		}
		if got := store.latest.Load(); got != 0 {
			t.Errorf("for %d nodes all blocks were read from etcd %d times", nodes, got)
		}
	})
}

// TestAnAgentWithoutANodeObjectKeepsWhatItHas is started while it is missing.
func TestAnAgentWithoutANodeObjectKeepsWhatItHas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 15)
		n.stop()
		n.change(func(v *agent.View) { v.NoNode = errors.New("there is no Node object n1") })
		before := n.store.Calls(blocktest.Touch)
		n.run()
		n.idle(20 * time.Minute)
		n.holds("compute", 1) // and claims no other
		if got := n.store.Calls(blocktest.Touch) - before; got < 3 {
			t.Errorf("%d asserts in 20 minutes", got)
		}
		n.says(503, "there is no Node object n1")
		n.counts("roce_cni_cluster_seen 0")
		n.change(func(v *agent.View) { // and begins with no other pool
			v.Pools = append(v.Pools, poolOf(t, "new", 2, `{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}]}`))
		})
		pass(2 * time.Second)
		n.silent("/healthz", "RailPool new")
		n.change(func(v *agent.View) { v.NoNode = nil })
		pass(2 * time.Second)
		n.holds("compute", 2)
		n.holds("new", 1)
		n.healthy()
		n.counts("roce_cni_cluster_seen 1")
	})
}

func TestTheReasonForNoGIDsIsReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := newCluster(compute(t))
		pools := c.view.Pools
		c.view = agent.View{Fault: errors.New("the token has expired")}
		n := c.node(t, "n1")
		n.run()
		n.says(503, "the token has expired")
		n.counts("roce_cni_cluster_seen 0")
		n.change(func(v *agent.View) { v.Pools, v.Fault = pools, nil })
		pass(2 * time.Second)
		n.holds("compute", 1)
		n.healthy()
	})
}

func TestTheRackIsTheNodesLabel(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.{rack}.0/24"}]}], "rackLabel": "rack"}`)).node(t, "n1")
		n.run()
		n.says(503, "the node's rack", "spec.rackLabel")
		n.change(func(v *agent.View) { v.Labels = map[string]string{"rack": "7"} })
		pass(2 * time.Second)
		before := n.holds("compute", 1)
		if got := before.Rails[0][0].Prefix.String(); got != "10.0.7.0/24" {
			t.Errorf("it leases of %s", got)
		}
		n.mustLease("compute", 1, 1)
		n.change(func(v *agent.View) { v.Labels = map[string]string{"rack": "8"} })
		n.idle(10 * time.Minute)
		n.stop()
		n.run()
		pass(time.Minute)
		if _, body := n.get("/healthz"); strings.Contains(body, "delete these pods") {
			t.Errorf("/healthz takes what the node has for lost:\n%s", body)
		}
		if diff := cmp.Diff(before, n.holds("compute", 1), netips()); diff != "" {
			t.Error(diff)
		}
		n.says(200, "rack label", "compute.7-")
		if len(n.blocks()) != 1 {
			t.Errorf("it has %v", n.blocks())
		}
	})
}
