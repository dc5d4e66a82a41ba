// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// The tests of package agent have controllers with plugins, restarts and other nodes. Here
// is what they do not see.

// fixture is a controller, and what its agent tells it and hears of it.
type fixture struct {
	*testing.T
	store *stickytest.Mem
	dir   string
	start time.Time
	c     *grant.Controller
	log   bytes.Buffer

	mu       sync.Mutex
	slots    block.Slots
	fault    error         // why no slot may be taken
	away     bool          // the API server is
	slow     time.Duration // how long the next read of the leases takes
	troubles map[string]string
	counted  map[string]int
}

// open has a controller at work until the test ends.
func open(t *testing.T, change func(o *fixture)) *fixture {
	t.Helper()
	o := &fixture{
		T: t, store: stickytest.NewMem(), start: time.Now(), slots: kept(t),
		dir:      t.TempDir(),
		troubles: map[string]string{}, counted: map[string]int{},
	}
	o.store.Fault = func(blocktest.Op, string) blocktest.Fault {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.away {
			return blocktest.Lost
		}
		return blocktest.None
	}
	change(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	o.c = grant.New(o.config())
	go func() { ended <- o.c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
		soon, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if a := o.c.Ask(soon, nodefile.Key{Namespace: "train", Pod: "late-0", Interface: "net1"}); a.Wait == "" {
			t.Errorf("it has ended, and grants %+v", a)
		}
	})
	synctest.Wait()
	return o
}

// kept are 16 slots of a pool of one rail.
func kept(t *testing.T) block.Slots {
	t.Helper()
	p := block.Pool{Name: "compute"}
	spec := `{"rails": [{"subnets": [{"subnet": "10.0.0.0/22"}]}], "sticky": {"ttl": "1h", "slots": "512-527"}}`
	if err := json.Unmarshal([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	slots, err := p.Slots("")
	if err != nil {
		t.Fatal(err)
	}
	return slots
}

func (o *fixture) now() time.Duration { return time.Since(o.start) + time.Hour }

func (o *fixture) config() grant.Config {
	read := func() time.Duration {
		var wait time.Duration
		o.tell(func() { wait, o.slow = o.slow, 0 })
		time.Sleep(wait)
		return o.now()
	}
	book := ipam.New(ipam.Config{Dir: o.dir, BootID: "11111111-1111-4111-8111-111111111111", Now: read, Observe: everyNetnsLives})
	return grant.Config{
		Pool: "compute",
		Terms: func() (block.Slots, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.slots, o.fault
		},
		Claimer: sticky.Claimer{Store: o.store, Node: block.Node{Name: "a", MachineID: "machine-of-a"}, Now: time.Now},
		Leases:  book,
		Seen: func() ([]ipam.Entry, time.Duration, bool) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return nil, 0, true
		},
		Trouble: func(what string, err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			delete(o.troubles, what)
			if err != nil {
				o.troubles[what] = err.Error()
			}
		},
		Granted: o.counter("granted"), None: o.counter("none"), Lost: o.counter("lost"),
		Clock: pace.Clock{Now: o.now, Rand: rand.Float64, Wait: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		}},
		Log: slog.New(slog.NewTextHandler(&o.log, nil)),
	}
}

func (o *fixture) counter(what string) func() {
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.counted[what]++
	}
}

// tell changes what the agent says.
func (o *fixture) tell(change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change()
}

// ask asks for a pod again and again for a time, and returns the last answer.
func (o *fixture) ask(pod string, during time.Duration) nodefile.Answer {
	o.Helper()
	k := nodefile.Key{Namespace: "train", Pod: pod, Interface: "net1"}
	for end := o.now() + during; ; time.Sleep(500 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(o.Context(), 900*time.Millisecond) // it ends in a wait, and not in a try
		a := o.c.Ask(ctx, k)
		cancel()
		if o.now() >= end || a.Wait == "" {
			return a
		}
	}
}

// held returns how many slots the node holds.
func (o *fixture) held() int {
	o.Helper()
	l, err := o.config().Claimer.Held(o.Context(), "compute")
	if err != nil {
		o.Fatal(err)
	}
	return len(l)
}

