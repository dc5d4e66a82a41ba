// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant_test

import (
	"context"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

func key(pod string) nodefile.Key {
	return nodefile.Key{Namespace: "train", Pod: pod, Interface: "net1"}
}

// taken has a node hold the slot of a pod, as a controller before did.
func (o *fixture) taken(node, pod string) sticky.Lease {
	o.Helper()
	c := o.config().Claimer
	c.Node = block.Node{Name: node, MachineID: "machine-of-" + node}
	l, err := c.Take(o.Context(), o.slots, key(pod))
	if err != nil {
		o.Fatal(err)
	}
	return l
}

// leased has a pod lease the address of a slot.
func (o *fixture) leased(pod string, slot int) {
	o.Helper()
	s := o.slots.Rails(slot)[0][0]
	_, err := o.config().Leases.Acquire(o.Context(), ipam.Ask{
		Pool: pool.OfRailPool("compute"), Subnets: []ipam.Subnet{{Prefix: s.Prefix, Ranges: s.Ranges}}, Owner: owner(pod),
	})
	if err != nil {
		o.Fatal(err)
	}
}

// ended releases the address of a pod.
func (o *fixture) ended(pod string) {
	o.Helper()
	if err := o.config().Leases.Release(o.Context(), owner(pod).Key(), netns.Ref{}); err != nil {
		o.Fatal(err)
	}
}

// holders fails the test unless nodes hold the slots of pods so.
func (o *fixture) holders(want map[string]string) {
	o.Helper()
	got := map[string]string{}
	for _, l := range o.store.Snapshot() {
		got[l.Spec.Pod] = l.Spec.Holder.NodeName
	}
	if diff := cmp.Diff(want, got); diff != "" {
		o.Errorf("after %v: (-want +got)\n%s", o.now()-time.Hour, diff)
	}
}

// said fails the test unless a line of the log has these texts. The controller must be at rest.
func (o *fixture) said(texts ...string) {
	o.Helper()
lines:
	for line := range strings.Lines(o.log.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue lines
			}
		}
		return
	}
	o.Errorf("no line of the log has all of %q:\n%s", texts, o.log.String())
}

// TestARestartedControllerKeepsWhatIsUsed has a pod with addresses, a pod that may have got a grant
// just before the restart, and a pod of another node.
func TestARestartedControllerKeepsWhatIsUsed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) {
			o.leased("db-0", o.taken("a", "db-0").Spec.Slot)
			o.taken("a", "db-1")
			o.taken("b", "db-2")
		})
		before := o.store.Calls(stickytest.Update)
		time.Sleep(grant.Time - time.Second)
		o.holders(map[string]string{"db-0": "a", "db-1": "a", "db-2": "b"})
		time.Sleep(3 * time.Second)
		o.holders(map[string]string{"db-0": "a", "db-1": "", "db-2": "b"})
		o.heard(map[string]string{}, map[string]int{})
		o.said("released a sticky host index", "pool=compute", "lease=compute-s", "pod=db-1")
		o.tell(func() { o.away = true })
		if a := o.ask("db-0", 0); !a.Granted() {
			t.Errorf("without a server db-0, which it has affirmed, gets %+v", a)
		}
		if a := o.ask("db-1", 0); a.Granted() {
			t.Errorf("without a server db-1, which was released, gets %+v", a)
		}
		if got := o.store.Calls(stickytest.Update) - before; got > 3 {
			t.Errorf("%d writes in some seconds", got)
		}
	})
}

func TestAnAnswerHasTheAddressesOfTheSlotAndTheTimeOfTheGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(*fixture) {})
		a := o.ask("db-0", 0)
		l := o.store.Snapshot()[0]
		want := nodefile.Answer{Rails: o.slots.Rails(l.Spec.Slot), Until: o.now() + grant.Time}
		if diff := cmp.Diff(want, a, cmpopts.EquateComparable(want.Rails[0][0].Gateway, want.Rails[0][0].Prefix)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		o.heard(map[string]string{}, map[string]int{"granted": 1})
		o.said("a pod gets its sticky addresses", "pool=compute", "namespace=train", "pod=db-0", "interface=net1", "address="+a.Rails[0][0].Ranges[0].First.String())
	})
}

