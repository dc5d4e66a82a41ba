// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/tool/verify"
)

// four is one of four machines, gpu-01 to gpu-04, with a pod on the rails r0 and r1. What the
// tests say to each other, and eth0 of the pods, is on the wire of r2, which has no fault.
type four struct {
	*node
	self   int // VM_NODE
	others []*peer
	job    *pod
	at     attachment
	serves bool
}

func gpu(i int) string { return fmt.Sprintf("gpu-0%d", i+1) }

const nodes = 4

// leader is the node with a connection to all others. Its pod leads the test.
const leader = 1

func newFour(t *testing.T) *four {
	t.Helper()
	t.Setenv(verify.TokenVariable, "the token of a test")
	f := &four{node: newNode(t, "shared")}
	var err error
	if f.self, err = strconv.Atoi(os.Getenv("VM_NODE")); err != nil {
		t.Fatal(err)
	}
	f.others = meetOn(t, "r2", nodes-1)
	for i := range 2 {
		emulate(t, fmt.Sprintf("r%d", i))
	}
	f.job = f.pod()
	shell(t, fmt.Sprintf(`ip link add link r2 name eth0 netns %[1]s type macvlan mode bridge
		ip -n %[1]s addr add %[2]s/24 dev eth0
		ip -n %[1]s link set eth0 up`, f.job.Name, control(f.self)))
	return f
}

// control is the address of a pod on eth0.
func control(i int) string { return fmt.Sprintf("10.0.8.%d", i+1) }

// together waits until the tests of all machines have come to the same place.
func (f *four) together(place string) {
	f.t.Helper()
	for range 2 { // each has come; each knows that all have come
		for _, p := range f.others {
			if heard := p.swap(place); heard != place {
				f.t.Fatalf("this machine is at %q, another one at %q", place, heard)
			}
		}
	}
}

// network has rails on these two NICs, in this order. Each node has one address on each rail:
// gpu-03 has 172.16.10.3 and 172.16.11.3.
func (f *four) network(links ...string) network {
	var list []any
	for _, l := range links {
		list = append(list, map[string]any{"master": l})
	}
	return f.allRails().With("rails", list).With("ipam", map[string]any{"type": "roce-ipam", "quarantine": "0s", "subnets": []any{map[string]any{
		"subnet": "172.16.{rail+10}.0/24", "ranges": []any{fmt.Sprintf("172.16.{rail+10}.%[1]d-172.16.{rail+10}.%[1]d", f.self+1)},
	}}})
}

// add attaches the pod, and starts its server.
func (f *four) add(c network) [][]string {
	f.t.Helper()
	f.at = f.attach(c, f.job)
	addrs := f.at.addRails()
	f.serve()
	return addrs
}

// again attaches the pod to another network.
func (f *four) again(c network) {
	f.t.Helper()
	f.at.mustDel()
	f.add(c)
}

// join lets rxe know the addresses of the pod, as node.join does.
func (f *four) join(addrs [][]string) (forget func()) {
	f.t.Helper()
	var script string
	for i, on := range addrs {
		run(f.t, "ip", "addr", "add", on[0]+"/32", "dev", fmt.Sprintf("r%d", i), "scope", "host")
		script += fmt.Sprintf("ip addr del %s/32 dev r%d\n", on[0], i)
	}
	finally(f.t, script)
	return func() { shell(f.t, script) }
}

// serve starts the server of the pod, if it does not run: it looks at the rails at each call.
func (f *four) serve() {
	f.t.Helper()
	if f.self == leader || f.serves {
		return
	}
	f.serves = true
	cmd := exec.Command(f.program(), "verify", "serve", "--netns", f.job.Name, "--name", gpu(f.self), "--listen", control(f.self)+":9483")
	if lines := start(f.t, cmd); !lines.Scan() {
		f.t.Fatal("rocectl verify serve says nothing")
	}
	f.t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // with the status of a killed program
}

func (f *four) program() string { return filepath.Join(*programs, "rocectl") }

