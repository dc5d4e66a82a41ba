// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// A plugin behind roce may set the MAC, the MTU and the settings of the interface. Repair
// raises only the MTU, because nothing tells that from an MTU that the kernel lowered with
// that of the NIC.
func TestWhatOtherProgramsSetIsNoDamage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		set  func(w *world)
		says string
	}{
		"MTU":     {func(w *world) { w.pod.IP("link set net1 mtu 1400") }, "want MTU 1500, got 1400"},
		"MAC":     {func(w *world) { w.pod.IP("link set net1 address 02:00:00:00:00:99") }, "got 02:00:00:00:00:99"},
		"setting": {func(w *world) { w.pod.Sysctl("net/ipv4/conf/net1/arp_ignore", "0") }, "net/ipv4/conf/net1/arp_ignore"},
	} {
		for _, adopted := range []bool{false, true} {
			if adopted && name == "MTU" {
				continue // it is that of the plugin before roce
			}
			t.Run(map[bool]string{false: name, true: name + " of an adopted interface"}[adopted], func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.pod = w.fake.Pod(podPath("c1"))
				req := w.request("c1", "net1", "")
				if adopted {
					w = chain(t)
					req = w.adopted("c1", 3, "")
				}
				first := w.mustAdd(req)
				tt.set(w)
				before := w.fake.String()
				w.mustCheck(req)
				changed, err := w.repairs().CheckRecord(ctx, c1)
				if err != nil || len(changed) != 1 || !strings.Contains(changed[0].Error(), tt.says) {
					t.Errorf("CheckRecord: %v, %v, want one change that says %q", changed, err, tt.says)
				}
				again, err := w.node().Add(ctx, req)
				switch {
				case adopted && cnierr.CodeOf(err) != cnierr.BadConfig:
					t.Errorf("second ADD: got %v, want code %d: it looks as a second roce in the list does", err, cnierr.BadConfig)
				case !adopted && err != nil:
					t.Errorf("second ADD: %v", err)
				case !adopted:
					if diff := cmp.Diff(first, again); diff != "" {
						t.Errorf("result (-first +second ADD):\n%s", diff)
					}
				}
				want := ""
				if name == "MTU" {
					want = "ip -n pod link set dev net1 mtu 1500 up"
				}
				if done, err := w.repairs().Repair(ctx, c1); err != nil || strings.Join(done.Commands("pod"), "\n") != want {
					t.Errorf("Repair did %v, %v", done.Commands("pod"), err)
				}
				if want != "" {
					before = strings.Replace(before, "mtu 1400", "mtu 1500", 1)
				}
				if diff := cmp.Diff(before, w.fake.String()); diff != "" {
					t.Errorf("the pod changed (-before +after):\n%s", diff)
				}
			})
		}
	}
}

func TestWhatOtherProgramsSetNamesItsRail(t *testing.T) {
	t.Parallel()
	w := newRailsWorld(t)
	w.mustCome("c1")
	w.pod.IP("link set net1-1 mtu 1400")
	changed, err := w.repairs().CheckRecord(ctx, c1)
	if err != nil || len(changed) != 1 || !strings.Contains(changed[0].Error(), `rail "1 (net1-1)"`) {
		t.Errorf("got %v, %v, want one change that names rail 1", changed, err)
	}
}

// The result that the runtime knows is that of the last plugin.
func TestCheckComparesTheMACWithTheResultOfTheLastPlugin(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.pod = w.fake.Pod(podPath("c1"))
	req := w.request("c1", "net1", "")
	w.mustAdd(req)
	told := conf.MAC{2, 0, 0, 0, 0, 0x99}
	req.MACs = map[conf.LinkName]conf.MAC{"net1": told}
	if err := w.node().Check(ctx, req); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "want MAC "+told.String()) {
		t.Errorf("CHECK: %v, want code %d and the MAC of the last result", err, cnierr.Damaged)
	}
	w.pod.IP("link set net1 address " + told.String())
	w.mustCheck(req)
}

func TestASoundAttachmentNeedsNoRepair(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		w := fresh(t)
		w.mustCome("c1")
		if done, err := w.repairs().Repair(ctx, c1); err != nil || len(done) > 0 {
			t.Errorf("did %q, error %v", done.Commands("pod"), err)
		}
	})
}
