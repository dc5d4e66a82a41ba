// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
)

// movable returns a node in exclusive mode with two devices, and the move of the
// first.
func movable() (*node, plan.Move) {
	n := &node{exclusive: true, devices: []*hca{roce(0, "mlx5_0", r0, "r0"), roce(1, "mlx5_1", r1, "r1")}}
	return n, plan.Move{Device: n.devices[0].device(), Parent: "r0", Netns: netns.ID{Dev: 4, Ino: 4026532291}}
}

// verbs returns the files that tell the devices of all namespaces.
func verbs(names ...string) fstest.MapFS {
	sys := fstest.MapFS{}
	for _, name := range names {
		sys["class/infiniband_verbs/uverbs-"+name+"/ibdev"] = &fstest.MapFile{Data: []byte(name + "\n")}
	}
	return sys
}

// TestMoveIsIdempotentAndUndoneOnce is not parallel, because it counts open files.
func TestMoveIsIdempotentAndUndoneOnce(t *testing.T) {
	before := cnitest.OpenFiles(t)
	n, op := movable()
	s := n.subsystem(t, verbs("mlx5_0", "mlx5_1"))
	if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Errorf("undo of what was never done: %v", err)
	}
	for range 2 {
		if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || n.devices[0].in != plan.Pod {
			t.Fatalf("got %v, the device is in %s", err, n.devices[0].in)
		}
		if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
			t.Errorf("check: %v", err)
		}
	}
	for range 2 {
		if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || n.devices[0].in != plan.Host || n.devices[0].Name != "mlx5_0" {
			t.Fatalf("got %v, %q is in %s", err, n.devices[0].Name, n.devices[0].in)
		}
		n.devices[0].Name = "renamed" // an Undo that is run again puts this right, too
	}
	if n.devices[1].in != plan.Host {
		t.Error("the other device moved")
	}
	n.devices[0].in, op.Device = plan.Pod, n.devices[1].device()
	if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil || n.devices[0].in != plan.Pod {
		t.Errorf("undo took the pod's other device: it is in %s, %v", n.devices[0].in, err)
	}
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were: namespaces stay while a file of theirs is open", after, before)
	}
}

func TestMovesAreSerialised(t *testing.T) {
	t.Parallel()
	n, op := movable()
	held := 0
	s := n.subsystem(t, fstest.MapFS{}, func(c *Config) {
		c.Lock = func(context.Context) (func(), error) {
			held++
			return func() { held-- }, nil
		}
	})
	busy := errors.New("another process moves")
	if err := errors.Join(s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}), s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op})); err != nil || held != 0 {
		t.Errorf("got %v, and the lock is held %d times", err, held)
	}
	s.c.Lock = func(context.Context) (func(), error) { return nil, busy }
	trips := n.trips
	for _, do := range []func(context.Context, plan.Op) error{s.Do, s.Undo} {
		if err := do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); !errors.Is(err, busy) || n.trips != trips {
			t.Errorf("got %v after %d round trips, want none without the lock", err, n.trips-trips)
		}
	}
}

func TestMovesThatAreRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*node)
		code   cnierr.Code
		hint   string
	}{
		{"the node shares devices", func(n *node) { n.exclusive = false }, cnierr.RDMAMode, "rdma system set netns exclusive"},
		{"the driver cannot", func(n *node) { n.refuse = unix.EOPNOTSUPP }, cnierr.RDMAMode, "rdma system set netns shared"},
		{"it is in use", func(n *node) { n.refuse = unix.EBUSY }, cnierr.RDMAHeld, "rdma resource show qp"},
		{"we may not", func(n *node) { n.refuse = unix.EPERM }, cnierr.IO, "root"},
		{"another pod was faster", func(n *node) { n.refuse = unix.ENODEV }, cnierr.RDMAHeld, "other pods"},
		{"another pod has it", func(n *node) { n.devices[0].in = elsewhere }, cnierr.RDMAHeld, "other pods"},
		{"only another device has its name", func(n *node) { n.devices[0].GUID = "0000:0000:0000:0001" }, cnierr.NoRDMA, "rdma dev"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, op := movable()
			c.change(n)
			s := n.subsystem(t, verbs("mlx5_0", "mlx5_1"))
			err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
			if cnierr.CodeOf(err) != c.code || !strings.Contains(hintOf(err), c.hint) {
				t.Errorf("got %v, hint %q, want code %d and a hint with %q", err, hintOf(err), c.code, c.hint)
			}
		})
	}
	n, op := movable()
	n.devices = n.devices[1:]
	if err := n.subsystem(t, verbs("mlx5_1")).Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); !errors.Is(err, ErrNoDevice) || cnierr.CodeOf(err) != cnierr.NoRDMA {
		t.Errorf("the node does not have it any more: got %v", err)
	}
}

