// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
)

// watching starts a healer that only watches, with "rdma" of the settings.
func (n *node) watching(rdma, says string) healer {
	n.t.Helper()
	return n.healer(`"heal": "off", "rdma": {`+rdma+`}`, says)
}

// cpu returns how long the healer has computed.
func (h healer) cpu(t *testing.T) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := bytes.Cut(b, []byte(") "))
	f := strings.Fields(string(after))
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ
}

// alarms returns the alarms about foreign GIDs that a pod uses, all for "".
func (n *node) alarms(container string) (out []calls.Call) {
	n.t.Helper()
	all, _, err := calls.File{Dir: n.state}.After("")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range all {
		if c.Verb == calls.Alarm && c.Steps[0].Name == calls.ForeignGID && strings.Contains(string(c.ContainerID), container) {
			out = append(out, c)
		}
	}
	return out
}

// handles makes so many address handles with a GID index on a device, as programs do that
// send from UD queue pairs. The kernel looks the GID up as it does for a queue pair. It must
// run in the thread and the namespace of the user, which waits for after.
func handles(device string, index, many int, after func()) error {
	file, err := os.OpenFile(verbsFile(device), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	var answer [2]uint32
	var pinned runtime.Pinner
	pinned.Pin(&answer) // the kernel writes to it
	defer pinned.Unpin()
	call := func(command uint32, outWords uint16, body ...any) error {
		var b bytes.Buffer
		words := func(v ...any) {
			for _, v := range v {
				b.Write(native(v))
			}
		}
		words(body...)
		in := 2 + b.Len()/4
		head := append(native(command), native(uint16(in))...)
		_, err := file.Write(append(append(head, native(outWords)...), b.Bytes()...))
		return err
	}
	to := uint64(uintptr(unsafe.Pointer(&answer)))
	if err := call(0, 2, to); err != nil { // IB_USER_VERBS_CMD_GET_CONTEXT
		return fmt.Errorf("open: %w", err)
	}
	if err := call(3, 1, to); err != nil { // ALLOC_PD
		return fmt.Errorf("allocate a domain: %w", err)
	}
	domain := answer[0]
	gid, err := os.ReadFile(fmt.Sprintf(gidsFolder, device) + strconv.Itoa(index))
	if err != nil {
		return err
	}
	peer, err := netip.ParseAddr(strings.TrimSpace(string(gid))) // itself, which needs no ARP
	if err != nil {
		return err
	}
	for range many {
		route := []any{to, uint64(0), domain, uint32(0), peer.As16(), uint32(0), [4]byte{byte(index), 1}, [8]byte{5: 1, 6: 1}}
		if err := call(5, 1, route...); err != nil { // CREATE_AH
			return fmt.Errorf("make an address handle: %w", err)
		}
		if err := call(8, 0, answer[0]); err != nil { // DESTROY_AH
			return fmt.Errorf("end an address handle: %w", err)
		}
	}
	after()
	return nil
}

// native returns a number as the kernel reads it.
func native(v any) []byte {
	switch v := v.(type) {
	case uint16:
		return unsafe.Slice((*byte)(unsafe.Pointer(&v)), 2)
	case uint32:
		return unsafe.Slice((*byte)(unsafe.Pointer(&v)), 4)
	case uint64:
		return unsafe.Slice((*byte)(unsafe.Pointer(&v)), 8)
	case [4]byte:
		return v[:]
	case [8]byte:
		return v[:]
	case [16]byte:
		return v[:]
	}
	panic(fmt.Sprintf("%T", v))
}

// uses has a program in the namespace of the pod use an index, until is says that it may end.
func (p *pod) uses(t *testing.T, index, many int, what string, is func() bool) {
	t.Helper()
	err := p.Enter(func() error {
		return handles("rxe0", index, many, func() { cnitest.Await(t, what, is) })
	})
	if err != nil {
		t.Error(err)
	}
}

const probe = "roce_cni/gid"

func probes(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/sys/kernel/tracing/kprobe_events")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// rested waits for several looks of the healer, or for its rest after an alarm.
func rested() func() bool {
	end := time.Now().Add(2 * time.Second)
	return func() bool { return time.Now().After(end) }
}

// TestLongForeignGIDIsToldWithinASecond has ten pods that use the GID of another pod.
func TestLongForeignGIDIsToldWithinASecond(t *testing.T) {
	n := newNode(t, "shared")
	all := make([]attachment, 11)
	for i := range all {
		all[i] = n.attach(n.rail(0), n.pod())
		all[i].mustAdd()
	}
	one := all[0]
	n.watching(`"foreignGID": "tell"`, "watching")
	var took []time.Duration
	for _, a := range all[1:] {
		cnitest.Await(t, "nothing", rested())
		var used time.Time
		var told []calls.Call
		a.pod.uses(t, one.index(), 1, "the use is told", func() bool {
			if used.IsZero() {
				used = time.Now()
			}
			told = n.alarms(a.id())
			return len(told) > 0
		})
		contains(t, told[0].Error, "/"+one.pod.Name+": ")
		took = append(took, told[0].At.Sub(used))
	}
	slices.Sort(took)
	t.Logf("told after %v", took)
	if last := took[len(took)-1]; last > time.Second && os.Getenv("VM_KVM") == "true" { // an emulated processor measures nothing
		t.Errorf("an alarm came after %v, want a second", last)
	}
	for _, a := range all {
		a.mustDel()
	}
}

// TestLongForeignGIDIsTold: what is told is a pod with the GID of another pod, once, and not
// the own GIDs, those of the host, and what programs of the host use.
func TestLongForeignGIDIsTold(t *testing.T) {
	n := newNode(t, "shared")
	one, two := n.attach(n.rail(0), n.pod()), n.attach(n.rail(0), n.pod())
	one.mustAdd()
	two.mustAdd()
	n.watching(`"foreignGID": "tell"`, "watching")
	run(t, "ip", "-n", two.pod.Name, "link", "set", "lo", "up")
	pair := func(index, port int) {
		for _, peer := range []string{"", " 127.0.0.1"} {
			background(t, "ip", strings.Fields(fmt.Sprintf("netns exec %s ibv_rc_pingpong -d rxe0 -g %d -p %d -n 1000000000%s", two.pod.Name, index, port, peer))...)
			listens := fmt.Sprintf(":%d ", port)
			cnitest.Await(t, "the program listens", func() bool {
				return peer != "" || strings.Contains(run(t, "ip", "netns", "exec", two.pod.Name, "ss", "-ltn"), listens)
			})
		}
	}
	pair(two.index(), 7001)
	two.pod.uses(t, two.index(), 1, "nothing", rested())
	two.pod.uses(t, 0, 1, "nothing", rested()) // the default GID is the host's
	if err := handles("rxe0", one.index(), 1, func() { cnitest.Await(t, "nothing", rested()) }); err != nil {
		t.Error(err)
	}
	if told := n.alarms(""); len(told) > 0 {
		t.Fatalf("told %+v, want nothing", told)
	}

	pair(one.index(), 7002)
	var told []calls.Call
	cnitest.Await(t, "the queue pair is told", func() bool { told = n.alarms(two.id()); return len(told) > 0 })
	if !strings.HasSuffix(told[0].Pod, "/"+two.pod.Name) {
		t.Errorf("told %+v, want an alarm about %s", told, two.pod.Name)
	}
	foreignUse := "(ibv_rc_pingpong) uses index " + strconv.Itoa(one.index()) + " of the GID table of rxe0/1"
	contains(t, told[0].Error, foreignUse, "/"+one.pod.Name+": ")
	contains(t, n.rocectl("trace"), "ALARM", told[0].Error)
	// A slow machine may have told of the other program of the pair since.
	contains(t, n.rocectl("show"), "alarm ", foreignUse)
	contains(t, n.rocectl("top", "--once"), "# alarm ", foreignUse)

	one.mustDel()
	two.mustDel()
}

// TestLongProbeOfAHealer has another program's probe, which stays, and a healer that is
// killed. A pod that uses GIDs all the time costs little.
func TestLongProbeOfAHealer(t *testing.T) {
	n := newNode(t, "shared")
	a := n.attach(n.rail(0), n.pod())
	a.mustAdd()
	const many = 20_000
	using := func() time.Duration {
		began := time.Now()
		a.pod.uses(t, a.index(), many, "nothing", func() bool { return true })
		return time.Since(began)
	}
	without := using()
	h := n.watching(`"foreignGID": "tell"`, "watching")
	finally(t, "echo -:mine/open >>/sys/kernel/tracing/kprobe_events")
	shell(t, "echo 'p:mine/open do_sys_openat2' >>/sys/kernel/tracing/kprobe_events")
	before := h.cpu(t)
	with := using()
	spent := h.cpu(t) - before
	t.Logf("%d address handles: %v without the probe, %v with it, in which the healer computed for %v", many, without, with, spent)
	if (with > 2*without+time.Second || spent > with/2) && os.Getenv("VM_KVM") == "true" { // an emulated processor measures nothing
		t.Error("that is too much")
	}
	h.end(unix.SIGKILL)
	contains(t, probes(t), probe, "mine/open")
	h = n.watching(`"foreignGID": "tell"`, "watching")
	if strings.Count(probes(t), probe) != 1 {
		t.Errorf("after a kill there is %q", probes(t))
	}
	h.end(unix.SIGTERM)
	if got := probes(t); strings.Contains(got, probe) || !strings.Contains(got, "mine/open") || len(entries("/sys/kernel/tracing/instances")) > 0 {
		t.Errorf("the healer leaves the probes %q and the buffers %q", got, entries("/sys/kernel/tracing/instances"))
	}
	a.mustDel()
}