// lead runs rocectl verify in the pod of the leader, and says what it found. The other
// machines wait for the end.
func (f *four) lead(when string, args ...string) (said string) {
	f.t.Helper()
	f.together(when)
	if f.self == leader {
		said = f.command(when, args...)
	}
	f.together("after " + when)
	return said
}

// command runs rocectl verify in this pod, with all others.
func (f *four) command(when string, args ...string) string {
	f.t.Helper()
	args = append([]string{"verify", "--netns", f.job.Name, "--name", gpu(leader)}, args...)
	for i := range nodes {
		if i != leader {
			args = append(args, gpu(i)+"="+control(i))
		}
	}
	began := time.Now()
	said, _ := try(f.program(), args...) // its status is that of the container, which --netns cannot tell
	_, summary, _ := strings.Cut(said, "\n# ")
	f.t.Logf("%s, in %s:\n# %s", when, time.Since(began).Round(time.Second), summary)
	return said
}

// healthy is the summary of a test without a fault. It cannot tell of any pod whether its
// container has the device files.
const healthy = " 0 problems, 4 cannot tell"

// well tests all pods with each other, and finds no fault.
func (f *four) well(when string) {
	f.t.Helper()
	said := f.lead(when, "--all", "--verbose")
	if f.self != leader {
		return
	}
	contains(f.t, said, healthy)
	for a := range nodes {
		for b := range a {
			for rail := range 2 {
				if !strings.Contains(said, fmt.Sprintf("rail %d of %s to %s: packets of 9000 bytes pass", rail, gpu(a), gpu(b))) &&
					!strings.Contains(said, fmt.Sprintf("rail %d of %s to %s: packets of 9000 bytes pass", rail, gpu(b), gpu(a))) {
					f.t.Errorf("%s: rail %d of %s and %s is not tested", when, rail, gpu(a), gpu(b))
				}
			}
		}
	}
}

// transfers tests the pod of the leader with each other one by RDMA. On a busy host, one
// transfer in about 30 ends with an error, perhaps because the wire loses the frames of a
// machine that does not run just then. So it may try again.
func (f *four) transfers() {
	f.t.Helper()
	const when = "RDMA"
	f.together(when)
	if f.self == leader {
		var said string
		for range 5 {
			if said = f.command(when, "--rdma", "--verbose"); strings.Contains(said, healthy) {
				break
			}
		}
		contains(f.t, said, healthy)
		for i := range nodes {
			for rail := range 2 {
				if to := fmt.Sprintf("rail %d of %s to %s: ", rail, gpu(leader), gpu(i)); i != leader {
					contains(f.t, said, to+"rping connects", to+"ib_write_bw transfers ")
				}
			}
		}
	}
	f.together("after " + when)
}

// fault is one that a machine makes, and the beginnings of the verdicts that name it. There is
// no other verdict, or only of also.
type fault struct {
	name        string
	of          int // the machine
	spoil, heal func()
	want        []string
	also        *regexp.Regexp
}

func (c fault) judge(t *testing.T, verdicts []string) {
	t.Helper()
	found := map[string]bool{}
	for _, v := range verdicts {
		i := slices.IndexFunc(c.want, func(want string) bool { return strings.HasPrefix(v, want) })
		switch {
		case i >= 0:
			found[c.want[i]] = true
		case c.also == nil || !c.also.MatchString(v):
			t.Errorf("%s: it also says %q", c.name, v)
		}
	}
	for _, want := range c.want {
		if !found[want] {
			t.Errorf("%s: no verdict begins with %q", c.name, want)
		}
	}
}

