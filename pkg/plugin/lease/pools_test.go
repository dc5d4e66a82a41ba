// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// All other addresses of the subnet are of other nodes, so the numbers are those of this one.
func TestAFullRailPoolIsToldByTheBlocksOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t, sources()["a RailPool"])
	for i := range 8 {
		n.acquire(fmt.Sprintf("pod-%d", i), "")
	}
	full := func(when, want string) {
		t.Helper()
		_, acquire := n.claim("pod-9", "").Acquire(t.Context())
		_, preview := n.claim("pod-9", "").Preview(t.Context())
		for _, err := range []error{acquire, preview} {
			if e := cnierr.CNI("roce", err); e == nil || e.Msg != want || !strings.HasPrefix(e.Details, "wait: rocectl agent claims another block") {
				t.Errorf("%s: got %+v, want %s", when, e, want)
			}
		}
		status := n.claim("pod-9", "").Status(t.Context())
		if want := strings.Replace(want, "roce[101]", `roce[50] serve "ADD":`, 1); cnierr.CNI("roce", status).Msg != want {
			t.Errorf("%s: STATUS is %v, want %s", when, status, want)
		}
	}
	full("all are leased", `roce[101] lease from RailPool "gpu": all 8 addresses of the node's blocks in 10.7.0.0/24 are leased`)
	must(t, n.allocator().Release(t.Context(), n.record("pod-0")))
	n.refuse = true
	n.now += time.Hour - time.Second // the quarantine is that of the RailPool
	full("one is in quarantine", `roce[101] lease from RailPool "gpu": all 8 addresses of the node's blocks in 10.7.0.0/24 are leased or in quarantine`)
	n.refuse = false
	must(t, n.claim("pod-9", "").Status(t.Context()))
	n.acquire("pod-9", "")
}

// ADD needs an address of each subnet. Of those in quarantine it is enough that one has rested.
func TestAPoolServesWhileEachSubnetHasAnAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"master": "ens1", "ipam": {"type": "roce-ipam", "quarantine": "1h", "subnets": [{"subnet": "10.4.0.0/29"}, {"subnet": "10.8.0.0/31"}]}`})
	n.refuse = true
	status := func(when string, want bool) {
		t.Helper()
		if err := n.claim("pod-9", "").Status(t.Context()); (err == nil) != want || err != nil && !strings.Contains(err.Error(), "subnet 10.8.0.0/31 is exhausted") {
			t.Errorf("%s: got %v", when, err)
		}
	}
	n.acquire("pod-0", "")
	status("one of two addresses is leased", true)
	n.acquire("pod-1", "")
	status("both are leased", false)
	must(t, n.allocator().Release(t.Context(), n.record("pod-0")))
	n.now += 40 * time.Minute
	must(t, n.allocator().Release(t.Context(), n.record("pod-1")))
	status("both are in quarantine", false)
	n.now += 40 * time.Minute
	status("one has rested", true)
}

// TestTheRailsOfAnAttachmentHaveOneHostIndex: the n-th subnets of a family belong together.
func TestTheRailsOfAnAttachmentHaveOneHostIndex(t *testing.T) {
	t.Parallel()
	const subnets = `{"subnet": "10.4.%[1]s.0/29"}, {"subnet": "10.5.%[1]s.0/28"}, {"subnet": "fd00:%[1]s::/125"}`
	config := func(nics, subnet string) string {
		return nics + `, "ipam": {"type": "roce-ipam", "subnets": [` + subnet + `]}`
	}
	n := newNode(t, source{})
	for i, only := range []string{"10.4.0.0/29", "10.4.0.0/29", "10.5.1.0/28", "fd00:1::/125", "fd00:1::/125"} { // in one rail of two
		n.config = config(`"master": "ens1"`, `{"subnet": "`+only+`"}`)
		n.acquire(fmt.Sprintf("single-%d", i), "")
	}
	n.config = config(`"rails": [{"master": "ens1"}, {"master": "ens2"}]`, fmt.Sprintf(subnets, "{rail}"))
	for i := range 3 {
		id := fmt.Sprintf("pod-%d", i)
		c, err := n.allocator().Claim(n.request(id, ""), make([]plan.RailFacts, 2))
		must(t, err)
		rails, err := c.Acquire(t.Context())
		must(t, err)
		var first, second []string
		for _, a := range rails[0].Lease.Addresses {
			first = append(first, a.Prefix.String())
		}
		for _, a := range rails[1].Lease.Addresses {
			second = append(second, strings.NewReplacer("10.4.1.", "10.4.0.", "10.5.1.", "10.5.0.", "fd00:1::", "fd00::").Replace(a.Prefix.String()))
		}
		if diff := cmp.Diff(first, second); diff != "" || len(first) != 3 {
			t.Errorf("%s has other host indexes in its second rail (-first +second):\n%s", id, diff)
		}
	}
}

// Both would have the key of the attachment, and the second would get the first one's address.
func TestTwoPluginsOfOneTypeInAListDoNotShareAnAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"master": "ens1", "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "10.4.0.0/29"}, {"subnet": "fd00::/64"}]}`})
	for _, a := range n.acquire("pod-0", "") {
		before := fmt.Sprintf(`, "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "%s/%d"}, {"address": "192.0.2.1/24"}]}`, a, a.BitLen())
		if _, err := n.claim("pod-0", before).Acquire(t.Context()); cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), a.String()) {
			t.Errorf("%s: got %v", a, err)
		}
	}
}

