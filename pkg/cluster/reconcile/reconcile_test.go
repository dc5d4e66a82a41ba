// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

// cluster is a cluster, which is looked at every ten minutes of its clock.
type cluster struct {
	*blocktest.Mem
	kept                *stickytest.Mem
	t                   *testing.T
	now                 time.Duration
	nodes               []kube.Node
	bound               map[string]bool
	absent              map[string]bool // pods that are not bound to any node, by name
	pools               []block.Pool
	usage               map[string]block.Usage
	creators            map[string]string // of leases, by name
	unseen              map[string]bool   // nodes that a list lacks, but no other request
	err                 error             // of lists of nodes
	away                error             // of lists of pools
	refuse              error             // of marks
	unsure              error             // of questions whether a pool is used
	unsureOf            string            // the pool that these are about; "": all
	noLeases, noBlocks  error             // of lists of them
	noBound, noPods     error             // of questions for pods of a node, and for one pod
	unsaid              error             // of writes of a status
	listed              func()            // after each list of leases
	unanswered          string            // the pool with a mark that gets no answer
	steps, lists, marks int
	strangers           int // lists of blocks of other pools
	said                map[string]kube.PoolStatus
	reports             []kube.RailNode
	deaf, mute          error          // of lists of reports, and of writes of nodes
	wrote               map[string]int // how often, by node
	log                 bytes.Buffer

	*reconcile.Reconciler
}

func newCluster(t *testing.T, pools ...block.Pool) *cluster {
	c := &cluster{Mem: blocktest.NewMem(), kept: stickytest.NewMem(), t: t, bound: map[string]bool{}, absent: map[string]bool{}, pools: pools, usage: map[string]block.Usage{}, unseen: map[string]bool{}, creators: map[string]string{}, said: map[string]kube.PoolStatus{}, wrote: map[string]int{}, listed: func() {}}
	c.Reconciler = reconcile.New(reconcile.Config{
		Cluster: c, Store: c.Mem, Leases: c.kept, Every: 10 * time.Minute, Lull: time.Minute, Date: c.date,
		Clock: pace.Clock{
			Now:  func() time.Duration { return c.now },
			Wait: func(context.Context, time.Duration) error { return errors.New("one round is enough") },
		},
		Log: slog.New(slog.NewTextHandler(&c.log, nil)),
	})
	c.kept.Now = c.date
	return c
}

func (c *cluster) date() time.Time { return time.Unix(1_700_000_000, 0).Add(c.now) }

func (c *cluster) Machine(_ context.Context, name string) (string, error) {
	for _, n := range c.nodes {
		if n.Name == name {
			return n.MachineID, nil
		}
	}
	return "", block.ErrNotFound
}

func (c *cluster) Bound(_ context.Context, name string) (bool, error) {
	return c.bound[name], c.noBound
}

func (c *cluster) Ready(_ context.Context, name string) (bool, error) {
	return slices.ContainsFunc(c.nodes, func(n kube.Node) bool { return n.Name == name && n.Ready }), c.err
}

func (c *cluster) Runs(_ context.Context, _, pod, _ string) (bool, error) {
	return !c.absent[pod], c.noPods
}

func (c *cluster) Nodes(context.Context) ([]kube.Node, error) {
	c.lists++
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n kube.Node) bool { return c.unseen[n.Name] }), c.err
}

func (c *cluster) Pools(context.Context) (out []kube.RailPool, err error) {
	c.steps++
	for _, p := range c.pools {
		o := kube.RailPool{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: types.UID(p.UID), Generation: 7, CreationTimestamp: metav1.NewTime(p.Created)}, Spec: p.Spec, Status: c.said[p.Name]}
		if p.InUse {
			o.Finalizers = []string{kube.InUse}
		}
		if p.Deleted {
			o.DeletionTimestamp = &metav1.Time{}
		}
		out = append(out, o)
	}
	return out, c.away
}

func (c *cluster) Mark(_ context.Context, p kube.RailPool) error {
	pool := p.Name
	i := slices.IndexFunc(c.pools, func(p block.Pool) bool { return p.Name == pool })
	if c.marks++; c.refuse != nil {
		return c.refuse
	}
	if pool == c.unanswered {
		return block.ErrUnknown
	}
	if c.pools[i].Deleted {
		c.pools = slices.Delete(c.pools, i, i+1)
		return nil
	}
	c.pools[i].InUse = true
	return nil
}

func (c *cluster) Strangers(ctx context.Context, pools []string, see func(*kube.RailBlock)) error {
	c.strangers++
	return c.EachBlock(ctx, block.Query{Freshness: block.Latest}, func(b *kube.RailBlock) {
		if !slices.Contains(pools, b.Spec.Pool) {
			see(b)
		}
	})
}

