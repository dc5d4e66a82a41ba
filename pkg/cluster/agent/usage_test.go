// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
)

func TestAnotherBlockIsThereBeforeTheLastAddressIsLeased(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 12)
		pass(2 * time.Second)
		n.holds("compute", 1)
		for i := 13; i <= 60; i++ { // five pods each second
			n.mustLease("compute", i, i)
			pass(200 * time.Millisecond)
		}
		if got := len(n.blocks()); got != 5 {
			t.Errorf("%d blocks for 60 pods, want 5: 60 of 80 are less than four fifths", got)
		}
	})
}

// TestALeaseOfTheSameTickOfTheFileSystemsClockIsSeen has a lease that does not show
// in the time and size of the file.
func TestALeaseOfTheSameTickOfTheFileSystemsClockIsSeen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const look = 200 * time.Millisecond
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 1)
		path := filepath.Join(n.dir, "leases.db")
		before, err := os.Stat(path)
		must(t, err)
		pass(look)
		own := n.blocks()[0]
		n.counts(`roce_cni_block_used{block="` + own + `",pool="compute"} 1`)
		n.mustLease("compute", 2, 2)
		must(t, os.Chtimes(path, time.Time{}, before.ModTime()))
		if after, err := os.Stat(path); err != nil || after.Size() != before.Size() || !os.SameFile(before, after) {
			t.Fatalf("the file is another, %v: the test proves nothing", err)
		}
		pass(2 * look)
		n.counts(`roce_cni_block_used{block="` + own + `",pool="compute"} 2`)
	})
}

func TestAddressesInQuarantineCountUntilItEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 7)
		for i := range 5 {
			n.release(fmt.Sprintf("c%d", i+1))
		}
		pass(2 * time.Second)
		own := n.blocks()[0]
		n.counts(`roce_cni_block_quarantined{block="`+own+`",pool="compute"} 5`, `roce_cni_block_used{block="`+own+`",pool="compute"} 2`, `roce_cni_block_free{block="`+own+`",pool="compute"} 9`)
		pass(2 * time.Minute)
		n.counts(`roce_cni_block_quarantined{block="`+own+`",pool="compute"} 0`, `roce_cni_block_free{block="`+own+`",pool="compute"} 14`)
	})
}

func TestUsageIsReportedWhenItChangesButNotOften(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		for i := range 10 {
			n.mustLease("compute", i, i)
			pass(10 * time.Second)
		}
		n.idle(10 * time.Minute)
		last := n.reports[len(n.reports)-1]
		if len(n.reports) < 2 || len(n.reports) > 5 || last.Used != 10 {
			t.Errorf("reports %+v", n.reports)
		}
		for i := 1; i < len(n.reports); i++ {
			if d := n.reports[i].at - n.reports[i-1].at; d < 45*time.Second {
				t.Errorf("the report of %v comes %v after the one before", n.reports[i].at, d)
			}
		}
	})
}

func TestAReportOnABlockThatIsGoneMakesItAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		pass(40 * time.Second)
		want := n.blocks()
		n.store.Restore(n.store.Snapshot()[:0])
		n.mustLease("compute", 1, 1)
		pass(80 * time.Second)
		if diff := cmp.Diff(want, n.blocks()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestLeasesOfAnotherPoolAreNoReasonToClaim has a network with a pool of the name of the
// RailPool. The network leases all addresses of the node's block, and many more.
func TestLeasesOfAnotherPoolAreNoReasonToClaim(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		ask := ipam.Ask{Pool: "compute", Owner: ipam.Owner{Network: "tenant", ContainerID: "t1", IfName: "net1"}}
		a := netip.MustParseAddr("10.0.0.0")
		for range 1022 {
			a = a.Next()
			ask.Subnets = append(ask.Subnets, ipam.Subnet{Prefix: netip.PrefixFrom(a, 32)})
		}
		if _, err := n.book().Acquire(t.Context(), ask); err != nil {
			t.Fatal(err)
		}
		n.idle(10 * time.Minute)
		n.holds("compute", 1)
		n.healthy()
		n.counts(`roce_cni_block_used{block="` + n.blocks()[0] + `",pool="compute"} 0`)
		n.mustLease("compute", 1, 8)
	})
}

