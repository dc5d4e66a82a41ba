// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
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

// TestPromiseCost prints what the promise costs beside none, where the tables differ
// and where they do not. It judges nothing: the processor is emulated.
func TestPromiseCost(t *testing.T) {
	n := newNode(t, "shared")
	for _, c := range []struct {
		what    string
		history func(int) int
	}{{"all rails have the same entries", func(int) int { return 0 }}, {"rails differ by up to 3 entries", byRail}} {
		t.Run(c.what, func(t *testing.T) {
			histories(t, c.history)
			least := map[any]time.Duration{}
			for range 4 {
				for _, index := range []any{"any", "equal"} {
					if took := n.timeOfAdd(promising(n.allRails(), index)); least[index] == 0 || took < least[index] {
						least[index] = took
					}
				}
			}
			t.Logf("ADD of %d rails at best: any %d ms, equal %d ms, ratio %.2f", rails(), least["any"].Milliseconds(), least["equal"].Milliseconds(),
				float64(least["equal"])/float64(least["any"]))
		})
	}
}

// comeAndGo has 20 children of the NICs come and go until the test is over: each gets an
// address, and so an entry, and is removed. It returns once the first 20 have been there.
func comeAndGo(t *testing.T) {
	t.Helper()
	other := cnitest.NewNetns(t, "others")
	var add, remove strings.Builder
	for i := range 20 {
		fmt.Fprintf(&add, "ip link add link r%d name c%d netns %s type macvlan mode bridge; ip -n %[3]s link set c%[2]d up; "+
			"ip -n %[3]s addr add 10.77.0.%[4]d/32 dev c%[2]d\n", i%rails(), i, other.Name, i+1)
		fmt.Fprintf(&remove, "ip -n %s link del c%d\n", other.Name, i)
	}
	round := add.String() + remove.String()
	shell(t, round)
	background(t, "sh", "-c", "while :; do\n"+round+"done")
}

// TestLongPromiseCostWhileOthersComeAndGo prints what the promise costs beside none, while
// other children change the tables. It judges nothing but that each ADD succeeds.
func TestLongPromiseCostWhileOthersComeAndGo(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, byRail)
	comeAndGo(t)
	const rounds = 15
	took := map[any][]time.Duration{}
	for range rounds {
		for _, index := range []any{"any", "equal"} {
			took[index] = append(took[index], n.timeOfAdd(promising(n.allRails(), index)))
		}
	}
	for _, all := range took {
		slices.Sort(all)
	}
	for _, one := range []struct {
		what string
		at   int
	}{{"least", 0}, {"median", rounds / 2}, {"most", rounds - 1}} {
		none, equal := took["any"][one.at], took["equal"][one.at]
		t.Logf("ADD of %d rails, %d each, %s: any %d ms, equal %d ms, ratio %.2f", rails(), rounds, one.what,
			none.Milliseconds(), equal.Milliseconds(), float64(equal)/float64(none))
	}
}
