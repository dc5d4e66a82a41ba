// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
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

func TestAcquireWaitsForTheAgentAndThenSaysTryAgain(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	_, err := n.claim("pod-7", "").Acquire(t.Context())
	if cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("without an answer: %v", err)
	}
	n.mustHold("without an answer", nil)
	wanted, err := n.files().Wanted("gpu")
	if err != nil || !slices.Contains(wanted, stickyKey("pod-7")) {
		t.Errorf("requests: %v, %v", wanted, err)
	}
	n.meanwhile = func() { n.grant("pod-7", "10.7.0.67") }
	if got := n.acquire("pod-7", ""); got[0] != netip.MustParseAddr("10.7.0.67") {
		t.Errorf("got %v", got)
	}
}

// The agent takes a grant back between the question and the lease. It may have
// looked for leases before this one was made.
func TestAcquireReleasesWhatAGrantThatIsGoneGave(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	c := n.claim("pod-0", "")
	if _, err := c.Preview(t.Context()); err != nil { // it asks the agent
		t.Fatal(err)
	}
	if err := n.files().RemoveAnswer("gpu", stickyKey("pod-0")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Acquire(t.Context()); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v", err)
	}
	n.mustHold("the grant is gone", nil)
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
	n.meanwhile = func() { t.Error("the agent is asked again") }
	rails, err := c.Acquire(t.Context())
	if err != nil || !ordinary(addrs(rails)[0]) {
		t.Errorf("got %v, %v, want an ordinary address", addrs(rails), err)
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

func TestADELWithoutRecordWithdrawsTheRequest(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	if _, err := n.claim("pod-7", "").Acquire(t.Context()); err == nil {
		t.Fatal("no agent has answered")
	}
	if err := n.allocator().ReleaseUnrecorded(t.Context(), n.record("pod-7"), n.del("pod-7")); err != nil {
		t.Error(err)
	}
	if wanted, err := n.files().Wanted("gpu"); len(wanted) > 0 || err != nil {
		t.Errorf("requests: %v, %v", wanted, err)
	}
}

func TestOnlyPodsOfAStatefulSetAskTheAgent(t *testing.T) {
	t.Parallel()
	n := sticky(t)
	n.meanwhile = func() { t.Error("the agent is asked") }
	if got := n.acquire("web-7d4b", ""); !ordinary(got[0]) {
		t.Errorf("got %v, want an ordinary address", got)
	}
}
