// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package repair_test

import (
	"context"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// take returns the addresses of the namespaces by path.
func take(t *testing.T) map[string][]repair.Addr {
	t.Helper()
	all, _, err := repair.Scan(t.Context(), "/proc")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]repair.Addr{}
	for _, n := range all {
		out[n.Path] = n.Addrs
	}
	return out
}

func TestNamespacesAreFoundByMountAndByProcess(t *testing.T) {
	t.Parallel()
	node := kerneltest.NewNode(t)
	path := filepath.Join(t.TempDir(), `a "b\c`+"\n") // as mountinfo has to quote
	mounted, other := node.PodAt(path), node.Pod()
	for _, pod := range []*kerneltest.Netns{mounted, other} {
		pod.IP("link add eth0 type veth peer name eth1")
		pod.IP("link set dev eth0 alias rock")
		pod.IP("link set dev eth1 alias roce:c1/eth1")
		pod.IP("addr add 192.0.2.7/24 dev eth0")
		pod.IP("addr add 2001:db8::7/64 dev eth1 nodad")
	}
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err == nil {
		err = other.Do(cmd.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})

	got := take(t)
	want := []repair.Addr{{IfName: "eth0", Addr: netip.MustParseAddr("192.0.2.7")}, {IfName: "eth1", Addr: netip.MustParseAddr("2001:db8::7"), Marked: true}}
	process := filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "ns/net")
	for _, p := range []string{path, process} {
		set := slices.DeleteFunc(got[p], func(a repair.Addr) bool { return a.Addr.IsLinkLocalUnicast() || a.Addr.IsLoopback() })
		if diff := cmp.Diff(want, set, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%q (-want +got)\n%s", p, diff)
		}
	}
	node.NIC("eth9")
	node.IP("addr add 192.0.2.99/24 dev eth9")
	for path, addrs := range take(t) {
		if slices.ContainsFunc(addrs, func(a repair.Addr) bool { return a.IfName == "eth9" }) {
			t.Errorf("the caller's own namespace is told: %s", path)
		}
	}
	past, end := context.WithCancel(t.Context())
	end()
	if all, _, err := repair.Scan(past, "/proc"); err == nil {
		t.Errorf("a scan that has ended finds %+v", all)
	}
}

// A thread that may not inspect processes with more capabilities is that of a user who is not root.
func TestHiddenProcessesAreCounted(t *testing.T) {
	t.Parallel()
	kerneltest.NewNode(t)
	for range 2 {
		cmd := exec.Command("cat")
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close()
			_ = cmd.Wait()
		})
	}
	runtime.LockOSThread() // the thread ends with the test
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var may [2]unix.CapUserData
	err := unix.Capget(&header, &may[0])
	if may[0].Effective &^= 1 << unix.CAP_SYS_PTRACE; err == nil {
		err = unix.Capset(&header, &may[0])
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, hidden, err := repair.Scan(t.Context(), "/proc"); err != nil || hidden < 2 {
		t.Errorf("found %d hidden processes, %v", hidden, err)
	}
}

func TestWithoutProcNothingIsGuessed(t *testing.T) {
	t.Parallel()
	if _, _, err := repair.Scan(t.Context(), t.TempDir()); err == nil || cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want code %d", err, cnierr.IO)
	}
}
