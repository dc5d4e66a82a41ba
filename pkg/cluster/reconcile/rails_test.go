// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package reconcile_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/cluster/reconcile"
)

func (c *cluster) RailNodes(context.Context) ([]kube.RailNode, error) {
	return slices.Clone(c.reports), c.deaf
}

func (c *cluster) SetRails(_ context.Context, node string, is fleet.Condition, taint bool) error {
	if c.wrote[node]++; c.mute != nil {
		return c.mute
	}
	for i := range c.nodes {
		if c.nodes[i].Name == node {
			c.nodes[i].Rails, c.nodes[i].Tainted = is, taint
			return nil
		}
	}
	return block.ErrNotFound
}

// railed is a cluster with nodes that report two rails, with taints.
func railed(t *testing.T, nodes int) *cluster {
	c := newCluster(t)
	c.Config.Rails, c.Config.Taint = time.Minute, true
	for i := range nodes {
		name := fmt.Sprintf("gpu-%02d", i)
		c.join(name, nil)
		c.reports = append(c.reports, kube.RailNode{
			ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"},
			Status:     kube.NodeStatus{Report: fleet.Report{Rails: []fleet.Rail{{Netdev: "ens1"}, {Rail: 1, Netdev: "ens2"}}}},
		})
	}
	return c
}

// faulty makes the node of that number report a fault of a rail, or none.
func (c *cluster) faulty(node int, faults ...fleet.Fault) {
	r := &c.reports[node]
	r.Status.Report = r.Status.With(map[string][]fleet.Fault{"ens2": faults})
	r.ResourceVersion += "x"
}

// passes lets the reaper look each minute.
func (c *cluster) passes(d time.Duration) {
	for end := c.now + d; c.now < end; c.now += time.Minute {
		_ = c.Run(c.t.Context()) // one pass
	}
}

// is says what a node says: its condition, and T if it has the taint.
func (c *cluster) is(node int) string {
	n := c.nodes[node]
	if n.Tainted {
		return n.Rails.Status + " T"
	}
	return n.Rails.Status
}

func (c *cluster) tainted() (n int) {
	for _, node := range c.nodes {
		if node.Tainted {
			n++
		}
	}
	return n
}

func (c *cluster) want(node int, what, is string) {
	c.t.Helper()
	if got := c.is(node); got != is {
		c.t.Errorf("%s: node %d is %q, want %q", what, node, got, is)
	}
}

func TestANodeSaysWhatItsAgentReports(t *testing.T) {
	t.Parallel()
	c := railed(t, 4)
	c.join("cpu-01", nil) // without an agent
	c.join("cpu-02", nil) // which had one, as its taint says
	c.nodes[5].Tainted = true
	c.passes(time.Minute)
	c.want(5, "a taint without a report", "Unknown")
	c.want(0, "all is well", "True")
	c.want(4, "no report", "")
	c.faulty(1, fleet.Down)
	c.passes(6 * time.Minute)
	c.want(1, "a port is down", "False T")
	if got := c.nodes[1].Rails.Message; got != "rail 1 (ens2): Down" {
		t.Errorf("the condition says %q", got)
	}
	c.faulty(1)
	c.passes(6 * time.Minute)
	c.want(1, "it is up again", "True")
	if c.wrote["gpu-00"] != 1 || c.wrote["gpu-01"] != 3 || c.wrote["cpu-01"] != 0 {
		t.Errorf("wrote %v", c.wrote)
	}
	c.faulty(1, fleet.Down)
	c.passes(6 * time.Minute)
	c.want(1, "it is down again", "False T")
	c.Config.Taint = false
	c.passes(6 * time.Minute)
	c.want(1, "taints are off", "False")
	c.reports = c.reports[:1]
	c.passes(6 * time.Minute)
	c.want(1, "its report is gone", "Unknown")
	c.reports[0].Status.Rails = nil
	c.passes(6 * time.Minute)
	c.want(0, "its rails are gone", "Unknown")
	if got := c.nodes[0].Rails.Reason; got != "NoRails" {
		t.Errorf("its rails are gone: reason %q", got)
	}
	c.Config.Rails = 0
	c.reports[0].Status.Rails = []fleet.Rail{{Netdev: "ens1"}}
	c.faulty(0)
	before := maps.Clone(c.wrote)
	c.passes(time.Hour)
	if !maps.Equal(c.wrote, before) {
		t.Errorf("conditions are off, and it wrote %v, before %v", c.wrote, before)
	}
}

func TestAReportCountsForThreeHours(t *testing.T) {
	t.Parallel()
	c := railed(t, 3)
	c.faulty(1, fleet.Down)
	for range 3 {
		c.passes(59 * time.Minute)
		c.faulty(0) // an agent that runs
	}
	c.want(1, "before three hours", "False T")
	c.deaf = errors.New("the server is away")
	c.passes(4 * time.Hour)
	c.deaf = nil
	c.passes(time.Hour)
	c.want(1, "the API server was away, and no agent could write", "False T")
	for range 3 {
		c.passes(59 * time.Minute)
		c.faulty(0)
	}
	c.want(1, "after three hours", "Unknown")
	c.want(0, "the agent of another node", "True")
	c.Reconciler = reconcile.New(c.Config)
	c.passes(time.Hour)
	c.want(1, "another leader, which has not seen the report before", "Unknown")
	c.faulty(1, fleet.Down)
	c.passes(6 * time.Minute)
	c.want(1, "its agent runs again", "False T")
}

