// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package probe

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestGatewayAnswers(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	far.address("pb1", gateway4)
	far.address("pb1", gateway6)
	pod.address("pb0", ours4)
	pod.address("pb0", ours6)
	op := plan.Gateway{Mode: conf.Require, Attempts: 200, Timeout: 50 * ms, Targets: []plan.Target{
		pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6),
	}}
	if err := pod.prober().Do(t.Context(), plan.Op{Kind: op}); err != nil {
		t.Error(err)
	}
}

// TestAnnouncementRepairsStaleEntries and only it does: a conflict probe must
// leave the caches of the others alone.
func TestAnnouncementRepairsStaleEntries(t *testing.T) {
	t.Parallel()
	pod, far := wired(t)
	far.address("pb1", netip.MustParseAddr("172.16.11.7"))
	far.address("pb1", netip.MustParseAddr("fd00:11::7"))
	for _, a := range []netip.Addr{ours4, ours6} {
		far.must(far.nl.NeighSet(&netlink.Neigh{
			LinkIndex: far.link("pb1").Attrs().Index, IP: a.AsSlice(), HardwareAddr: thirdMAC[:], State: netlink.NUD_STALE,
		}))
	}
	four, six := pod.target("pb0", ours4, gateway4), pod.target("pb0", ours6, gateway6)
	wantTaken(t, pod.prober().Do(t.Context(), plan.Op{Kind: conflictOp(four, six)}))
	for _, a := range []netip.Addr{ours4, ours6} {
		if got := far.neighbour("pb1", a); got != thirdMAC {
			t.Errorf("after the conflict probe %s is at %s, want the old %s", a, got, thirdMAC)
		}
	}
	if err := pod.prober().Do(t.Context(), plan.Op{Kind: plan.Announce{Targets: []plan.Target{four, six}}}); err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{ours4, ours6} {
		await(t, "after the announcement "+a.String()+" is at our MAC", func() bool { return far.neighbour("pb1", a) == pod.mac("pb0") })
	}
}

// neighbour returns what a neighbour table says about an address.
func (s *space) neighbour(link string, a netip.Addr) conf.MAC {
	s.t.Helper()
	list, err := s.nl.NeighList(s.link(link).Attrs().Index, netlink.FAMILY_ALL)
	s.must(err)
	for _, n := range list {
		if n.IP.Equal(net.IP(a.AsSlice())) && len(n.HardwareAddr) == 6 {
			return conf.MAC(n.HardwareAddr)
		}
	}
	return conf.MAC{}
}
