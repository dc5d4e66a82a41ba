// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func (w World) pair() plan.Veth {
	return plan.Veth{
		Name: "veth0a1b2c", MAC: conf.MAC{2, 0, 0, 0, 2, 1}, PodEnd: "host0", PodMAC: conf.MAC{2, 0, 0, 0, 2, 2},
		MTU: 1500, Mark: plan.Mark(conf.Attachment{ContainerID: w.Container, IfName: "net1"}),
	}
}

// linkOps returns a link between pod and host, with what hostLink adds to it.
func (w World) linkOps() plan.Ops {
	v := w.pair()
	v4, v6 := netip.MustParseAddr("10.9.0.5"), netip.MustParseAddr("fd00:9::5")
	var out plan.Ops
	for _, ops := range []plan.Ops{
		plan.OnHost(v, plan.Up{Link: v.Name}), plan.InPod(plan.Up{Link: v.PodEnd}),
		plan.InPod(plan.Neighbour{Link: v.PodEnd, Addr: netip.MustParseAddr("169.254.1.1"), MAC: v.MAC}, plan.Neighbour{Link: v.PodEnd, Addr: netip.MustParseAddr("fe80::1"), MAC: v.MAC}),
		plan.OnHost(plan.Neighbour{Link: v.Name, Addr: v4, MAC: v.PodMAC}, plan.Neighbour{Link: v.Name, Addr: v6, MAC: v.PodMAC}),
		plan.OnHost(plan.Route{Link: v.Name, Table: plan.HostLinkTable, Dst: netip.PrefixFrom(v4, 32), Scope: plan.ScopeLink},
			plan.Route{Link: v.Name, Table: plan.HostLinkTable, Dst: netip.PrefixFrom(v6, 128)}),
		plan.OnHost(plan.Rule{From: netip.MustParsePrefix("0.0.0.0/0"), Table: plan.HostLinkTable, Priority: plan.HostLinkPriority},
			plan.Rule{From: netip.MustParsePrefix("::/0"), Table: plan.HostLinkTable, Priority: plan.HostLinkPriority}),
	} {
		out = append(out, ops...)
	}
	return out
}

// asBefore wants pod and host to be as they were.
func (w opened) asBefore(t *testing.T, pod, host string) {
	t.Helper()
	w.unchanged(t, pod)
	if diff := cmp.Diff(host, w.ShowHost()); diff != "" {
		t.Errorf("the host has changed (-before +after):\n%s", diff)
	}
}

func hostLinked(t *testing.T, w opened) {
	ops := w.linkOps()
	w.cycle(t, ops)
	for _, op := range ops {
		wantCode(t, w.Check(t.Context(), op), cnierr.Damaged)
	}
}

// linkWithoutPod removes the pair for a pod that is gone, and for one that has no record.
func linkWithoutPod(t *testing.T, w opened) {
	pod, host := w.Show(), w.ShowHost()
	k := w.hostOnly(t)
	v := w.pair()
	for _, undone := range []plan.Veth{v, {Name: v.Name, Mark: v.Mark}} {
		w.must(t, plan.OnHost(v)[0])
		if err := k.Undo(t.Context(), plan.OnHost(undone)...); err != nil {
			t.Error(err)
		}
		w.asBefore(t, pod, host)
	}
}

func foreignEnds(t *testing.T, w opened) {
	v := w.pair()
	w.IP("link add host0 type veth")
	pod, host := w.Show(), w.ShowHost()
	wantCode(t, w.Do(t.Context(), plan.OnHost(v)...), cnierr.BadEnv)
	w.asBefore(t, pod, host)
	w.IP("link del host0")
	w.HostIP("link add " + string(v.Name) + " type veth")
	pod, host = w.Show(), w.ShowHost()
	wantCode(t, w.Do(t.Context(), plan.OnHost(v)...), cnierr.BadEnv)
	w.undo(t, plan.OnHost(v))
	w.asBefore(t, pod, host)
}

// renamedEnd has another name for the end on the host, as a program of the node gives it.
func renamedEnd(t *testing.T, w opened) {
	v := plan.OnHost(w.pair())
	pod, host := w.Show(), w.ShowHost()
	w.must(t, v[0])
	w.HostIP("link set veth0a1b2c name uplink7")
	wantCode(t, w.Check(t.Context(), v[0]), cnierr.Damaged)
	w.must(t, v[0])
	if strings.Contains(w.ShowHost(), "uplink7") {
		t.Error("the renamed end is still there")
	}
	w.HostIP("link set veth0a1b2c name uplink7")
	w.undo(t, v)
	w.undo(t, v)
	w.asBefore(t, pod, host)
}

func brokenPair(t *testing.T, w opened) {
	v := plan.OnHost(w.pair())[0]
	w.must(t, v)
	pod, host := w.Show(), w.ShowHost()
	w.HostIP(`link set veth0a1b2c alias ""`) // a process died before it set the mark
	w.must(t, v)
	w.asBefore(t, pod, host)
	w.HostIP("link set veth0a1b2c alias " + plan.MarkPrefix + "c2/net1") // another attachment's
	wantCode(t, w.Do(t.Context(), v), cnierr.BadEnv)
	if err := w.Check(t.Context(), v); !errors.Is(err, kernel.ErrDifferent) {
		t.Errorf("the mark of another: got %v, want ErrDifferent", err)
	}
	w.HostIP("link set veth0a1b2c alias " + w.pair().Mark)
	w.IP("link set host0 name other0")
	w.IP("link add host0 type veth")
	w.IP("link set host0 address " + w.pair().PodMAC.String())
	wantCode(t, w.Check(t.Context(), v), cnierr.Damaged)
	w.IP("link del host0")
	err := w.Check(t.Context(), v)
	wantCode(t, err, cnierr.Damaged)
	if !errors.Is(err, kernel.ErrDifferent) {
		t.Errorf("got %v, want ErrDifferent", err)
	}
	w.must(t, v)
	if strings.Contains(w.Show(), "other0") {
		t.Error("the renamed end is still there")
	}
	w.IP("link del host0")
	err = w.Check(t.Context(), v)
	wantCode(t, err, cnierr.Damaged)
	if errors.Is(err, kernel.ErrDifferent) {
		t.Errorf("got %v for a pair that is gone", err)
	}
	w.must(t, v)
	w.holds(t, v)
}