func TestSettingsAreThePodsAndThenTheHostsAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		op         plan.Move // with settings alone
		inPod      string    // ToS and traffic class
		afterwards string
	}{
		{"as the host has them", plan.Move{TOS: octet(104), TrafficClass: octet(96), HostTOS: octet(104), HostTrafficClass: octet(96)}, "104 96", "104 96"},
		{"the pod's own", plan.Move{TOS: octet(26), TrafficClass: octet(8), HostTOS: octet(104), HostTrafficClass: octet(96)}, "26 8", "104 96"},
		{"none is asked for", plan.Move{}, "0 96", "0 96"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, op := movable()
			c.op.Device, c.op.Netns = op.Device, op.Netns
			n.withSettings(t, "mlx5_0", "104", "96")
			s := n.subsystem(t, os.DirFS(n.files+"/sysfs"))
			s.mount = func(fstype string) (tree, error) {
				if fstype == "sysfs" && n.now() == plan.Host && n.devices[0].in != plan.Host {
					t.Error("a driver may refuse to set the traffic class of a device that the host has not")
				}
				return n.mount(fstype)
			}
			for range 2 { // an earlier call may have ended after the move
				n.reset("mlx5_0")
				must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: c.op}))
				if got := n.settings(t); got != c.inPod {
					t.Errorf("in the pod: got %s, want %s", got, c.inPod)
				}
			}
			if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: c.op}); err != nil {
				t.Errorf("check: %v", err)
			}
			must(t, s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: c.op}))
			if got := n.settings(t); got != c.afterwards {
				t.Errorf("afterwards: got %s, want %s", got, c.afterwards)
			}
		})
	}
}

// settings returns type of service and traffic class of mlx5_0.
func (n *node) settings(t *testing.T) string {
	t.Helper()
	var out []string
	for _, name := range []string{n.tosFile("mlx5_0"), n.classFile("mlx5_0")} {
		b, err := os.ReadFile(name)
		must(t, err)
		out = append(out, strings.TrimSpace(string(b)))
	}
	return strings.Join(out, " ")
}

func TestUndoLeavesSettingsThatAnotherProgramMade(t *testing.T) {
	t.Parallel()
	n, op := movable()
	op.TOS, op.HostTOS, op.TrafficClass, op.HostTrafficClass = octet(26), octet(104), octet(8), octet(96)
	n.withSettings(t, "mlx5_0", "32", "64")
	must(t, n.subsystem(t, os.DirFS(n.files+"/sysfs"), podGone).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
	if got := n.settings(t); got != "32 64" {
		t.Errorf("got %s, want 32 64: the move leaves 0 8 behind", got)
	}
}

// TestASettingThatTheKernelRefusesFailsTheMove has files that refuse what is written.
func TestASettingThatTheKernelRefusesFailsTheMove(t *testing.T) {
	t.Parallel()
	for _, tos := range []bool{false, true} {
		n, op := movable()
		n.withSettings(t, "mlx5_0", "0", "0")
		file := n.classFile("mlx5_0")
		if op.TrafficClass = octet(8); tos {
			op.TrafficClass, op.TOS, file = nil, octet(26), n.tosFile("mlx5_0")
		}
		must(t, os.Remove(file))
		link(t, file, "/dev/full")
		err := n.subsystem(t, fstest.MapFS{}).Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
		if cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, unix.ENOSPC) || n.devices[0].in != plan.Host {
			t.Errorf("%s: got %v, the device is in %s", file, err, n.devices[0].in)
		}
	}
}

