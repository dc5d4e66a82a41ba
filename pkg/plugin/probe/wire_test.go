// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// TestManyLinksShareOneWindow asks on eight links at once. That they share one
// window is tested in fake time (TestFamiliesAndLinksShareOneWindowAndDecideAlone).
func TestManyLinksShareOneWindow(t *testing.T) {
	t.Parallel()
	pod, far := newSpace(t), newSpace(t)
	var targets []plan.Target
	for i := range 8 {
		near, there := fmt.Sprint("pb", i), fmt.Sprint("pbx", i)
		pod.cable(near, far, there)
		pod.up(near)
		far.up(there)
		targets = append(targets, pod.target(near, ours4, gateway4), pod.target(near, ours6, gateway6))
	}
	far.address("pbx6", ours6)
	settle(t, pod, "pb6", ours6)
	pod.must(pod.prober().Do(t.Context(), plan.Op{Kind: plan.Announce{Targets: targets}})) // awaits all carriers
	err := pod.prober().Do(t.Context(), plan.Op{Kind: plan.Conflict{Mode: conf.Require, Probes: 3, Interval: 300 * ms, Wait: 300 * ms, Targets: targets}})
	wantTaken(t, err, Taken{pod.target("pb6", ours6, gateway6), far.mac("pbx6"), "neighbour advertisement"})
}

func TestLinkThatCannotCarryTheQuestion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(pod *space)
		says  string
	}{
		"down": {func(pod *space) { pod.must(pod.nl.LinkSetDown(pod.link("pb0"))) }, "is down"},
		"gone": {func(pod *space) { pod.must(pod.nl.LinkDel(pod.link("pb0"))) }, "is gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, _ := wired(t)
			four := pod.target("pb0", ours4, gateway4)
			c.spoil(pod)
			for _, op := range plan.InPod(conflictOp(four), gatewayOp(four), plan.Announce{Targets: []plan.Target{four}}) {
				wantCode(t, pod.prober().Do(t.Context(), op), cnierr.IO, "pb0", c.says)
			}
		})
	}
}

// TestLinkWithoutCarrierIsAnError: frames that vanish get no answer, and that
// must not pass for a free address.
func TestLinkWithoutCarrierIsAnError(t *testing.T) {
	t.Parallel()
	pod, far := newSpace(t), newSpace(t)
	pod.cable("pb0", far, "pb1")
	pod.up("pb0")
	op := conflictOp(pod.target("pb0", ours4, gateway4))
	wantCode(t, pod.prober().Do(t.Context(), plan.Op{Kind: op}), cnierr.BadParent, "pb0", "no carrier")
}

// TestLinkThatGoesDuringTheWindowIsAnError: no answer from a link that is not
// there must not pass for a free address.
func TestLinkThatGoesDuringTheWindowIsAnError(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	near, gone := pod.link("pb0"), make(chan error, 1)
	far.peer("pb1", func(n int, _ []byte) [][]byte {
		if n == 1 {
			gone <- pod.nl.LinkDel(near)
		}
		return nil
	})
	op := plan.Conflict{
		Mode: conf.Require, Probes: 3, Interval: time.Second, Wait: time.Second,
		Targets: []plan.Target{pod.target("pb0", ours4, gateway4)},
	}
	wantCode(t, pod.prober().Do(t.Context(), plan.Op{Kind: op}), cnierr.IO, "pb0")
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
}

func TestCarrierThatComesLateIsAwaited(t *testing.T) {
	t.Parallel()
	for range 5 { // a kernel that is busy enough takes longer than carrierWait to notice
		pod, far := newSpace(t), newSpace(t)
		pod.cable("pb0", far, "pb1")
		pod.up("pb0")
		far.address("pb1", ours4)
		four := pod.target("pb0", ours4, gateway4)
		mac := far.mac("pb1")
		plugged := make(chan error, 1)
		end := far.link("pb1")
		time.AfterFunc(30*ms, func() { plugged <- far.nl.LinkSetUp(end) })
		err := pod.prober().Do(t.Context(), plan.Op{Kind: answered(four)})
		pod.must(<-plugged)
		if err != nil && cnierr.CodeOf(err) == cnierr.BadParent {
			continue
		}
		wantTaken(t, err, Taken{four, mac, "ARP reply"})
		return
	}
	t.Error("the carrier never came")
}

// TestNothingStaysOpen is not parallel: it counts what the process has open.
func TestNothingStaysOpen(t *testing.T) {
	pod, far := wired(t)
	far.address("pb1", gateway4)
	settle(t, pod, "pb0", gateway4)
	four, six := pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6)
	lost := pod.target("pb0", ours4, gateway4)
	lost.Link = "pbnone"
	before, p := cnitest.OpenFiles(t), pod.prober()
	for _, op := range plan.InPod(
		conflictOp(four, six), gatewayOp(four),
		plan.Announce{Targets: []plan.Target{four, six}},
		conflictOp(four, six, lost),
		plan.Announce{Targets: []plan.Target{six, lost}},
	) {
		_ = p.Do(t.Context(), op) // other tests look at the errors
	}
	p.Close()
	mem, _ := memProber(map[port]*memConn{{link: "net1"}: newMemConn(nil)}) // nothing can be left to the kernel
	pod.must(mem.Do(t.Context(), plan.Op{Kind: plan.Announce{Targets: []plan.Target{target("net1")}}}))
	mem.Close()
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
	await(t, "no packet socket is left in the kernel", func() bool { return pod.packetSockets() == 0 })
}