// TestAPodGetsItsAddressesAsSoonAsItsFormerNodeReleasesThem asks once, and waits. A pod gets
// others in the end if its former node does not release them.
func TestAPodGetsItsAddressesAsSoonAsItsFormerNodeReleasesThem(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var l sticky.Lease
		o := open(t, func(o *fixture) {
			l = o.taken("b", "db-0")
			o.taken("b", "db-1")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		go func() {
			time.Sleep(2 * time.Second)
			c := o.config().Claimer
			c.Node = block.Node{Name: "b", MachineID: "machine-of-b"}
			if err := c.Release(t.Context(), l); err != nil {
				t.Error(err)
			}
		}()
		began := o.now()
		if a := o.c.Ask(ctx, key("db-0")); !a.Granted() || o.now()-began > 3*time.Second {
			t.Errorf("after %v it gets %+v", o.now()-began, a)
		}
		if a := o.ask("db-1", 10*time.Second); !strings.Contains(a.Wait, "b") || a.None != "" {
			t.Errorf("while its former node has them it gets %+v", a)
		}
		a := o.ask("db-1", grant.Patience)
		if !strings.Contains(a.None, "b") {
			t.Errorf("in the end it gets %+v", a)
		}
		o.said("a pod gets other addresses than its sticky ones", "pod=db-1", "why=")
		o.holders(map[string]string{"db-0": "", "db-1": "b"}) // db-0 has leased nothing
	})
}

// TestASlotOfUnknownAddressesStaysWhilePodsHaveAny has slots of another rack, and one that the pool
// does not have any more. One has a grant still.
func TestASlotOfUnknownAddressesStaysWhilePodsHaveAny(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) {
			o.leased("db-0", o.taken("a", "db-0").Spec.Slot)
			other := ipam.Ask{Pool: "other", Owner: ipam.Owner{Network: "net", ContainerID: "c1", IfName: "net1"}}
			other.Subnets = []ipam.Subnet{{Prefix: netip.MustParsePrefix("10.0.2.0/24")}} // which does not count
			if _, err := o.config().Leases.Acquire(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			for name, spec := range map[string]sticky.Spec{
				"compute.7-s512": {Rack: "7", Slot: 512, Pod: "db-7"}, "compute-s600": {Slot: 600, Pod: "db-8"},
			} {
				spec.Pool, spec.Namespace, spec.Interface = "compute", "train", "net1"
				spec.Holder = block.Owner{NodeName: "a", MachineID: "machine-of-a"}
				if _, err := o.store.Create(t.Context(), sticky.Lease{Name: name, Spec: spec}); err != nil {
					t.Fatal(err)
				}
			}
		})
		time.Sleep(6 * time.Minute)
		o.holders(map[string]string{"db-0": "a", "db-7": "a", "db-8": "a"})
		for _, l := range o.store.Snapshot() {
			if l.Spec.Written.IsZero() {
				t.Errorf("the lease of %s is not affirmed", l.Spec.Pod)
			}
		}
		o.ended("db-0")
		time.Sleep(6 * time.Minute)
		o.holders(map[string]string{"db-0": "", "db-7": "", "db-8": ""})
	})
}

// TestALeaseThatARestoreHasRemovedIsMadeAgain is about the pod that uses it, although others have
// released theirs.
func TestALeaseThatARestoreHasRemovedIsMadeAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(*fixture) {})
		o.lease("db-0")
		plain := ipam.Ask{Pool: pool.OfRailPool("compute"), Owner: owner("plain"), Subnets: []ipam.Subnet{{Prefix: netip.MustParsePrefix("10.0.0.100/32")}}}
		if _, err := o.config().Leases.Acquire(t.Context(), plain); err != nil { // an ordinary address, without a RailLease
			t.Fatal(err)
		}
		was := o.store.Snapshot()[0]
		o.store.Restore(nil)
		time.Sleep(7 * time.Minute)
		all := o.store.Snapshot()
		if len(all) != 1 {
			t.Fatalf("there are %+v", all)
		}
		was.Spec.Written, all[0].Spec.Written = time.Time{}, time.Time{}
		if all[0].Name != was.Name || all[0].Spec != was.Spec {
			t.Errorf("it is %+v, and was %+v", all[0], was)
		}
	})
}