// find has a fault in one machine. The verdicts name it, and when it is gone, all is well.
func (f *four) find(c fault) {
	f.t.Helper()
	if f.self == c.of {
		c.spoil()
	}
	said := f.lead(c.name, "--all")
	if f.self == leader {
		var verdicts []string
		for line := range strings.Lines(said) {
			if check, ok := strings.CutPrefix(line, "problem "); ok {
				_, v, _ := strings.Cut(strings.TrimSpace(check), " ")
				verdicts = append(verdicts, strings.TrimSpace(v))
			}
		}
		if c.judge(f.t, verdicts); f.t.Failed() {
			f.t.Log(said)
		}
	}
	if f.self == c.of {
		c.heal()
	}
	f.forgetNeighbours()
	f.well(c.name + " is gone")
}

// forgetNeighbours lets the kernel of the pod ask again, so that it knows no MAC of a host that
// was there for the fault.
func (f *four) forgetNeighbours() {
	f.t.Helper()
	run(f.t, "ip", "-n", f.job.Name, "neigh", "flush", "all")
}

// TestFourNodesSharedVerifyNamesEachFault breaks one rail of one of four nodes in five ways.
// Each verdict names this rail and the fault, and after each all is well again.
//
// It takes long, so make test-verify runs it.
func TestFourNodesSharedVerifyNamesEachFault(t *testing.T) {
	f := newFour(t)
	const third, fourth = 2, 3
	addrs := f.add(f.network("r0", "r1"))
	f.well("all rails")
	forget := f.join(addrs)
	f.transfers()
	forget() // roce gives no pod an address that the node has

	f.find(fault{
		name: "wrong MTU", of: third,
		spoil: func() { run(t, "ip", "link", "set", "r0", "mtu", "1500") },
		heal: func() {
			run(t, "ip", "link", "set", "r0", "mtu", "9000")
			run(t, "ip", "-n", f.job.Name, "link", "set", "net1", "mtu", "9000")
		},
		want: []string{"rail 0 of gpu-03: mtu fails with all 3 other pods: MTU "},
	})
	f.find(fault{
		name: "swapped rails", of: third,
		spoil: func() { f.again(f.network("r1", "r0")) },
		heal:  func() { f.again(f.network("r0", "r1")) },
		want:  []string{"all 2 rails of gpu-03: reach fails; rail 0: rail 0 of gpu-01 is in the network of rail 1 of gpu-03"},
	})
	f.find(fault{
		name: "one-way loss", of: third, // nothing that is sent to it arrives
		spoil: func() { shell(t, "tc filter add dev r1 ingress pref 2 protocol all matchall action drop") },
		heal:  func() { shell(t, "tc filter del dev r1 ingress pref 2") },
		want:  []string{"rail 1 of gpu-03: reach fails with all 3 other pods: frames are lost in one direction: to gpu-03"},
	})
	var intruder *pod
	f.find(fault{
		name: "duplicate address", of: fourth,
		spoil: func() {
			intruder = f.pod()
			shell(t, strings.ReplaceAll(`ip link add link r1 name eth1 netns POD type macvlan mode bridge
				ip -n POD addr add 172.16.11.3/24 dev eth1
				ip -n POD link set eth1 up`, "POD", intruder.Name))
		},
		heal: func() { intruder.Remove(t) },
		want: []string{"rail 1 of gpu-03: 172.16.11.3 is used on net1-1 by "},
		also: regexp.MustCompile(`^rail 1 of (gpu-03|gpu-0\d to gpu-03)\b`), // what is sent to it reaches the other one
	})

	// The pods' network is on a VLAN, which a switch port does not carry.
	f.allowVLANs()
	f.again(vlan(f.network("r0", "r1"), 120))
	f.well("rails on a VLAN")
	f.find(fault{
		name: "dropped VLAN", of: third,
		spoil: func() { // a port tells no sender that it drops a frame: trap, not drop
			shell(t, `for way in ingress egress; do
				tc filter add dev r1 $way pref 2 protocol 802.1Q flower vlan_id 120 action trap
			done`)
		},
		heal: func() { shell(t, "for way in ingress egress; do tc filter del dev r1 $way pref 2; done") },
		want: []string{"rail 1 of gpu-03: reach fails with all 3 other pods: no frame passes in either direction"},
	})
	f.at.mustDel()
	f.together("the end")
}
