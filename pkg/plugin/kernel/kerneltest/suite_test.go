// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
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

func TestLinuxObeysTheLaw(t *testing.T) {
	t.Parallel()
	kerneltest.Suite(t, func(t *testing.T) kerneltest.World {
		t.Parallel()
		return linuxWorld(t)
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

func linuxWorld(t *testing.T) kerneltest.World {
	node := kerneltest.NewNode(t)
	node.NIC("nic0")
	pod := node.Pod()
	return kerneltest.World{
		NIC: "nic0", Container: kerneltest.Container(t), Pod: pod.Path, Host: node.Path,
		Open:   func(path string) (kerneltest.Kernel, error) { return kernel.Open(path, os.DirFS("/sys")) },
		IP:     func(command string) { t.Helper(); pod.IP(command) },
		HostIP: func(command string) { t.Helper(); node.IP(command) },
		Sysctl: func(path, value string) {
			t.Helper()
			if err := pod.Do(func() error { return os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0) }); err != nil {
				t.Fatal(err)
			}
		},
		Show:     func() string { return show(t, pod) },
		ShowHost: func() string { return show(t, node.Netns) },
		OpenHost: func() (kerneltest.Kernel, error) { return kernel.OpenHost() },
		Has:      func(kind string) bool { return has(pod, kind) },
	}
}

// A program runs in the pod of one test while another test undoes the same attachment.
func TestATestLeavesTheLinksOfOthersAlone(t *testing.T) {
	t.Parallel()
	w := linuxWorld(t)
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
		w := linuxWorld(t)
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
			worlds := []kerneltest.World{fakeWorld(t), linuxWorld(t)}
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

// show returns what is in a namespace, without what changes by itself: the
// state of links, and what the kernel does in a work queue (addrconf_dad_work):
// the local routes of IPv6 addresses, also without duplicate detection, and the
// end of an address's time as tentative.
func show(t *testing.T, pod *kerneltest.Netns) string {
	t.Helper()
	var links []struct {
		Name    string `json:"ifname"`
		Alias   string `json:"ifalias"`
		Address string
		Group   string
		MTU     int
		Flags   []string
	}
	if err := json.Unmarshal([]byte(pod.IP("-j link")), &links); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, l := range links {
		fmt.Fprintln(&b, l.Name, l.Alias, l.Address, l.Group, l.MTU, strings.Contains(strings.Join(l.Flags, " ")+" ", "UP "))
	}
	for _, what := range []string{"-o addr", "route show table all", "-6 route show table all", "rule", "-6 rule"} {
		for line := range strings.Lines(pod.IP(what)) {
			if !strings.Contains(line, " table local ") {
				b.WriteString(strings.ReplaceAll(line, " tentative", ""))
			}
		}
	}
	return b.String()
}

// has says whether the kernel can make links of a kind in a namespace.
func has(n *kerneltest.Netns, kind string) bool {
	return n.Do(func() error {
		return exec.Command("sh", "-c", "ip link add below type dummy && ip link add link below name above type "+kind+
			map[string]string{"vlan": " id 7"}[kind]+"; r=$?; ip link del below; exit $r").Run()
	}) == nil
}