// TestWhatGotNoAnswerIsReleasedSoon has the API server do a request, and the answer to it is lost. Its
// pod does not come back. What is looked at from time to time would be later.
func TestWhatGotNoAnswerIsReleasedSoon(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(*fixture) {})
		time.Sleep(time.Minute + 500*time.Millisecond) // between two looks
		done := false
		o.store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
			if op == blocktest.Create && !done {
				done = true
				return blocktest.Landed
			}
			return blocktest.None
		}
		if a := o.ask("db-0", 0); a.Wait == "" {
			t.Errorf("it gets %+v", a)
		}
		o.holders(map[string]string{"db-0": "a"})
		time.Sleep(3 * time.Second)
		o.holders(map[string]string{"db-0": ""})
	})
}

// TestABusyServerIsLeftAlone has it ask for twenty seconds without requests.
func TestABusyServerIsLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		busy := true
		o := open(t, func(o *fixture) {
			o.store.After = 20 * time.Second
			o.store.Fault = func(blocktest.Op, string) blocktest.Fault {
				o.mu.Lock()
				defer o.mu.Unlock()
				if busy {
					return blocktest.Refused
				}
				return blocktest.None
			}
		})
		o.tell(func() { busy = false }) // it says so to who asks
		before := o.store.Calls(blocktest.List)
		a := o.ask("db-0", 15*time.Second)
		if !strings.Contains(a.Wait, "the server is busy, for ") || o.store.Calls(blocktest.List) != before {
			t.Errorf("it gets %+v after %d lists", a, o.store.Calls(blocktest.List)-before)
		}
		if a := o.ask("db-0", 10*time.Second); !a.Granted() {
			t.Errorf("after that it gets %+v", a)
		}
		o.tell(func() { busy = true })
		o.ask("db-1", 0) // which hears it first
		o.tell(func() { busy = false })
		before = o.store.Calls(blocktest.List) + o.store.Calls(blocktest.Create)
		if a := o.ask("db-1", 15*time.Second); !strings.Contains(a.Wait, "the server is busy, for ") || o.store.Calls(blocktest.List)+o.store.Calls(blocktest.Create) != before {
			t.Errorf("it gets %+v, and the server was asked", a)
		}
	})
}

// TestASlotThatIsLostIsGrantedNoMore has another node get it after a restore.
func TestASlotThatIsLostIsGrantedNoMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(*fixture) {})
		o.lease("db-0")
		o.lease("db-1")
		leases, lost := o.store.Snapshot(), 0
		for i := range leases {
			if leases[i].Spec.Pod == "db-0" {
				lost = leases[i].Spec.Slot
				leases[i].Spec.Holder, leases[i].UID = block.Owner{NodeName: "thief", MachineID: "machine-of-thief"}, "another"
			}
		}
		o.store.Restore(leases)
		time.Sleep(10 * time.Minute)
		o.said("a sticky host index of a pod of this node now belongs to another node", "pod=db-0", "holder=thief")
		o.heard(map[string]string{"lost sticky addresses": `confirm sticky addresses "[` + o.slots.Name(lost) + `]": another node has them now`}, map[string]int{"granted": 2, "lost": 1})
		o.tell(func() { o.away = true })
		if a := o.ask("db-0", 0); a.Granted() {
			t.Errorf("db-0 gets %+v", a)
		}
		if a := o.ask("db-1", 0); !a.Granted() {
			t.Errorf("db-1 gets %+v", a)
		}
		o.tell(func() { o.away = false })
		for _, holder := range []string{"a", "thief"} { // it gets it back, and loses it again
			for i := range leases {
				if leases[i].Spec.Pod == "db-0" {
					leases[i].Spec.Holder = block.Owner{NodeName: holder, MachineID: "machine-of-" + holder}
				}
			}
			o.store.Restore(leases)
			time.Sleep(10 * time.Minute)
			o.mu.Lock()
			lost, trouble := o.counted["lost"], o.troubles["lost sticky addresses"]
			o.mu.Unlock()
			if again := holder == "thief"; (lost == 2) != again || (trouble != "") != again {
				t.Errorf("while %s has it: lost %d times, trouble %q", holder, lost, trouble)
			}
		}
	})
}

