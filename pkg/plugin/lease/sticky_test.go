// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// taken is what the conflict probe says of an address.
func taken(addr netip.Addr) []plan.Target { return []plan.Target{{Link: "net1", Addr: addr}} }

// ordinary says whether an address is one of the node's that no pod has to keep.
func ordinary(a netip.Addr) bool { return netip.MustParsePrefix("10.7.0.32/29").Contains(a) }

func sticky(t *testing.T) *node {
	t.Helper()
	return newNode(t, sources()["a RailPool with sticky addresses"])
}

func TestWithoutAnAnswerAcquireSaysTryAgainAndLeasesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: sources()["a RailPool with sticky addresses"].config, before: func(n *node) { n.own(true) }})
	for _, want := range []string{"rocectl agent does not run on this node", "node n7 still holds them"} {
		_, err := n.claim("pod-7", "").Acquire(t.Context())
		if cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"train/pod-7"`) {
			t.Errorf("got %v, want %q", err, want)
		}
		if rails, err := n.claim("pod-7", "").Preview(t.Context()); cnierr.CodeOf(err) != cnierr.TryAgain {
			t.Errorf("Preview: %v, %v, want %q", addrs(rails), err, want)
		}
		n.mustHold("without an answer", nil)
		if want == "rocectl agent does not run on this node" {
			n.answers()
		}
	}
	n.grant("pod-7", "10.7.0.67")
	if got := n.acquire("pod-7", ""); got[0] != netip.MustParseAddr("10.7.0.67") {
		t.Errorf("got %v", got)
	}
}

func TestAPodThatHasNoStickyAddressGetsAnOrdinaryOneAndAsksOnce(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	n.agent[stickyKey("pod-7")] = nodefile.Answer{None: "all are reserved"}
	c := n.claim("pod-7", "")
	for range 2 {
		rails, err := c.Acquire(t.Context())
		if err != nil || !ordinary(addrs(rails)[0]) {
			t.Errorf("got %v, %v, want an ordinary address", addrs(rails), err)
		}
	}
	if n.asked != 1 || strings.Count(n.log.String(), "all are reserved") != 1 {
		t.Errorf("%d requests, and the log is %s", n.asked, n.log.String())
	}
	if again, err := c.Reject(t.Context(), taken(netip.MustParseAddr("10.7.0.33"))); !again || err != nil || strings.Contains(n.log.String(), "another machine") {
		t.Errorf("of an ordinary address: again is %v, error %v, log %s", again, err, n.log.String())
	}
}

// It must not get ordinary addresses instead, silently.
func TestAPodWithAGrantThatDoesNotFitItsNetworkGetsNoAddress(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	one := []pool.Subnet{ofPool("10.7.0.64-10.7.0.64")}
	n.agent[stickyKey("pod-0")] = nodefile.Answer{Rails: [][]pool.Subnet{one, one}, Until: n.now + grantTime}
	if rails, err := n.claim("pod-0", "").Acquire(t.Context()); cnierr.CodeOf(err) != cnierr.BadConfig || len(rails) > 0 {
		t.Errorf("got %v, %v", addrs(rails), err)
	}
	n.mustHold("refused", nil)
}

// After the end of the grant, the agent may have looked for leases before this one was
// made.
func TestAcquireReleasesWhatWasLeasedAfterTheEndOfTheGrant(t *testing.T) {
	t.Parallel()
	for after, ok := range map[time.Duration]bool{-1: true, 0: false, 1: false} {
		n := sticky(t)
		n.now += grantTime + after // n.grant was before
		rails, err := n.claim("pod-0", "").Acquire(t.Context())
		if ok {
			if err != nil || addrs(rails)[0] != netip.MustParseAddr("10.7.0.64") {
				t.Errorf("%v: got %v, %v", after, addrs(rails), err)
			}
			continue
		}
		if cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), `"train/pod-0"`) {
			t.Errorf("%v: got %v", after, err)
		}
		n.mustHold("the grant has ended", nil)
	}
}

// The first attempt of an ADD has failed, and its addresses were released.
func TestEachAcquireHasAGrantOfItsOwn(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	c := n.claim("pod-0", "")
	for _, want := range []string{"10.7.0.64", "10.7.0.66"} {
		rails, err := c.Acquire(t.Context())
		if err != nil || addrs(rails)[0] != netip.MustParseAddr(want) {
			t.Errorf("got %v, %v, want %s", addrs(rails), err, want)
		}
		must(t, n.allocator().Release(t.Context(), n.record("pod-0")))
		n.now += 2 * grantTime
		n.grant("pod-0", "10.7.0.66")
	}
	n.agent[stickyKey("pod-0")] = nodefile.Answer{None: "all are reserved"}
	if rails, err := c.Acquire(t.Context()); err != nil || !ordinary(addrs(rails)[0]) {
		t.Errorf("got %v, %v, want an ordinary address", addrs(rails), err)
	}
}

func TestAStickyAddressThatAnotherMachineHasIsNotAskedForAgain(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	c := n.claim("pod-0", "")
	if _, err := c.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again, err := c.Reject(t.Context(), taken(netip.MustParseAddr("10.7.0.64"))); !again || err != nil {
		t.Fatalf("again is %v, error %v", again, err)
	}
	if !strings.Contains(n.log.String(), "another machine uses a sticky address of the pod") {
		t.Errorf("the log is %s", n.log.String())
	}
	rails, err := c.Acquire(t.Context())
	if err != nil || !ordinary(addrs(rails)[0]) || n.asked != 1 {
		t.Errorf("got %v, %v, %d requests, want an ordinary address", addrs(rails), err, n.asked)
	}
}

// The DEL of a former sandbox has not come yet.
func TestAStickyAddressThatAFormerSandboxHasNamesThePod(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	n.acquire("pod-0", "")
	_, err := n.claim("pod-0.new", "").Acquire(t.Context())
	if cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), `"train/pod-0"`) {
		t.Errorf("got %v", err)
	}
	n.mustHold("refused", []string{"pod-0"})
}

// An error that is not about the pod's address must not blame a former sandbox.
func TestErrorsThatAreNotAboutTheStickyAddressStay(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	facts := []plan.RailFacts{{Facts: plan.Facts{HostAddrs: []netip.Addr{netip.MustParseAddr("10.7.0.64")}}}}
	c, err := n.allocator().Claim(n.request("pod-0", ""), facts)
	must(t, err)
	if _, err := c.Acquire(t.Context()); cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("the node has the address: got %v", err)
	}
	n.acquire("pod-1", "")
	lock, err := os.Open(filepath.Join(n.dir, "leases.lock"))
	must(t, err)
	defer lock.Close()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.claim("pod-0", "").Acquire(ctx); cnierr.CodeOf(err) != cnierr.TryAgain || strings.Contains(err.Error(), "sticky") {
		t.Errorf("another call has the database: got %v", err)
	}
}

func TestOnlyPodsOfAStatefulSetAskTheAgent(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	for pod, more := range map[string]string{"web-7d4b": "", "pod-1": `, "runtimeConfig": {"ips": ["10.7.0.33"]}`} {
		if got := n.acquire(pod, more); !ordinary(got[0]) || n.asked != 0 {
			t.Errorf("%s: got %v after %d requests, want an ordinary address", pod, got, n.asked)
		}
	}
}

func TestAPodHasAStickyAddressOfEachFamily(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: sources()["a RailPool with sticky addresses"].config})
	six := func(addr string) pool.Subnet {
		r := netrange.Of(netip.MustParsePrefix(addr))
		return pool.Subnet{Prefix: netip.MustParsePrefix("fd07::/64"), Ranges: []netrange.Range{r}}
	}
	must(t, n.files().Write(nodefile.File{Pool: "gpu", Quarantine: time.Hour, Sticky: true, Rails: [][]pool.Subnet{{ofPool("10.7.0.32-10.7.0.39"), six("fd07::20/125")}}}))
	n.answers()
	n.agent[stickyKey("pod-0")] = nodefile.Answer{Rails: [][]pool.Subnet{{ofPool("10.7.0.64-10.7.0.64"), six("fd07::40/128")}}, Until: n.now + grantTime}
	if got := n.acquire("pod-0", ""); len(got) != 2 || got[0].String() != "10.7.0.64" || got[1].String() != "fd07::40" {
		t.Errorf("got %v", got)
	}
	// Another pod has the second one, so that it must be asked for by its number.
	n.agent[stickyKey("pod-1")] = nodefile.Answer{Rails: [][]pool.Subnet{{ofPool("10.7.0.65-10.7.0.65"), six("fd07::40/128")}}, Until: n.now + grantTime}
	if _, err := n.claim("pod-1", "").Acquire(t.Context()); cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), `fd07::40: `) {
		t.Errorf("got %v, want who has it", err)
	}
}

// A rail that is skipped leaves its address, and the others have their own.
func TestASkippedRailLeavesItsStickyAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t, source{config: `"rails": [{"master": "ens1"}, {"master": "ens2"}], "minRails": 1, "ipam": {"type": "roce-ipam", "railPool": "gpu"}`})
	second := ofPool("10.7.1.64-10.7.1.64")
	second.Prefix, second.Gateway = netip.MustParsePrefix("10.7.1.0/24"), netip.Addr{}
	ranges := second
	ranges.Ranges = []netrange.Range{netrange.Of(netip.MustParsePrefix("10.7.1.32/29"))}
	f := nodefile.File{Pool: "gpu", Quarantine: time.Hour, Sticky: true, Rails: [][]pool.Subnet{{ofPool("10.7.0.32-10.7.0.39")}, {ranges}}}
	must(t, n.files().Write(f))
	n.answers()
	n.agent[stickyKey("pod-0")] = nodefile.Answer{Rails: [][]pool.Subnet{{ofPool("10.7.0.64-10.7.0.64")}, {second}}, Until: n.now + grantTime}
	c, err := n.allocator().Claim(n.request("pod-0", ""), []plan.RailFacts{{Fault: errors.New("no carrier")}, {}})
	must(t, err)
	rails, err := c.Acquire(t.Context())
	if want := netip.MustParseAddr("10.7.1.64"); err != nil || len(rails) != 1 || addrs(rails)[0] != want {
		t.Errorf("got %v, error %v, want %v", addrs(rails), err, want)
	}
}
