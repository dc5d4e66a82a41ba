// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// A pod with CAP_NET_ADMIN does what it can to its interface, while other pods come
// and go. It has one address of the pool at a time that is not its own: docs/security.md
// says what a pod can do with more.
//
// HOSTILE_STEPS is how many steps it takes, and HOSTILE_SEED the seed.
func TestAPodWithNetAdminStopsNoOtherPod(t *testing.T) {
	t.Parallel()
	seed, steps := uint64(1), 60
	for name, value := range map[string]any{"HOSTILE_SEED": &seed, "HOSTILE_STEPS": &steps} {
		if s := os.Getenv(name); s != "" {
			if _, err := fmt.Sscan(s, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	rnd := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, 1)
	elsewhere := w.pod(t)
	attacker := w.podNamed(t, "attacker")
	a := w.attach(w.rail(0), attacker, "net1")
	addr := addrOfResult(t, a.mustAdd(t)).String()
	var story []string
	for i := range steps {
		for _, command := range hostileCommands(rnd, addr, elsewhere.Name) {
			_, err := attacker.Run("ip", strings.Fields(command)...)
			story = append(story, fmt.Sprintf("%s (%v)", command, err))
		}
		switch {
		case i%12 == 11:
			if err := a.del(t); err != nil {
				t.Fatalf("seed %d: DEL of the attacker: %v\n%s", seed, err, strings.Join(story, "\n"))
			}
			w.noRecords(t)
			attacker.Remove(t)
			attacker = w.podNamed(t, "attacker")
			a = w.attach(w.rail(0), attacker, "net1")
			addr = addrOfResult(t, a.mustAdd(t)).String()
			story = nil
		case i%3 == 2:
			victim := w.attach(w.rail(0), w.pod(t), "net1")
			if _, err := victim.add(t); err != nil {
				t.Fatalf("seed %d: ADD of another pod: %v\n%s", seed, err, strings.Join(story, "\n"))
			}
			victim.mustDel(t)
		}
	}
	if err := a.del(t); err != nil {
		t.Fatalf("seed %d: DEL of the attacker: %v\n%s", seed, err, strings.Join(story, "\n"))
	}
	w.nothingLeased(t)
}

// hostileCommands returns what a pod does to its network in one step.
func hostileCommands(rnd *rand.Rand, addr, elsewhere string) []string {
	pick := func(words ...string) string { return words[rnd.IntN(len(words))] }
	link := pick("net1", "net1", "net1", "x`id`", "lo", "net9")
	n := rnd.IntN(200)
	return [][]string{
		{fmt.Sprintf("rule add from %s lookup %d priority %s protocol 82", addr, 1+n, pick("32000", "32001", "1"))},
		{fmt.Sprintf("rule add from %s lookup 100 priority 32000 ipproto tcp sport %d protocol 82", addr, 1+n)},
		{fmt.Sprintf("rule add from all blackhole priority %d", n)},
		{"rule del priority 32000", "rule del priority 32001"},
		{fmt.Sprintf("route add blackhole 172.16.10.%d/32", n), fmt.Sprintf("route add default dev %s table 100 metric %d proto 82", link, n)},
		{"route flush table 100", "route flush table main"},
		{"link set " + link + " down", "link set " + link + " name x`id`", "link set x`id` up"},
		{"link set x`id` down", "link set x`id` name net1", "link set net1 up"},
		{"link set " + link + " alias " + pick("$(id)", "roce:other/net1", "x")},
		{"link set " + link + " address 02:00:00:00:00:" + fmt.Sprintf("%02x", n)},
		{"link set " + link + " mtu " + pick("100", "1280", "1500", "9000"), "link set " + link + " promisc on"},
		{"addr flush dev " + link + " to 172.16.10.64/26", fmt.Sprintf("addr add 172.16.10.%d/24 dev %s", 64+rnd.IntN(64), link)},
		{fmt.Sprintf("addr add 10.99.0.%d/24 dev %s", n, link), "addr del " + addr + "/24 dev " + link},
		{"link set " + link + " down"},
		{"link set " + link + " up"},
		{"link del " + link},
		{"link add net1 type bridge"},
		{"link add net9 type veth peer name net10"},
		{"link add link " + link + " name net9 type macvlan mode bridge"},
		{"link set " + link + " type macvlan mode " + pick("private", "vepa", "bridge")},
		{"link set " + link + " netns " + elsewhere},
		{"link set " + link + " group " + pick("1919902565", "0", "7")},
		{"link property add dev " + link + " altname net1"},
	}[rnd.IntN(23)]
}
