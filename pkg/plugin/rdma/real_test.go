// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// The tests of this file and real_move_test.go ask a real kernel with two Soft-RoCE devices, rxe0 on
// r0 and rxe1 on r1, as integration/vm boots it. They run one after another:
// the namespace mode is the machine's.

// rig is the machine.
type rig struct{ t *testing.T }

func needRDMA(t *testing.T) rig {
	t.Helper()
	var names []string
	c, err := nldev.Dial()
	if err == nil {
		defer c.Close()
		s, listErr := c.System(t.Context())
		err = listErr
		for _, d := range s.Devices {
			names = append(names, d.Name)
		}
	}
	if err == nil && strings.Join(names, " ") == "rxe0 rxe1" && os.Geteuid() == 0 {
		return rig{t}
	}
	if os.Getenv("REQUIRE_RDMA") == "1" {
		t.Fatalf("REQUIRE_RDMA=1, but there are not rxe0 and rxe1 here: %v, %v", names, err)
	}
	t.Skipf("it needs the devices rxe0 and rxe1 of integration/vm, got %v, %v", names, err)
	return rig{}
}

// run runs a command line.
func (r rig) run(format string, args ...any) string {
	r.t.Helper()
	line := fmt.Sprintf(format, args...)
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err != nil {
		r.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// pod makes a network namespace, and returns the kernel opened at it. Cleaned
// up twice, it is gone once.
func (r rig) pod(name string) (*kernel.Kernel, func()) {
	r.t.Helper()
	r.run("ip netns add %s; ip -n %s link set lo up", name, name)
	k, err := kernel.Open("/run/netns/"+name, os.DirFS("/sys"))
	must(r.t, err)
	gone := false
	remove := func() {
		if !gone {
			k.Close()
			r.run("ip netns del %s", name)
		}
		gone = true
	}
	r.t.Cleanup(remove)
	return k, remove
}

// child makes a macvlan of a parent in the pod.
func (r rig) child(pod, parent string, addrs ...string) {
	r.t.Helper()
	r.run("ip link add link %s name net1 netns %s type macvlan mode bridge", parent, pod)
	r.run("ip -n %s link set net1 up", pod)
	for _, a := range addrs {
		r.run("ip -n %s addr add %s dev net1 nodad", pod, a)
	}
}

func (r rig) subsystem(enter func(func() error) error) *Subsystem {
	s := New(Config{Sys: os.DirFS("/sys"), Enter: enter, Netns: "p", Log: slog.New(slog.DiscardHandler), Proc: os.DirFS("/proc")})
	r.t.Cleanup(s.Close)
	return s
}

// exclusive puts the machine into exclusive mode for a test.
func (r rig) exclusive() {
	r.t.Helper()
	r.run("rdma system set netns exclusive")
	// The last namespace may still be on its way out.
	r.t.Cleanup(func() { r.run("for i in $(seq 50); do rdma system set netns shared && exit; sleep .1; done; exit 1") })
}

// parent returns the facts of a link of the host.
func (r rig) parent(k *kernel.Kernel, name string) plan.Link {
	r.t.Helper()
	f, err := plan.Only(k.Facts(r.t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{Name: conf.LinkName(name)}}}}))
	must(r.t, err)
	return f.Parent
}

func (r rig) devices(s *Subsystem, at plan.Place) string {
	r.t.Helper()
	sys, err := s.System(r.t.Context(), at)
	must(r.t, err)
	var out []string
	for _, d := range sys.Devices {
		out = append(out, d.Name)
	}
	return strings.Join(out, " ")
}

func TestRealDeviceIsFoundThroughVLANsAndBonds(t *testing.T) {
	r := needRDMA(t)
	k, _ := r.pod("p")
	s := r.subsystem(nil)
	r.run("ip link add link r0 name r0.100 up type vlan id 100")
	t.Cleanup(func() { r.run("ip link del r0.100") })
	for name, want := range map[string]string{"r0": "rxe0/1 r0", "r1": "rxe1/1 r1", "r0.100": "rxe0/1 r0"} {
		got, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, r.parent(k, name), false)
		if text := fmt.Sprintf("%s %s", portName(got.Device), got.Device.Link); err != nil || got.Exclusive || text != want {
			t.Errorf("%s: got %s, %+v, %v, want %s", name, text, got, err, want)
		}
	}
	r.run("ip link add bond0 type bond mode active-backup miimon 100; ip link set r0 down; ip link set r0 master bond0; ip link set bond0 up; ip link set r0 up")
	t.Cleanup(func() { r.run("ip link del bond0; ip link set r0 up") })
	r.run("for i in $(seq 100); do ip link show bond0 | grep -q LOWER_UP && exit; sleep .1; done; exit 1")
	got, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, r.parent(k, "bond0"), false)
	if err != nil || got.Device.Name != "rxe0" {
		t.Errorf("bond of one slave: got %+v, %v, want rxe0", got, err)
	}
	r.run("ip link set r1 down; ip link set r1 master bond0; ip link set r1 up")
	t.Cleanup(func() { r.run("ip link set r1 nomaster; ip link set r1 up") })
	_, err = s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, r.parent(k, "bond0"), false)
	if err == nil || !strings.Contains(err.Error(), "rxe0/1 on r0, rxe1/1 on r1") {
		t.Errorf("bond of two slaves, each with a device: got %v, want an error that names both", err)
	}
	_, err = s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAExclusive}, r.parent(k, "bond0"), false)
	if cnierr.CodeOf(err) != cnierr.RDMAMode {
		t.Errorf("exclusive asked for, shared here: got %v, want code %d", err, cnierr.RDMAMode)
	}
}

