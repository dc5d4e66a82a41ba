// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/roce-cni/roce-cni/integration/vm"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// series is the kernel where pods can share Soft-RoCE devices.
const series = "7"

// deviceInfo is what Multus tells of the device of an interface.
type deviceInfo struct {
	Type, Version string
	PCI           struct {
		Address string `json:"pci-address"`
		RDMA    string `json:"rdma-device"`
	}
}

// TestAPodsStatusHasItsRDMADevices boots a machine with Soft-RoCE on its NICs r0
// and r1, and runs itself in it. The machine uses the API server of this test.
func TestAPodsStatusHasItsRDMADevices(t *testing.T) {
	if os.Getenv(machine) != "" {
		tellsDevices(t)
		return
	}
	n := theNode(t)
	for name, network := range map[string]map[string]any{
		"rail0": {"master": "r0", "ipam": ofRail(10)},
		"rail1": {"master": "r1", "ipam": ofRail(11)},
		"rails": {"rails": []any{map[string]any{"master": "r0"}, map[string]any{"master": "r1"}}, "ipam": ofRail("{rail+12}")},
	} {
		network["cniVersion"], network["type"], network["name"] = "1.0.0", "roce", name
		network["capabilities"] = map[string]any{"CNIDeviceInfoFile": true}
		n.network(t, name, network)
		n.kubectl(t, "", "annotate", "network-attachment-definition", name, "k8s.v1.cni.cncf.io/resourceName=rdma/"+name)
	}
	n.boot(t)
}

func ofRail(third any) map[string]any {
	return map[string]any{"type": "roce-ipam", "subnets": []any{map[string]any{"subnet": fmt.Sprintf("172.16.%v.0/24", third)}}}
}

// boot runs the test in a machine. It must pass there: one that is skipped has not.
func (n *node) boot(t *testing.T) {
	t.Helper()
	kernel := theKernel(t)
	binary, err := os.Executable()
	must(t, err)
	here, err := os.Getwd()
	must(t, err)
	others, err := filepath.Abs(filepath.Dir(bin)) // what is in bin are links
	must(t, err)
	const patience = 5 * time.Minute // many times what it takes
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out bytes.Buffer
	m := vm.Machine{
		Rails: []*vm.Wire{new(vm.Wire), new(vm.Wire)}, Reach: service.Addr(), Output: &out,
		Files: []string{here, filepath.Dir(binary), programs, others, plugins, filepath.Dir(kubeconfig)}, Dir: here,
	}
	status, err := kernel.Run(ctx, m, "env", asked+"=1", machine+"=1", inside+"="+programs, thick+"="+os.Getenv(thick), binary, "-test.v", "-test.run=^"+t.Name()+"$")
	if err != nil || status != 0 || !strings.Contains(out.String(), "--- PASS: "+t.Name()+" ") {
		t.Fatalf("in the machine: status %d, %v\n%s", status, err, &out)
	}
	t.Logf("in the machine:\n%s", &out)
}

