// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"fmt"
	"testing"
	"time"
)

// TestAPodThatLivedForAMomentDoesNotKeepTheNextNodeFromItsAddresses has one with
// a DEL that comes before the end of its grant.
func TestAPodThatLivedForAMomentDoesNotKeepTheNextNodeFromItsAddresses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		for i := range 5 {
			first := a.mustAdd("db-0", fmt.Sprintf("a%d", i))
			a.release(fmt.Sprintf("a%d", i))
			if got := b.eventuallyAdds("db-0", fmt.Sprintf("b%d", i), 15*time.Second); got != first {
				t.Errorf("it had %v and has %v\n%s", first, got, b.log.String())
			}
			b.release(fmt.Sprintf("b%d", i))
			pass(15 * time.Second)
			b.heldBy(t, "db-0", "")
		}
	})
}

// TestAnAnswerThatThereIsNothingGoesWithThePodThatHasHeardIt has a pod that gets
// ordinary addresses, once for a moment and once for longer, and comes back.
func TestAnAnswerThatThereIsNothingGoesWithThePodThatHasHeardIt(t *testing.T) {
	for name, life := range map[string]time.Duration{"for a moment": 0, "for longer": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a, b := two(t)
				kept := a.mustAdd("db-0", "c1")
				a.stop()
				if got := b.eventuallyAdds("db-0", "c2", time.Minute); got.IsValid() {
					t.Fatalf("it got %v, which a holds", got)
				}
				pass(life)
				b.release("c2")
				a.release("c1")
				a.run()
				pass(15 * time.Second)
				if got := b.mustAdd("db-0", "c3"); got != kept {
					t.Errorf("it got %v, not %v", got, kept)
				}
			})
		})
	}
}

// A runtime calls DEL after each ADD that has failed, which takes the request back.
// The pod starts all the same when its former node is cut off.
func TestAPodDoesNotWaitForEverWhenEachADDIsUndone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.mustAdd("db-0", "c1") // and never goes
		start := time.Now()
		for {
			got, err := b.add("db-0", "c2")
			if err == nil {
				if got.IsValid() {
					t.Errorf("got %v, which node a has", got)
				}
				break
			}
			time.Sleep(12 * time.Second)
			if time.Since(start) > 5*time.Minute {
				t.Fatalf("the pod waits: %v", err)
			}
		}
		b.heldBy(t, "db-0", "a")
	})
}
