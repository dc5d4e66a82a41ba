// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

func TestADeletedStickyPoolIsGivenBackWhenNothingOfItIsLeased(t *testing.T) {
	for name, restart := range map[string]bool{"by its agent": false, "by the next": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a, _ := two(t)
				a.mustAdd("db-0", "c1")
				a.change(func(v *agent.View) { v.Pools = nil })
				if restart {
					a.stop()
					a.run()
					pass(20 * time.Second)
					if got, err := a.add("db-1", "c2"); err != nil || got.IsValid() {
						t.Errorf("a pod that comes late gets %v, error %v", got, err)
					}
					a.release("c2")
				}
				a.idle(10 * time.Minute)
				a.heldBy(t, "db-0", "a")
				a.release("c1")
				a.idle(10 * time.Minute)
				a.gone("compute")
				a.heldBy(t, "db-0", "")
				if got := a.blocks(); got != nil {
					t.Errorf("it has %v", got)
				}
			})
		})
	}
}

// TestWhatAnAgentGrantedBeforeItWasKilledIsNotReleasedTooEarly has an ADD that leases
// under the next agent, and one that does not come.
func TestWhatAnAgentGrantedBeforeItWasKilledIsNotReleasedTooEarly(t *testing.T) {
	for name, comes := range map[string]bool{"the ADD goes on": true, "the ADD is gone": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a, b := two(t)
				restart := sync.OnceFunc(func() { a.stop(); a.run(); pass(5 * time.Second) })
				if comes {
					if _, err := a.slowAdd("db-0", "c1", restart); err != nil {
						t.Fatal(err)
					}
				} else {
					a.ask(db("db-0"))
					restart()
				}
				a.heldBy(t, "db-0", "a")
				if got, err := b.add("db-0", "c2"); err == nil {
					t.Errorf("b has %v", got)
				}
				pass(6 * time.Minute)
				a.heldBy(t, "db-0", map[bool]string{true: "a"}[comes])
			})
		})
	}
}

// TestAnADDThatIsSlowGetsNothingOfADeletedPool has one that has read its answer when
// the pool goes.
func TestAnADDThatIsSlowGetsNothingOfADeletedPool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, _ := two(t)
		_, err := a.slowAdd("db-0", "c1", func() {
			a.change(func(v *agent.View) { v.Pools = nil })
			pass(20 * time.Second)
			a.gone("compute")
			if got := a.ask(db("db-1")); got.Granted() {
				t.Errorf("when the file is gone, another pod gets %+v", got)
			}
		})
		if !errors.Is(err, errLate) {
			t.Errorf("got %v", err)
		}
		a.idle(20 * time.Minute)
		a.heldBy(t, "db-0", "")
	})
}

func TestWhatGotNoAnswerIsGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.fail(blocktest.Landed)
		if _, err := a.kept.Create(t.Context(), sticky.Lease{
			Name: "compute-s530", Spec: sticky.Spec{Pool: "compute", Slot: 530, Namespace: "train", Pod: "db-0", Interface: "net1", Holder: block.Owner{NodeName: "a", MachineID: "machine-of-a"}},
		}); err == nil {
			t.Fatal("there was an answer")
		}
		if got := a.eventuallyAdds("db-0", "c1", 40*time.Second); got.IsValid() {
			t.Errorf("it got %v", got)
		}
		a.fail(blocktest.None)
		pass(time.Minute)
		a.heldBy(t, "db-0", "")
		a.healthy()
		b.healthy()
	})
}

// TestAPoolThatIsWrongKeepsWhatItHas has a fault that comes while a pod runs.
func TestAPoolThatIsWrongKeepsWhatItHas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, _ := two(t)
		first := a.mustAdd("db-0", "c1")
		bad := keeping(t)
		bad.Spec.Quarantine = "for ever"
		a.change(func(v *agent.View) { v.Pools = []block.Pool{bad} })
		pass(2 * time.Second)
		if f := a.holds("compute", 1); !f.Sticky {
			t.Error("the file does not say that the pool is sticky")
		}
		if got := a.eventuallyAdds("db-1", "c2", 40*time.Second); got.IsValid() {
			t.Errorf("a new pod gets %v", got)
		}
		pass(100 * time.Millisecond) // between two looks of the agent, which would release what no pod uses
		a.release("c1")
		if got := a.mustAdd("db-0", "c3"); got != first {
			t.Errorf("it had %v and has %v", first, got)
		}
		a.change(func(v *agent.View) { v.Pools = []block.Pool{keeping(t)} })
		pass(2 * time.Minute)
		a.release("c2")
		a.mustAdd("db-1", "c4")
	})
}

