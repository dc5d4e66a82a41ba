// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// addressEvents returns a socket with what the kernel tells about the IPv4 addresses of a
// namespace from now on, one netlink message for each read. It makes that of the fillers if
// there is none.
func addressEvents(t *testing.T, path string) (fd int) {
	t.Helper()
	if path == plan.FillerNetns {
		if err := netns.Make(path); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
	}
	there, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	err = there.Enter(func() (err error) {
		const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK // so that Close ends a read
		if fd, err = unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_IPV4_IFADDR})
	})
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

// fillerChanges counts how many fillers come or go from now on.
func fillerChanges(t *testing.T) (count func() int) {
	t.Helper()
	fd := addressEvents(t, plan.FillerNetns)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() (changes int) {
		t.Helper()
		for message := make([]byte, 4096); ; changes++ {
			_, err := unix.Read(fd, message)
			if errors.Is(err, unix.EAGAIN) {
				return changes // the kernel tells of a change before the call that makes it ends
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// killedAtFiller starts ADD on a node without fillers, and kills it when it sets its filler of
// a number, from 1. It returns whether it was killed.
func (a attachment) killedAtFiller(number int) bool {
	t := a.node.t
	t.Helper()
	dropFillers(t)
	events := os.NewFile(uintptr(addressEvents(t, plan.FillerNetns)), "netlink socket in "+plan.FillerNetns)
	cmd := a.start("ADD")
	done := make(chan struct{})
	go func() {
		defer close(done)
		message := make([]byte, 4096)
		for seen := 0; seen < number; {
			n, err := events.Read(message)
			if err != nil {
				return // ADD has ended
			}
			if n >= 6 && binary.NativeEndian.Uint16(message[4:]) == unix.RTM_NEWADDR {
				seen++
			}
		}
		_ = cmd.Process.Kill() // it may have ended
	}()
	_ = cmd.Wait()
	_ = events.Close()
	<-done
	return !cmd.ProcessState.Exited()
}

// killedBetweenFillers has ADDs killed while they set fillers. After each, in turn, the pod
// is made or deleted, and another pod is made beside it with what the kill has left. Unit tests
// kill an ADD between any two operations.
func killedBetweenFillers(a, other attachment, right func(attachment), tables func() []table) {
	t := a.node.t
	t.Helper()
	dropFillers(t)
	before := tables()
	kills := 0
	for i := 0; kills < 4; i++ {
		if i == 60 {
			t.Fatalf("%d of %d ADDs could be killed while they set fillers", kills, i)
		}
		if a.killedAtFiller(1 + i%3) {
			kills++
		}
		if i%2 == 0 {
			right(a)
		}
		a.mustDel()
		right(other)
		other.mustDel()
		a.pod.empty(t)
		a.node.noRecords()
		if t.Failed() {
			t.FailNow()
		}
	}
	dropFillers(t)
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(tables(), before) })
	a.node.nothingLeft()
}

func TestPromiseOfAnAddThatWasKilledIsKeptByTheNext(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, byRail)
	pod := func() attachment { return n.attach(promising(n.allRails(), 9), n.pod()) }
	right := func(a attachment) {
		addrs := a.addRails()
		a.aligned(allGIDs(t, a.pod.Name), addrs)
	}
	killedBetweenFillers(pod(), pod(), right, func() []table { return allGIDs(t, "") })
}

// TestLongMLX5PromiseOfAnAddThatWasKilledIsKeptByTheNext is the same on NICs that differ.
func TestLongMLX5PromiseOfAnAddThatWasKilledIsKeptByTheNext(t *testing.T) {
	n := newMLX5Node(t, "shared")
	hostAddresses(t)
	pod := func() attachment { return n.attach(n.mixedRails(21), n.pod()) }
	killedBetweenFillers(pod(), pod(), func(a attachment) { same(a) }, func() []table {
		return []table{gids(t, "", "mlx5_0"), gids(t, "", "mlx5_1"), gids(t, "", "irdma0")}
	})
}