func (c *cluster) EachLease(_ context.Context, _ sticky.Query, see func(*kube.RailLease)) error {
	for _, l := range c.kept.Snapshot() {
		o := &kube.RailLease{ObjectMeta: meta(l), Spec: l.Spec}
		o.Annotations = map[string]string{kube.CreatedBy: c.creators[l.Name]}
		see(o)
	}
	c.listed()
	return c.noLeases
}

func (c *cluster) Used(_ context.Context, pool string) (bool, error) {
	used := slices.ContainsFunc(c.Snapshot(), func(b block.Block) bool { return b.Spec.Pool == pool })
	if c.unsureOf != "" && c.unsureOf != pool {
		return used, nil
	}
	return used, c.unsure
}

func (c *cluster) EachBlock(_ context.Context, q block.Query, see func(*kube.RailBlock)) error {
	if q.Freshness != block.Latest {
		c.t.Errorf("the list %+v may be old", q)
	}
	for _, b := range c.Snapshot() {
		see(&kube.RailBlock{ObjectMeta: meta(b), Spec: b.Spec, Status: kube.BlockStatus{Usage: c.usage[b.Name]}})
	}
	return c.noBlocks
}

func meta[S any](o block.Object[S]) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.Name, UID: types.UID(o.UID), ResourceVersion: o.ResourceVersion, CreationTimestamp: metav1.NewTime(o.Created)}
}

func (c *cluster) Report(_ context.Context, pool string, s kube.PoolStatus) error {
	c.said[pool] = s
	return c.unsaid
}

// fault and attention return what the conditions of a pool say is wrong, "" if nothing is.
func (c *cluster) fault(pool string) string {
	return c.unless(pool, kube.ValidCondition, metav1.ConditionTrue)
}

func (c *cluster) attention(pool string) string {
	return c.unless(pool, kube.AttentionCondition, metav1.ConditionFalse)
}

func (c *cluster) unless(pool, condition string, good metav1.ConditionStatus) string {
	for _, is := range c.said[pool].Conditions {
		if is.Type == condition && is.Status != good {
			return is.Message
		}
	}
	return ""
}

// claim makes a block of a node, which joins if it is not there.
func (c *cluster) claim(pool, rack string, index int, node string) block.Block {
	c.t.Helper()
	name := pool
	if rack != "" {
		name += "." + rack
	}
	b, err := c.Create(c.t.Context(), block.Block{
		Name: name + "-" + string(rune('0'+index)),
		Spec: block.Spec{Pool: pool, Rack: rack, Index: index, Size: 16, Owner: block.Owner{NodeName: node, MachineID: "machine-of-" + node}},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.join(node, nil)
	return b
}

func (c *cluster) join(node string, labels map[string]string) {
	c.leave(node)
	c.nodes = append(c.nodes, kube.Node{Name: node, MachineID: "machine-of-" + node, Labels: labels, Ready: true})
}

func (c *cluster) leave(node string) {
	c.nodes = slices.DeleteFunc(c.nodes, func(n kube.Node) bool { return n.Name == node })
}

// rounds looks every ten minutes for a while.
func (c *cluster) rounds(d time.Duration) {
	for end := c.now + d; c.now < end; c.now += 10 * time.Minute {
		_ = c.Run(c.t.Context()) // what ends it is Wait's
	}
}

// owners fails the test unless these nodes have the blocks.
func (c *cluster) owners(want ...string) {
	c.t.Helper()
	var got []string
	for _, b := range c.Snapshot() {
		got = append(got, b.Spec.NodeName)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("after %v: (-want +got)\n%s\n%s", c.now, diff, c.log.String())
	}
}

func poolOf(t *testing.T, name string, created int, spec string) block.Pool {
	t.Helper()
	p := block.Pool{Name: name, UID: "uid-of-" + name, Created: time.Unix(int64(created), 0)}
	d := json.NewDecoder(strings.NewReader(spec))
	d.DisallowUnknownFields()
	if err := d.Decode(&p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

const flat = `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}, {"subnets": [{"subnet": "10.1.0.0/24"}]}]}`

func TestABlockIsFreedWhenItsNodeWasGoneForAnHour(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	c.claim("p", "", 1, "stays")
	c.claim("p", "", 2, "goes")
	c.rounds(2 * time.Hour)
	c.leave("goes")
	c.rounds(time.Hour)
	c.owners("goes", "stays")
	c.rounds(20 * time.Minute)
	c.owners("stays")
	if !strings.Contains(c.log.String(), "freed a block") {
		t.Errorf("the log is silent:\n%s", c.log.String())
	}
}

func TestWhatCannotBeFreedHoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	c.claim("p", "", 1, "first")
	c.claim("p", "", 2, "second")
	c.join("stays", nil)
	c.leave("first")
	c.leave("second")
	c.Mem.Fault = func(op blocktest.Op, name string) blocktest.Fault {
		if op == blocktest.Delete && name == "p-1" {
			return blocktest.Lost
		}
		return blocktest.None
	}
	c.rounds(80 * time.Minute)
	c.owners("first")
	if !strings.Contains(c.log.String(), "not completed") {
		t.Errorf("the log is silent:\n%s", c.log.String())
	}
	delete(c.said, "p")
	c.rounds(10 * time.Minute)
	if _, said := c.said["p"]; !said {
		t.Error("nothing is said of the pool")
	}
}

// TestNothingIsSaidOfAClusterThatWasSeenInPart has each question fail in turn.
func TestNothingIsSaidOfAClusterThatWasSeenInPart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, kept))
	c.claim("p", "", 1, "n")
	c.claim("p", "", 2, "gone")
	c.hold("db-0", "n")
	c.leave("gone")
	c.bound["gone"] = true
	for name, fault := range map[string]*error{"leases": &c.noLeases, "pools": &c.away, "blocks": &c.noBlocks, "nodes": &c.err, "bound pods": &c.noBound, "pods": &c.noPods} {
		*fault = block.ErrUnknown
		c.log.Reset()
		c.rounds(10 * time.Minute)
		if len(c.said) > 0 || !strings.Contains(c.log.String(), "not completed") {
			t.Errorf("without an answer about %s, it says %v:\n%s", name, c.said, c.log.String())
		}
		if o, err := c.Overview(t.Context()); !errors.Is(err, block.ErrUnknown) || o.Orphans != nil || o.Holdings != nil {
			t.Errorf("without an answer about %s, it returns %+v, %v", name, o, err)
		}
		*fault = nil
		c.rounds(10 * time.Minute)
		if got := c.said["p"]; got.Claimed != 2 {
			t.Errorf("with an answer about %s, it says %+v", name, got)
		}
		clear(c.said)
	}
}