// TestQuarantineIsNoReasonToClaim has eight pods, each of which comes back on the node
// again and again while its former addresses rest.
func TestQuarantineIsNoReasonToClaim(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.mustLease("compute", 1, 8)
		for i := 1; i <= 40; i++ {
			n.release(fmt.Sprintf("c%d", i))
			n.mustLease("compute", i+8, i+8)
			pass(2 * time.Second)
		}
		n.holds("compute", 1)
		n.mustLease("compute", 49, 53)
		pass(2 * time.Second)
		n.holds("compute", 2)
	})
}

func TestBlocksOfOneSlotAreOneMoreThanPods(t *testing.T) {
	hours(t)
	bubble(t, func(t *testing.T) {
		n := newCluster(poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}], "blockSize": 1}`)).node(t, "n1")
		n.run()
		for pods := range 4 {
			pass(10 * time.Second)
			if got := len(n.blocks()); got != pods+1 {
				t.Errorf("%d blocks for %d pods", got, pods)
			}
			n.mustLease("compute", pods, pods)
		}
		pass(10 * time.Second)
		for i := range 4 {
			n.release(fmt.Sprintf("c%d", i))
		}
		n.idle(90 * time.Minute)
		if got := len(n.blocks()); got != 1 {
			t.Errorf("%d blocks are left of five that were empty for an hour, want 1", got)
		}
	})
}

func TestAPodFindsASlotAfterASmallBlockIsFull(t *testing.T) {
	for size, want := range map[int][]int{2: {1, 1, 2, 2, 3}, 4: {1, 1, 1, 1, 2, 2, 2, 3}, 5: {1, 1, 1, 1, 1, 2}, 8: {1, 1, 1, 1, 1, 1, 1, 2}} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newCluster(poolOf(t, "compute", 1, fmt.Sprintf(`{"rails": [{"subnets": [{"subnet": "10.0.0.0/22"}]}], "blockSize": %d}`, size))).node(t, "n1")
				n.hint = netip.MustParseAddr("10.0.1.32") // of a whole block
				n.run()
				var got []int
				for pods := range want {
					pass(2 * time.Second)
					got = append(got, len(n.blocks()))
					n.mustLease("compute", pods, pods)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("blocks before each pod (-want +got)\n%s", diff)
				}
			})
		})
	}
}

// TestWhatPodsMayNotHaveAnyMoreIsNotUsed has pods on slots that are taken out of the
// ranges, and maybe one on a slot that is kept for a switch.
func TestWhatPodsMayNotHaveAnyMoreIsNotUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.hint = netip.MustParseAddr("10.1.0.1") // of block 1, the slots 16 to 31
		n.run()
		n.mustLease("compute", 1, 10)
		pass(time.Minute)
		n.change(func(v *agent.View) {
			v.Pools = []block.Pool{poolOf(t, "compute", 1, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/22", "ranges": ["10.{rail}.0.24-10.{rail}.2.255"]}]},
				"reservations": [{"ranges": ["10.1.0.25"], "reason": "a switch"}]}`)}
		})
		pass(2 * time.Minute)
		entries, err := n.book().List(t.Context(), "rail:compute")
		must(t, err)
		used := 0 // of 7
		for _, e := range entries {
			if slot := e.Addr.As4()[3]; e.Addr.As4()[1] == 1 && slot >= 24 && slot != 25 {
				used++
			}
		}
		if used < 3 || used > 5 || len(n.blocks()) != 1 {
			t.Fatalf("%d of seven slots are leased, and it has %v", used, n.blocks())
		}
		n.healthy() // they may keep them
		n.counts(
			`roce_cni_block_size{block="compute-1",pool="compute"} 7`, fmt.Sprintf(`roce_cni_block_used{block="compute-1",pool="compute"} %d`, used),
			fmt.Sprintf(`roce_cni_block_free{block="compute-1",pool="compute"} %d`, 7-used),
		)
		if want, got := (block.Usage{Size: 7, Used: used, Free: 7 - used}), n.reports[len(n.reports)-1].Usage; got != want {
			t.Errorf("reports %+v, want %+v", got, want)
		}
		n.mustLease("compute", 11, 10+6-used)
		pass(2 * time.Second)
		if got := n.blocks(); len(got) != 2 {
			t.Errorf("six of seven are leased, and it has %v", got)
		}
	})
}