func TestTypeOfServiceIsUnknownWhereTheKernelHasNone(t *testing.T) {
	t.Parallel()
	n, _ := movable()
	n.withSettings(t, "mlx5_0", "104", "96")
	facts, err := n.subsystem(t, twoOf("mlx5_0")).Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{r0}}}, false)
	if err != nil || facts.TOS != nil || facts.UVerbs != "" {
		t.Errorf("two devices have the name: got %+v, %v", facts, err)
	}
	for refusal, unknown := range map[error]bool{unix.ENODEV: true, unix.ENOSYS: true, unix.ENOENT: true, unix.EPERM: true, unix.EIO: false} {
		n, op := movable()
		s := n.subsystem(t, fstest.MapFS{})
		s.mount = func(string) (tree, error) { return tree{}, refusal }
		facts, err := s.Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{r0}}}, false)
		if unknown != (err == nil && facts.TOS == nil) {
			t.Errorf("%v: got %+v, %v", refusal, facts, err)
		}
		op.HostTOS = octet(104)
		if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); unknown != (err == nil) {
			t.Errorf("undo, %v: got %v", refusal, err)
		}
	}
}

func TestCheckFindsNothingWhereASettingIsNotKnown(t *testing.T) {
	t.Parallel()
	for _, sys := range []fs.FS{fstest.MapFS{}, twoOf("mlx5_0")} {
		n, op := movable()
		op.TOS, op.TrafficClass, n.devices[0].in = octet(26), octet(8), plan.Pod
		n.withSettings(t, "mlx5_0", "26", "8")
		must(t, os.Remove(n.classFile("mlx5_0")))
		if err := n.subsystem(t, sys).Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
			t.Error(err)
		}
	}
}

// TestTheFolderOfATypeOfServiceIsMadeAndRemoved has a configfs without rdma_cm, and one in which a new
// folder stays empty.
func TestTheFolderOfATypeOfServiceIsMadeAndRemoved(t *testing.T) {
	t.Parallel()
	for without, unknown := range map[string]bool{"rdma_cm": true, "rdma_cm/mlx5_0": false} {
		n, op := movable()
		n.withSettings(t, "mlx5_0", "104", "96")
		folder := filepath.Join(n.files, "configfs", without)
		must(t, os.RemoveAll(folder))
		s := n.subsystem(t, fstest.MapFS{})
		facts, err := s.Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{r0}}}, false)
		if unknown != (err == nil) || facts.TOS != nil || !unknown && (cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, fs.ErrNotExist)) {
			t.Errorf("without %s: got %+v, %v", without, facts, err)
		}
		folder = filepath.Join(n.files, "configfs/rdma_cm/mlx5_0")
		if err := s.setTOS(plan.Host, op.Device, 26); cnierr.CodeOf(err) != cnierr.IO || unknown != strings.Contains(hintOf(err), "modprobe rdma_cm") {
			t.Errorf("without %s: got %v, hint %q", without, err, hintOf(err))
		}
		if _, err := os.Stat(folder); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without %s: the folder stays: %v", without, err)
		}
	}
}

// TestSysfsIsMountedForThisProcessAlone is not parallel, because it counts open files.
func TestSysfsIsMountedForThisProcessAlone(t *testing.T) {
	before := cnitest.OpenFiles(t)
	sys, err := mount("sysfs")
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs root")
	}
	must(t, err)
	if _, err := fs.Stat(sys.files(), "class/net"); err != nil || !strings.HasPrefix(sys.path, "/proc/self/fd/") {
		t.Errorf("at %s: %v", sys.path, err)
	}
	sys.close()
	if _, err := mount("no such file system"); err == nil {
		t.Error("mounted")
	}
	if after := cnitest.OpenFiles(t); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}

// TestATrafficClassThatIsNotThereAnyMoreStaysAway has another driver since the move.
func TestATrafficClassThatIsNotThereAnyMoreStaysAway(t *testing.T) {
	t.Parallel()
	n, op := movable()
	op.TrafficClass, op.HostTrafficClass = octet(8), octet(96)
	if err := n.subsystem(t, fstest.MapFS{}).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Error(err)
	}
}

func TestATrafficClassThatCannotBeRestoredIsAnError(t *testing.T) {
	t.Parallel()
	n, op := movable()
	op.TrafficClass, op.HostTrafficClass = octet(8), octet(96)
	sys := fstest.MapFS{"class/infiniband/mlx5_0/tc/1/traffic_class": {Data: []byte("8\n")}}
	if err := n.subsystem(t, sys).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want code %d", err, cnierr.IO)
	}
}