func TestRealParentWithoutDeviceOrActivePort(t *testing.T) {
	r := needRDMA(t)
	k, _ := r.pod("p")
	s := r.subsystem(nil)
	r.run("ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up")
	t.Cleanup(func() { r.run("ip link del v0") })
	_, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, r.parent(k, "v0"), false)
	if !errors.Is(err, ErrNoDevice) || cnierr.CodeOf(err) != cnierr.NoRDMA {
		t.Errorf("got %v, want ErrNoDevice", err)
	}
	link := r.parent(k, "r1")
	r.run("ip link set r1 down")
	t.Cleanup(func() { r.run("ip link set r1 up") })
	_, err = r.subsystem(nil).Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, link, false)
	if cnierr.CodeOf(err) != cnierr.NoRDMA || !strings.Contains(err.Error(), "its state is DOWN") {
		t.Errorf("port down: got %v", err)
	}
}

func TestRealMasterIsSelectedByItsRDMADevice(t *testing.T) {
	r := needRDMA(t)
	k, _ := r.pod("p")
	f, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{RDMA: "rxe1"}}}}))
	if err != nil || f.Parent.Name != "r1" {
		t.Errorf("got %+v, %v, want r1", f.Parent, err)
	}
	_, err = plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{IfName: "net1", Parent: conf.Parent{RDMA: "mlx5_0"}}}}))
	if !errors.Is(err, ErrNoDevice) {
		t.Errorf("got %v, want ErrNoDevice", err)
	}
}

func TestRealGIDsAreFoundAndMissed(t *testing.T) {
	r := needRDMA(t)
	k, _ := r.pod("p")
	s := r.subsystem(k.Enter)
	r.child("p", "r0", "172.16.0.11/24", "fd00::11/64")
	facts, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAShared}, plan.Link{Name: "r0", Layers: [][]int32{{r.index("r0")}}}, false)
	must(t, err)
	v4, v6 := netip.MustParseAddr("172.16.0.11"), netip.MustParseAddr("fd00::11")
	op := plan.GID{Mode: conf.Require, Device: facts.Device, Wait: time.Second, Targets: []plan.GIDTarget{{Link: "net1", Addr: v4}, {Link: "net1", Addr: v6}}}
	must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	entries, size, err := s.Table(plan.Host, plan.Pod, "rxe0", 1)
	t.Logf("%d places: %+v, %v; located %v", size, entries, err, s.Located())
	for addr, place := range s.Located() {
		if have := gidtable.Of(entries, addr); len(have) != 1 || have[0].Index != place || have[0].Netdev != "net1" {
			t.Errorf("%s: got place %d, the table has %+v", addr, place, have)
		}
	}
	done := plan.OnHost(op).Located(s.Located())[0]
	if err := s.Check(t.Context(), done); err != nil {
		t.Errorf("check of what was just done: %v", err)
	}

	r.run("ip -n p addr del 172.16.0.11/24 dev net1; ip -n p addr add 172.16.0.99/24 dev net1")
	if err := s.Check(t.Context(), done); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "no RoCE v2 entry") {
		t.Errorf("address gone: got %v", err)
	}
	r.run("ip -n p addr add 172.16.0.11/24 dev net1")
	if err := s.Check(t.Context(), done); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "its index changed from") {
		t.Errorf("address added again behind another one: got %v", err)
	}

	late := op
	late.Targets, late.Wait = []plan.GIDTarget{{Link: "net1", Addr: netip.MustParseAddr("172.16.0.12")}}, 50*time.Millisecond
	err = s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: late})
	if cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "of 1024 entries are used") {
		t.Errorf("no such address: got %v", err)
	}
	late.Mode = conf.Warn
	if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: late}); err != nil {
		t.Errorf("no such address, warn: got %v", err)
	}
}

func (r rig) index(name string) int32 {
	var n int32
	if _, err := fmt.Sscan(r.run("cat /sys/class/net/%s/ifindex", name), &n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestRealSameAddressOnTwoPodsIsDamage(t *testing.T) {
	r := needRDMA(t)
	k, _ := r.pod("p")
	r.pod("q")
	s := r.subsystem(k.Enter)
	r.child("p", "r0", "172.16.0.11/24")
	op := plan.GID{Mode: conf.Require, Device: r.device(s, "rxe0"), Wait: time.Second, Targets: []plan.GIDTarget{{Link: "net1", Addr: netip.MustParseAddr("172.16.0.11")}}}
	must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	must(t, s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	r.child("q", "r0", "172.16.0.11/24")
	var err error
	for range 100 { // the second entry comes from a work queue, too
		if err = s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "2 RoCE v2 entries") {
		t.Errorf("got %v", err)
	}
}

// device returns a device of the host as a plan has it.
func (r rig) device(s *Subsystem, name string) plan.RDMADevice {
	r.t.Helper()
	sys, err := s.System(r.t.Context(), plan.Host)
	must(r.t, err)
	for _, d := range sys.Devices {
		if d.Name == name {
			return plan.RDMADevice{Name: d.Name, Index: d.Index, GUID: d.GUID, Port: 1}
		}
	}
	r.t.Fatalf("no %s", name)
	return plan.RDMADevice{}
}

func octet(n uint8) *uint8 { return &n }