// tellsDevices calls Multus in the machine, for a pod that has each rail as a
// network of its own, and both rails in one.
func tellsDevices(t *testing.T) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	must(t, err)
	admin, err := kubernetes.NewForConfig(config)
	must(t, err)
	n := &node{admin: admin, name: "machine", kubeconfig: kubeconfig}
	run(t, "mount", "--make-rshared", "/") // as systemd has it
	n.multus = n.startMultus(t, n.name, ownNetns, "/etc/roce")
	s := n.sandbox(t, "trainer", "rail0,rail1,rails")
	s.allocate(t, "rail0", "rail1", "rails")
	// Multus gives the API server 250 ms, twice: kubelet tries again, and so do we.
	eventually(t, "ADD", func(context.Context) error {
		err := s.tryAdd(t)
		if err != nil {
			s.del(t)
		}
		return err
	})
	first, second := device(t, 0), device(t, 1)
	want := []status{
		{Name: "cluster", Interface: "eth0", Default: true},
		{Name: "default/rail0", Interface: "net1", DeviceInfo: &first},
		{Name: "default/rail1", Interface: "net2", DeviceInfo: &second},
		// Multus tells a file's device of all interfaces of a network.
		{Name: "default/rails", Interface: "net3"},
		{Name: "default/rails", Interface: "net3-1"},
	}
	got := n.statuses(t, s.Name)
	for i := range want {
		want[i].IPs, want[i].MAC = s.has(t, want[i].Interface)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("network-status (-want +got)\n%s", diff)
	}
	for i, w := range want[1:] {
		if at := tableWith(t, w.IPs[0]); at != fmt.Sprintf("rxe%d", i%2) {
			t.Errorf("%s of %s is in the table of %q", w.IPs[0], w.Interface, at)
		}
	}
	s.holds(t, 4)

	s.del(t)
	s.isBare(t)
	for _, w := range want[1:] {
		if at := tableWith(t, w.IPs[0]); at != "" {
			t.Errorf("%s is in the table of %s still", w.IPs[0], at)
		}
	}
	for _, folder := range []string{"/run/k8s.cni.cncf.io/devinfo/cni", stateDir + "/attachments"} {
		left, err := filepath.Glob(folder + "/*")
		must(t, err)
		if len(left) > 0 {
			t.Errorf("there is %q still", left)
		}
	}
}

// allocate writes what kubelet would write of devices of a plugin that does not
// give out PCI devices, as that of shared RDMA devices: to a folder of the
// machine's own, since there may be one of a kubelet that runs elsewhere.
func (s *sandbox) allocate(t *testing.T, resources ...string) {
	t.Helper()
	const folder = "/var/lib/kubelet"
	must(t, os.MkdirAll(folder, 0o755))
	must(t, syscall.Mount("e2e", folder, "tmpfs", 0, ""))
	t.Cleanup(func() { must(t, syscall.Unmount(folder, 0)) })
	var entries []any
	for i, r := range resources {
		entries = append(entries, map[string]any{
			"PodUID": s.UID, "ContainerName": "main", "ResourceName": "rdma/" + r,
			"DeviceIDs": map[string]any{"0": []string{fmt.Sprint(i)}},
		})
	}
	text, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": entries}})
	must(t, err)
	must(t, os.Mkdir(folder+"/device-plugins", 0o755))
	must(t, os.WriteFile(folder+"/device-plugins/kubelet_internal_checkpoint", text, 0o600))
}

// has returns the addresses and the MAC of an interface, as the kernel tells them.
func (s *sandbox) has(t *testing.T, link string) (addresses []string, mac string) {
	t.Helper()
	var all []struct {
		Address   string
		Addresses []struct{ Family, Local string } `json:"addr_info"`
	}
	must(t, json.Unmarshal([]byte(s.inside(t, "ip", "-j", "addr", "show", "dev", link)), &all))
	for _, a := range all[0].Addresses {
		if a.Family == "inet" {
			addresses = append(addresses, a.Local)
		}
	}
	return addresses, all[0].Address
}

// device returns what is to be told of the RDMA device of a rail: Soft-RoCE, which
// has no hardware, on a NIC of virtio, which is on the PCI bus.
func device(t *testing.T, rail int) deviceInfo {
	t.Helper()
	virtio, err := filepath.EvalSymlinks(fmt.Sprintf("/sys/class/net/r%d/device", rail))
	must(t, err)
	out := deviceInfo{Type: "pci", Version: "1.1.0"}
	out.PCI.Address, out.PCI.RDMA = filepath.Base(filepath.Dir(virtio)), fmt.Sprintf("rxe%d", rail)
	return out
}

// tableWith returns the RDMA devices that have an address's GID, "" if none has.
func tableWith(t *testing.T, address string) string {
	t.Helper()
	const list = `cd /sys/class/infiniband; for d in *; do ! grep -qsr "$0" $d/ports/1/gids || echo $d; done`
	out, err := exec.Command("sh", "-c", list, plan.GIDText(netip.MustParseAddr(address))).Output()
	must(t, err)
	return strings.Join(strings.Fields(string(out)), " ")
}