func TestMoveThatCannotBeFinishedIsUndone(t *testing.T) {
	t.Parallel()
	n, op := movable()
	op.TOS = octet(26) // without rdma_cm
	ctx, cancel := context.WithCancel(t.Context())
	s := n.subsystem(t, fstest.MapFS{})
	s.mount = func(fstype string) (tree, error) {
		cancel() // the time of the call is over
		return n.mount(fstype)
	}
	err := s.Do(ctx, plan.Op{Place: plan.Host, Kind: op})
	if cnierr.CodeOf(err) != cnierr.IO || !strings.Contains(hintOf(err), "modprobe rdma_cm") || n.devices[0].in != plan.Host {
		t.Errorf("got %v, hint %q, the device is in %s", err, hintOf(err), n.devices[0].in)
	}
}

func TestTypeOfServiceThatTheKernelBeginsWithNeedsNoFile(t *testing.T) {
	t.Parallel()
	n, op := movable()
	op.TOS = octet(0)
	if err := n.subsystem(t, fstest.MapFS{}).Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Error(err)
	}
}

func TestUndoInSharedModeMovesNothing(t *testing.T) {
	t.Parallel()
	n, op := movable()
	n.exclusive = false // since the node was rebooted, say
	if err := n.subsystem(t, fstest.MapFS{}).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Error(err)
	}
}

func TestTrafficClassThatTheDriverDoesNotHaveIsRefused(t *testing.T) {
	t.Parallel()
	n, op := movable()
	n.files = t.TempDir()
	op.TrafficClass = octet(8)
	err := n.subsystem(t, fstest.MapFS{}).Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
	if cnierr.CodeOf(err) != cnierr.Unsupported || n.devices[0].in != plan.Host {
		t.Errorf("got %v, the device is in %s", err, n.devices[0].in)
	}
}

func TestATrafficClassThatCannotBeReadIsAnError(t *testing.T) {
	t.Parallel()
	n, op := movable()
	sys := fstest.MapFS{"class/infiniband/mlx5_0/tc/1/traffic_class/x": {}} // a folder
	_, err := n.subsystem(t, sys).Facts(t.Context(), conf.RDMA{}, plan.Link{Layers: [][]int32{{r0}}}, false)
	if cnierr.CodeOf(err) != cnierr.IO || !strings.HasPrefix(err.Error(), `read traffic class of "mlx5_0": `) {
		t.Errorf("got %v of %s", err, op.Device.Name)
	}
}

func TestTrafficClassAsDriversWriteIt(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"106\n": 106, "Global tclass=106\n": 106, "Global tclass=106\nsrc_ip=10.0.0.1,tclass=7\n": 106,
		"": -1, "\n": -1, "Global tclass=-1\n": -1, "src_ip=10.0.0.1,tclass=x": -1, "300": -1,
	} {
		got := parseClass(text)
		if (got == nil) != (want < 0) || got != nil && int(*got) != want {
			t.Errorf("%q: got %v, want %d", text, got, want)
		}
	}
}

func TestCheckOfAMoveSaysWhereTheDeviceIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want, hint string
		change           func(*node)
	}{
		{"in the host", "it is in the host's namespace", "rdma dev set mlx5_0 netns p", func(n *node) { n.devices[0].in = plan.Host }},
		{"in the host under another name", "host's namespace", "rdma dev set mine netns p", func(n *node) { n.devices[0].in, n.devices[0].Name = plan.Host, "mine" }},
		{"elsewhere", `check RDMA device "mlx5_0": it is neither in the pod nor in the host`, "look for it in the other namespaces: ip netns exec NAME rdma dev", func(n *node) { n.devices[0].in = elsewhere }},
		{"renamed", `another name in the pod, "mine"`, "ip netns exec p rdma dev set mine name mlx5_0", func(n *node) { n.devices[0].Name = "mine" }},
		{"another ToS", "its RoCE ToS is 0, want 26", "ip netns exec p cma_roce_tos -d mlx5_0 -p 1 -t 26", func(n *node) { n.reset("mlx5_0") }},
		{"another ToS than 0", "its RoCE ToS is 32, want 26", "ip netns exec p cma_roce_tos -d mlx5_0 -p 1 -t 26", func(n *node) { n.write(n.tosFile("mlx5_0"), "32") }},
		{"another traffic class", "its traffic class is 9, want 8", "delete the pod", func(n *node) { n.write(n.classFile("mlx5_0"), "Global tclass=9") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n, op := movable()
			n.withSettings(t, "mlx5_0", "0", "0")
			op.TOS, op.TrafficClass = octet(26), octet(8)
			// What the host sees of another device is as it should be.
			s := n.subsystem(t, merge(verbs("mlx5_0", "mine"), fstest.MapFS{"class/infiniband/mlx5_0/tc/1/traffic_class": {Data: []byte("8\n")}}))
			must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
			c.change(n)
			err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op})
			if cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), c.want) || !strings.Contains(hintOf(err), c.hint) {
				t.Errorf("got %v, hint %q, want 110 with %q and %q", err, hintOf(err), c.want, c.hint)
			}
		})
	}
}

