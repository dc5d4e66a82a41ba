// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// exclusive returns a world with an RDMA device that ADD moves into the pod.
func exclusive(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.hca.exclusive, w.mode = true, conf.RDMAAuto
	w.fake.Pod(podPath("c1"))
	return w
}

// crashesWithRDMA runs fn for a crash before every operation of an ADD that
// moves a device.
func crashesWithRDMA(t *testing.T, fn func(w *world, when string)) {
	t.Helper()
	moved := 0
	for at := 1; ; at++ {
		w := exclusive(t)
		w.crash = at
		died := w.run(func(n attach.Node) { _, _ = n.Add(ctx, w.request("c1", "net1", "")) })
		if !died {
			break
		}
		w.crash = 0
		if w.hca.in != (netns.ID{}) {
			moved++
		}
		fn(w, fmt.Sprintf("after a crash before operation %d", at))
	}
	if moved < 2 {
		t.Errorf("only %d crashes left a device in the pod", moved)
	}
}

func TestDelBringsTheDeviceBackWhenTheNamespaceIsGone(t *testing.T) {
	t.Parallel()
	crashesWithRDMA(t, func(w *world, when string) {
		w.fake.RemovePod(podPath("c1"))
		w.hca.name = "renamed-by-the-pod"
		if w.hca.in == (netns.ID{}) {
			w.hca.name = device.Name
		}
		w.mustLeave("c1", when)
		w.mustBeEmpty("after DEL " + when)
	})
}

func TestGCBringsTheDeviceBack(t *testing.T) {
	t.Parallel()
	crashesWithRDMA(t, func(w *world, when string) {
		w.fake.RemovePod(podPath("c1"))
		if err := w.node().GC(ctx, w.gc("rail")); err != nil {
			t.Errorf("GC %s: %v", when, err)
		}
		w.mustBeEmpty("after GC " + when)
	})
}

// TestStatusCountsARailWhoseDeviceAPodHas as one that serves: the others are looked at, too.
func TestStatusCountsARailWhoseDeviceAPodHas(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.mustAdd(w.request("c1", "net1", ""))
	w.fake.NIC("ens3", conf.MAC{0x52, 0x54, 0, 0, 0, 3})
	w.mode, w.hca.each = conf.RDMAOff, true
	status := func(least int, masters string) error {
		w.config = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "rails": [` + masters + `], "minRails": ` + fmt.Sprint(least) + `,
			"status": {"rails": "require"}, "rdma": %q, "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "172.17.{rail}.0/29"}]}%s}`
		return w.node().Status(ctx, w.request("c2", "net1", ""))
	}
	const held, other, gone = `{"master": {"rdma": "mlx5_0"}}`, `{"master": "ens3"}`, `{"master": "nosuch"}`
	for _, tc := range []struct {
		least   int
		masters string
		want    cnierr.Code // 0: fine
	}{
		{1, held, 0},
		{1, held + ", " + gone, 0},
		{2, held + ", " + other, 0},
		{2, held + ", " + gone, cnierr.Limited},
		{2, held + `, {"master": {"rdma": "mlx5_9"}}`, cnierr.NotAvailable},
		{3, held + ", " + other + ", " + gone, cnierr.Limited},
		{2, held + ", " + other + ", " + gone, 0},
	} {
		if err := status(tc.least, tc.masters); (err == nil) != (tc.want == 0) || err != nil && cnierr.CodeOf(err) != tc.want {
			t.Errorf("%d of %s: got %v, want code %d", tc.least, tc.masters, err, tc.want)
		}
	}
}

