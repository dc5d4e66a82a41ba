// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// addressEvents returns what the kernel tells about IPv4 addresses of the pod from now on,
// one netlink message for each read.
func (p *pod) addressEvents(t *testing.T) *os.File {
	t.Helper()
	var fd int
	err := p.Enter(func() (err error) {
		const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK // so that Close ends a read
		if fd, err = unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_IPV4_IFADDR})
	})
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "netlink socket in "+p.Name)
}

// killedAtFiller starts ADD and kills it when the pod gets its filler of a number, from 1.
// It returns whether the pod still has fillers then.
func (a attachment) killedAtFiller(number int) bool {
	t := a.node.t
	t.Helper()
	events := a.pod.addressEvents(t)
	filler := plan.FillerRange.Addr().As4()
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
			if binary.NativeEndian.Uint16(message[4:]) == unix.RTM_NEWADDR && bytes.Contains(message[:n], filler[:2]) {
				seen++
			}
		}
		_ = cmd.Process.Kill() // it may have ended
	}()
	_ = cmd.Wait()
	_ = events.Close()
	<-done
	return !cmd.ProcessState.Exited() && a.pod.fillers(t) != ""
}

// killedBetweenFillers has ADDs killed while the pod has fillers, and a DEL or another
// ADD of the pod after each. Unit tests kill an ADD between any two operations.
func killedBetweenFillers(a attachment, tables func() []table) {
	t := a.node.t
	t.Helper()
	before := tables()
	kills := 0
	for i := 0; kills < 4; i++ {
		if i == 60 {
			t.Fatalf("%d of %d ADDs could be killed while the pod had fillers", kills, i)
		}
		if a.killedAtFiller(1 + i%3) {
			kills++
		}
		if i%2 == 0 {
			a.addRails()
			if left := a.pod.fillers(t); left != "" {
				t.Errorf("%s still has\n%s", a.pod.Name, left)
			}
		}
		a.mustDel()
		a.pod.empty(t)
		a.node.noRecords()
		if t.Failed() {
			t.FailNow()
		}
	}
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(tables(), before) })
	a.node.nothingLeft()
}

func TestPromiseOfAnAddThatWasKilledLeavesNoFillers(t *testing.T) {
	n := newNode(t, "shared")
	histories(t, byRail)
	killedBetweenFillers(n.attach(promising(n.allRails(), 9), n.pod()), func() []table { return allGIDs(t, "") })
}

// TestLongMLX5PromiseOfAnAddThatWasKilledLeavesNoFillers is the same on NICs that differ.
func TestLongMLX5PromiseOfAnAddThatWasKilledLeavesNoFillers(t *testing.T) {
	n := newMLX5Node(t, "shared")
	hostAddresses(t)
	killedBetweenFillers(n.attach(n.mixedRails(21), n.pod()), func() []table {
		return []table{gids(t, "", "mlx5_0"), gids(t, "", "mlx5_1"), gids(t, "", "irdma0")}
	})
}
