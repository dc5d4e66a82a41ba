// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"os/exec"
	"testing"
	"time"
)

// timeOfAdd calls ADD and DEL for a new pod and returns how long the ADD took.
func (n *node) timeOfAdd(c network) time.Duration {
	n.t.Helper()
	a := n.attach(c, n.pod())
	start := time.Now()
	if err := a.start("ADD").Wait(); err != nil {
		n.t.Fatal(err)
	}
	took := time.Since(start)
	a.mustDel()
	return took
}

// differences are by how many entries the first rail differs from the others.
var differences = []int{0, 3, 40}

func (n *node) onFirst(t *testing.T, entries int) {
	t.Helper()
	histories(t, func(rail int) int {
		if rail == 0 {
			return entries
		}
		return 0
	})
}

// TestPromiseCost prints what the promise costs beside none: of the first ADD, of those after
// it, and of ten at once. It judges no time, because the processor is emulated, but that the
// ADDs after the first change no filler.
func TestPromiseCost(t *testing.T) {
	n := newNode(t, "shared")
	for _, entries := range differences {
		t.Run(fmt.Sprintf("rails differ by %d entries", entries), func(t *testing.T) {
			n.onFirst(t, entries)
			n.timeOfAdd(promising(n.allRails(), "any")) // loads what a first ADD loads
			first := n.timeOfAdd(promising(n.allRails(), "equal"))
			changes := fillerChanges(t)
			least, together := map[any]time.Duration{}, map[any]time.Duration{}
			for range rounds(t, 4) {
				for _, index := range []any{"any", "equal"} {
					if took := n.timeOfAdd(promising(n.allRails(), index)); least[index] == 0 || took < least[index] {
						least[index] = took
					}
				}
			}
			for _, index := range []any{"any", "equal", "any", "equal"} {
				if took := n.timeOfTen(promising(n.allRails(), index)); together[index] == 0 || took < together[index] {
					together[index] = took
				}
			}
			if is := changes(); is > 0 {
				t.Errorf("the kernel told of %d changes of fillers after the first ADD, want none", is)
			}
			t.Logf("ADD of %d rails: the first with equal %d ms; at best any %d ms, equal %d ms, ratio %.2f; ten at once any %d ms, equal %d ms, ratio %.2f",
				rails(), first.Milliseconds(), least["any"].Milliseconds(), least["equal"].Milliseconds(), float64(least["equal"])/float64(least["any"]),
				together["any"].Milliseconds(), together["equal"].Milliseconds(), float64(together["equal"])/float64(together["any"]))
		})
	}
}

// timeOfTen calls ADD for ten new pods at once and returns how long all took, and then DEL.
func (n *node) timeOfTen(c network) time.Duration {
	n.t.Helper()
	var pods [10]attachment
	for i := range pods {
		pods[i] = n.attach(c, n.pod())
	}
	start := time.Now()
	var calls [len(pods)]*exec.Cmd
	for i, a := range pods {
		calls[i] = a.start("ADD")
	}
	for _, call := range calls {
		if err := call.Wait(); err != nil {
			n.t.Fatal(err)
		}
	}
	took := time.Since(start)
	for _, a := range pods {
		a.mustDel()
		a.pod.Remove(n.t)
	}
	return took
}

// TestPromiseEventsAreThoseOfThePodAlone counts what a program of the host that has a device
// open is told of pods with a promise: on each rail, one event for each entry that comes, and
// one when the interface goes. The first pod finds tables that differ by many entries.
func TestPromiseEventsAreThoseOfThePodAlone(t *testing.T) {
	n := newNode(t, "shared")
	for _, entries := range differences {
		t.Run(fmt.Sprintf("rails differ by %d entries", entries), func(t *testing.T) {
			n.onFirst(t, entries)
			first, second := n.attach(promising(n.allRails(), "equal"), n.pod()), n.attach(promising(n.allRails(), "equal"), n.pod())
			events := watchEvents(t, device(1))
			first.addRails()
			told := events("the filled table", width()*(entries+1))
			t.Logf("%d events on %s for the first pod", told, device(1))
			if most := width() * (entries + 3); told > most {
				t.Errorf("%d events for the first pod, want at most %d: its entry comes, goes and comes, and fillers come", told, most)
			}
			addrs := second.addRails()
			second.aligned(allGIDs(t, second.pod.Name), addrs)
			second.mustDel()
			if is, want := events("the second pod", told+width()+1), told+width()+1; is != want {
				t.Errorf("%d events for the second pod, want %d", is-told, want-told)
			}
			first.mustDel()
			if is, want := events("the end of the first pod", told+width()+2), told+width()+2; is != want {
				t.Errorf("%d events for the second pod and the end of the first, want %d", is-told, want-told)
			}
		})
	}
	n.nothingLeft()
}