// A pool that is gone needs no status.
func TestAStatusThatCannotBeWrittenIsAFault(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{block.ErrNotFound: false, block.ErrUnknown: true} {
		c := newCluster(t, poolOf(t, "p", 1, flat))
		c.unsaid = err
		c.rounds(10 * time.Minute)
		if got := strings.Contains(c.log.String(), "not completed"); got != want {
			t.Errorf("%v: the log is\n%s", err, c.log.String())
		}
	}
}

func TestABlockStays(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(c *cluster, b block.Block){
		"when the node is back before the hour is over": func(c *cluster, _ block.Block) {
			c.leave("n")
			c.rounds(50 * time.Minute)
			c.join("n", nil)
			c.rounds(10 * time.Minute)
			c.leave("n")
			c.rounds(50 * time.Minute)
		},
		"as long as a pod is bound to the node": func(c *cluster, _ block.Block) {
			c.bound["n"] = true
			c.leave("n")
			c.rounds(24 * time.Hour)
		},
		"when the list lacks a node that lives": func(c *cluster, _ block.Block) {
			c.unseen["n"] = true
			c.rounds(24 * time.Hour)
		},
		"when its owner writes it": func(c *cluster, b block.Block) {
			c.leave("n")
			for range 24 {
				c.rounds(50 * time.Minute)
				if _, err := c.Touch(c.t.Context(), b.Name, b.UID); err != nil {
					c.t.Fatal(err)
				}
			}
		},
		"when nodes cannot be listed": func(c *cluster, _ block.Block) {
			c.err = block.ErrUnknown
			c.rounds(24 * time.Hour)
			if !strings.Contains(c.log.String(), "not completed") {
				c.t.Errorf("the log is silent:\n%s", c.log.String())
			}
		},
		"when there are no nodes at all": func(c *cluster, _ block.Block) {
			c.nodes = nil
			c.rounds(24 * time.Hour)
		},
		"when one only asks": func(c *cluster, _ block.Block) {
			c.leave("n")
			for ; c.now < 24*time.Hour; c.now += 10 * time.Minute {
				if _, err := c.Overview(c.t.Context()); err != nil {
					c.t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, poolOf(t, "p", 1, flat))
			c.claim("p", "", 1, "another")
			b := c.claim("p", "", 2, "n")
			test(c, b)
			c.owners("another", "n")
		})
	}
}