// TestMoveBackWaitsForTheKernelAfterThePodIsGone has a clock that runs when no goroutine runs.
func TestMoveBackWaitsForTheKernelAfterThePodIsGone(t *testing.T) {
	t.Parallel()
	proc := fstest.MapFS{
		"1/ns/net": symlink("net:[4026531840]"), "1/comm": {Data: []byte("systemd\n")},
		"267/ns/net": symlink("net:[4026532291]"), "267/comm": {Data: []byte("sleep\n")},
		"300/ns/net": symlink("net:[4026532291]"), "300/comm": {Data: []byte("bash\n")},
	}
	for _, c := range []struct {
		name  string
		after time.Duration
		sys   fs.FS
		proc  fs.FS
		want  string // "": success
	}{
		{"at once", 0, verbs("mlx5_0"), proc, ""},
		{"after the usual time", 420 * time.Millisecond, verbs("mlx5_0"), proc, ""},
		{"never, for the node does not have it", time.Hour, verbs("mlx5_1"), proc, ""},
		{"never, for the node has another one", time.Hour, merge(verbs("mlx5_1"), fstest.MapFS{
			"class/infiniband_verbs/uverbs-mlx5_1/device": symlink("../../../0000:0c:00.0"),
		}), proc, ""},
		{"never, for a process", time.Hour, verbs("mlx5_0"), proc, "net:[4026532291] is kept by process 267 (sleep), process 300 (bash)"},
		{"never, for none", time.Hour, verbs("mlx5_0"), fstest.MapFS{}, "without a process in it"},
		{"never, under another name", time.Hour, merge(verbs("mine"), fstest.MapFS{
			"class/infiniband_verbs/uverbs-mine/device": symlink("../../../0000:0b:00.0"),
		}), proc, "process 267"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n, op := movable()
				op.Device.PCI = "0000:0b:00.0"
				n.devices[0].in, n.devices[0].Name = elsewhere, "mine"
				start := time.Now()
				n.devices[0].back = start.Add(c.after)
				err := n.subsystem(t, c.sys, podGone, func(cfg *Config) {
					cfg.Proc = c.proc
					cfg.Lock = func(context.Context) (func(), error) {
						if at := time.Since(start); at < min(c.after, returnTime) {
							t.Errorf("the lock of all moves is held from %s on, while one waits", at)
						}
						return func() {}, nil
					}
				}).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op})
				took := time.Since(start)
				home := n.devices[0].where() == plan.Host && n.devices[0].Name == "mlx5_0"
				switch {
				case c.want != "" && (cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(err.Error(), c.want) ||
					!strings.HasSuffix(hintOf(err), "the pod's namespace: kill 267") && !strings.Contains(hintOf(err), "findmnt -t nsfs")):
					t.Errorf("got %v, hint %q, want 109 with %q", err, hintOf(err), c.want)
				case c.want == "" && (err != nil || home != (c.after < returnTime)):
					t.Errorf("got %v, %+v", err, n.devices[0])
				case c.after < returnTime && took > c.after+returnInterval, took > returnTime:
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

// TestReloadedDriverLeavesNothingToUndo has a device of the same name
// and another index: the one that moved is no more.
func TestReloadedDriverLeavesNothingToUndo(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*Config){podGone, func(*Config) {}} {
		n, op := movable()
		n.devices[0].Index = 9
		if err := n.subsystem(t, verbs("mlx5_0"), change).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
			t.Error(err)
		}
	}
	n, op := movable()
	n.noRDMA = true
	if err := n.subsystem(t, fstest.MapFS{}).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Errorf("the kernel has no RDMA any more: %v", err)
	}
}

