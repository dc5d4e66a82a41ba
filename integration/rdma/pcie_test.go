// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/tool/nic"
)

// newPCIeNode returns the node in a machine of the type pcie with five rails:
// integration/vm/pcie.go has its topology.
func newPCIeNode(t *testing.T) *node {
	t.Helper()
	return newNodeOf(t, device(4), "shared")
}

func TestPCIeRailsShowHowFarTheGPUIs(t *testing.T) {
	n := newPCIeNode(t)
	var ports []nic.Details
	if err := json.Unmarshal([]byte(n.rocectl("rails", "-o", "json")), &ports); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range ports {
		if p.NUMA == nil {
			t.Fatalf("%s has no NUMA node", p.Netdev)
		}
		line := fmt.Sprintf("%s %s, NUMA %d, ", p.Netdev, p.Device, *p.NUMA)
		for _, g := range p.GPUs {
			line += fmt.Sprintf("%s %s", g.Name, g.Distance)
			if class := run(t, "cat", "/sys/bus/pci/devices/"+g.PCI+"/class"); class != "0x038000" {
				t.Errorf("%s is at %s, which has the class %s", g.Name, g.PCI, class)
			}
		}
		got = append(got, line)
	}
	want := []string{
		"r0 rxe0, NUMA 0, GPU0 PIX",
		"r1 rxe1, NUMA 0, GPU0 PXB",
		"r2 rxe2, NUMA 0, GPU0 PHB",
		"r3 rxe3, NUMA 0, GPU0 NODE",
		"r4 rxe4, NUMA 1, GPU0 SYS",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rocectl rails (-want +got)\n%s", diff)
	}
}

// TestPCIeWhatIsGeneratedIsPlanned has no address on the NICs, so --subnet is needed.
func TestPCIeWhatIsGeneratedIsPlanned(t *testing.T) {
	n := newPCIeNode(t)
	rocectl := filepath.Join(*programs, "rocectl") // generate reads no state folder
	generate := []string{"generate", "--subnet", "172.{rail+16}.0.0/16", "--gateway", "172.{rail+16}.0.1"}
	text := run(t, rocectl, generate...)
	contains(t, text, "\n# rail 4: r4, 0000:81:00.0, 1af4:1041, virtio_net\n", `"count": 5,`)
	if again := run(t, rocectl, generate...); again != text {
		t.Errorf("a second time (-first +second)\n%s", cmp.Diff(text, again))
	}
	file := filepath.Join(t.TempDir(), "rails.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := n.rocectl("plan", "--offline", file)
	for i := range 5 {
		contains(t, plan, fmt.Sprintf("via 172.%d.0.1 ", i+16))
	}
}
