// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// vlansOfRails returns the names of the VLANs of all rails.
func vlansOfRails(id int) (out []string) {
	for i := range rails() {
		out = append(out, fmt.Sprintf("r%d.%d", i, id))
	}
	return out
}

func mustBeOnHost(t *testing.T, links []string, want bool, when string) {
	t.Helper()
	for _, l := range links {
		if onHost(l) != want {
			t.Errorf("%s: the host has %s: %v, want %v", when, l, !want, want)
		}
	}
}

// lastPodTakesVLANs ends the last of the pods that share VLANs: until then they are there,
// and GC removes them when the pod is gone without a DEL.
func lastPodTakesVLANs(t *testing.T, last attachment, vlans []string) {
	t.Helper()
	mustBeOnHost(t, vlans, true, "after the first of two pods")
	last.mustCheck()
	last.pod.Remove(t)
	if err := last.gc(); err != nil {
		t.Errorf("GC: %v", err)
	}
	mustBeOnHost(t, vlans, false, "after GC, when the last pod is gone")
}

// TestLongSharedRailsOnVLANs has each NIC's own VLAN below each rail of two pods.
func TestLongSharedRailsOnVLANs(t *testing.T) {
	n := newNode(t, "shared")
	n.allowVLANs()
	before, vlans := allGIDs(t, ""), vlansOfRails(160)
	config := vlan(dualRails(n.allRails()), 160)
	a, b := n.attach(config, n.pod()), n.attach(config, n.pod())
	for _, att := range []attachment{a, b} {
		addrs := att.addRails()
		att.aligned(allGIDs(t, ""), addrs)
		att.mustCheck()
	}
	for i, l := range vlans {
		contains(t, run(t, "ip", "-d", "link", "show", "dev", l), fmt.Sprintf("%s@r%d", l, i), "id 160", "alias roce:vlan")
	}
	contains(t, n.rocectl("show"), vlans...)
	for range 2 {
		a.mustDel()
	}
	lastPodTakesVLANs(t, b, vlans)
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(allGIDs(t, ""), before) })
	n.nothingLeft()
}

// TestLongSharedVLANWithALink has eth0 on a VLAN with a link to the machine, in two pods.
func TestLongSharedVLANWithALink(t *testing.T) {
	n := newNode(t, "shared")
	n.allowVLANs()
	config, vlans := n.linkedTo(vlan(n.rail(0), 170), 64), []string{"r0.170"}
	a, b := n.attach(config, n.pod()).as("eth0"), n.attach(config, n.pod()).as("eth0")
	for _, att := range []attachment{a, b} {
		addr := att.mustAdd()[0]
		att.mustCheck()
		n.meets(att.pod, addr)
		if diff := cmp.Diff(places(t, gids(t, "", "rxe0"), []string{addr}), att.indexes()); diff != "" {
			t.Errorf("%s: recorded indexes (-table +record)\n%s", att.pod.Name, diff)
		}
	}
	contains(t, n.rocectl("show"), "r0.170", "host0", "link to the node")
	contains(t, n.rocectl("doctor", "left-behind"), "a record names each")
	for range 2 {
		a.mustDel()
	}
	a.pod.empty(t)
	lastPodTakesVLANs(t, b, vlans)
	b.mustDel()
	n.nothingLeft()
	mustHaveNoLink(t)
}

func mustHaveNoLink(t *testing.T) {
	t.Helper()
	if left := shell(t, "ip -o link; ip rule; ip route show table all"); strings.Contains(left, "8200") || strings.Contains(left, "alias roce:") {
		t.Errorf("the machine still has\n%s", left)
	}
}

// TestLongSharedDoctorRemovesWhatNoRecordNames takes the records away from a VLAN, a link to
// a pod and the rule. The commands of doctor remove all three.
func TestLongSharedDoctorRemovesWhatNoRecordNames(t *testing.T) {
	n := newNode(t, "shared")
	n.allowVLANs()
	a := n.attach(n.linkedTo(vlan(n.rail(0), 180), 64), n.pod()).as("eth0")
	a.mustAdd()
	records := filepath.Join(n.state, "attachments")
	if err := os.Rename(records, records+".away"); err != nil {
		t.Fatal(err)
	}
	found, err := n.tryRocectl("doctor", "left-behind")
	if err == nil {
		t.Error("rocectl doctor says ok")
	}
	contains(t, found, "r0.180", "a VLAN that roce has made", "a link to the pod "+a.id()+"/eth0", "the rule to table 8200")
	commands := regexp.MustCompile(`ip (link del \S+|-[46] rule del priority 500 table 8200 protocol 82)`).FindAllString(found, -1)
	if len(commands) != 3 {
		t.Fatalf("doctor prints the commands %q, want three:\n%s", commands, found)
	}
	for _, c := range commands {
		shell(t, c)
	}
	contains(t, n.rocectl("doctor", "left-behind"), "interfaces and rules of pods on the node: 0")
	mustBeOnHost(t, []string{"r0.180"}, false, "after the commands of doctor")
	mustHaveNoLink(t)

	_ = os.Remove(records) // doctor or a lock may have made it again
	if err := os.Rename(records+".away", records); err != nil {
		t.Fatal(err)
	}
	a.mustDel() // of what is gone
	n.nothingLeft()
}

// TestLongSharedShowOfAnIpvlan looks at an ipvlan as the operator does.
func TestLongSharedShowOfAnIpvlan(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(ipvlan(n.rail(0)), n.pod())
	addr := a.mustAdd()[0]
	contains(t, n.rocectl("show"), "net1", addr, " r0 ", "rxe0")
	a.mustDel()
	if out := n.rocectl("show"); strings.Contains(out, addr) {
		t.Errorf("rocectl show after DEL:\n%s", out)
	}
	n.nothingLeft()
}
