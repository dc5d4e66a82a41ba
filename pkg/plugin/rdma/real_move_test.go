// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestRealMoveInSharedModeIsRefusedWithTheRemedy(t *testing.T) {
	r := needRDMA(t)
	k, _ := r.pod("p")
	s := r.subsystem(k.Enter)
	op := plan.Move{Device: r.device(s, "rxe0"), Parent: "r0", Netns: k.ID()}
	err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
	var e *cnierr.Error
	if !errors.As(err, &e) || e.Code != cnierr.RDMAMode || !strings.Contains(e.Hint, "netns_mode=0") {
		t.Errorf("got %v", err)
	}
	if err := s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
		t.Errorf("undo of what was never done: %v", err)
	}
}

func TestRealDeviceMovesToThePodAndBack(t *testing.T) {
	r := needRDMA(t)
	r.exclusive()
	k, _ := r.pod("p")
	s := r.subsystem(k.Enter)
	must(t, s.setTOS(plan.Host, r.device(s, "rxe0"), 104))
	facts, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, r.parent(k, "r0"), false)
	if err != nil || !facts.Exclusive || facts.TOS == nil || *facts.TOS != 104 || facts.TrafficClass != nil {
		t.Fatalf("got %+v, %v", facts, err)
	}
	r.child("p", "r0", "172.16.0.11/24")
	move := plan.Move{Device: facts.Device, Parent: "r0", Netns: k.ID(), TOS: octet(26), HostTOS: facts.TOS}
	ops := append(plan.OnHost(move), plan.InPod(
		plan.Port{Device: facts.Device},
		plan.GID{
			Mode: conf.Require, Device: facts.Device, Wait: time.Second,
			Targets: []plan.GIDTarget{{Link: "net1", Addr: netip.MustParseAddr("172.16.0.11")}},
		},
	)...)
	for range 2 { // idempotent
		for _, op := range ops {
			if err := s.Do(t.Context(), op); err != nil {
				t.Fatalf("%T: %v", op.Kind, err)
			}
		}
		if host, pod := r.devices(s, plan.Host), r.devices(s, plan.Pod); host != "rxe1" || pod != "rxe0" {
			t.Fatalf("host has %q, pod has %q", host, pod)
		}
	}
	t.Log(s.Located())
	for _, op := range ops {
		if err := s.Check(t.Context(), op); err != nil {
			t.Errorf("check %T: %v", op.Kind, err)
		}
	}
	if tos, err := s.tos(plan.Pod, facts.Device); err != nil || tos == nil || *tos != 26 {
		t.Errorf("ToS in the pod: %v, %v, want 26", tos, err)
	}
	other := r.subsystem(r.second("q").Enter)
	if err := other.Do(t.Context(), plan.Op{Place: plan.Host, Kind: move}); cnierr.CodeOf(err) != cnierr.RDMAHeld {
		t.Errorf("second pod: got %v, want code %d", err, cnierr.RDMAHeld)
	}
	if _, err := s.Facts(t.Context(), conf.RDMA{Mode: conf.RDMAAuto}, r.parent(k, "r0"), false); !errors.Is(err, ErrNoDevice) {
		t.Errorf("facts while a pod has it: got %v, want ErrNoDevice", err)
	}

	r.run("ip netns exec p rdma dev set rxe0 name mine")
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: move}); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(hintOf(err), "dev set mine name rxe0") {
		t.Errorf("renamed in the pod: got %v, %s", err, hintOf(err))
	}
	for range 2 {
		must(t, s.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: move}))
		if host, pod := r.devices(s, plan.Host), r.devices(s, plan.Pod); host != "rxe0 rxe1" || pod != "" {
			t.Fatalf("after undo host has %q, pod has %q", host, pod)
		}
	}
	if tos, err := s.tos(plan.Host, facts.Device); err != nil || tos == nil || *tos != 104 {
		t.Errorf("ToS back in the host: %v, %v, want 104", tos, err)
	}
	if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: move}); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "host's namespace") {
		t.Errorf("check after undo: got %v", err)
	}
	if left, err := fs.Glob(os.DirFS("/sys/kernel/config"), "rdma_cm/*"); len(left) > 0 {
		t.Errorf("left in configfs: %v, %v", left, err)
	}
	if err := s.setTOS(plan.Host, facts.Device, 0); err != nil {
		t.Error(err)
	}
}

func (r rig) second(name string) *kernel.Kernel {
	k, _ := r.pod(name)
	return k
}

func TestRealDeviceIsAwaitedAfterTheNamespaceIsGone(t *testing.T) {
	r := needRDMA(t)
	r.exclusive()
	k, remove := r.pod("p")
	s := r.subsystem(k.Enter)
	r.child("p", "r0")
	must(t, s.setTOS(plan.Host, r.device(s, "rxe0"), 104))
	move := plan.Move{Device: r.device(s, "rxe0"), Parent: "r0", Netns: k.ID(), TOS: octet(26), HostTOS: octet(104)}
	must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: move}))
	r.run("ip netns exec p rdma dev set rxe0 name mine")
	s.Close()
	remove()
	alone := r.subsystem(nil)
	start := time.Now()
	must(t, alone.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: move}))
	t.Logf("back after %s", time.Since(start))
	if host := r.devices(alone, plan.Host); host != "rxe0 rxe1" {
		t.Errorf("host has %q", host)
	}
	if tos, err := alone.tos(plan.Host, move.Device); err != nil || tos == nil || *tos != 104 {
		t.Errorf("ToS back in the host: %v, %v, want 104", tos, err)
	}
	if err := alone.setTOS(plan.Host, move.Device, 0); err != nil {
		t.Error(err)
	}
}

func TestRealProcessThatKeepsTheDeviceIsNamed(t *testing.T) {
	r := needRDMA(t)
	r.exclusive()
	k, remove := r.pod("p")
	s := r.subsystem(k.Enter)
	move := plan.Move{Device: r.device(s, "rxe0"), Parent: "r0", Netns: k.ID()}
	must(t, s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: move}))
	ctx, cancel := context.WithCancel(t.Context())
	holder := exec.CommandContext(ctx, "ip", "netns", "exec", "p", "sleep", "1000")
	must(t, holder.Start())
	r.run("for i in $(seq 100); do grep -q sleep /proc/%d/comm && exit; sleep .1; done; exit 1", holder.Process.Pid)
	s.Close()
	remove()
	alone := r.subsystem(nil)
	err := alone.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: move})
	want := fmt.Sprintf("process %d (sleep)", holder.Process.Pid)
	if cnierr.CodeOf(err) != cnierr.RDMAHeld || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want one that names %s", err, want)
	}
	cancel()
	_ = holder.Wait() // killed
	if err := alone.Undo(t.Context(), plan.Op{Place: plan.Host, Kind: move}); err != nil {
		t.Errorf("after the process is gone: %v", err)
	}
	if host := r.devices(alone, plan.Host); host != "rxe0 rxe1" {
		t.Errorf("host has %q", host)
	}
}

func TestRealSettingsAreReadByManyAtOnce(t *testing.T) {
	r := needRDMA(t)
	d := r.device(r.subsystem(nil), "rxe0")
	var all sync.WaitGroup
	for range 4 {
		s := r.subsystem(nil)
		all.Go(func() {
			for range 50 {
				if tos, err := s.tos(plan.Host, d); err != nil || tos == nil || *tos != 0 {
					t.Errorf("got %v, %v, want 0", tos, err)
					return
				}
			}
		})
	}
	all.Wait()
}
