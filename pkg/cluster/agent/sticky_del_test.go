// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"testing"
	"time"
)

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
			if err := b.files().Unwant("compute", db("db-0")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(12 * time.Second)
			if time.Since(start) > 5*time.Minute {
				t.Fatalf("the pod waits: %v", err)
			}
		}
		b.heldBy(t, "db-0", "a")
	})
}

// The lease does not go to a node if its pod is on another node now.
func TestARequestThatWasTakenBackIsNotGranted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := two(t)
		a.mustAdd("db-0", "c1")
		if _, err := b.add("db-0", "c2"); err == nil {
			t.Fatal("node b has what a has")
		}
		if err := b.files().Unwant("compute", db("db-0")); err != nil {
			t.Fatal(err)
		}
		a.release("c1")
		time.Sleep(20 * time.Second)
		if got, _ := b.holder("db-0"); got == "b" {
			t.Error("node b holds the addresses of a pod that it has not got")
		}
	})
}
