// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// TestARecordOfAnotherBootIsOnlyRemoved has a pod of an earlier boot, and a pod of this one
// that has the VLANs and the rule that the record of the first names, too.
func TestARecordOfAnotherBootIsOnlyRemoved(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		c2 := conf.Attachment{ContainerID: "c2", IfName: "net1"}
		for name, end := range map[string]func(*world) error{
			"DEL": func(w *world) error { return w.node().Del(ctx, w.del("c1", "net1")) },
			"GC":  func(w *world) error { return w.node().GC(ctx, w.gc("rail", c2)) },
		} {
			w := fresh(t)
			w.now = time.Hour
			w.mustCome("c1")
			w.fake.RemovePod(podPath("c1"))
			w.hca.in = netns.ID{}
			w.boot, w.now = "5f0c2d1e-8a3b-4c6d-9e7f-000000000002", time.Minute
			w.services("10.96.0.0/12", "fd00:96::/108")
			w.mustCome("c2")
			pods, host := w.fake.String(), w.fake.Host().String()
			w.crash = 1 // an operation panics
			err := end(w)
			w.crash = 0
			if err = errors.Join(err, end(w)); err != nil {
				t.Errorf("%s twice after a reboot: %v", name, err)
			}
			if _, err := (record.Store{Dir: w.dir, BootID: w.boot}).Load(c1); !errors.Is(err, record.ErrNotExist) {
				t.Errorf("the record after a reboot and %s: %v, want none", name, err)
			}
			if diff := cmp.Diff(pods, w.fake.String()) + cmp.Diff(host, w.fake.Host().String()); diff != "" {
				t.Errorf("%s after a reboot changed the kernel (-before +after):\n%s", name, diff)
			}
			if err := w.node().Check(ctx, w.request("c2", "net1", "")); err != nil {
				t.Errorf("CHECK of the other pod after %s: %v", name, err)
			}
			w.mustLeave("c2")
			w.mustBeEmpty("after " + name + " of one pod and DEL of the other")
		}
	})
}

// TestTheNamespaceOfARecordOfAnotherBootIsAnotherOne has a container that the runtime starts
// again after a reboot: its namespace has the path and the inode number of before.
func TestTheNamespaceOfARecordOfAnotherBootIsAnotherOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "master": "ens1", "rdma": {"mode": %q}%s}`
	pod := w.fake.Pod(podPath("c1"))
	add := func() {
		t.Helper()
		w.mustAdd(w.request("c1", "net1", ""))
	}
	add()
	whole := w.fake.String()
	pod.IP("link del net1")
	w.boot = "5f0c2d1e-8a3b-4c6d-9e7f-000000000002"
	if err := w.node().Check(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("CHECK after the reboot: %v, want code %d", err, cnierr.Damaged)
	}
	add()
	if diff := cmp.Diff(whole, w.fake.String()); diff != "" {
		t.Errorf("ADD after the reboot makes another attachment (-before +after):\n%s", diff)
	}
}

// TestAVLANThatTheOperatorMakesBetweenTwoADDsStays has a pod on the VLAN of roce. The
// operator removes this VLAN and makes one of the same name, which a second pod uses.
func TestAVLANThatTheOperatorMakesBetweenTwoADDsStays(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world, id string) error{
		"DEL": func(w *world, id string) error { return w.node().Del(ctx, w.del(id, "net1")) },
		"GC":  func(w *world, id string) error { return w.node().GC(ctx, w.gc("rail", c1Unless(id)...)) },
	} {
		w := newVLANWorld(t)
		w.mustCome("c1")
		w.fake.Host().IP("link del ens1.120")
		w.fake.Host().IP("link add link ens1 name ens1.120 type vlan id 120")
		w.fake.Host().IP("link set ens1.120 up")
		w.mustCome("c2")
		w.mustBeWhole("c2")
		for _, id := range []string{"c2", "c1"} {
			if err := end(w, id); err != nil {
				t.Errorf("%s of %s: %v", name, id, err)
			}
			if host := w.fake.Host().String(); !strings.Contains(host, "link ens1.120 ") {
				t.Errorf("%s of %s removed the VLAN of the operator:\n%s", name, id, host)
			}
		}
		if host := w.fake.Host().String(); strings.Contains(host, "link ens3.120 ") {
			t.Errorf("after %s of both pods, the VLAN that roce made is there:\n%s", name, host)
		}
		w.mustBeEmpty("after " + name + " of both pods")
	}
}

// c1Unless returns the attachments that are valid while a pod goes.
func c1Unless(gone string) []conf.Attachment {
	if gone == "c1" {
		return nil
	}
	return []conf.Attachment{c1}
}
