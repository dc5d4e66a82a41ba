// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// newcomer makes another device of a name in the host, on an interface of its own, until
// the test is over. Before Linux 7.3 the kernel refuses a name that a pod's device has.
func newcomer(t *testing.T, name string) {
	t.Helper()
	finally(t, "rdma link del "+name+"; ip link del new0")
	shell(t, "ip link add new0 type veth peer name new1; ip link set new0 up; ip link set new1 up; rdma link add "+name+" type rxe netdev new0")
}

// nameless returns the device that came home without its own name, and gives it that name
// when the newcomer has gone.
func nameless(t *testing.T, name string) {
	t.Helper()
	var found string
	cnitest.Await(t, "a device ibdevN is in the host", func() bool {
		for _, d := range entries("/sys/class/infiniband") {
			if strings.HasPrefix(d, "ibdev") {
				found = d
			}
		}
		return found != ""
	})
	shell(t, "rdma link del "+name+"; ip link del new0; rdma dev set "+found+" name "+name)
}

// TestNamesADeviceComesHomeWhileAnotherHasItsName has names of devices that are unique
// for each namespace, as since Linux 7.3.
func TestNamesADeviceComesHomeWhileAnotherHasItsName(t *testing.T) {
	n := newNode(t, "exclusive")
	for _, gone := range []bool{false, true} {
		a := n.attach(n.rail(0), n.pod())
		a.mustAdd()
		isIn(t, a.pod, "rxe0")
		newcomer(t, "rxe0")
		a.mustCheck()
		if gone {
			a.pod.Remove(t)
		}
		a.mustDel()
		contains(t, a.stderr.String(), "rxe0")
		nameless(t, "rxe0")
		home(t)
		n.nothingLeft()
	}
}

// TestNamesTheSettingsOfTheNewcomerStay has a type of service that the host set.
func TestNamesTheSettingsOfTheNewcomerStay(t *testing.T) {
	n := newNode(t, "exclusive")
	finally(t, setTOS(0))
	a := n.attach(n.rail(0).With("rdma", map[string]any{"mode": "exclusive", "tos": 106}), n.pod())
	a.mustAdd()
	newcomer(t, "rxe0")
	before := run(t, "cat", "/sys/class/infiniband/rxe0/node_guid")
	a.mustDel()
	if now := run(t, "cat", "/sys/class/infiniband/rxe0/node_guid"); now != before {
		t.Errorf("rxe0 has the GUID %s, want that of the newcomer, %s", now, before)
	}
	nameless(t, "rxe0")
	home(t)
}
