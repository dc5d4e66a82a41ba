// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// maker is a CNI plugin that gives a pod a child of r0 and the address
// 172.16.10.9, as macvlan with static does. CHECK finds nothing.
const maker = `#!/bin/sh -e
pod=${CNI_NETNS##*/}
case $CNI_COMMAND in
ADD)
	ip link add link r0 name $CNI_IFNAME netns $pod type macvlan mode bridge
	ip -n $pod addr add 172.16.10.9/24 dev $CNI_IFNAME
	ip -n $pod link set $CNI_IFNAME up
	mac=$(ip netns exec $pod cat /sys/class/net/$CNI_IFNAME/address)
	echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "'$CNI_IFNAME'", "mac": "'$mac'", "sandbox": "'$CNI_NETNS'"}],
		"ips": [{"address": "172.16.10.9/24", "interface": 0}]}'
	;;
DEL) ip -n $pod link del $CNI_IFNAME 2>/dev/null || true ;;
esac
`

// behind returns the attachment with roce behind the maker, adopting what it
// makes.
func (a attachment) behind(t *testing.T) attachment {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "maker"), []byte(maker), 0o700); err != nil {
		t.Fatal(err)
	}
	a.before = &plugin{dir, network{"type": "maker"}}
	a.network = network{"cniVersion": "1.1.0", "name": "chain", "type": "roce"}
	return a
}

func TestSharedAdoptedInterfaceFindsItsGID(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(nil, n.pod()).behind(t)
	addrs := a.mustAdd()
	if !slices.Equal(addrs, []string{"172.16.10.9"}) {
		t.Errorf("the result has the addresses %q, want those of the plugin before", addrs)
	}
	want := places(t, gids(t, "", "rxe0"), addrs)
	if got := a.indexes(); got[addrs[0]] != want[addrs[0]] {
		t.Errorf("recorded indexes %v, want %v", got, want)
	}
	a.mustCheck()
	a.mustDel()
	a.pod.empty(t)
	n.noRecords()
}

func TestExclusiveAdoptedInterfaceGetsItsDevice(t *testing.T) {
	n := newNode(t, "exclusive")
	a := n.attach(nil, n.pod()).behind(t)
	addrs := a.mustAdd()
	isIn(t, a.pod, "rxe0")
	places(t, gids(t, a.pod.Name, "rxe0"), addrs)
	a.mustCheck()
	a.mustDel()
	if !slices.Contains(entries("/sys/class/infiniband"), "rxe0") {
		t.Error("the device has not come home")
	}
	a.pod.empty(t)
	n.noRecords()
}
