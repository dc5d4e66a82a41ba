// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// areIn fails the test if the pod does not have the devices of all rails, or the
// host has one.
func areIn(t *testing.T, p *pod) {
	t.Helper()
	if got := p.devices(t); !slices.Equal(got, devices()) {
		t.Errorf("%s has the RDMA devices %q, want %q", p.Name, got, devices())
	}
	if got := entries("/sys/class/infiniband"); len(got) > 0 {
		t.Errorf("the host still has %q", got)
	}
}

func TestExclusiveRailsAreThePodsUntilDel(t *testing.T) {
	n := newNode(t, "exclusive")
	a, other := n.attach(n.allRails(), n.pod()), n.pod()
	addrs := a.addRails()
	areIn(t, a.pod)
	at := a.aligned(allGIDs(t, a.pod.Name), addrs)[0]
	want := fmt.Sprintf("export NCCL_IB_HCA='=%s'\nexport NCCL_IB_GID_INDEX=%d\n", hcas(devices()), at)
	told, err := inside(t, a.pod)
	if err != nil {
		t.Error(err)
	}
	contains(t, told, want)
	contains(t, n.rocectl("env", "--netns", a.pod.Name), want)
	a.mustCheck()
	a.mustAdd() // again: all stands
	areIn(t, a.pod)
	contains(t, n.attach(n.allRails(), other).mustFail(109), `pod "train/`+a.pod.Name+`" has it`, "rdma system set netns shared")
	areIn(t, a.pod)
	a.mustDel()
	home(t)
	a.pod.empty(t)

	a.mustAdd()
	a.pod.Remove(t)
	a.mustDel()
	home(t)
	n.nothingLeft()
}

func TestExclusiveRailThatAnotherPodHasLeavesTheOthersInTheHost(t *testing.T) {
	n := newNode(t, "exclusive")
	last := rails() - 1
	holder := n.attach(n.rail(last), n.pod())
	holder.mustAdd()
	for _, least := range []int{rails(), last} {
		a := n.attach(n.allRails().With("minRails", least), n.pod())
		contains(t, a.mustFail(109), fmt.Sprintf("%d (%s)", last, ifName(last)), `pod "train/`+holder.pod.Name+`" has it`)
		if got := entries("/sys/class/infiniband"); len(got) != last {
			t.Errorf("the host has the RDMA devices %q, want all but %s", got, device(last))
		}
	}
	isIn(t, holder.pod, device(last))
	holder.mustDel()
	home(t)
	n.nothingLeft()
}

// The moments between the moves are few in the time of a whole call.
func TestExclusiveRailsMoveBackAfterAnAddThatWasKilledBetweenTheMoves(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.allRails(), n.pod())
	eachKill(t, 8, 40*time.Millisecond, func(after time.Duration) bool {
		cmd := a.start("ADD")
		cnitest.Await(t, "a device leaves", func() bool { return len(entries("/sys/class/infiniband")) < rails() })
		<-time.After(after)
		_ = cmd.Process.Kill() // it may be done already
		_ = cmd.Wait()
		a.mustDel()
		home(t)
		n.noRecords()
		return !cmd.ProcessState.Exited()
	})
	a.pod.empty(t)
	n.nothingLeft()
}
