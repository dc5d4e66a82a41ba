// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// readers is a pod on the rails r0 and r1 of each of two machines, in which programs run that
// read the settings of roce-env. Their own connections, and those of the tests, are on the wire
// of r2.
type readers struct {
	*node
	peer *peer
	pod  *pod
}

func newReaders(t *testing.T) *readers {
	t.Helper()
	r := &readers{node: newNode(t, "shared"), peer: meetOn(t, "r2", 1)[0]}
	for i := range 2 {
		emulate(t, fmt.Sprintf("r%d", i))
	}
	finally(t, "rdma link add rxe2 type rxe netdev r2") // no rail
	run(t, "rdma", "link", "del", "rxe2")
	// The indexes of the rails differ, because the host has an address on one.
	finally(t, "ip addr del 10.0.0.1/32 dev r0")
	run(t, "ip", "addr", "add", "10.0.0.1/32", "dev", "r0")
	return r
}

// eth0 is the address of the pod of a machine for its own connections.
func eth0(self string) string { return "10.0.8.1" + self }

// attach attaches a new pod to both rails, and lets rxe know its addresses.
func (r *readers) attach(promise string) (detach func()) {
	t := r.t
	t.Helper()
	r.pod = r.node.pod()
	shell(t, fmt.Sprintf(`ip -n %[1]s link set lo up
		ip link add link r2 name eth0 netns %[1]s type macvlan mode bridge
		ip -n %[1]s addr add %[2]s/24 dev eth0
		ip -n %[1]s link set eth0 up
		ip -n %[1]s route add default dev eth0`, r.pod.Name, eth0(r.peer.self)))
	c := r.allRails().With("rails", []any{map[string]any{"master": "r0"}, map[string]any{"master": "r1"}}).
		With("rdma", map[string]any{"gidIndex": promise}).
		With("ipam", map[string]any{"type": "roce-ipam", "quarantine": "0s", "subnets": []any{map[string]any{
			"subnet": "172.16.{rail+10}.0/24", "ranges": []any{fmt.Sprintf("172.16.{rail+10}.1%[1]s-172.16.{rail+10}.1%[1]s", r.peer.self)},
		}}})
	a := r.node.attach(c, r.pod)
	addrs := a.addRails()
	said := shell(t, fmt.Sprintf("ip netns exec %s %s || true", r.pod.Name, r.file(filepath.Join(*programs, "roce-env"))))
	if differ := strings.Contains(said, "the indexes differ"); differ != (promise == "any") {
		t.Fatalf("the indexes differ: %t, with %s\n%s", differ, promise, said)
	}
	// rdma_cm takes the first entry of an address, which must be that of the pod: the host's
	// own, below, must not get a free place before it.
	forget := "ip addr del 10.0.0.2/32 dev r1\n"
	run(t, "ip", "addr", "add", "10.0.0.2/32", "dev", "r1")
	for i, on := range addrs {
		run(t, "ip", "addr", "add", on[0]+"/32", "dev", fmt.Sprintf("r%d", i), "scope", "host")
		forget += fmt.Sprintf("ip addr del %s/32 dev r%d\n", on[0], i)
	}
	finally(t, forget)
	return func() {
		a.mustDel()
		shell(t, forget)
		r.pod.Remove(t)
	}
}

// in returns a program that runs in the pod with what roce-env says, for one interface or, with
// "", for all. A script can change that before.
func (r *readers) in(ifName, change, program string) *exec.Cmd {
	return r.bare("sh", "-c", r.lines(ifName, change, program))
}

// bare returns a program that runs in the pod as it is.
func (r *readers) bare(args ...string) *exec.Cmd {
	return exec.Command("ip", append([]string{"netns", "exec", r.pod.Name, "prlimit", "--memlock=unlimited", "timeout", "100"}, args...)...)
}

func (r *readers) lines(ifName, change, program string) string {
	r.t.Helper()
	env := r.file(filepath.Join(*programs, "roce-env"))
	if ifName != "" {
		env += " --ifname " + ifName
	}
	return fmt.Sprintf("eval \"$(%s)\" || exit\n%s\nexec %s", env, change, program)
}

