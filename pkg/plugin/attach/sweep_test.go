// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// callsOfADD returns how many kernel calls an ADD makes.
func callsOfADD(t *testing.T, fresh func(*testing.T) *world) int {
	t.Helper()
	w := fresh(t)
	w.mustCome("c1")
	return w.fake.Calls()
}

func TestFailureAtEveryOpLeavesNothing(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		for i := 1; i <= callsOfADD(t, fresh); i++ {
			w := fresh(t)
			w.fake.Pod(podPath("c1"))
			w.fake.FailAt(i, errFault)
			_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
			if !errors.Is(err, errFault) {
				t.Errorf("failing at call %d: got %v", i, err)
			}
			w.mustBeEmpty(fmt.Sprintf("after failing at call %d", i))
		}
	})
}

// TestWhatCannotBeUndoneIsKeptForDEL lets everything fail from some call on,
// undoing included. The lease must stay, because the address may be in use.
func TestWhatCannotBeUndoneIsKeptForDEL(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		for i := 1; i <= callsOfADD(t, fresh); i++ {
			w := fresh(t)
			w.fake.Pod(podPath("c1"))
			w.fake.FailFrom(i, errFault)
			_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
			if !errors.Is(err, errFault) {
				t.Fatalf("failing from call %d: got %v", i, err)
			}
			var left *plan.UndoError
			if errors.As(err, &left) != (len(w.files()) > 0) {
				t.Errorf("failing from call %d: undone: %v, but files: %v", i, left == nil, w.files())
			}
			// A link without addresses stays for another plugin, which may need it to release a lease.
			if l := w.leases(); w.plugins == "" && (left != nil) != (len(l) > 0) || w.fake.String() != "" && w.plugins == "" && len(l) == 0 {
				t.Errorf("failing from call %d: undone: %v, but leased: %v, and the kernel has\n%s", i, left == nil, l, w.fake)
			}
			w.fake.Heal()
			if err := w.node().Del(ctx, w.del("c1", "net1")); err != nil {
				t.Errorf("DEL after failing from call %d: %v", i, err)
			}
			w.mustBeEmpty(fmt.Sprintf("after failing from call %d and DEL", i))
		}
	})
}

// crashes runs fn for a crash before every operation of an ADD, until one is
// not reached.
func crashes(t *testing.T, fresh func(*testing.T) *world, fn func(w *world, at int)) {
	t.Helper()
	for at := 1; ; at++ {
		w := fresh(t)
		w.fake.Pod(podPath("c1"))
		w.crash = at
		died := w.run(func(n attach.Node) { _, _ = n.Add(ctx, w.request("c1", "net1", "")) })
		if !died {
			if at < 10 {
				t.Fatalf("an ADD has only %d operations", at-1)
			}
			return
		}
		w.crash = 0
		fn(w, at)
	}
}

func TestDelAfterACrashAtEveryOpLeavesNothing(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		crashes(t, fresh, func(w *world, at int) {
			if err := w.node().Del(ctx, w.del("c1", "net1")); err != nil {
				t.Errorf("DEL after a crash before operation %d: %v", at, err)
			}
			w.mustBeEmpty(fmt.Sprintf("after a crash before operation %d and DEL", at))
		})
	})
}

func TestAddAfterACrashAtEveryOpSucceeds(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		whole := fresh(t)
		whole.fake.Pod(podPath("c1"))
		if _, err := whole.node().Add(ctx, whole.request("c1", "net1", "")); err != nil {
			t.Fatal(err)
		}
		crashes(t, fresh, func(w *world, at int) {
			if _, err := w.node().Add(ctx, w.request("c1", "net1", "")); err != nil {
				t.Fatalf("ADD after a crash before operation %d: %v", at, err)
			}
			w.mustBeWhole("c1")
			if got := len(w.held()); got != len(whole.held()) {
				t.Errorf("ADD after a crash before operation %d: the plugin has %d leases", at, got)
			}
			if diff := cmp.Diff(whole.fake.String(), w.fake.String()); diff != "" {
				t.Errorf("ADD after a crash before operation %d (-whole +again):\n%s", at, diff)
			}
		})
	})
}

