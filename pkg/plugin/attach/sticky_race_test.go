// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// gates calls at before and after each look for an answer, counting from 0: an ADD
// that finds one leases between gates 1 and 2.
type gates struct {
	nodefile.Store
	at   func(gate int)
	gate int
}

func (g *gates) pass() {
	g.at(g.gate)
	g.gate++
}

// Answer implements lease.AgentFiles.
func (g *gates) Answer(pool string, k nodefile.Key) (nodefile.Answer, bool, error) {
	g.pass()
	defer g.pass()
	return g.Store.Answer(pool, k)
}

// withdrawal is an agent that gives back, in three steps, addresses that it takes
// for unused.
type withdrawal struct {
	*world
	answered nodefile.Answer
	steps    []func()
	leased   bool // when it looked
	holds    bool // the node has the addresses, as far as the cluster knows
}

func newWithdrawal(w *world) *withdrawal {
	a := &withdrawal{world: w, answered: slotFor("job-0", 3, 64), holds: true}
	w.answer(a.answered)
	a.steps = []func(){a.remove, a.look, a.conclude}
	return a
}

func (a *withdrawal) remove() {
	if err := a.ranges().RemoveAnswer("gpu", a.answered.Key); err != nil {
		a.t.Fatal(err)
	}
}

func (a *withdrawal) look() {
	a.leased = slices.ContainsFunc(a.leases(), func(l string) bool { return strings.Contains(l, ".0.64 ") })
}

func (a *withdrawal) conclude() {
	if a.holds = a.leased; a.leased {
		a.answer(a.answered)
	}
}

// serve answers a request, which takes the addresses again, unless a withdrawal is
// under way.
func (a *withdrawal) serve() {
	if len(a.steps) < 3 && len(a.steps) > 0 || len(a.wanted()) == 0 {
		return
	}
	a.holds = true
	a.answer(a.answered)
	if err := a.ranges().Unwant("gpu", a.answered.Key); err != nil {
		a.t.Fatal(err)
	}
}

// follow does the steps that come before a gate.
func (a *withdrawal) follow(when []int, gate int) {
	for len(a.steps) > 0 && when[3-len(a.steps)] <= gate {
		a.steps[0]()
		a.steps = a.steps[1:]
	}
}

// The agent removes its answer before it looks for leases; an ADD leases before it
// looks for the answer once more. In whatever order the steps come, one of the two
// sees what the other has done.
func TestNoAddressIsBothUsedAndGivenBack(t *testing.T) {
	t.Parallel()
	const end = 5 // behind the last gate of an ADD that is granted addresses
	outcomes := map[string]int{}
	for n := range 2 * end * end * end {
		when, serves := []int{n % end, n / end % end, n / end / end % end}, n >= end*end*end
		if !slices.IsSorted(when) {
			continue
		}
		outcomes[race(t, when, serves)]++
	}
	for _, want := range []string{"given back, refused", "held, added", "held, refused"} {
		if outcomes[want] == 0 {
			t.Errorf("no order leads to %q: %v", want, outcomes)
		}
	}
}

// race plays one order and returns how it ended.
func race(t *testing.T, when []int, serves bool) string {
	t.Helper()
	w := newStickyWorld(t)
	a := newWithdrawal(w)
	w.asked = &gates{Store: w.ranges(), at: func(gate int) { a.follow(when, gate) }}
	if serves {
		w.meanwhile = a.serve
	}
	host, err := w.addPod("c1", "job-0", "")
	a.follow(when, 1<<30)
	name := fmt.Sprintf("agent's steps before gates %v, answers %v", when, serves)
	switch {
	case err == nil && host != 64:
		t.Errorf("%s: got %d", name, host)
	case err == nil && !a.holds:
		t.Errorf("%s: the addresses are used, and given back", name)
	case err != nil && cnierr.CodeOf(err) != cnierr.TryAgain:
		t.Errorf("%s: got %v, want code %d", name, err, cnierr.TryAgain)
	case err != nil:
		w.mustBeEmpty(name)
	}
	held, added := "given back, ", "refused"
	if a.holds {
		held = "held, "
	}
	if err == nil {
		added = "added"
	}
	return held + added
}

// An ADD that was killed when it had leased has no record. What it has leased must
// not be kept by the next one, unless that is granted it too.
func TestWhatAKilledADDHasLeasedIsGivenUpByOneThatIsRefused(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.answer(slotFor("job-0", 3, 64))
	w.asked = &gates{Store: w.ranges(), at: func(gate int) {
		if gate == 2 {
			panic(killed{})
		}
	}}
	w.fake.Pod(podPath("c1"))
	if !w.run(func(n attach.Node) { _, _ = n.Add(ctx, w.ofPod("c1", "job-0", "")) }) {
		t.Fatal("the ADD was not killed")
	}
	if l := w.leases(); len(l) != 3 {
		t.Fatalf("leased %v, want what is kept", l)
	}
	w.asked = nil
	w.fake.RemovePod(podPath("c1"))
	w.answer(nodefile.Answer{Key: keyOf("job-0"), None: "node n7 holds it"})
	w.mustGet("c1", "job-0", 32, 33)
	if l := w.leases(); len(l) != 3 {
		t.Errorf("leased %v, want an address on each rail", l)
	}
}

// What is kept is in none of the node's blocks: pods that have it leave no fewer for
// others.
func TestStatusDoesNotCountStickyAddresses(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	for i, host := range []int{64, 65} {
		pod := fmt.Sprint("job-", i)
		w.answer(slotFor(pod, 3, host))
		w.mustGet(fmt.Sprint("c", i), pod, host)
	}
	if err := w.node().Status(ctx, w.request("c9", "net1", "")); err != nil {
		t.Errorf("with two free addresses in the block: %v", err)
	}
	w.mustDel("c0")
	w.mustGet("c2", "web", 32, 33)
	w.mustGet("c3", "web", 32, 33)
	err := w.node().Status(ctx, w.request("c9", "net1", ""))
	if cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.Contains(err.Error(), "all 2 addresses") {
		t.Errorf("with a full block beside sticky addresses in quarantine: got %v, want code %d", err, cnierr.NotAvailable)
	}
}