// file returns the path of a file for programs in other folders.
func (r *readers) file(name string) string {
	r.t.Helper()
	out, err := filepath.Abs(name)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// talk starts a program as server in the pod of node 1, which then listens on a port, and calls
// it in the pod of node 0. It returns what the program says here.
func (r *readers) talk(ifName, change, port, program, address string) (string, error) {
	t := r.t
	t.Helper()
	if r.peer.self == "0" {
		r.peer.swap("calling")
		out, err := r.in(ifName, change, program+" "+address).CombinedOutput()
		r.peer.swap(fmt.Sprint(err == nil))
		return string(out), err
	}
	cmd := r.in(ifName, change, program)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var early error
	cnitest.Await(t, program+" listens", func() bool {
		select {
		case err := <-ended:
			early = errors.Join(err, errors.New("it ended before it was called"))
			return true
		default:
			said, _ := try("ip", "netns", "exec", r.pod.Name, "ss", "-ltnH", "sport", "= :"+port)
			return said != ""
		}
	})
	r.peer.swap("serving")
	reached := r.peer.swap("serving") == "true"
	if early != nil {
		return out.String(), early
	}
	if !reached {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may wait for a call; timeout hands the signal on
	}
	err := <-ended
	return out.String(), err
}

// allReduce has mpirun in the pod of node 0 start a sum in both pods. Where it would call ssh,
// the test tells node 1 what to start.
func (r *readers) allReduce(ifName, change string) (string, error) {
	t := r.t
	t.Helper()
	finally(t, "rm -f /run/agent /run/daemon")
	shell(t, `rm -f /run/daemon
		printf '#!/bin/sh\nshift\necho "$*" >/run/new\nmv /run/new /run/daemon\n' >/run/agent
		chmod +x /run/agent`)
	if r.peer.self == "1" {
		out, err := r.bare("sh", "-c", r.peer.swap("ready")).CombinedOutput()
		return string(out), errors.Join(err, verdict(r.peer.swap("ended")))
	}
	cmd := r.bare("mpirun", "--allow-run-as-root", "--host", eth0("0")+","+eth0("1"),
		"--mca", "plm_rsh_agent", "/run/agent", "--mca", "oob_tcp_if_include", "eth0", "--mca", "pml", "ucx",
		"sh", "-c", r.lines(ifName, change, r.file(".cache/vm/allreduce")))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var daemon []byte
	cnitest.Await(t, "mpirun starts its daemon", func() (there bool) {
		var err error
		daemon, err = os.ReadFile("/run/daemon")
		return err == nil
	})
	r.peer.swap(strings.TrimSpace(string(daemon)))
	err := cmd.Wait()
	r.peer.swap(fmt.Sprint(err == nil))
	return out.String(), err
}

// verdict returns an error if the other node says that its program has failed.
func verdict(says string) error {
	if says != "true" {
		return errors.New("the program has failed on the other node")
	}
	return nil
}

// sent returns how many packets each of the two devices has sent.
func (r *readers) sent() (out [2]int) {
	r.t.Helper()
	for i := range out {
		text, err := os.ReadFile(fmt.Sprintf("/sys/class/infiniband/rxe%d/ports/1/hw_counters/sent_pkts", i))
		if err != nil {
			r.t.Fatal(err)
		}
		if out[i], err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			r.t.Fatal(err)
		}
	}
	return out
}

// works says that a program must succeed, without a warning, by these devices and by no other.
func (r *readers) works(what string, devices []int, run func() (string, error)) {
	r.t.Helper()
	before := r.sent()
	said, err := run()
	if err != nil || strings.Contains(said, "WARN") {
		r.t.Errorf("%s: %v\n%s", what, err, said)
	}
	after := r.sent()
	for i := range after {
		if used := after[i] > before[i]; used != slices.Contains(devices, i) {
			r.t.Errorf("%s: rxe%d has sent %d packets, want some on %v only", what, i, after[i]-before[i], devices)
		}
	}
}

// fails says that a program must fail.
func (r *readers) fails(what string, run func() (string, error)) {
	r.t.Helper()
	if said, err := run(); err == nil {
		r.t.Errorf("%s succeeds\n%s", what, said)
	}
}

// TestReadersTransferWithWhatRoceEnvSays has nothing but the output of roce-env. In the first
// pods each rail has its own index, so each has a process; in the last one all rails have one.
func TestReadersTransferWithWhatRoceEnvSays(t *testing.T) {
	const wrong = "export UCX_IB_GID_INDEX=$((UCX_IB_GID_INDEX + 100))"
	r := newReaders(t)
	for _, tc := range []struct {
		promise, ifName string
		devices         []int
	}{{"any", "net1", []int{0}}, {"any", "net1-1", []int{1}}, {"equal", "", []int{0, 1}}} {
		detach := r.attach(tc.promise)
		what := func(program string) string {
			return strings.TrimSpace(program + " with " + tc.promise + " " + tc.ifName)
		}
		perf := func(change string) func() (string, error) {
			return func() (string, error) {
				return r.talk(tc.ifName, change, "13337", "ucx_perftest -t tag_bw -s 65536 -n 50 -w 2", eth0("1"))
			}
		}
		r.works(what("ucx_perftest"), tc.devices, perf(""))
		r.fails(what("ucx_perftest and a wrong index"), perf(wrong))
		r.works(what("MPI_Allreduce"), tc.devices, func() (string, error) { return r.allReduce(tc.ifName, "") })
		r.fails(what("MPI_Allreduce and a wrong index"), func() (string, error) { return r.allReduce(tc.ifName, wrong) })
		for _, i := range tc.devices {
			pingpong := func(suffix string) func() (string, error) {
				return func() (string, error) {
					return r.talk(ifName(i), "", "47592", "fi_pingpong -p verbs -e msg -I 20 -S 4096 -d "+r.device(ifName(i))+suffix, fmt.Sprintf("172.16.1%d.11", i))
				}
			}
			r.works(what("fi_pingpong"), []int{i}, pingpong(""))
			r.fails(what("fi_pingpong and a wrong device"), pingpong("0"))
		}
		detach()
	}
	r.peer.swap("over")
}

// device returns the device that roce-env names for an interface.
func (r *readers) device(ifName string) string {
	r.t.Helper()
	out, err := r.in(ifName, "", r.file(filepath.Join(*programs, "roce-env"))+" --ifname "+ifName).Output()
	_, rest, found := strings.Cut(string(out), "# "+ifName+": ib_write_bw -d ")
	device, _, _ := strings.Cut(rest, " ")
	if err != nil || !found {
		r.t.Fatalf("roce-env names no device: %v\n%s", err, out)
	}
	return device
}