// TestAFaultOfAllReportsTaintsHalfOfTheNodes, such as a switch that all have in common, or a
// fault of the agents.
func TestAFaultOfAllReportsTaintsHalfOfTheNodes(t *testing.T) {
	t.Parallel()
	for nodes, want := range map[int]int{1: 0, 2: 1, 9: 4} {
		c := railed(t, nodes)
		c.join("cpu-01", nil)
		c.join("cpu-02", nil)
		for i := range nodes {
			c.faulty(i, fleet.GIDTableFull)
		}
		for _, name := range []string{"cpu-01", "cpu-02", "nosuch-1", "nosuch-2"} { // without rails, or without a node
			none := c.reports[0]
			if none.Name = name; strings.HasPrefix(name, "cpu") {
				none.Status = kube.NodeStatus{}
			}
			c.reports = append(c.reports, none)
		}
		for range 60 {
			c.passes(time.Minute)
			if got := c.tainted(); got > want {
				t.Errorf("%d of %d nodes have the taint for a minute", got, nodes)
			}
		}
		for i := range nodes {
			if c.nodes[i].Rails.Status != "False" {
				t.Errorf("node %d is %q", i, c.is(i))
			}
		}
		if got := c.tainted(); got != want {
			t.Errorf("%d of %d nodes have the taint, want %d", got, nodes, want)
		}
		if n := strings.Count(c.log.String(), "half of the nodes"); n != 1 {
			t.Errorf("the log says it %d times", n)
		}
	}
}

// TestASmallerClusterHasFewerTaints has the nodes leave that have no taint.
func TestASmallerClusterHasFewerTaints(t *testing.T) {
	t.Parallel()
	c := railed(t, 10)
	for i := range 5 {
		c.faulty(i, fleet.Down)
	}
	c.passes(time.Hour)
	c.nodes, c.reports = c.nodes[:5], c.reports[:5]
	c.passes(time.Hour)
	for i, want := range []string{"False T", "False T", "False", "False", "False"} {
		c.want(i, "with five nodes", want)
	}
}

// TestANodeIsWrittenOnceInFiveMinutes has an agent that was taken over: it reports something
// else at each look, for an hour, also of nodes that do not exist.
func TestANodeIsWrittenOnceInFiveMinutes(t *testing.T) {
	t.Parallel()
	c := railed(t, 4)
	nobody := c.reports[1]
	nobody.Name = "nobody"
	c.reports = append(c.reports, nobody)
	c.faulty(4, fleet.Down)
	for i := range 60 {
		c.faulty(0, [][]fleet.Fault{nil, {fleet.Down}, {fleet.NeighbourLost}}[i%3]...)
		c.passes(time.Minute)
	}
	if n := c.wrote["gpu-00"]; n < 2 || n > 12 {
		t.Errorf("its node was written %d times in an hour", n)
	}
	if len(c.wrote) != 4 || c.wrote["gpu-01"] != 1 || c.is(1) != "True" {
		t.Errorf("others were written: %v", c.wrote)
	}
	// A write that is refused, or takes long, is the last one of a look.
	c = railed(t, 4)
	c.mute = errors.New("refused")
	c.passes(time.Minute)
	if len(c.wrote) != 1 {
		t.Errorf("a look goes on after a refusal: %v", c.wrote)
	}
	c.passes(59 * time.Minute)
	if c.wrote["gpu-00"] != 12 || len(c.wrote) != 4 {
		t.Errorf("tried in an hour: %v", c.wrote)
	}
	// A node that was removed or written meanwhile is no refusal.
	for _, err := range []error{block.ErrNotFound, block.ErrConflict} {
		c = railed(t, 4)
		c.mute = err
		c.passes(time.Minute)
		if len(c.wrote) != 4 {
			t.Errorf("a look ends at a node: %v: %v", err, c.wrote)
		}
		if said := strings.Contains(c.log.String(), "could not be written"); said != errors.Is(err, block.ErrConflict) {
			t.Errorf("%v: the log is\n%s", err, c.log.String())
		}
	}
}

func TestDeadRailsAreWrittenFirstAndNotAllAtOnce(t *testing.T) {
	t.Parallel()
	c := railed(t, 250)
	c.faulty(249, fleet.Down)
	c.passes(time.Minute)
	c.want(249, "at the first look", "False T")
	if len(c.wrote) != 100 {
		t.Errorf("%d nodes were written at one look", len(c.wrote))
	}
	c.passes(2 * time.Minute)
	if len(c.wrote) != 250 {
		t.Errorf("%d nodes were written at three looks", len(c.wrote))
	}
}
