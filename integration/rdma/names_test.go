// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// newcomer makes another device of a name in the host, on an interface of its own. Before
// Linux 7.3 the kernel refuses a name that the device of a pod has.
func newcomer(t *testing.T, name string) {
	t.Helper()
	finally(t, "ip link del new0") // and the device on it
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

// TestNamesTheTypeOfServiceOfTheNewcomerStays has a type of service of the host, which DEL
// restores if only one device has the name.
func TestNamesTheTypeOfServiceOfTheNewcomerStays(t *testing.T) {
	n := newNode(t, "exclusive")
	finally(t, setTOS(0))
	shell(t, setTOS(32))
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	newcomer(t, "rxe0")
	a.mustDel()
	if got := tos(t, ""); got != "0" {
		t.Errorf("the type of service of the newcomer is %s, want its own, 0", got)
	}
	nameless(t, "rxe0")
	home(t)
}