func TestALeaseHasTheGatewayAndTheRoutesOfItsRail(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"master": "ens1", "ipam": {"type": "roce-ipam", "routes": [{"dst": "10.0.0.0/8"}],
		"subnets": [{"subnet": "10.4.0.0/29", "gateway": "10.4.0.6", "ranges": ["10.4.0.2-10.4.0.3"], "exclude": ["10.4.0.3"]}]}`})
	rails, err := n.claim("pod-0", "").Acquire(t.Context())
	must(t, err)
	want := plan.Lease{
		Addresses: []plan.LeasedAddress{{Prefix: netip.MustParsePrefix("10.4.0.2/29"), Gateway: netip.MustParseAddr("10.4.0.6")}},
		Routes:    []pool.Route{{Dst: netip.MustParsePrefix("10.0.0.0/8")}},
	}
	if diff := cmp.Diff(want, rails[0].Lease, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if rails, err := n.claim("pod-1", "").Acquire(t.Context()); cnierr.CodeOf(err) != cnierr.PoolExhausted {
		t.Errorf("got %v, %v, want that there is one address only", addrs(rails), err)
	}
}

// A route goes to the rail with its gateway in a subnet.
func TestEachRailHasItsOwnRoutes(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"rails": [{"master": "ens1"}, {"master": "ens2"}], "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "10.4.{rail}.0/29"}],
		"routes": [{"dst": "10.8.0.0/16", "gw": "10.4.1.6"}, {"dst": "10.9.0.0/16", "gw": "10.4.0.6"}]}`})
	c, err := n.allocator().Claim(n.request("pod-0", ""), make([]plan.RailFacts, 2))
	must(t, err)
	rails, err := c.Acquire(t.Context())
	must(t, err)
	for i, want := range []string{"10.9.0.0/16", "10.8.0.0/16"} {
		if got := rails[i].Lease.Routes; len(got) != 1 || got[0].Dst.String() != want {
			t.Errorf("rail %d has the routes %v, want that to %s", i, got, want)
		}
	}
}

// TestAnAddressThatIsLeasedBeforeItsQuarantineEndsIsEarly: ADD asks the network longer about it.
func TestAnAddressThatIsLeasedBeforeItsQuarantineEndsIsEarly(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"master": "ens1", "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "10.4.0.0/30", "exclude": ["10.4.0.2"]}]}`})
	n.acquire("pod-0", "")
	must(t, n.allocator().Release(t.Context(), n.record("pod-0")))
	rails, err := n.claim("pod-1", "").Acquire(t.Context())
	if err != nil || !rails[0].Lease.Addresses[0].Early {
		t.Errorf("got %+v, %v", rails, err)
	}
}

// A DEL finds leases of namespaces that are gone, if it knows the place of its own.
func TestReleaseReapsLeasesOfNamespacesThatAreGone(t *testing.T) {
	t.Parallel()
	for _, byDEL := range []bool{false, true} {
		n := newNode(t, sources()["ranges of the configuration"])
		for _, id := range []string{"pod-0", "pod-1", "pod-2"} {
			n.acquire(id, "")
		}
		n.gone = map[string]bool{"/run/netns/pod-1": true}
		d := n.del("pod-0")
		d.Netns = "" // the runtime has removed it
		release := func() error { return n.allocator().Release(t.Context(), n.record("pod-0")) }
		if byDEL {
			release = func() error { return n.allocator().ReleaseByDEL(t.Context(), n.record("pod-0"), d) }
		}
		must(t, release())
		n.mustHold("after the DEL of pod-0", []string{"pod-2"})
	}
}

func TestANetworkWithoutAddressesLeasesNone(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"master": "ens1"`})
	if got := n.acquire("pod-0", ""); len(got) > 0 {
		t.Errorf("got %v", got)
	}
	n.config = strings.Replace(sources()["the plugins before roce"].config, "10.6.0.5/24", "127.0.0.1/8", 1)
	if rails, err := n.claim("pod-0", "").Acquire(t.Context()); cnierr.CodeOf(err) != cnierr.Decode {
		t.Errorf("of a plugin before that gave a loopback address: %v, %v", addrs(rails), err)
	}
}

// The rails may have their families in any order.
func TestHostIndexesAreThoseOfAFamily(t *testing.T) {
	t.Parallel()
	const v4, v6 = `{"subnet": "10.4.%d.0/28"}`, `{"subnet": "fd00:%d::/64"}`
	n := newNode(t, source{config: fmt.Sprintf(`"rails": [{"master": "ens1", "subnets": [`+v4+`, `+v6+`]}, {"master": "ens2", "subnets": [`+v6+`, `+v4+`]}],
		"ipam": {"type": "roce-ipam"}`, 0, 0, 1, 1)})
	for i := range 3 {
		c, err := n.allocator().Claim(n.request(fmt.Sprintf("pod-%d", i), ""), make([]plan.RailFacts, 2))
		must(t, err)
		rails, err := c.Acquire(t.Context())
		must(t, err)
		index := func(rail, address int) string {
			a := addrs(rails[rail : rail+1])[address].String()
			return a[strings.LastIndexAny(a, ".:")+1:]
		}
		if index(0, 0) != index(1, 1) || index(0, 1) != index(1, 0) {
			t.Errorf("got %v", addrs(rails))
		}
	}
}
