// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestFakeObeysTheLaw(t *testing.T) {
	t.Parallel()
	kerneltest.Suite(t, func(t *testing.T) kerneltest.World {
		t.Parallel()
		return fakeWorld(t)
	})
}

func fakeWorld(t *testing.T) kerneltest.World {
	f := kerneltest.NewFake(t)
	f.NIC("nic0", conf.MAC{2, 0, 0, 0, 1, 0})
	pod := f.Pod("/run/netns/pod")
	return kerneltest.World{
		NIC: "nic0", Container: kerneltest.Container(t), Pod: "/run/netns/pod", Host: kerneltest.HostPath,
		Open:   func(path string) (kerneltest.Kernel, error) { return f.Open(path) },
		IP:     pod.IP,
		HostIP: f.Host().IP,
		Sysctl: pod.Sysctl,
		Show:   pod.String, ShowHost: f.Host().String,
		OpenHost: func() (kerneltest.Kernel, error) { return f.OpenHost() },
		Has:      func(string) bool { return true },
	}
}

// A program runs in the pod of one test while another test undoes the same attachment.
func TestATestLeavesTheLinksOfOthersAlone(t *testing.T) {
	t.Parallel()
	w := kerneltest.NewLinux(t)
	k, err := w.Open(w.Pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	link := kerneltest.Attachment(w.Container, w.NIC)[0]
	if err := k.Do(t.Context(), link); err != nil {
		t.Fatal(err)
	}
	program := exec.Command("cat")
	in, err := program.StdinPipe()
	if err == nil {
		err = k.Enter(program.Start)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = program.Wait()
	})
	t.Run("another", func(t *testing.T) {
		w := kerneltest.NewLinux(t)
		k, err := w.Open(w.Pod)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(k.Close)
		if err := k.Undo(t.Context(), kerneltest.Attachment(w.Container, w.NIC)[0]); err != nil {
			t.Error(err)
		}
	})
	if err := k.Check(t.Context(), link); err != nil {
		t.Error(err)
	}
}

// TestFakeAndLinuxAgree does the same things in random order to both and wants
// the same word of both each time.
func TestFakeAndLinuxAgree(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			worlds := []kerneltest.World{fakeWorld(t), kerneltest.NewLinux(t)}
			kernels := make([]kerneltest.Kernel, len(worlds))
			for i, w := range worlds {
				var err error
				if kernels[i], err = w.Open(w.Pod); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(kernels[i].Close)
			}
			random := rand.New(rand.NewPCG(seed, 0))
			var story []string
			for range 200 {
				do, step := randomStep(random, worlds[0].Container, worlds[0].Show())
				story = append(story, step)
				fake, linux := do(kernels[0], worlds[0]), do(kernels[1], worlds[1])
				if code(fake) != code(linux) {
					t.Fatalf("%s\nfake: %v (%d)\nLinux: %v (%d)\nfake has\n%sLinux has\n%s",
						strings.Join(story, "\n"), fake, code(fake), linux, code(linux), worlds[0].Show(), worlds[1].Show())
				}
			}
		})
	}
}

func code(err error) cnierr.Code {
	if err == nil {
		return 0
	}
	return cnierr.CodeOf(err)
}

// randomStep returns something to do, and its name. What would fail the test
// in the given state is not chosen.
func randomStep(random *rand.Rand, container conf.ContainerID, state string) (func(kerneltest.Kernel, kerneltest.World) error, string) {
	ops := variants(container)
	op := ops[random.IntN(len(ops))]
	switch n := random.IntN(20); {
	case n < 12:
		return func(k kerneltest.Kernel, _ kerneltest.World) error { return k.Do(context.Background(), op) }, fmt.Sprintf("do %+v", op)
	case n < 14:
		return func(k kerneltest.Kernel, _ kerneltest.World) error { return k.Undo(context.Background(), op) }, fmt.Sprintf("undo %+v", op)
	case n < 18 || !strings.Contains(state, "link net1 "):
		return func(k kerneltest.Kernel, _ kerneltest.World) error { return k.Check(context.Background(), op) }, fmt.Sprintf("check %+v", op)
	}
	commands := []string{"link set net1 down", `link set net1 alias ""`, "link set net1 address 02:00:00:00:00:99", "link set net1 mtu 1400", "link del net1", "link set net1 alias theirs"}
	command := commands[random.IntN(len(commands))]
	return func(_ kerneltest.Kernel, w kerneltest.World) error { w.IP(command); return nil }, "ip " + command
}

// variants returns the operations of an attachment, and some that are in their
// way.
func variants(container conf.ContainerID) plan.Ops {
	ops := kerneltest.Attachment(container, "nic0")
	for _, op := range kerneltest.Attachment(container, "nic0") {
		switch k := op.Kind.(type) {
		case plan.Child:
			k.MTU, k.MAC[5] = 1400, 9
			other := k
			other.Mark = "other " + string(container) // Undo looks for it in the namespaces of all tests
			ops = append(ops, plan.InPod(k, other, plan.Child{Name: k.Name, Parent: "nic0", Mark: other.Mark, Mode: conf.Bridge, MTU: 1500, MAC: conf.MAC{2, 0, 0, 0, 0, 5}})...)
		case plan.Route:
			if k.Via.IsValid() {
				k.Via = k.Src.Next()
				ops = append(ops, plan.InPod(k)...)
			}
			k.Metric += 7
			ops = append(ops, plan.InPod(k)...)
		case plan.Rule:
			k.Table = 101
			ops = append(ops, plan.InPod(k)...)
		case plan.Up, plan.Sysctl:
			ops = append(ops, op, op)
		}
	}
	return ops
}
