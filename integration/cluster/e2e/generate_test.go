// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/integration/vm"
)

// TestTheNetworkOfTheNodesReportsServesTheirPods goes from RDMA devices to GIDs of pods: two
// machines with five rails of Soft-RoCE and a GPU run the agent. rocectl generate --cluster
// reads what the agents report. What it writes is applied, and a pod on each machine gets the
// network.
func TestTheNetworkOfTheNodesReportsServesTheirPods(t *testing.T) {
	n := theNode(t)
	n.deploy(t)
	n.reaper(t)
	n.kubectl(t, "", "apply", "-f", "testdata/network-attachment-definition.yaml")
	wires := []*vm.Wire{new(vm.Wire), new(vm.Wire), new(vm.Wire), new(vm.Wire), new(vm.Wire)}
	names := []string{"machine-0", "machine-1"}
	ends := make([]func() string, len(names))
	for i, name := range names {
		ends[i] = n.boots(t, i, name, wires)
	}
	for _, name := range names {
		n.kubectl(t, "", "wait", "--for=create", "railnode/"+name, "--timeout=8m")
	}

	rails := n.rocectl(t, "rails", "--cluster", "--kubeconfig="+n.kubeconfig)
	for _, name := range names {
		for i, distance := range []string{"PIX", "PXB", "PHB", "NODE", "SYS"} {
			want := fmt.Sprintf("%s %d r%d rxe%d/1 ACTIVE - 9000 ", name, i, i, i)
			if line := lineWith(rails, want); !strings.Contains(line, " GPU0 "+distance+" 1af4:1041 ") {
				t.Errorf("%q is not followed by GPU0 %s in\n%s", want, distance, rails)
			}
		}
	}
	generate := []string{"generate", "--cluster", "--kubeconfig=" + n.kubeconfig, "--name=generated", "--namespace=default", "--subnet=10.{rail+16}.0.0/16"}
	text := n.rocectl(t, generate...)
	for _, want := range []string{"# A network with all rails of 2 nodes: machine-0, machine-1\n", "# rail 4: r4, 0000:81:00.0, 1af4:1041, virtio_net, MTU 9000\n", "# The nodes agree in all of this.\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	n.kubectl(t, text, "apply", "-f", "-")
	plugins := n.kubectl(t, "", "get", "configmaps", "--all-namespaces", "--field-selector=metadata.name=rdma-shared-device-plugin", "--output=jsonpath={.items[*].data}")
	if strings.Count(plugins, "config.json") != 1 || !strings.Contains(plugins, `resourceName\": \"generated`) {
		t.Errorf("the device plugin of the chart does not read what is generated:\n%s", plugins)
	}
	n.kubectl(t, n.rocectl(t, generate...), "diff", "-f", "-") // fails if there is a difference

	file := filepath.Join(t.TempDir(), "generated.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	offline := n.rocectl(t, "plan", "--offline", file)
	first := make([]string, len(names)) // the pod's address on rail 0, of each machine
	for i, name := range names {
		out := ends[i]()
		for rail := range wires {
			planned, has := fmt.Sprintf("%d net%d r%d rxe%d ", rail, rail+1, rail, rail), fmt.Sprintf("rxe%d 1 1 ", rail)
			if lineWith(out, planned) == "" || !strings.Contains(lineWith(out, has), fmt.Sprintf(" 10.%d.", rail+16)) {
				t.Errorf("%s: %q or %q with an address of the rail is not in\n%s", name, planned, has, out)
			}
			if !strings.Contains(offline, fmt.Sprintf(" 10.%d.", rail+16)) {
				t.Errorf("no address of rail %d is in\n%s", rail, offline)
			}
		}
		first[i] = lineWith(out, "rxe0 1 1 ")
	}
	if first[0] == first[1] {
		t.Errorf("both pods have %q", first[0])
	}
}

// boots starts a machine that runs the agent of a node. ended waits for the end of the
// machine, and returns what it has written.
func (n *node) boots(t *testing.T, number int, name string, wires []*vm.Wire) (ended func() string) {
	t.Helper()
	kernel := theKernel(t)
	here, err := os.Getwd()
	must(t, err)
	kubectl, err := filepath.Abs(filepath.Join(bin, "kubectl"))
	must(t, err)
	folder := t.TempDir()
	machineID := ground.MachineID(name)
	must(t, os.Mkdir(filepath.Join(folder, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(folder, "etc", "machine-id"), []byte(machineID+"\n"), 0o600))
	_, err = ground.MakeNode(t.Context(), n.admin, name, machineID, nil)
	must(t, err)
	token, err := ground.AgentToken(t.Context(), n.admin, "roce-cni", "roce-cni-agent", name)
	must(t, err)
	t.Cleanup(func() {
		atOnce := meta.DeleteOptions{GracePeriodSeconds: new(int64)}
		must(t, n.admin.CoreV1().Nodes().Delete(context.Background(), name, atOnce))
		must(t, n.admin.CoreV1().Pods("roce-cni").Delete(context.Background(), "roce-cni-agent-"+name, atOnce))
		n.kubectl(t, "", "delete", "railnode", name)
		n.kubectl(t, "", "delete", "railblocks", "--field-selector=spec.nodeName="+name) // other tests need those of compute
	})
	must(t, n.WriteKubeconfig(filepath.Join(folder, "kubeconfig"), token))
	must(t, n.WriteKubeconfig(filepath.Join(folder, "admin"), n.Admin().BearerToken))

	var out bytes.Buffer
	m := vm.Machine{
		Node: number, Type: vm.PCIe, Rails: wires, Reach: service.Addr(), Output: &out,
		Files: []string{here, programs, filepath.Dir(filepath.Dir(kubectl)), filepath.Dir(kubeconfig), folder}, Dir: here,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute) // many times what it takes
	done := make(chan error, 1)
	go func() {
		defer cancel()
		status, err := kernel.Run(ctx, m, "sh", "testdata/generated.sh", programs, kubectl, folder, name)
		if err == nil && status != 0 {
			err = fmt.Errorf("status %d", status)
		}
		done <- err
	}()
	return func() string {
		if err := <-done; err != nil {
			t.Fatalf("%s: %v\n%s", name, err, &out)
		}
		t.Logf("%s:\n%s", name, &out)
		return out.String()
	}
}

// rocectl runs it, and returns what it prints.
func (n *node) rocectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "rocectl"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("rocectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// lineWith returns the first line with these words at its beginning, with single blanks.
func lineWith(text, words string) string {
	for line := range strings.Lines(text) {
		if line = strings.TrimPrefix(strings.Join(strings.Fields(line), " "), "# "); strings.HasPrefix(line, words) {
			return line
		}
	}
	return ""
}
