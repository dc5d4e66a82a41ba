// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package sim_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/scale/sim"
)

const never = 1 << 62

func TestProcessesGoOnInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	var l sim.Loop
	var got []string
	for _, name := range []string{"a", "b"} {
		l.Go(time.Second, func(p *sim.Process) {
			for _, d := range map[string][]time.Duration{"a": {4, 1, 0}, "b": {2, 3, 0}}[name] {
				if err := p.Sleep(d * time.Second); err != nil {
					t.Error(err)
				}
				got = append(got, fmt.Sprint(name, p.Now()))
			}
		})
	}
	l.Run(never)
	// At 6 s the one that has asked first goes on first.
	want := []string{"b3s", "a5s", "b6s", "a6s", "b6s", "a6s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestATimeThatHasPassedIsNow(t *testing.T) {
	t.Parallel()
	var l sim.Loop
	l.Go(3*time.Second, func(p *sim.Process) {
		if err := p.Until(time.Second); err != nil || p.Now() != 3*time.Second {
			t.Errorf("at %v, error %v", p.Now(), err)
		}
	})
	l.Run(never)
}

func TestWhatWaitsAtTheEndIsReported(t *testing.T) {
	t.Parallel()
	var l sim.Loop
	var last time.Duration
	told, begun := 0, false
	l.Go(0, func(p *sim.Process) {
		for p.Sleep(time.Second) == nil {
			last = p.Now()
		}
		for range 2 { // however often it asks
			if err := p.Sleep(time.Second); errors.Is(err, sim.ErrEnded) {
				told++
			}
		}
	})
	l.Go(time.Minute, func(*sim.Process) { begun = true })
	l.Run(10 * time.Second)
	if last != 10*time.Second || told != 2 || begun {
		t.Errorf("last at %v, told %d times, begun %t", last, told, begun)
	}
}

// The mean wait in a line with random arrivals and equal work is
// load / 2(1 - load) of it (Pollaczek and Khinchine).
func TestTheLineIsAsLongAsQueueingTheoryHasIt(t *testing.T) {
	t.Parallel()
	const customers, work, load = 50_000, time.Millisecond, 0.8
	random := rand.New(rand.NewPCG(1, 1))
	var l sim.Loop
	var s sim.Station
	var waited, at time.Duration
	for range customers {
		at += time.Duration(random.ExpFloat64() / load * float64(work))
		l.Go(at, func(p *sim.Process) {
			came := p.Now()
			if err := s.Serve(p, work); err != nil {
				t.Error(err)
			}
			waited += p.Now() - came - work
		})
	}
	l.Run(never)
	got, want := float64(waited)/customers, load/(2*(1-load))*float64(work)
	if got < 0.9*want || got > 1.1*want {
		t.Errorf("waited %v, want %v", time.Duration(got), time.Duration(want))
	}
}

// At ten refusals a second the time doubles, at first when a second has gone by, and
// then when as much has as it is long.
func TestRefusalsAreForLongerWhenTheyAreMany(t *testing.T) {
	t.Parallel()
	var s sim.Seats
	var got []time.Duration
	for second := range 12 {
		for range 10 {
			s.Refuse(time.Duration(second) * time.Second)
		}
		got = append(got, s.Refuse(time.Duration(second)*time.Second)/time.Second)
	}
	if diff := cmp.Diff([]time.Duration{1, 2, 2, 4, 4, 4, 4, 8, 8, 8, 8, 8}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if s.Refuse(100*time.Second) != 7*time.Second || s.Refuse(101*time.Second) != 6*time.Second {
		t.Error("it does not become shorter")
	}
}
