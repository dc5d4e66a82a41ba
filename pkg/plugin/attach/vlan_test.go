// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// newVLANWorld returns a node with networks of three rails, each on a VLAN of its NIC. The
// operator has made one of the VLANs.
func newVLANWorld(t *testing.T) *world {
	t.Helper()
	w := newRailsWorld(t)
	w.config = strings.TrimSuffix(railsConfig, "%s}") + `, "vlan": 120%s}`
	w.fake.Host().IP("link add link ens2 name storage type vlan id 120")
	w.fake.Host().IP("link set storage up")
	return w
}

// newLinkedVLANWorld returns the same node, with networks that also link their pods with it.
func newLinkedVLANWorld(t *testing.T) *world {
	t.Helper()
	w := newVLANWorld(t)
	w.config = strings.TrimSuffix(w.config, "%s}") + `, "hostLink": {"routes": ["10.96.0.0/12"]}%s}`
	return w
}

func (w *world) mustHaveVLANs(want bool, when string) {
	w.t.Helper()
	host := w.fake.Host().String()
	for _, name := range []string{"ens1.120", "ens3.120"} {
		if strings.Contains(host, "link "+name+" ") != want {
			w.t.Errorf("%s: want %s on the host: %v, got\n%s", when, name, want, host)
		}
	}
	if !strings.Contains(host, "link storage ") || strings.Contains(host, "ens2.120") {
		w.t.Errorf("%s: the VLAN of the operator is not as it was:\n%s", when, host)
	}
}

func TestVLANsGoWithTheLastPod(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		w := newVLANWorld(t)
		w.mustCome("c1")
		w.mustCome("c2")
		w.mustHaveVLANs(true, "after two ADDs")
		if gone {
			w.fake.RemovePod(podPath("c1"))
			w.fake.RemovePod(podPath("c2"))
		}
		w.mustLeave("c1")
		w.mustHaveVLANs(true, "after the first DEL")
		w.mustLeave("c2")
		w.mustLeave("c2", "again")
		w.mustHaveVLANs(false, "after the last DEL")
		w.mustBeEmpty("after the last DEL")
	}
}

// TestALinkOnAVLANGoesWithItsPod has two pods that share VLANs and the rule to their links.
func TestALinkOnAVLANGoesWithItsPod(t *testing.T) {
	t.Parallel()
	w := newLinkedVLANWorld(t)
	mustHaveLinks := func(want int, when string) {
		t.Helper()
		host := w.fake.Host().String()
		if got := strings.Count(host, " alias roce:c"); got != want {
			t.Errorf("%s: %d links to pods, want %d:\n%s", when, got, want, host)
		}
		if strings.Contains(host, "lookup 8200") != (want > 0) {
			t.Errorf("%s: want the rule to table 8200: %v:\n%s", when, want > 0, host)
		}
	}
	for i, id := range []string{"c1", "c2"} {
		w.mustCome(id)
		mustHaveLinks(i+1, "after ADD to "+id)
		w.mustBeWhole(id)
	}
	w.mustLeave("c1")
	w.mustLeave("c1", "again")
	w.mustHaveVLANs(true, "after the first DEL")
	mustHaveLinks(1, "after the first DEL")
	w.mustBeWhole("c2")
	w.mustGC("rail")
	w.mustHaveVLANs(false, "after GC without valid attachments")
	mustHaveLinks(0, "after GC without valid attachments")
	w.mustLeave("c2", "after GC")
	w.mustBeEmpty("after all")
}

// TestVLANsGoOnlyWithTheLastRecord has a NIC that gets another name and MAC between two
// ADDs. The second pod stands on the VLAN that is there.
func TestVLANsGoOnlyWithTheLastRecord(t *testing.T) {
	t.Parallel()
	w := newVLANWorld(t)
	w.mustCome("c1")
	w.fake.Host().IP("link set ens1 address 02:00:00:00:00:77")
	w.mustCome("c2")
	w.mustLeave("c1", "after a new MAC")
	w.mustHaveVLANs(true, "after the first DEL")
	w.mustLeave("c2")
	w.mustHaveVLANs(false, "after the last DEL")
}

