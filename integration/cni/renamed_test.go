// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"strings"
	"testing"
)

// A rail goes on working when its NIC gets another name, as after an update of udev's
// rules. So it is no damage, whatever NIC has the name now.
func TestMasterThatWasRenamed(t *testing.T) {
	t.Parallel()
	for name, rename := range map[string]string{
		"alone":                          "link set dev rail0 down\nlink set dev rail0 name old0\nlink set dev old0 up",
		"and another NIC has its name":   "link set dev rail0 name old0\nlink set dev rail1 name rail0",
		"and it has the name of another": "link set dev rail0 name tmp\nlink set dev rail1 name rail0\nlink set dev tmp name old0",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(w.rail(0), p, "net1")
			res := a.mustAdd(t)
			made := p.snapshot(t)
			w.IP(t, rename)

			a.mustCheck(t)
			out, err := w.rocectl("check")
			if err != nil || !strings.Contains(out, "changed by another program") || !strings.Contains(out, "want master rail0, got old0") || !strings.HasSuffix(out, " net1: ok\n") {
				t.Errorf("rocectl check: %v\n%s", err, out)
			}
			if out, err := w.rocectl("repair", "--yes"); err != nil || !strings.Contains(out, "intact") {
				t.Errorf("repair: %v\n%s", err, out)
			}
			a.mustAdd(t)
			p.unchanged(t, made)

			w.IP(t, "link set dev old0 down")
			if err := a.check(t); err == nil || !strings.Contains(err.Msg, "old0 (rail0 in ADD) is down") {
				t.Errorf("CHECK of a NIC that is down: %v, want both of its names", err)
			}
			w.IP(t, "link set dev old0 up")

			t.Log("the link is gone: it is made again on the same NIC")
			p.IP(t, "link del net1")
			w.mustRocectl(t, "repair", "--yes")
			w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-W", "3", "-I", "leaf0", addrs(res)[0].String())
			a.mustCheck(t)
			a.mustDel(t)
			p.unchanged(t, before)
			w.mustBeClean(t)
		})
	}
}

// The name alone would put the pod on another network.
func TestRepairUsesNoOtherNICOfTheName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.pod(t)
	a := w.attach(w.rail(0), p, "net1")
	a.mustAdd(t)
	w.IP(t, "link del rail0\nlink set dev rail1 name rail0")
	out, err := w.rocectl("repair", "--yes")
	if err == nil || !strings.Contains(out, "another NIC than in ADD") {
		t.Errorf("repair: %v, want a refusal\n%s", err, out)
	}
	if out, err := p.Run("ip", "link", "show", "net1"); err == nil {
		t.Errorf("net1 is there: %s", out)
	}
	a.mustDel(t)
	w.mustBeClean(t)
}
