// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// all tests all pods from the first one, each by the name that the world gives it.
func (w *world) all() Report {
	w.t.Helper()
	var seats []Seat
	for _, p := range w.pods {
		peer, err := w.pods[0].Dial(w.t.Context(), p.address, testKey, p.Name)
		if err != nil {
			w.t.Fatal(err)
		}
		defer peer.Close()
		seats = append(seats, Seat{Member: peer, Name: p.Name, Address: p.address})
	}
	return All(w.t.Context(), seats, Tests{}, false, func(int, int) {})
}

// TestEachFaultOfFourNodesIsNamed breaks one rail of one of four nodes. The verdict names
// that rail and no other, and when all faults are removed, all is well.
//
// It waits for many answers that do not come, so make test-verify runs it.
func TestEachFaultOfFourNodesIsNamed(t *testing.T) {
	if os.Getenv("TEST_VERIFY") == "" {
		t.Skip("make test-verify runs it")
	}
	names := []string{"gpu-01", "gpu-02", "gpu-03", "gpu-04"}
	w := newWorld(t, names...)
	w.wire.Exec("sysctl", "-qw", "net.ipv4.conf.all.arp_ignore=1") // a gateway answers on its own switch only
	w.serve()
	// The port of rail 1 of gpu-03 is gpu-031, and that of its rail 0 gpu-030.
	passes := func(onOff string) {
		w.wire.Exec("bridge", "link", "set", "dev", "gpu-031", "flood", onOff, "bcast_flood", onOff, "mcast_flood", onOff, "learning", onOff)
		w.wire.IP("link set gpu-031 type bridge_slave fdb_flush")
		for _, p := range w.pods {
			p.ns.IP("neigh flush all")
		}
	}
	swap := func(to0, to1 string) {
		w.wire.IP("link set gpu-030 master " + to0)
		w.wire.IP("link set gpu-031 master " + to1)
	}
	var intruder *kerneltest.Netns
	intrude := func() {
		intruder = w.node.Pod()
		w.wire.IP("link add intruder type veth peer name eth1 netns " + intruder.Path)
		w.wire.IP("link set intruder master br1 up mtu 9000")
		intruder.IP("link set eth1 up mtu 9000")
		intruder.IP("address add 172.16.11.3/24 dev eth1")
	}
	leave := func() {
		w.wire.IP("link del intruder")
		for _, p := range w.pods {
			p.ns.IP("neigh flush all")
		}
	}
	for _, c := range []struct {
		name        string
		spoil, heal func()
		want        []string // the faults begin with these, and no other one is found
	}{
		{
			"dropped VLAN, wrong MTU",
			func() {
				w.wire.IP("link set gpu-031 nomaster")
				w.wire.IP("link set gpu-020 mtu 1500")
			},
			func() {
				w.wire.IP("link set gpu-031 master br1")
				w.wire.IP("link set gpu-020 mtu 9000")
			},
			[]string{
				"rail 1 of gpu-03: reach fails with all 3 other pods: no frame passes in either direction",
				"rail 0 of gpu-02: mtu fails with all 3 other pods: no packet with more than 1500 bytes",
			},
		},
		{
			"swapped rails", func() { swap("br1", "br0") }, func() { swap("br0", "br1") },
			[]string{"all 2 rails of gpu-03: reach fails; rail 0: rail 0 of gpu-0"},
		},
		{
			"one-way loss", func() { passes("off") }, func() { passes("on") },
			[]string{"rail 1 of gpu-03: reach fails with all 3 other pods: frames are lost in one direction: to gpu-03"},
		},
		{
			"a rule is lost, another MTU",
			func() {
				w.pods[2].ns.IP("rule del priority 32000 from 172.16.11.3")
				w.pods[3].ns.IP("link set net1 mtu 1400")
			},
			func() {
				w.pods[2].ns.IP("rule add from 172.16.11.3 lookup 101 priority 32000 protocol 82")
				w.pods[3].ns.IP("link set net1 mtu 9000")
			},
			[]string{
				"rail 1 of gpu-03: no rule sends packets from 172.16.11.3 to table 101",
				"rail 0 of gpu-04: mtu fails with all 3 other pods: MTU ",
			},
		},
		{
			"duplicate address", intrude, leave,
			[]string{"rail 1 of gpu-03: 172.16.11.3 is used on net2 by "},
		},
	} {
		c.spoil()
		got := w.all()
		for _, want := range c.want {
			if !strings.Contains(strings.Join(faults(got), "\n"), want) {
				t.Errorf("%s: want %q", c.name, want)
			}
		}
		for _, v := range faults(got) {
			if !oneOf(v, c.want) && c.name != "duplicate address" {
				t.Errorf("%s: it also says %q", c.name, v)
			}
		}
		c.heal()
		if t.Failed() {
			t.Fatalf("%s: %s", c.name, strings.Join(faults(got), "\n"))
		}
	}
	if got := w.all(); len(faults(got)) != 0 || report.Status(got.Answers) != 0 {
		t.Fatalf("after all faults: %s", problems(got.Answers))
	}
}

func oneOf(verdict string, wants []string) bool {
	for _, w := range wants {
		if strings.HasPrefix(verdict, w) {
			return true
		}
	}
	return false
}

// TestFourNodesOfWhichOneGoes: from the first round on, no packet reaches one of them. The
// others do not wait for it as long as TCP does by itself.
func TestFourNodesOfWhichOneGoes(t *testing.T) {
	if os.Getenv("TEST_VERIFY") == "" {
		t.Skip("make test-verify runs it")
	}
	w := newWorld(t, "gpu-01", "gpu-02", "gpu-03", "gpu-04")
	w.serve()
	var guests []Guest
	for _, p := range w.pods {
		guests = append(guests, Guest{Name: p.Name, Address: p.address})
	}
	seats := w.pods[0].Invite(t.Context(), guests, testKey)
	defer Leave(seats)
	var began time.Time
	r := All(t.Context(), seats, Tests{}, false, func(round, _ int) {
		if round == 1 {
			began = time.Now()
			w.wire.IP("link set gpu-03eth down")
		}
	})
	waited := time.Since(began)
	t.Logf("all rounds take %s", waited.Round(time.Second))
	if waited > 4*silence { // TCP by itself waits for ten minutes and more
		t.Errorf("a node that is gone makes the others wait for %s", waited)
	}
	untold := slices.DeleteFunc(slices.Clone(r.Answers), func(a report.Answer) bool { return a.Verdict != report.CannotTell })
	for _, a := range untold {
		if a.Of != "gpu-03" && !strings.HasSuffix(a.Of, " to gpu-03") && !strings.Contains(a.Found, "gpu-03") {
			t.Errorf("it says of another node: %s: %s", a.Of, a.Found)
		}
	}
	if len(untold) == 0 || !strings.Contains(problems(untold), "gpu-03: ") {
		t.Errorf("it says nothing of the node that is gone: %s", problems(r.Answers))
	}
	for _, v := range faults(r) {
		if !strings.Contains(v, "gpu-03") {
			t.Errorf("it blames %q", v)
		}
	}
}