// TestOperationsShareTheirSockets, for each family, until one fails: another
// interface may have its name after that.
func TestOperationsShareTheirSockets(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	far.address("pb1", gateway4)
	settle(t, pod, "pb0", gateway4)
	await(t, "settle's sockets are closed", func() bool { return pod.packetSockets() == 0 })
	four, six := pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6)
	p := pod.prober()
	for _, op := range plan.InPod(
		plan.Announce{Targets: []plan.Target{four}},
		gatewayOp(four),
		conflictOp(four, six),
		plan.Announce{Targets: []plan.Target{four, six}},
		gatewayOp(four),
	) {
		pod.must(p.Do(t.Context(), op))
	}
	if n := pod.packetSockets(); n != 2 {
		t.Errorf("%d packet sockets are open, want one for each family", n)
	}
	pod.must(pod.nl.LinkDel(pod.link("pb0")))
	if err := p.Do(t.Context(), plan.Op{Kind: conflictOp(four)}); err == nil {
		t.Error("got no error from a link that is gone")
	}
	pod.cable("pb0", far, "pb1")
	pod.up("pb0")
	far.up("pb1")
	far.address("pb1", ours4)
	settle(t, pod, "pb0", ours4)
	four = pod.target("pb0", ours4, gateway4)
	wantTaken(t, p.Do(t.Context(), plan.Op{Kind: answered(four)}), Taken{four, far.mac("pb1"), "ARP reply"})
}

// TestAnAttemptAfterAnUndoFindsTheInterfaceThatWasMadeAgain: if promised GID indexes move,
// ADD undoes an attempt in which all probes had succeeded, and makes the interfaces again.
func TestAnAttemptAfterAnUndoFindsTheInterfaceThatWasMadeAgain(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	p := pod.prober()
	ops := func() plan.Ops {
		four, six := pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6)
		return plan.InPod(conflictOp(four, six), plan.Announce{Targets: []plan.Target{four, six}})
	}
	first := ops()
	pod.must(first.Do(t.Context(), plan.Each(p)))
	pod.must(first.Undo(t.Context(), plan.Each(p)))
	pod.must(pod.nl.LinkDel(pod.link("pb0")))
	pod.cable("pb0", far, "pb1")
	pod.up("pb0")
	far.up("pb1")
	pod.must(ops().Do(t.Context(), plan.Each(p)))
}

// TestWhatWasHeardBeforeAQuestionIsNoAnswer: the sockets hear between two
// operations.
func TestWhatWasHeardBeforeAQuestionIsNoAnswer(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	four := pod.target("pb0", ours4, gateway4)
	p := pod.prober()
	pod.must(p.Do(t.Context(), plan.Op{Kind: conflictOp(four)}))
	stale := far.listen("pb1", false)
	defer stale.Close()
	_, err := stale.WriteTo(gatewayReply4(), &packet.Addr{HardwareAddr: gatewayReply4()[:6]}) // a veth delivers at once
	pod.must(err)
	op := plan.Gateway{Mode: conf.Require, Attempts: 1, Timeout: 20 * ms, Targets: []plan.Target{four}}
	wantCode(t, p.Do(t.Context(), plan.Op{Kind: op}), cnierr.GatewaySilent)
}

// packetSockets returns how many the kernel has in the namespace.
func (s *space) packetSockets() (n int) {
	s.t.Helper()
	s.must(s.enter(func() error {
		list, err := os.ReadFile("/proc/thread-self/net/packet")
		n = strings.Count(string(list), "\n") - 1 // the first line is a heading
		return err
	}))
	return n
}

func TestWithoutTheRightToSendFramesTheHintNamesIt(t *testing.T) {
	t.Parallel()
	pod, _ := wired(t)
	p := pod.prober()
	p.Enter = func(fn func() error) error {
		return pod.enter(func() error {
			runtime.LockOSThread() // the thread ends with its goroutine
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var may [2]unix.CapUserData
			if err := unix.Capget(&header, &may[0]); err != nil {
				return err
			}
			may[0].Effective &^= 1 << unix.CAP_NET_RAW
			if err := unix.Capset(&header, &may[0]); err != nil {
				return err
			}
			return fn()
		})
	}
	err := p.Do(t.Context(), plan.Op{Kind: conflictOp(pod.target("pb0", ours4, gateway4))})
	wantCode(t, err, cnierr.IO, "pb0")
	if e, is := errors.AsType[*cnierr.Error](err); !is || !strings.Contains(e.Hint, "CAP_NET_RAW") {
		t.Errorf("got %+v, want a hint that names the right", e)
	}
}