func TestAVLANIsLeftToTheOperator(t *testing.T) {
	t.Parallel()
	w := newVLANWorld(t)
	w.mustCome("c1")
	w.fake.Host().IP(`link set ens1.120 alias ""`)
	w.mustCome("c2")
	w.mustLeave("c1")
	w.mustLeave("c2")
	if host := w.fake.Host().String(); !strings.Contains(host, "ens1.120") || strings.Contains(host, "ens3.120") {
		t.Errorf("want ens1.120 to stay and ens3.120 to go, got\n%s", host)
	}
}

// TestAVLANOfTheOperatorCostsNothing counts what ADD asks of the kernel on NICs, and on VLANs
// of NICs that the operator has made.
func TestAVLANOfTheOperatorCostsNothing(t *testing.T) {
	t.Parallel()
	plain, onVLANs := newRailsWorld(t), newVLANWorld(t)
	for _, nic := range []string{"ens1", "ens3"} {
		onVLANs.fake.Host().IP("link add link " + nic + " name " + nic + ".120 type vlan id 120")
		onVLANs.fake.Host().IP("link set " + nic + ".120 up")
	}
	calls := map[*world]int{}
	for _, w := range []*world{plain, onVLANs} {
		before := w.fake.Calls()
		w.mustCome("c1")
		calls[w] = w.fake.Calls() - before
	}
	if calls[plain] == 0 || calls[plain] != calls[onVLANs] {
		t.Errorf("ADD on VLANs of the operator has %d calls of the kernel, on NICs %d", calls[onVLANs], calls[plain])
	}
}

func TestADDsAndDELsAtOnceKeepTheirVLANs(t *testing.T) {
	t.Parallel()
	for range 20 {
		w := newVLANWorld(t)
		w.mustCome("c1")
		w.fake.Pod(podPath("c2"))
		req := w.request("c2", "net1", "")
		var both sync.WaitGroup
		var err error
		both.Go(func() { w.mustLeave("c1", "beside an ADD") })
		both.Go(func() { _, err = w.node().Add(ctx, req) })
		both.Wait()
		if err != nil {
			t.Fatalf("ADD beside the DEL of the last pod: %v", err)
		}
		w.mustHaveVLANs(true, "after ADD beside DEL")
		w.mustCheck(req)
		w.mustLeave("c2")
		w.mustBeEmpty("after the last DEL")
	}
}

func TestRepairMakesAVLANAgain(t *testing.T) {
	t.Parallel()
	w := newVLANWorld(t)
	w.mustCome("c1")
	before, host := w.fake.String(), w.fake.Host().String()
	w.fake.Host().IP("link del ens1.120")
	if err := w.node().Check(ctx, w.request("c1", "net1", "")); err == nil || !strings.Contains(err.Error(), "ens1.120") {
		t.Errorf("CHECK without the VLAN: %v", err)
	}
	at := conf.Attachment{ContainerID: "c1", IfName: "net1"}
	if _, err := w.repairs().Repair(ctx, at); err != nil {
		t.Fatalf("repair: %v", err)
	}
	w.mustBeWhole("c1")
	if len(w.fake.String()) != len(before) || len(w.fake.Host().String()) != len(host) {
		t.Errorf("after repair:\n%s%s\nwant\n%s%s", w.fake, w.fake.Host(), before, host)
	}
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
}

func TestAFailedADDLeavesTheVLANsOfOthers(t *testing.T) {
	t.Parallel()
	for i := 1; ; i++ {
		w := newVLANWorld(t)
		w.mustCome("c1")
		w.fake.Pod(podPath("c2"))
		calls := w.fake.Calls()
		w.fake.FailAt(i, errFault)
		_, err := w.node().Add(ctx, w.request("c2", "net1", ""))
		if err == nil && w.fake.Calls()-calls < i {
			break
		}
		if !errors.Is(err, errFault) {
			t.Errorf("failing at call %d: %v", i, err)
		}
		w.mustHaveVLANs(true, "after an ADD that failed")
		w.mustLeave("c1")
		w.mustBeEmpty("after DEL")
	}
}