func TestDelAfterACrashAtEveryOpOfDEL(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		for at := 1; ; at++ {
			w := fresh(t)
			w.mustCome("c1")
			w.crash = at
			died := w.run(func(n attach.Node) { _ = n.Del(ctx, w.del("c1", "net1")) })
			w.crash = 0
			if err := w.node().Del(ctx, w.del("c1", "net1")); err != nil {
				t.Errorf("DEL after a DEL that died before operation %d: %v", at, err)
			}
			w.mustBeEmpty(fmt.Sprintf("after a DEL that died before operation %d", at))
			if !died {
				break
			}
		}
	})
}

func TestFailureAtEveryOpOfDELKeepsWhatTheNextDELNeeds(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		for _, gone := range []bool{false, true} {
			for i := 1; ; i++ {
				w := fresh(t)
				w.mustCome("c1")
				if gone {
					w.fake.RemovePod(podPath("c1"))
				}
				leases, before := w.leases(), w.fake.Calls()
				w.fake.FailAt(i, errFault)
				err := w.node().Del(ctx, w.del("c1", "net1"))
				if w.fake.Calls()-before < i {
					break
				}
				if !errors.Is(err, errFault) || len(w.files()) == 0 {
					t.Errorf("failing at call %d, namespace gone: %t: got %v, files: %v", i, gone, err, w.files())
				}
				if strings.Contains(w.fake.String(), "addr 172.") && !slices.Equal(w.leases(), leases) {
					t.Errorf("failing at call %d: leased: %v, but the kernel has\n%s", i, w.leases(), w.fake)
				}
				w.fake.Heal()
				w.mustLeave("c1")
				w.mustBeEmpty(fmt.Sprintf("after failing at call %d of DEL, and DEL", i))
			}
		}
	})
}

func TestRandomSequencesEndEmpty(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		ids, ifNames := []string{"c1", "c2", "c3"}, []string{"net1", "net2"}
		seeds := uint64(15)
		if testing.Short() {
			seeds = 8
		}
		for seed := range seeds {
			rnd := rand.New(rand.NewPCG(seed, 1))
			w := fresh(t)
			for _, id := range ids {
				w.fake.Pod(podPath(id))
			}
			for range 30 {
				id, ifName := ids[rnd.IntN(len(ids))], ifNames[rnd.IntN(len(ifNames))]
				if rnd.IntN(4) == 0 {
					w.fake.FailAt(1+rnd.IntN(25), errFault)
				}
				if rnd.IntN(4) == 0 {
					w.crash = 1 + rnd.IntN(25)
				}
				w.wire.silent = rnd.IntN(8) == 0
				w.run(func(n attach.Node) {
					switch rnd.IntN(5) {
					case 0, 1:
						_, _ = n.Add(ctx, w.request(id, ifName, ""))
					case 2:
						_ = n.Check(ctx, w.request(id, ifName, ""))
					case 3:
						_ = n.Del(ctx, w.del(id, ifName))
					case 4:
						_ = n.GC(ctx, w.gc("rail", conf.Attachment{ContainerID: conf.ContainerID(id), IfName: conf.LinkName(ifName)}))
					}
				})
				w.crash = 0
				w.fake.Heal()
				noAddressTwice(t, w)
			}
			for _, id := range ids {
				for _, ifName := range ifNames {
					if err := w.node().Del(ctx, w.del(id, ifName)); err != nil {
						t.Errorf("seed %d: DEL of %s/%s: %v", seed, id, ifName, err)
					}
				}
			}
			w.mustBeEmpty(fmt.Sprintf("at the end of seed %d", seed))
			if t.Failed() {
				return
			}
		}
	})
}

// noAddressTwice checks that no address is leased to two attachments.
func noAddressTwice(t *testing.T, w *world) {
	t.Helper()
	var seen []string
	for _, l := range w.leases() {
		addr, _, _ := strings.Cut(l, " ")
		if slices.Contains(seen, addr) {
			t.Errorf("%s is leased twice: %v", addr, w.leases())
		}
		seen = append(seen, addr)
	}
}