// heard fails the test unless the agent knows of these troubles and numbers.
func (o *fixture) heard(troubles map[string]string, counted map[string]int) {
	o.Helper()
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	if diff := cmp.Diff(troubles, o.troubles); diff != "" {
		o.Errorf("troubles (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(counted, o.counted); diff != "" {
		o.Errorf("counted (-want +got)\n%s", diff)
	}
}

func bubble(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// An ADD that fails later for another reason is followed by one that does not wait again,
// and that gets the addresses if they are free now.
func TestAPodWaitsOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.fault = errors.New("it overlaps another") })
		o.ask("db-0", grant.Patience+time.Second)
		time.Sleep(50 * time.Second)
		if a := o.ask("db-0", 0); a.None == "" {
			t.Errorf("got %+v", a)
		}
		time.Sleep(50 * time.Second)
		o.tell(func() { o.fault = nil })
		if a := o.ask("db-0", 0); !a.Granted() {
			t.Errorf("got %+v", a)
		}
		o.tell(func() { o.fault = errors.New("it overlaps another") })
		if a := o.ask("db-0", 0); !a.Granted() {
			t.Errorf("what it has got already, it gets %+v", a)
		}
		o.ask("db-1", grant.Patience+time.Second)
		time.Sleep(2 * time.Minute)
		if a := o.ask("db-1", 0); a.Wait == "" {
			t.Errorf("after two minutes: %+v", a)
		}
		o.tell(func() { o.fault = nil })
		if a := o.ask("db-2", 0); !a.Granted() {
			t.Errorf("got %+v", a)
		}
		time.Sleep(40 * time.Second) // it was not used, and another node has it now
		o.taken("b", "db-2")
		if a := o.ask("db-2", 0); a.Wait == "" {
			t.Errorf("after a grant, a pod waits again; it gets %+v", a)
		}
	})
}

func TestAPoolThatIsNotStickyAnyMoreHasNoneAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.slots = block.Slots{} })
		if a := o.ask("db-0", 0); !strings.Contains(a.None, "compute is not sticky any more") {
			t.Errorf("got %+v", a)
		}
		o.heard(map[string]string{}, map[string]int{"none": 1})
	})
}

func TestAnUnreachableServerIsTroubleUntilItAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.away = true })
		o.heard(map[string]string{"sticky addresses": block.ErrUnknown.Error()}, map[string]int{})
		a := o.ask("db-0", grant.Patience+time.Second)
		if want := block.Explain(block.ErrUnknown).Error(); a.None != want {
			t.Errorf("got %+v, want %q", a, want)
		}
		if got := o.store.Calls(blocktest.List); got > 70 { // one for each of 62 requests of ADDs
			t.Errorf("%d lists without an answer", got)
		}
		o.tell(func() { o.away = false })
		time.Sleep(2 * time.Minute)
		o.heard(map[string]string{}, map[string]int{"none": 1})
	})
}

// An ADD may fail for another reason after the grant, and the pod go to another node.
func TestASlotThatNoPodLeasesIsReleasedAfterItsGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) {
			all := o.store.Fault
			o.store.Fault = func(op blocktest.Op, name string) blocktest.Fault {
				if op != stickytest.Update { // the leases can be read
					return blocktest.None
				}
				return all(op, name)
			}
		})
		for _, pod := range []string{"db-0", "db-1"} {
			if a := o.ask(pod, 0); !a.Granted() {
				t.Fatalf("%s gets %+v", pod, a)
			}
		}
		before := o.store.Calls(stickytest.Update)
		o.tell(func() { o.away = true })
		time.Sleep(2 * grant.Time)
		o.heard(map[string]string{"sticky addresses": block.ErrUnknown.Error()}, map[string]int{"granted": 2})
		if got := o.store.Calls(stickytest.Update) - before; got < 1 || got > 3 {
			t.Errorf("%d requests without an answer in ten seconds, want one at a time", got)
		}
		granted := 0
		for _, pod := range []string{"db-0", "db-1"} {
			if a := o.ask(pod, 0); a.Granted() {
				granted++
			}
		}
		if granted != 1 { // the one that it has tried to release may be another node's now
			t.Errorf("without a server, %d of two get their addresses again, want 1", granted)
		}
		o.tell(func() { o.away = false })
		time.Sleep(time.Minute)
		if o.heard(map[string]string{}, map[string]int{"granted": 3}); o.held() != 0 {
			t.Errorf("the node holds %d, and no pod uses them", o.held())
		}
	})
}