// TestADeviceMadeAgainOnTheSameHardwareGetsTheHostsSettings has a driver make the device again
// with another index and GUID, while the pod had it.
func TestADeviceMadeAgainOnTheSameHardwareGetsTheHostsSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ bus, hardware, want string }{
		{"pci", "0000:0b:00.2", "104 96"},
		{"auxiliary", "mlx5_core.sf.4", "104 96"},
		{"pci", "0000:0b:00.3", "0 8"},
		{"auxiliary", "mlx5_core.sf.5", "0 8"},
		{"auxiliary", "0000:0b:00.2", "0 8"},
		{"pci", "mlx5_core.sf.4", "0 8"},
	} {
		n, op := movable()
		op.Device.PCI, op.Device.Auxiliary = "0000:0b:00.2", "mlx5_core.sf.4"
		op.TOS, op.HostTOS, op.TrafficClass, op.HostTrafficClass = octet(26), octet(104), octet(8), octet(96)
		n.devices[0].Index, n.devices[0].GUID = 9, noGUID
		n.withSettings(t, "mlx5_0", "0", "8")
		link(t, n.files+"/sysfs/class/infiniband/mlx5_0/device", "../../../devices/"+c.hardware)
		link(t, n.files+"/sysfs/devices/"+c.hardware+"/subsystem", "../../bus/"+c.bus)
		s := n.subsystem(t, os.DirFS(n.files+"/sysfs"))
		for range 2 {
			slices.Reverse(n.devices) // the other one is listed first
			must(t, s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}))
			if got := n.settings(t); got != c.want {
				t.Errorf("%s of %s: got %s, want %s", c.hardware, c.bus, got, c.want)
			}
		}
	}
}

func TestUndoDoesNothingWithoutAnAnswerOfTheKernel(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*Config){podGone, func(*Config) {}} {
		n, op := movable()
		n.devices[0].Name, n.deaf = "mine", unix.ENOBUFS
		if err := n.subsystem(t, verbs("mine", "mlx5_1"), change).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); cnierr.CodeOf(err) != cnierr.TryAgain || n.devices[0].Name != "mine" {
			t.Errorf("got %v, and the name %q, want code %d and no change", err, n.devices[0].Name, cnierr.TryAgain)
		}
	}
}

func TestUndoOfADeviceThatAThirdNamespaceHas(t *testing.T) {
	t.Parallel()
	n, op := movable()
	n.devices[0].in = elsewhere
	err := n.subsystem(t, verbs("mlx5_0")).Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op})
	const how = "ip netns exec NAME rdma dev set mlx5_0 netns ../../proc/1/ns/net"
	if cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(hintOf(err), how) || n.devices[0].in != elsewhere {
		t.Errorf("got %v, hint %q, want code %d and how to move it back; it is in %v", err, hintOf(err), cnierr.RDMAHeld, n.devices[0].in)
	}
}

func TestPortMustBeActiveWhereThePodUsesIt(t *testing.T) {
	t.Parallel()
	n, m := movable()
	s := n.subsystem(t, fstest.MapFS{})
	host, pod := plan.Port{Device: m.Device}, plan.Op{Kind: plan.Port{Device: m.Device}}
	if err := errors.Join(s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: host}), s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: host}), s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: host})); err != nil {
		t.Error(err)
	}
	if err := s.Do(t.Context(), pod); !errors.Is(err, ErrNoDevice) {
		t.Errorf("not in the pod: got %v", err)
	}
	n.devices[0].Ports[0].State = nldev.Init
	if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: host}); cnierr.CodeOf(err) != cnierr.NoRDMA || !strings.Contains(err.Error(), "INIT") {
		t.Errorf("port not active: got %v", err)
	}
	const finding = `check RDMA port "mlx5_0/1": its state is INIT, want ACTIVE`
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: host}); cnierr.CodeOf(err) != cnierr.Damaged || err.Error() != finding || !strings.Contains(hintOf(err), "rdma link show mlx5_0/1") {
		t.Errorf("check of a port that is not active: got %v, hint %q, want 110 with %s", err, hintOf(err), finding)
	}
	n.deaf = unix.ENOBUFS
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: host}); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("check without an answer of the kernel: got %v, want code %d", err, cnierr.TryAgain)
	}
	n.deaf = nil
	host.Device.Port = 2
	if err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: host}); cnierr.CodeOf(err) != cnierr.NoRDMA {
		t.Errorf("no such port: got %v", err)
	}
}

func TestOperationsOfOthersAreABug(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	for _, do := range []func(context.Context, plan.Op) error{s.Do, s.Undo, s.Check} {
		if err := do(t.Context(), plan.Op{Place: plan.Host, Kind: plan.Up{}}); cnierr.CodeOf(err) != cnierr.Bug {
			t.Errorf("got %v, want code %d", err, cnierr.Bug)
		}
	}
}
