// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package grant_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// The tests of package agent have controllers with plugins, restarts and other nodes. Here
// is what a controller does with what it is told.

const patience = 30 * time.Second

// fixture is a controller, and what its agent tells it and hears of it.
type fixture struct {
	*testing.T
	store *stickytest.Mem
	files nodefile.Store
	start time.Time
	log   bytes.Buffer

	mu       sync.Mutex
	slots    block.Slots
	fault    error // why no slot may be taken
	unread   bool  // the leases were never read
	away     bool  // the API server is
	troubles map[string]string
	counted  map[string]int
}

// open has a controller at work until the test ends.
func open(t *testing.T, change func(o *fixture)) *fixture {
	t.Helper()
	o := &fixture{
		T: t, store: stickytest.NewMem(), start: time.Now(), slots: kept(t),
		files:    nodefile.Store{Dir: t.TempDir(), BootID: "11111111-1111-4111-8111-111111111111"},
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
	go func() { ended <- grant.New(o.config()).Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
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
	book := ipam.New(ipam.Config{Dir: o.files.Dir, BootID: o.files.BootID, Now: o.now, Observe: everyNetnsLives})
	return grant.Config{
		Pool: "compute",
		Terms: func() (block.Slots, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.slots, o.fault
		},
		Claimer: sticky.Claimer{Store: o.store, Node: block.Node{Name: "a", MachineID: "machine-of-a"}, Now: time.Now},
		Ranges:  o.files, Leases: book,
		Seen: func() ([]ipam.Entry, time.Duration, bool) {
			o.mu.Lock()
			defer o.mu.Unlock()
			return nil, 0, !o.unread
		},
		Patience: patience,
		Trouble: func(what string, err error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			delete(o.troubles, what)
			if err != nil {
				o.troubles[what] = err.Error()
			}
		},
		Granted: o.counter("granted"), None: o.counter("none"), Lost: o.counter("lost"),
		Clock: pace.Clock{Now: o.now, Rand: rand.Float64},
		Wait: func(ctx context.Context, d time.Duration) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(d):
				return nil
			}
		},
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

// ask asks for a pod, and returns the answer of a time after, if there is one.
func (o *fixture) ask(pod string, after time.Duration) (nodefile.Answer, bool) {
	o.Helper()
	k := nodefile.Key{Namespace: "train", Pod: pod, Interface: "net1"}
	if err := o.files.Want("compute", k); err != nil {
		o.Fatal(err)
	}
	time.Sleep(after)
	synctest.Wait()
	a, there, err := o.files.Answer("compute", k)
	if err != nil {
		o.Fatal(err)
	}
	return a, there
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

func TestAFaultOfThePoolIsWaitedForAndThenReported(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.fault = errors.New("it overlaps another") })
		if a, there := o.ask("db-0", patience-time.Second); there {
			t.Errorf("it has answered %+v", a)
		}
		time.Sleep(2 * time.Second)
		if a, there := o.ask("db-0", 0); !there || a.None != "it overlaps another" {
			t.Errorf("got %+v, %t", a, there)
		}
		o.heard(map[string]string{}, map[string]int{"none": 1})
		if n := o.store.Calls(blocktest.Create); n != 0 {
			t.Errorf("it has asked for a slot %d times", n)
		}
	})
}

func TestAFaultThatIsCorrectedInTimeCostsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.fault = errors.New("it overlaps another") })
		o.ask("db-0", 10*time.Second)
		o.tell(func() { o.fault = nil })
		if a, there := o.ask("db-0", 15*time.Second); !there || !a.Granted() {
			t.Errorf("got %+v, %t", a, there)
		}
		o.heard(map[string]string{}, map[string]int{"granted": 1})
	})
}

func TestAPoolThatIsNotStickyAnyMoreHasNoneAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.slots = block.Slots{} })
		if a, there := o.ask("db-0", time.Second); !there || !strings.Contains(a.None, "compute is not sticky any more") {
			t.Errorf("got %+v, %t", a, there)
		}
		o.heard(map[string]string{}, map[string]int{"none": 1})
	})
}

func TestAnUnreachableServerIsTroubleUntilItAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.away = true })
		o.heard(map[string]string{"sticky addresses": block.ErrUnknown.Error()}, map[string]int{})
		a, there := o.ask("db-0", patience+time.Second)
		if want := block.Explain(block.ErrUnknown).Error(); !there || a.None != want {
			t.Errorf("got %+v, %t, want %q", a, there, want)
		}
		o.tell(func() { o.away = false })
		time.Sleep(2 * time.Minute)
		o.heard(map[string]string{}, map[string]int{"none": 1})
	})
}

// TestAGrantStaysUntilTheLeasesAreRead: a pod may have its addresses.
func TestAGrantStaysUntilTheLeasesAreRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.unread = true })
		if a, there := o.ask("db-0", 10*time.Minute); !there || !a.Granted() {
			t.Fatalf("got %+v, %t", a, there)
		}
		if held := o.store.Snapshot(); held[0].Spec.Holder.NodeName != "a" {
			t.Errorf("held: %+v", held)
		}
		o.tell(func() { o.unread = false })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if held := o.store.Snapshot(); held[0].Spec.Holder.NodeName != "" {
			t.Errorf("held: %+v", held)
		}
		if left, err := o.files.Answers("compute"); err != nil || len(left) != 0 {
			t.Errorf("answers %+v, error %v", left, err)
		}
	})
}

// TestASlotThatIsLostIsPromisedNoMore has an etcd that gives to another node what was
// promised to a pod of this one.
func TestASlotThatIsLostIsPromisedNoMore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		o := open(t, func(o *fixture) { o.unread = true })
		o.ask("db-0", time.Second)
		l := o.store.Snapshot()[0]
		l.UID, l.Spec.Holder = "another", sticky.Holder{NodeName: "thief", MachineID: "machine-of-thief"}
		o.store.Restore([]sticky.Lease{l})
		time.Sleep(20 * time.Minute)
		o.heard(map[string]string{}, map[string]int{"granted": 1, "lost": 1})
		if left, err := o.files.Answers("compute"); err != nil || len(left) != 0 {
			t.Errorf("answers %+v, error %v", left, err)
		}
		if !strings.Contains(o.log.String(), `holder=thief`) {
			t.Errorf("the log: %s", o.log.String())
		}
	})
}

// everyNetnsLives is an observation of a node on which no namespace ends.
func everyNetnsLives() func(netns.Ref) (bool, error) {
	return func(netns.Ref) (bool, error) { return true, nil }
}