// The grant of db-1 ends while the controller, which releases what db-0 does not use, reads the
// leases. An ADD may have leased in time what it has not read.
func TestAGrantThatEndsDuringAReadCounts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(*fixture) {})
		other := ipam.Ask{Pool: "other", Owner: ipam.Owner{Network: "net", ContainerID: "c1", IfName: "net1"}}
		other.Subnets = []ipam.Subnet{{Prefix: netip.MustParsePrefix("10.1.0.1/32")}}
		if _, err := o.config().Leases.Acquire(t.Context(), other); err != nil { // so there are leases to read
			t.Fatal(err)
		}
		o.ask("db-0", 0)
		time.Sleep(grant.Time / 2)
		o.ask("db-1", 0)
		o.tell(func() { o.slow = grant.Time/2 + time.Second })
		time.Sleep(grant.Time + 1500*time.Millisecond)
		if n := o.held(); n != 1 {
			t.Errorf("the node holds %d slots, want that of db-1 alone", n)
		}
	})
}

// TestALostSlotIsTroubleAsLongAsAPodUsesIt has three pods with sticky addresses, of which another
// node gets two: only the two are named, and each one until its pod is gone.
func TestALostSlotIsTroubleAsLongAsAPodUsesIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(*fixture) {})
		for _, pod := range []string{"db-0", "db-1", "db-2"} {
			o.lease(pod)
		}
		leases := o.store.Snapshot()
		lost := map[string]string{} // by the pod
		for i, l := range leases {
			if l.Spec.Pod != "db-2" {
				lost[l.Spec.Pod] = l.Name
				leases[i].Spec.Holder, leases[i].UID = block.Owner{NodeName: "thief", MachineID: "machine-of-thief"}, "another"
			}
		}
		o.store.Restore(leases)
		for _, pod := range []string{"db-0", "db-1", ""} {
			time.Sleep(10 * time.Minute)
			want := map[string]string{}
			if len(lost) > 0 {
				names := fmt.Sprint(slices.Sorted(maps.Values(lost)))
				want["lost sticky addresses"] = fmt.Sprintf("confirm sticky addresses %q: another node has them now", names)
			}
			o.heard(want, map[string]int{"granted": 3, "lost": 2})
			if err := o.config().Leases.Release(t.Context(), owner(pod).Key(), netns.Ref{}); err != nil {
				t.Fatal(err)
			}
			delete(lost, pod)
		}
	})
}

// TestASlotOfAPodIsNotGrantedToAnotherAfterARestore has etcd be what it was when the slot of
// db-0 was that of db-9. Without an API server, nothing says that db-9 may have it.
func TestASlotOfAPodIsNotGrantedToAnotherAfterARestore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(*fixture) {})
		o.lease("db-0")
		leases := o.store.Snapshot()
		leases[0].Spec.Pod, leases[0].UID = "db-9", "another"
		o.store.Restore(leases)
		time.Sleep(10 * time.Minute)
		o.tell(func() { o.away = true })
		if a := o.ask("db-9", 0); a.Wait == "" {
			t.Errorf("db-9 gets %+v", a)
		}
		if a := o.ask("db-0", 0); !a.Granted() {
			t.Errorf("db-0 gets %+v", a)
		}
	})
}

// lease has a pod get its sticky address, and lease it.
func (o *fixture) lease(pod string) {
	o.Helper()
	a := o.ask(pod, 0)
	if !a.Granted() {
		o.Fatalf("got %+v", a)
	}
	s := a.Rails[0][0]
	if _, err := o.config().Leases.Acquire(o.Context(), ipam.Ask{
		Pool: pool.OfRailPool("compute"), Subnets: []ipam.Subnet{{Prefix: s.Prefix, Ranges: s.Ranges}}, Owner: owner(pod),
	}); err != nil {
		o.Fatal(err)
	}
}

// owner is a pod with a sticky address.
func owner(pod string) ipam.Owner {
	return ipam.Owner{Network: "net", ContainerID: "c-" + pod, IfName: "net1", PodNamespace: "train", PodName: pod}
}

// everyNetnsLives is an observation of a node on which no namespace ends.
func everyNetnsLives() func(netns.Ref) (bool, error) {
	return func(netns.Ref) (bool, error) { return true, nil }
}
