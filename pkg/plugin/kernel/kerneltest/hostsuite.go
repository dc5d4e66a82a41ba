// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// hostOps returns an operation of each kind that can act on the host, on a NIC there.
// The NIC is up. Undo does not restore its settings.
func (w opened) hostOps() plan.Ops {
	address := netip.MustParsePrefix("10.9.0.1/24")
	return plan.OnHost(
		plan.Up{Link: w.NIC},
		plan.Address{Link: w.NIC, Prefix: address},
		plan.Route{Link: w.NIC, Table: 200, Dst: netip.MustParsePrefix("10.9.1.0/24"), Via: netip.MustParseAddr("10.9.0.7"), Src: address.Addr()},
		plan.Rule{From: netip.MustParsePrefix("10.9.0.1/32"), Table: 200, Priority: 32000},
	)
}

func onHost(t *testing.T, w opened) {
	pod, host := w.Show(), w.ShowHost()
	ops := w.hostOps()
	for range 2 {
		for _, op := range ops {
			w.must(t, op)
			w.holds(t, op)
		}
	}
	w.unchanged(t, pod)
	if w.ShowHost() == host {
		t.Error("the operations cannot be seen on the host")
	}
	for _, op := range ops {
		inPod := plan.Op{Kind: op.Kind}
		wantCode(t, w.Check(t.Context(), inPod), cnierr.Damaged)
		if c := op.Commands("pod")[0]; strings.Contains(c, "pod") || !strings.HasPrefix(c, "ip ") {
			t.Errorf("on the host: %q names the pod", c)
		}
	}
	w.undo(t, ops)
	w.asBefore(t, pod, host)
	settings := plan.Op{Place: plan.Host, Kind: plan.Sysctl{Link: w.NIC, Set: []plan.Setting{{Path: "net/ipv4/conf/" + string(w.NIC) + "/arp_ignore", Value: "1"}}}}
	w.must(t, settings)
	w.holds(t, settings)
	w.unchanged(t, pod)
	w.refuses(t, plan.Op{Place: plan.Host, Kind: w.macvlan()}, cnierr.Bug)
	wantCode(t, w.Do(t.Context(), plan.Op{Kind: plan.Up{Link: w.NIC}}, plan.Op{Place: plan.Host, Kind: plan.Up{Link: w.NIC}}), cnierr.Bug)
}

// hostOnly opens only the host.
func (w opened) hostOnly(t *testing.T) Kernel {
	t.Helper()
	k, err := w.OpenHost()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// hostAlone undoes on the host what was done for a pod that is gone.
func hostAlone(t *testing.T, w opened) {
	pod, host := w.Show(), w.ShowHost()
	w.must(t, w.hostOps()...)
	k := w.hostOnly(t)
	for _, op := range slices.Backward(w.hostOps()) {
		if err := k.Undo(t.Context(), op); err != nil {
			t.Error(err)
		}
	}
	w.asBefore(t, pod, host)
	wantCode(t, k.Do(t.Context(), plan.Op{Kind: plan.Up{Link: "lo"}}), cnierr.Bug)
	if k.ID() != (netns.ID{}) {
		t.Errorf("the host alone has the ID %v of a pod", k.ID())
	}
}
