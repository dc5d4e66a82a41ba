// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/ndp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
)

// router returns what advertises 2001:db8::/64 on r0.
func router(t *testing.T) (advertise func()) {
	t.Helper()
	name := cnitest.NewNetns(t, "router").Name
	shell(t, fmt.Sprintf(`ip link add link r0 name ra0 netns %[1]s type macvlan mode bridge
		ip -n %[1]s link set ra0 addrgenmode none up
		ip -n %[1]s addr add fe80::1/64 dev ra0 nodad`, name))
	ns, err := netns.Open("/run/netns/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var conn *ndp.Conn
	err = ns.Enter(func() error {
		link, err := net.InterfaceByName("ra0")
		if err == nil {
			conn, _, err = ndp.Listen(link, ndp.LinkLocal)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	says := &ndp.RouterAdvertisement{RouterLifetime: time.Hour, Options: []ndp.Option{&ndp.PrefixInformation{
		PrefixLength: 64, OnLink: true, AutonomousAddressConfiguration: true,
		ValidLifetime: 2 * time.Hour, PreferredLifetime: time.Hour, Prefix: netip.MustParseAddr("2001:db8::"),
	}}}
	return func() {
		if err := conn.WriteTo(says, nil, netip.MustParseAddr("ff02::1")); err != nil {
			t.Error(err)
		}
	}
}

// TestSharedRouterAdvertisementsMoveNoIndex has a router on the rail, and of two pods one that
// listens to it: by its own setting, it gets an address of the prefix, and temporary ones.
func TestSharedRouterAdvertisementsMoveNoIndex(t *testing.T) {
	n := newNode(t, "shared")
	network := promising(dualRails(n.allRails()), "equal")
	deaf, listens := n.attach(network, n.pod()), n.attach(network, n.pod())
	deaf.addRails()
	listens.addRails()
	run(t, "ip", "netns", "exec", listens.pod.Name, "sysctl", "-qw", "net.ipv6.conf.net1.use_tempaddr=2", "net.ipv6.conf.net1.accept_ra=2")
	advertise := router(t)
	addresses := func(p *pod) string { return run(t, "ip", "-n", p.Name, "-6", "addr", "show", "dev", "net1") }
	cnitest.Await(t, "the pod that listens has both kinds of addresses, with entries", func() bool {
		advertise()
		now := addresses(listens.pod)
		return strings.Contains(now, "temporary") && strings.Contains(now, "mngtmpaddr") && !strings.Contains(now, "tentative")
	})
	if now := addresses(deaf.pod); strings.Contains(now, "2001:db8:") {
		t.Errorf("a pod listens to routers:\n%s", now)
	}
	deaf.mustCheck()
	listens.mustCheck()
	next := n.attach(network, n.pod())
	addrs := next.addRails()
	next.aligned(allGIDs(t, next.pod.Name), addrs)
	listens.mustDel()
	deaf.mustCheck()
	next.mustCheck()
	next.mustDel()
	deaf.mustDel()
	n.nothingLeft()
}
