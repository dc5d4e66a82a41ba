// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// parent returns the name of the link of parents that carries a macvlan.
func (ns *namespace) parent(t testing.TB, link string, parents *namespace) string {
	t.Helper()
	_, rest, ok := strings.Cut(ns.MustRun(t, "ip", "-oneline", "link", "show", "dev", link), link+"@if")
	index, _, _ := strings.Cut(rest, ":")
	if !ok {
		t.Fatalf("%s has no parent in another namespace", link)
	}
	for line := range strings.Lines(parents.MustRun(t, "ip", "-oneline", "link", "show")) {
		if rest, ok := strings.CutPrefix(line, index+": "); ok {
			name, _, _ := strings.Cut(rest, "@")
			return name
		}
	}
	t.Fatalf("no link has the index %s", index)
	return ""
}

func TestMasterIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.IP(t, `
		link property add dev rail1 altname enp11s0f0np0-second-port
		link property add dev rail1 altname short1
		route add default via 172.16.12.254 dev rail2`)
	p := w.pod(t)
	tests := []struct {
		name   string
		master any
		want   string
	}{
		{"by name", "rail0", "rail0"},
		{"by alternative name", "short1", "rail1"},
		{"by alternative name that is too long for a name", "enp11s0f0np0-second-port", "rail1"},
		{"by the default route when the key is absent", nil, "rail2"},
		{"by the default route when the name is empty", "", "rail2"},
		{"by a subnet", map[string]any{"subnet": "172.16.11.0/24"}, "rail1"},
		{"by an IPv6 subnet", map[string]any{"subnet": "fd00:11::/64"}, "rail1"},
		{"by a pattern of names", map[string]any{"ifNames": []any{"eth*", "ra?l1"}}, "rail1"},
		{"by several properties together", map[string]any{"ifNames": []any{"rail*"}, "subnet": "172.16.10.0/24", "linkTypes": []any{"ether"}}, "rail0"},
	}
	for i, tt := range tests {
		rail := int(tt.want[4] - '0')
		a := w.attach(w.rail(rail).With("name", fmt.Sprint("net", i)).With("ipam.pool", tt.want).With("master", tt.master), p, fmt.Sprintf("net%d", i))
		if _, err := a.add(t); err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if got := p.parent(t, a.ifName, w.node.namespace); got != tt.want {
			t.Errorf("%s: the master is %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestMasterThatIsNotFoundIsAnErrorThatListsWhatThereIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.wire(t, 7)
	w.IP(t, "link set dev rail7 down")
	p := w.pod(t)
	pod, node := p.snapshot(t), w.snapshot(t)
	tests := []struct {
		name   string
		master any
		names  []string
	}{
		{"no such name", "rail9", []string{"rail9"}},
		{"no default route", nil, nil},
		{"a selector that matches several", map[string]any{"ifNames": []any{"rail[01]"}}, []string{"rail0", "rail1"}},
		{"a selector that matches none", map[string]any{"ifNames": []any{"eth*"}}, []string{"rail0", "rail1"}},
		{"a subnet that none has", map[string]any{"subnet": "192.0.2.0/24"}, []string{"rail0", "rail1"}},
		{"down", "rail7", []string{"rail7"}},
		{"loopback", "lo", []string{"lo"}},
	}
	for _, tt := range tests {
		err := w.attach(w.rail(0).With("master", tt.master), p, "net1").mustFail(t, 102)
		for _, name := range tt.names {
			if !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v: want it to name %s", tt.name, err, name)
			}
		}
	}
	p.unchanged(t, pod)
	w.unchanged(t, node)
	w.noRecords(t)
}

func TestMasterMayBeInThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	p := w.pod(t)
	w.wireTo(t, &node{namespace: p.namespace}, 0, "leaf0")
	w.leaf.IP(t, "addr add 172.16.10.254/24 dev leaf0")
	before := p.snapshot(t)
	a := w.attach(w.rail(0).With("linkInContainer", true), p, "net1")
	res := a.mustAdd(t)
	if got := p.MustRun(t, "ip", "-oneline", "link", "show", "dev", "net1"); !strings.Contains(got, "net1@rail0:") {
		t.Errorf("got %s, want a child of rail0", got)
	}
	w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", addrOfResult(t, res).String())
	a.mustDel(t)
	p.unchanged(t, before)
}

func TestEveryModeReachesTheGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	p := w.pod(t)
	before, node := p.snapshot(t), w.snapshot(t)
	var made []attachment
	for i, mode := range []string{"bridge", "private", "vepa", "passthru"} {
		a := w.attach(w.rail(i).With("mode", mode), p, fmt.Sprintf("net%d", i))
		made = append(made, a)
		res, err := a.add(t)
		if err != nil {
			t.Errorf("%s: %v", mode, err)
			continue
		}
		if got := p.MustRun(t, "ip", "-details", "link", "show", "dev", a.ifName); !strings.Contains(got, "macvlan mode "+mode+" ") {
			t.Errorf("%s: got %s", mode, got)
		}
		if mac := w.mac(t, fmt.Sprintf("rail%d", i)); (res.Interfaces[0].Mac == mac) != (mode == "passthru") {
			t.Errorf("%s: the MAC is %s, that of the master is %s", mode, res.Interfaces[0].Mac, mac)
		}
		if got, want := p.mac(t, a.ifName), res.Interfaces[0].Mac; got != want {
			t.Errorf("%s: the MAC is %s, the result says %s", mode, got, want)
		}
		p.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", "-I", addrOfResult(t, res).String(), fmt.Sprintf("172.16.%d.254", 10+i))
	}
	for _, a := range made {
		a.mustDel(t)
	}
	p.unchanged(t, before)
	w.unchanged(t, node)
}

func TestLinkHasTheMTUAndTheQueueAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	tests := []struct {
		ifName string
		mtu    any
		want   int
	}{
		{"net0", nil, 9000}, {"net1", 0, 9000}, {"net2", 1400, 1400}, {"net3", 9000, 9000},
	}
	for _, tt := range tests {
		res := w.attach(w.rail(0).With("mtu", tt.mtu), p, tt.ifName).mustAdd(t)
		got := p.MustRun(t, "ip", "-oneline", "link", "show", "dev", tt.ifName)
		if !strings.Contains(got, fmt.Sprintf(" mtu %d ", tt.want)) || res.Interfaces[0].Mtu != tt.want {
			t.Errorf("mtu %v: the result says %d, the link is %s, want %d", tt.mtu, res.Interfaces[0].Mtu, got, tt.want)
		}
	}
	before := p.snapshot(t)
	err := w.attach(w.rail(0).With("mtu", 9001), p, "net4").mustFail(t, 7)
	if !strings.Contains(err.Msg, "9001") || !strings.Contains(err.Msg, "9000") {
		t.Errorf("%v: want it to say what is wanted and what the master has", err)
	}
	p.unchanged(t, before)

	w.attach(w.rail(0).With("bcqueuelen", 3000), p, "net5").mustAdd(t)
	if got := p.MustRun(t, "ip", "-details", "link", "show", "dev", "net5"); !strings.Contains(got, " bcqueuelen 3000 ") {
		t.Errorf("got %s, want a queue of 3000", got)
	}
}

func TestInterfaceNamesMayHaveFifteenCharacters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	before := p.snapshot(t)
	for _, ifName := range []string{"net-123456789ab", "net.1", "a"} {
		a := w.attach(w.rail(0).With("ipam.subnets", []any{cnitest.Subnet4(0), cnitest.Subnet6(0)}), p, ifName)
		res := a.mustAdd(t)
		if res.Interfaces[0].Name != ifName {
			t.Errorf("the result says %q, want %q", res.Interfaces[0].Name, ifName)
		}
		if got := p.setting(t, "net/ipv4/conf/"+ifName+"/arp_ignore"); got != "1" {
			t.Errorf("arp_ignore of %s is %s, want 1", ifName, got)
		}
		a.mustDel(t)
		p.unchanged(t, before)
	}
}
