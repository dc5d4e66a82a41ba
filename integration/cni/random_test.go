// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	randomSeed  = flag.Uint64("seed", 0, "seed of the first random sequence; 0: another one each time")
	randomRuns  = flag.Int("sequences", 4, "how many random sequences to run, each with the next seed")
	randomSteps = flag.Int("steps", 120, "how many steps a random sequence has")
	randomTime  = flag.Duration("time", 20*time.Second, "after this time a random sequence ends early")
)

// TestRandomSequences calls the plugin in random order, kills it, damages what
// it made and takes pods and the boot away from it. After every step it
// compares the machine with the model in machine_test.go. A seed names a
// sequence; when a process is killed still depends on the machine.
func TestRandomSequences(t *testing.T) {
	t.Parallel()
	first := *randomSeed
	if first == 0 {
		first = uint64(rand.Uint32())
	}
	for i := range *randomRuns {
		seed := first + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, seed)
			took := 0
			for end := time.Now().Add(*randomTime); took < *randomSteps && time.Now().Before(end); took++ {
				m.step(took)
			}
			m.end()
			t.Logf("seed %d: %d steps: %v", seed, took, m.counts)
		})
	}
}

// steps are what can happen to a machine, and how often it does. How many
// random numbers a step draws does not depend on the state of the machine, so
// that a seed names a sequence although processes are killed at times that
// cannot be repeated.
var steps = []struct {
	weight int
	name   string
	do     func(*machine, *slot)
}{
	{30, "ADD", (*machine).add},
	{5, "ADD to another network", (*machine).addElsewhere},
	{8, "ADD that cannot succeed", (*machine).addInVain},
	{5, "ADD of both interfaces at once", (*machine).addBoth},
	{5, "ADD and DEL at once", (*machine).addDuringDel},
	{12, "ADD, killed", (*machine).addKilled},
	{5, "ADD, killed and overtaken by DEL", (*machine).addOvertaken},
	{12, "DEL", (*machine).del},
	{4, "DEL twice", (*machine).delTwice},
	{8, "DEL, killed", (*machine).delKilled},
	{3, "DEL without a record", (*machine).delUnrecorded},
	{6, "CHECK", (*machine).check},
	{8, "GC", (*machine).gc},
	{6, "damage by hand", (*machine).damage},
	{3, "the pod vanishes", (*machine).vanish},
	{1, "reboot", (*machine).reboot},
}

// step does one thing and compares all that it may have changed.
func (m *machine) step(i int) {
	m.t.Helper()
	s, n := m.pick(), 0
	for _, step := range steps {
		n += step.weight
	}
	n = m.rnd.IntN(n)
	for _, step := range steps {
		if n -= step.weight; n >= 0 {
			continue
		}
		m.tell("%3d %-9s %-4s %-6s %s", i, s.in.pod.name, s.ifName, s.outcome, step.name)
		step.do(m, s)
		m.counts[step.name]++
		touched := []*tenant{s.in}
		if step.name == "GC" || i%10 == 0 {
			touched = m.pods
		}
		m.compare(touched)
		break
	}
	m.stopIfFailed()
}

// pick returns one of the slots, now and then of a pod that is gone.
func (m *machine) pick() *slot {
	in, which, old := m.pods[m.rnd.IntN(len(m.pods))], m.rnd.IntN(2), m.rnd.IntN(12)
	s := in.slots[which]
	if old == 0 && len(m.gone) > 0 {
		in = m.gone[m.rnd.IntN(len(m.gone))]
		s = in.slots[which]
	}
	return s
}

// end takes everything away and wants nothing left. Half of the machines have
// a runtime that lost its memory and calls GC first.
func (m *machine) end() {
	m.t.Helper()
	m.tell("the end")
	if m.rnd.IntN(2) == 0 {
		m.collectAll()
		m.compare(m.pods)
	}
	for _, s := range m.slots() {
		m.del(s)
	}
	m.compare(m.pods)
	m.collectAll() // which must find nothing
	m.compare(m.pods)
	for _, p := range m.pods {
		p.unchanged(m.t, p.before)
	}
	m.stopIfFailed()
}

func (m *machine) collectAll() {
	m.t.Helper()
	for i := range m.nets {
		a := m.attach(m.nets[i], m.pods[0].pod, "")
		if err := a.gc(m.t, "roce", valid()); err != nil {
			m.t.Errorf("GC: %v", err)
		}
		m.collected(m.nets[i], nil)
	}
}