func TestADDIsRefusedIfItsDeviceIsNotKnown(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.hca.unclear = true
	if _, err := w.node().Add(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.NoRDMA {
		t.Errorf("got %v, want code %d", err, cnierr.NoRDMA)
	}
	w.mustBeEmpty("after an ADD that was refused")
}

func TestErrorOfTheSecondPodNamesThePodThatHasTheDevice(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.fake.Pod(podPath("c2"))
	w.mustAdd(w.request("c1", "net1", ""))
	_, err := w.node().Add(ctx, w.request("c2", "net1", ""))
	if cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(err.Error(), `"c1"`) {
		t.Errorf("got %v, want code %d that names c1", err, cnierr.RDMAHeld)
	}
	if err := w.node().Status(ctx, w.request("c3", "net1", "")); err != nil {
		t.Errorf("STATUS while a pod has the device: %v", err)
	}
	if w.hca.inPod {
		t.Error("the device of a NIC of the host was looked for in the pod")
	}
	shown := w.config
	w.config = strings.Replace(shown, `"master": "ens1"`, `"master": {"rdma": "mlx5_0"}`, 1) // which the host does not see any more
	again, forget := w.request("c2", "net1", ""), w.unreadable("b9")
	if _, err := w.node().Add(ctx, again); cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(err.Error(), `"c1"`) {
		t.Errorf("of a NIC by its device, beside a record that cannot be read: got %v, want code %d that names c1", err, cnierr.RDMAHeld)
	}
	w.config = shown
	forget()
	for _, id := range []string{"c1", "c2"} {
		w.mustLeave(id)
	}
	w.mustBeEmpty("after DEL of both")
}

// mustPassOnDevice adds a pod that ends without DEL, so that the kernel brings the device home,
// and then the next one.
func (w *world) mustPassOnDevice(from, to string) {
	w.t.Helper()
	w.fake.Pod(podPath("c2"))
	w.mustAdd(w.request(from, "net1", ""))
	w.fake.RemovePod(podPath(from))
	w.hca.in = netns.ID{}
	w.now++
	w.mustAdd(w.request(to, "net1", ""))
}

// TestThePodThatLastGotTheDeviceIsNamed has the record of a pod that lost the device come
// after it in the list.
func TestThePodThatLastGotTheDeviceIsNamed(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.mustPassOnDevice("c2", "c1")
	w.fake.Pod(podPath("c3"))
	if _, err := w.node().Add(ctx, w.request("c3", "net1", "")); cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(err.Error(), `"c1"`) {
		t.Errorf("got %v, want code %d that names c1", err, cnierr.RDMAHeld)
	}
}

func TestALateDelLeavesTheDeviceToTheNextPod(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.mustPassOnDevice("c1", "c2")
	w.mustLeave("c1")
	w.mustBeWhole("c2")
	w.mustLeave("c2")
	w.mustBeEmpty("after DEL of both")
}

func TestDelMovesBackTheDeviceThatAnEarlierPodLost(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.mustPassOnDevice("c1", "c2")
	for _, id := range []string{"c2", "c1"} { // the other way round
		w.mustLeave(id)
	}
	w.mustBeEmpty("after DEL of both")
}

func TestRepairMovesTheDeviceOfADeadNamespaceBack(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.mustAdd(w.request("c1", "net1", ""))
	w.fake.RemovePod(podPath("c1"))
	w.hca.name = "renamed-by-the-pod"
	pods := w.hca.in
	w.hca.in = netns.ID{Dev: 4, Ino: 99}
	_, err := w.repairs().Repair(ctx, c1)
	if err == nil || !strings.Contains(err.Error(), "move back RDMA device") {
		t.Errorf("got %v, want that the device cannot be moved back", err)
	}
	w.hca.in = pods
	_, err = w.repairs().Repair(ctx, c1)
	if !errors.Is(err, kernel.ErrNetnsGone) {
		t.Errorf("got %v, want that the pod is gone", err)
	}
	if w.hca.in != (netns.ID{}) || w.hca.name != device.Name {
		t.Errorf("the device is in %v as %q", w.hca.in, w.hca.name)
	}
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

func TestAFullTableOfGIDsLeavesNothing(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.hca.full = true
	_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
	if cnierr.CodeOf(err) != cnierr.NoGID {
		t.Errorf("got %v, want code %d", err, cnierr.NoGID)
	}
	w.mustBeEmpty("after ADD failed")
}

func TestDELTellsWhichIndexesProgramsHold(t *testing.T) {
	t.Parallel()
	const program = "process 9 (server) uses mlx5_0/1"
	held := func(index int) calls.Held {
		return calls.Held{Device: device.Name, Port: device.Port, Index: index, BootID: newWorld(t).boot, Since: time.Minute}
	}
	for name, tt := range map[string]struct {
		users  []string
		unseen error
		want   []calls.Held
		says   string // "": nothing
	}{
		"a program":   {users: []string{program}, want: []calls.Held{held(3), held(4)}, says: program},
		"none":        {},
		"cannot tell": {unseen: errFault, says: errFault.Error()},
		"one of two":  {users: []string{program}, unseen: errFault, want: []calls.Held{held(3), held(4)}, says: program},
	} {
		w := newWorld(t)
		w.mode = conf.RDMAShared
		w.mustCome("c2")
		w.mustCome("c1")
		w.hca.users, w.hca.unseen, w.now = tt.users, tt.unseen, time.Minute
		rec, err := w.node().Records.Load(c1)
		must(t, err)
		var log strings.Builder
		var got []calls.Held
		n := w.node()
		n.Log = slog.New(slog.NewTextHandler(&log, nil))
		n.Held = func(h calls.Held) { got = append(got, h) }
		must(t, n.Del(ctx, w.del("c1", "net1")))
		for i := range tt.want {
			tt.want[i].Netns = rec.NetnsID.Ino
		}
		if w.hca.usersOf != rec.NetnsID {
			t.Errorf("%s: programs of %v were asked for, want those of the pod", name, w.hca.usersOf)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || !strings.Contains(log.String(), tt.says) || (tt.says == "") != (log.String() == "") {
			t.Errorf("%s: the log says %q (-want +held)\n%s", name, log.String(), diff)
		}
		w.mustLeave("c2", "without one that is told")
		w.mustBeEmpty("after DEL")
	}
}

func TestTheRecordSaysWhereTheGIDsAre(t *testing.T) {
	t.Parallel()
	w := exclusive(t)
	w.mustAdd(w.request("c1", "net1", ""))
	rec, err := record.Store{Dir: w.dir, BootID: w.boot}.Load(c1)
	must(t, err)
	for _, op := range rec.Plan.Ops {
		g, ok := op.Kind.(plan.GID)
		if !ok {
			continue
		}
		for i, target := range g.Targets {
			if target.Index == nil || *target.Index != i+3 {
				t.Errorf("target %d is recorded at %v, want %d", i, target.Index, i+3)
			}
		}
		return
	}
	t.Error("the record has no GID operation")
}