func TestABlockOfAReplacedMachineIsFreedThoughPodsRunUnderItsName(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	c.claim("p", "", 1, "n")
	c.nodes[0].MachineID, c.bound["n"] = "a new one", true
	c.rounds(time.Hour)
	c.owners("n")
	c.rounds(20 * time.Minute)
	c.owners()
}

func TestOrphansSayWhatIsInTheWay(t *testing.T) {
	t.Parallel()
	c := newCluster(t, poolOf(t, "p", 1, flat))
	c.claim("p", "", 1, "here")
	c.claim("p", "", 2, "gone")
	c.claim("p", "", 3, "with-pods")
	c.claim("p", "", 4, "replaced")
	c.leave("gone")
	c.leave("with-pods")
	c.bound["with-pods"] = true
	c.nodes[len(c.nodes)-1].MachineID = "a new one"
	o, err := c.Overview(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := o.Orphans
	slices.SortFunc(got, func(a, b reconcile.Orphan) int { return strings.Compare(a.Name, b.Name) })
	want := []reconcile.Orphan{
		{Owner: block.Gone},
		{Owner: block.Gone, Bound: true},
		{Owner: block.Replaced},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(reconcile.Orphan{}, "Block")); diff != "" {
		t.Error(diff)
	}
}

func TestASummaryAddsUpWhatTheOwnersSay(t *testing.T) {
	t.Parallel()
	c := newCluster(t,
		poolOf(t, "p", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}, {"subnets": [{"subnet": "10.1.0.0/24"}]}], "reservations": [{"ranges": ["10.0.0.10-10.0.0.12", "10.1.0.11"], "reason": "switches"}]}`),
		poolOf(t, "racked", 2, `{"rails": [{"subnets": [{"subnet": "10.2.{rack}.0/24"}]}], "rackLabel": "rack", "nodeSelector": {"gpu": "yes"}}`),
		poolOf(t, "table", 3, `{"racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "10.3.0.0/24"}]}]}, {"name": "b", "rails": [{"subnets": [{"subnet": "10.3.1.0/24"}]}]}], "rackLabel": "rack"}`),
	)
	c.claim("p", "", 1, "n1")
	c.claim("p", "", 2, "n2")
	c.claim("p", "", 3, "narrowed")
	c.pools[0].Spec.Rails[0].Subnets[0].Exclude = []string{"10.0.0.48/28"}
	c.claim("racked", "7", 2, "n3")
	c.claim("racked", "6", 1, "moved")
	c.join("n3", map[string]string{"rack": "7", "gpu": "yes"})
	c.join("n4", map[string]string{"rack": "8", "gpu": "yes"})
	c.join("n5", map[string]string{"rack": "9"})
	c.join("n6", map[string]string{"gpu": "yes"})
	c.usage = map[string]block.Usage{"p-1": {Used: 3, Quarantined: 2}, "p-2": {Used: 4}}
	c.rounds(10 * time.Minute)
	want := map[string]kube.PoolStatus{
		"p":      {Blocks: 15, Claimed: 2, Usage: block.Usage{Size: 235, Used: 7, Quarantined: 2, Free: 226}, Reserved: 4},
		"racked": {Blocks: 48, Claimed: 2, Usage: block.Usage{Size: 762, Free: 762}},
		"table":  {Blocks: 32, Usage: block.Usage{Size: 508, Free: 508}},
	}
	if diff := cmp.Diff(want, c.said, cmpopts.IgnoreFields(kube.PoolStatus{}, "Conditions")); diff != "" {
		t.Error(diff)
	}
	good := []metav1.Condition{
		{Type: "Valid", Status: "True", ObservedGeneration: 7, Reason: "Valid", Message: "its blocks can be claimed"},
		{Type: "NeedsAttention", Status: "False", ObservedGeneration: 7, Reason: "Checked", Message: "no block and no lease looks wrong"},
	}
	for name, said := range c.said {
		if diff := cmp.Diff(good, said.Conditions, cmpopts.IgnoreFields(metav1.Condition{}, "LastTransitionTime")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		// That a node has a rack which is none of the table's is the node's fault.
		if fault := c.fault(name); fault != "" {
			t.Errorf("%s: %s", name, fault)
		}
	}
	before := c.said["racked"]
	c.usage["p-1"] = block.Usage{Used: 300} // by an owner that counts wrong
	c.rounds(10 * time.Minute)
	if got := c.said["p"]; got.Free != 0 || got.Used != 304 {
		t.Errorf("of more than there is, it says %+v", got)
	}
	if diff := cmp.Diff(before, c.said["racked"]); diff != "" {
		t.Errorf("what has not changed is said anew (-before +now)\n%s", diff)
	}
}
