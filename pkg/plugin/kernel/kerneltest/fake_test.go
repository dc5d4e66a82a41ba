// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest_test

import (
	"errors"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func newFake(t testing.TB) (*kerneltest.Fake, *kerneltest.Space, *kerneltest.FakeKernel) {
	t.Helper()
	f := kerneltest.NewFake(t)
	f.NIC("nic0", conf.MAC{2, 0, 0, 0, 1, 0})
	pod := f.Pod("/run/netns/pod")
	k, err := f.Open("/run/netns/pod")
	if err != nil {
		t.Fatal(err)
	}
	return f, pod, k
}

func TestFaultsStrikeAtTheNamedCall(t *testing.T) {
	t.Parallel()
	f, _, k := newFake(t)
	ops, fault := kerneltest.Attachment("abc", "nic0"), errors.New("fault")
	before := f.Calls()
	f.FailAt(2, fault)
	if err := k.Do(t.Context(), ops[0]); err != nil {
		t.Errorf("first call: %v", err)
	}
	if err := k.Do(t.Context(), ops[2]); !errors.Is(err, fault) {
		t.Errorf("second call: %v, want the fault", err)
	}
	if err := k.Check(t.Context(), ops[2]); err == nil || errors.Is(err, fault) {
		t.Errorf("third call: %v: the second must have done nothing", err)
	}
	f.FailFrom(2, fault)
	for i, want := range []bool{false, true, true} {
		if err := k.Undo(t.Context(), ops[2]); errors.Is(err, fault) != want {
			t.Errorf("call %d from FailFrom(2): %v", i+1, err)
		}
	}
	if _, err := f.Open("/run/netns/pod"); !errors.Is(err, fault) {
		t.Errorf("open: %v, want the fault", err)
	}
	f.Heal()
	if _, err := plan.Only(k.Facts(t.Context(), conf.Request{Rails: []conf.Rail{{Parent: conf.Parent{Name: "nic0"}}}})); err != nil {
		t.Errorf("after Heal: %v", err)
	}
	if got := f.Calls() - before; got != 8 {
		t.Errorf("%d calls, want 8", got)
	}
}

// listener hears what the fake complains about instead of failing.
type listener struct {
	testing.TB
	heard int
}

func (l *listener) Error(...any) { l.heard++ }

func TestFakeIsLoudAboutWhatItWasNotMadeFor(t *testing.T) {
	t.Parallel()
	l := &listener{TB: t}
	_, pod, k := newFake(l)
	for i, command := range []string{
		"link", "link add net1", "link del nosuch", "link set nosuch up", "link set lo colour red", "neigh add x y",
		"addr add 10.0.0.5/24 dev nosuch", "addr add nonsense dev lo", "route del 10.0.0.0/8", "rule del from 10.0.0.0/8 priority 5", "rule add priority 5",
	} {
		pod.IP(command)
		if l.heard != i+1 {
			t.Fatalf("ip %s: no complaint", command)
		}
	}
	l.heard = 0
	bad := kerneltest.Attachment("abc", "nic0")[6].Kind.(plan.Route)
	bad.Dst = kerneltest.Attachment("abc", "nic0")[3].Kind.(plan.Address).Prefix
	if err := k.Do(t.Context(), plan.Op{Kind: bad}); err == nil || l.heard != 1 {
		t.Errorf("a route that is not masked: %v", err)
	}
	k.Close()
	if err := k.Do(t.Context(), plan.Op{Kind: plan.Up{Link: "lo"}}); cnierr.CodeOf(err) != cnierr.Bug || l.heard != 2 {
		t.Errorf("after Close: %v", err)
	}
}