// TestAffirmationsWithoutAnAnswerAreTrouble has two leases, of which no more than the first is tried.
func TestAffirmationsWithoutAnAnswerAreTrouble(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) {
			o.store.Fault = func(op blocktest.Op, _ string) blocktest.Fault {
				o.mu.Lock()
				defer o.mu.Unlock()
				if o.away && op == stickytest.Update {
					return blocktest.Lost
				}
				return blocktest.None
			}
		})
		o.lease("db-0")
		o.lease("db-1")
		time.Sleep(time.Minute)
		o.tell(func() { o.away = true })
		before := o.store.Calls(stickytest.Update)
		time.Sleep(7 * time.Minute)
		o.heard(map[string]string{"sticky addresses": block.ErrUnknown.Error()}, map[string]int{"granted": 2})
		if got := o.store.Calls(stickytest.Update) - before; got < 3 || got > 7 {
			t.Errorf("%d writes without an answer in two to four minutes", got)
		}
		o.tell(func() { o.away = false })
		time.Sleep(7 * time.Minute) // the longest pause is 6:15
		o.heard(map[string]string{}, map[string]int{"granted": 2})
	})
}

func TestLeasesThatCannotBeReadAreTroubleAndReleaseNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) {
			o.leased("db-0", o.taken("a", "db-0").Spec.Slot)
			if err := os.WriteFile(filepath.Join(o.dir, "leases.db"), []byte("garbage"), 0o600); err != nil {
				t.Fatal(err)
			}
		})
		time.Sleep(10 * time.Minute)
		o.mu.Lock()
		text := o.troubles["sticky addresses"]
		o.mu.Unlock()
		if !strings.Contains(text, "leases.db") {
			t.Errorf("the trouble is %q", text)
		}
		o.holders(map[string]string{"db-0": "a"})
	})
}

func TestWhatTheSocketCannotReplaceIsAnError(t *testing.T) {
	t.Parallel()
	s := state(t)
	do := func(err error) {
		if t.Helper(); err != nil {
			t.Fatal(err)
		}
	}
	do(os.MkdirAll(s.Socket()+"/x", 0o700))
	if _, err := grant.Listen(s); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), "directory not empty") {
		t.Errorf("a folder in its place: %v", err)
	}
	do(os.RemoveAll(s.Socket()))
	serve(t, s)() // nothing holds the lock
	do(os.Remove(s.Socket() + ".lock"))
	do(os.Mkdir(s.Socket()+".lock", 0o700))
	if _, err := grant.Listen(s); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a folder in place of the lock: %v", err)
	}
	do(os.RemoveAll(s.Dir))
	do(os.WriteFile(s.Dir, nil, 0o600))
	if _, err := grant.Listen(s); cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("a file in place of the state folder: %v", err)
	}
}

// TestARequestThatCannotBeReadIsAnsweredSo has a client that writes no request.
func TestARequestThatCannotBeReadIsAnsweredSo(t *testing.T) {
	t.Parallel()
	s := state(t)
	defer serve(t, s)()
	conn := dial(t, s)
	defer conn.Close()
	if _, err := conn.Write([]byte("{]\n")); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(conn); err != nil || !strings.Contains(string(b), "rocectl agent cannot read the request: ") {
		t.Errorf("the answer is %q, error %v", b, err)
	}
}

// TestALeaseOfAGrantStaysWhenItsPoolHasTheSlotNoMore is about the time of the grant.
func TestALeaseOfAGrantStaysWhenItsPoolHasTheSlotNoMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.taken("a", "db-9") })
		if a := o.ask("db-0", 0); !a.Granted() {
			t.Fatalf("it gets %+v", a)
		}
		o.tell(func() { o.slots = block.Slots{Pool: "compute"} })
		if a := o.ask("db-0", 0); a.Granted() {
			t.Errorf("of a slot that the pool has no more it gets %+v", a)
		}
		time.Sleep(grant.Time - time.Second)
		o.holders(map[string]string{"db-0": "a", "db-9": "a"})
		time.Sleep(6 * time.Minute)
		o.holders(map[string]string{"db-0": "", "db-9": ""})
	})
}
