// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// allowVLANs lets the settings of the node allow the VLANs 100 to 199.
func (n *node) allowVLANs() {
	n.t.Helper()
	n.settle(`, "namespaces": {"*": {"vlans": ["100-199"]}}`)
}

func vlan(c network, id int) network { return c.With("vlan", id) }

// onHost says whether the host has a link.
func onHost(link string) bool {
	_, err := os.Stat("/sys/class/net/" + link)
	return err == nil
}

func TestSharedPodsShareAVLAN(t *testing.T) {
	n := newNode(t, "shared")
	config := vlan(dual(n.rail(0), 0), 120)
	contains(t, n.attach(config, n.pod()).mustFail(7), "vlan", "120", "node.json")
	n.allowVLANs()
	contains(t, n.attach(vlan(n.rail(0), 200), n.pod()).mustFail(7), "vlan", "100-199")
	before := gids(t, "", "rxe0")
	a, b := n.attach(config, n.pod()), n.attach(config, n.pod())
	addrs := [][]string{a.mustAdd(), b.mustAdd()}
	contains(t, run(t, "ip", "-d", "link", "show", "dev", "r0.120"), "vlan protocol 802.1Q id 120", "alias roce:vlan", "mtu 9000", "state UP")
	if got := run(t, "ip", "-o", "addr", "show", "dev", "r0.120"); got != "" {
		t.Errorf("the node has addresses in the VLAN: %s", got)
	}
	now := gids(t, "", "rxe0")
	for i, att := range []attachment{a, b} {
		if diff := cmp.Diff(places(t, now, addrs[i]), att.indexes()); diff != "" {
			t.Errorf("%s: recorded indexes (-table +record)\n%s", att.pod.Name, diff)
		}
		at := att.indexes()[addrs[i][0]]
		// The GID belongs to the interface of the pod, not to the VLAN.
		if got := gidNetdev(t, att.pod.Name, "rxe0", at); !hides() && got != "net1" {
			t.Errorf("GID %d of the pod belongs to %q, want net1", at, got)
		}
		att.mustCheck()
		att.mustAdd() // again: all stands
	}
	for _, addr := range addrs[1] {
		run(t, "ip", "netns", "exec", a.pod.Name, "ping", "-c", "1", "-W", "20", addr)
	}
	contains(t, n.attach(n.rail(0).With("master", "r0.120"), n.pod()).mustFail(102), "r0.120", `"vlan": 120`)
	contains(t, n.rocectl("show"), "r0.120")

	run(t, "ip", "link", "del", "r0.120") // with the interfaces of both pods
	contains(t, a.check(), "r0.120", "no such interface")
	n.rocectl("repair", "--yes")
	a.mustCheck()
	b.mustCheck()

	a.mustDel()
	if !onHost("r0.120") {
		t.Error("the VLAN went with the first of two pods")
	}
	b.pod.Remove(t)
	for range 2 {
		b.mustDel()
	}
	if onHost("r0.120") {
		t.Error("the VLAN is there after the last DEL")
	}
	cnitest.Await(t, "the GIDs are gone", func() bool { return cmp.Equal(gids(t, "", "rxe0"), before) })
	n.nothingLeft()
}

// gidNetdev returns the interface of a GID, as a namespace sees it.
func gidNetdev(t *testing.T, netns, device string, index int) string {
	t.Helper()
	out, _ := try("ip", "netns", "exec", netns, "cat", filepath.Join("/sys/class/infiniband", device, "ports/1/gid_attrs/ndevs", strconv.Itoa(index)))
	return strings.TrimSpace(out)
}

func TestExclusivePodOnAVLANGetsTheDevice(t *testing.T) {
	n := newNode(t, "exclusive")
	n.allowVLANs()
	a := n.attach(vlan(n.rail(0), 150), n.pod())
	addrs := a.mustAdd()
	isIn(t, a.pod, "rxe0")
	if diff := cmp.Diff(places(t, gids(t, a.pod.Name, "rxe0"), addrs), a.indexes()); diff != "" {
		t.Errorf("recorded indexes (-table +record)\n%s", diff)
	}
	a.mustCheck()
	contains(t, n.attach(n.rail(0), n.pod()).mustFail(109), a.pod.Name)
	a.mustDel()
	home(t)
	if onHost("r0.150") {
		t.Error("the VLAN is there after DEL")
	}
	n.nothingLeft()
}