// The node holds the host index, and would not ask the server for it.
func TestAnAddressThatIsReservedMeanwhileIsNotGrantedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, _ := two(t)
		first := a.mustAdd("db-0", "c1")
		reserved := keeping(t)
		reserved.Spec.Reservations = []block.Reservation{{Ranges: []string{first.String()}}}
		a.change(func(v *agent.View) { v.Pools = []block.Pool{reserved} })
		pass(2 * time.Second)
		a.release("c1")
		if got := a.mustAdd("db-0", "c2"); got == first {
			t.Errorf("it gets %v again", got)
		}
	})
}

// TestANodeThatChangesItsRackGetsNoHostIndexesOfTheNewRack has the file of the old
// rack. Its rails must not be mixed with those of the new one.
func TestANodeThatChangesItsRackGetsNoHostIndexesOfTheNewRack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(poolOf(t, "compute", 1, `{"rails": [{"subnets": [{"subnet": "10.0.{rack}.0/24"}]}], "rackLabel": "rack", "sticky": {"ttl": "1h", "slots": "128-255"}, "blockSize": 16}`)).node(t, "n1")
		n.view.Labels = map[string]string{"rack": "7"}
		n.run()
		n.mustAdd("db-0", "c1")
		n.change(func(v *agent.View) { v.Labels = map[string]string{"rack": "8"} })
		n.idle(20 * time.Minute)
		if got := n.eventuallyAdds("db-1", "c2", 40*time.Second); got.IsValid() {
			t.Errorf("it gets %v", got)
		}
		n.heldBy(t, "db-0", "n1")
		n.release("c1")
		n.release("c2")
		n.idle(10 * time.Minute)
		n.heldBy(t, "db-0", "")
	})
}

func TestAfterABootNothingIsHeld(t *testing.T) {
	for name, deleted := range map[string]bool{"of an existing pool": false, "of a deleted pool": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a, _ := two(t)
				a.mustAdd("db-0", "c1")
				a.release("c1")
				a.stop()
				a.boot = "22222222-2222-4222-8222-222222222222"
				if deleted {
					must(t, a.files().Remove("compute"))
					a.change(func(v *agent.View) { v.Pools = nil })
				}
				a.run()
				pass(12 * time.Second)
				if deleted { // the agent searches for blocks of such pools later
					a.idle(20 * time.Minute)
				}
				a.heldBy(t, "db-0", "")
			})
		})
	}
}

// TestTheLeasesOfADeletedPoolAreReleasedBeforeItsBlocks has one of two that cannot be released, so that
// an agent that is restarted finds the pool by its block.
func TestTheLeasesOfADeletedPoolAreReleasedBeforeItsBlocks(t *testing.T) {
	for _, pods := range [][2]string{{"db-0", "db-1"}, {"db-1", "db-0"}} {
		t.Run(pods[0], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var stuck atomic.Value
				stuck.Store("")
				c := newCluster(keeping(t))
				c.kept.Fault = func(op blocktest.Op, name string) blocktest.Fault {
					if op == stickytest.Update && name == stuck.Load() {
						return blocktest.Refused
					}
					return blocktest.None
				}
				a := c.node(t, "a")
				a.run()
				a.mustAdd(pods[0], "c1")
				a.mustAdd(pods[1], "c2")
				for _, l := range a.kept.Snapshot() {
					if l.Spec.Pod == pods[0] {
						stuck.Store(l.Name)
					}
				}
				a.change(func(v *agent.View) { v.Pools[0].Deleted = true })
				pass(2 * time.Second)
				if got := a.ask(db("db-9")); !strings.Contains(got.None, "RailPool compute was deleted") {
					t.Errorf("a new pod gets %+v", got)
				}
				a.release("c1")
				a.release("c2")
				a.idle(15 * time.Minute)
				a.heldBy(t, pods[0], "a")
				a.says(200, "RailPool compute: deleted pool: ")
				if got := a.blocks(); len(got) != 1 {
					t.Errorf("it has %v", got)
				}
				stuck.Store("")
				a.idle(15 * time.Minute)
				a.heldBy(t, pods[0], "")
				if got := a.blocks(); got != nil {
					t.Errorf("it has %v", got)
				}
			})
		})
	}
}
