// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// start starts a call as libcni does, and returns at once.
func (a attachment) start(command string) *exec.Cmd {
	a.node.t.Helper()
	text, err := json.Marshal(a.network)
	if err != nil {
		a.node.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(*programs, "roce"))
	cmd.Stdin = strings.NewReader(string(text))
	cmd.Env = (&invoke.Args{
		Command: command, ContainerID: a.id(), NetNS: a.pod.Path, IfName: a.ifName, PluginArgs: a.runtime().Args, Path: *programs,
	}).AsEnv()
	if err := cmd.Start(); err != nil {
		a.node.t.Fatal(err)
	}
	return cmd
}

// killed starts a call and kills it after a part of the time that a whole one
// takes, and returns whether it was in time.
func (a attachment) killed(command string, after time.Duration) bool {
	a.node.t.Helper()
	cmd := a.start(command)
	<-time.After(after)
	_ = cmd.Process.Kill() // it may be done already
	_ = cmd.Wait()
	return !cmd.ProcessState.Exited()
}

// duration returns how long a call takes at most, of some.
func (a attachment) duration(command string, undo func()) time.Duration {
	a.node.t.Helper()
	var longest time.Duration
	for range 3 {
		start := time.Now()
		if err := a.start(command).Wait(); err != nil {
			a.node.t.Fatalf("%s: %v", command, err)
		}
		longest = max(longest, time.Since(start))
		undo()
	}
	return longest
}

// eachKill calls try with moments in the time that a whole call takes, each a bit
// later, and from the start again, until so many times it has said that the
// process was killed before it was done.
func eachKill(t *testing.T, kills int, whole time.Duration, try func(after time.Duration) bool) {
	t.Helper()
	killed := 0
	for i := 0; killed < kills; i++ {
		if i > 10*kills {
			t.Fatalf("%d of %d processes could be killed before they were done", killed, i)
		}
		after := whole * time.Duration(i%kills) / time.Duration(kills)
		if try(after) {
			killed++
		} else {
			whole -= whole / 20 // the machine is less busy than it was
		}
		if t.Failed() {
			t.Fatalf("that was after kill number %d, %v after the start of a call of %v", i, after, whole)
		}
	}
}

func TestExclusiveDeviceMovesBackAfterAnAddThatWasKilled(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	eachKill(t, 20, a.duration("ADD", a.mustDel), func(after time.Duration) bool {
		killed := a.killed("ADD", after)
		a.mustDel()
		home(t)
		n.noRecords()
		return killed
	})
	a.pod.empty(t)
	n.nothingLeft()
}

// The moments after the move are few in the time of a whole call.
func TestExclusiveDeviceMovesBackAfterAnAddThatWasKilledAfterTheMove(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	eachKill(t, 6, 30*time.Millisecond, func(after time.Duration) bool {
		cmd := a.start("ADD")
		cnitest.Await(t, "the device leaves", func() bool { return len(entries("/sys/class/infiniband")) < 2 })
		<-time.After(after)
		_ = cmd.Process.Kill() // it may be done already
		_ = cmd.Wait()
		isIn(t, a.pod, "rxe0")
		a.mustDel()
		home(t)
		n.noRecords()
		return !cmd.ProcessState.Exited()
	})
	a.pod.empty(t)
	n.nothingLeft()
}

func TestExclusiveDeviceMovesBackAfterADelThatWasKilled(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	eachKill(t, 8, a.duration("DEL", func() { a.mustAdd() }), func(after time.Duration) bool {
		killed := a.killed("DEL", after)
		a.mustDel()
		home(t)
		n.noRecords()
		a.mustAdd()
		return killed
	})
	a.mustDel()
	a.pod.empty(t)
	n.nothingLeft()
}

func TestExclusiveDeviceMovesBackAfterAKilledAddWhenTheNamespaceIsGone(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(n.rail(0), n.pod())
	eachKill(t, 8, a.duration("ADD", a.mustDel), func(after time.Duration) bool {
		a := n.attach(n.rail(0), n.pod())
		killed := a.killed("ADD", after)
		a.pod.Remove(t)
		a.mustDel()
		home(t)
		n.noRecords()
		return killed
	})
	n.nothingLeft()
}
