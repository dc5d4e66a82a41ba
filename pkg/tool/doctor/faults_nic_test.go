// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// nicFaults are of what is behind a port: bond, VF, PCIe, GPU.
func nicFaults() []fault {
	const nic = "sys/class/infiniband/mlx5_0/device/"
	bond := func(w *world, slave bool) {
		w.links = append(w.links, rtnl.Link{Index: 9, Name: "bond0", Kind: "bond", MTU: 9000})
		for i := range 2 {
			w.link(i).SlaveKind, w.link(i).Master = "bond", 9
		}
		if !slave {
			w.rdma.Devices = w.rdma.Devices[:1]
			w.port(0).NetdevIndex, w.routes[0].Index = 9, 9
		}
	}
	vf := func(trust, spoof bool) func(*world) {
		return func(w *world) {
			w.links = append(w.links, rtnl.Link{Index: 7, Name: "ens1f0v0"})
			w.vfs = []rtnl.VF{{Untrusted: !trust, SpoofCheck: spoof}, {Number: 1, SpoofCheck: true}}
			w.write("sys/class/net/ens1f0np0/device/virtfn0/net/ens1f0v0/mtu", "9000")
		}
	}
	// A GPU, and three bridges above the NIC, the second of which has ACS as its second capability.
	acs := func(control byte, size int) func(*world) {
		return func(w *world) {
			w.gpu()
			w.write("sys/module/nvidia_peermem/refcnt", "0")
			config := make([]byte, size)
			if size > 256 {
				copy(config[0x100:], []byte{0x01, 0x00, 0x02, 0x14}) // AER, the next at 0x140
				copy(config[0x140:], []byte{0x0d, 0x00, 0x01, 0x00, 0x5f, 0x00, control, 0x00})
			}
			for _, other := range []string{"08", "0a"} {
				w.write("sys/bus/pci/devices/0000:"+other+":00.0/config", string(make([]byte, 4096)))
			}
			w.write("sys/bus/pci/devices/0000:09:00.0/config", string(config))
			w.targets["sys/class/infiniband/mlx5_0"] = "../../devices/pci0000:08/0000:08:00.0/0000:09:00.0/0000:0a:00.0/0000:0b:00.0/infiniband/mlx5_0"
		}
	}
	return []fault{
		{
			name: "ACS redirects", change: acs(0x1d, 4096),
			check: "pcie-acs", verdict: report.Problem, says: "mlx5_0: redirected by 0000:09:00.0", advice: "setpci -s 0000:09:00.0 ECAP_ACS+0x6.w=0000\n# until",
			after: acs(0, 4096),
		},
		{
			name: "ACS is off", change: acs(0, 4096),
			check: "pcie-acs", verdict: report.OK, says: "mlx5_0: 3 bridges above it, none redirects",
		},
		{
			name: "a capability that names itself as the next one",
			change: func(w *world) {
				acs(0, 4096)(w)
				config := make([]byte, 4096)
				copy(config[0x100:], []byte{0x01, 0x00, 0x02, 0x10})
				w.write("sys/bus/pci/devices/0000:09:00.0/config", string(config))
			},
			check: "pcie-acs", verdict: report.OK, says: "mlx5_0: 3 bridges above it, none redirects",
		},
		{
			name: "a device on no bus", change: acs(0, 4096),
			check: "pcie-acs", verdict: report.OK, says: "mlx5_1: it is on no PCI bus",
		},
		{
			name: "the configuration space cannot be read", change: acs(0x1d, 256),
			check: "pcie-acs", verdict: report.CannotTell, says: "only 256 bytes", advice: "root",
		},
		{
			name: "slaves keep their devices", change: func(w *world) { bond(w, true) },
			check: "rdma-bond", verdict: report.Problem, says: "mlx5_0/1: it belongs to ens1f0np0, a slave of bond0", advice: "pci/0000:0b:00.0",
			after: func(w *world) {
				w.rdma.Devices = w.rdma.Devices[:1]
				w.port(0).NetdevIndex, w.routes[0].Index = 9, 9
			},
		},
		{
			name: "the bond has the device", change: func(w *world) { bond(w, false) },
			check: "rdma-bond", verdict: report.OK, says: "no slave of a bond has an RDMA device of its own",
		},
		{
			name: "the device of the bond names a slave", change: func(w *world) {
				bond(w, true)
				w.rdma.Devices = w.rdma.Devices[:1] // as mlx5 does
			},
			check: "rdma-bond", verdict: report.OK, says: "no slave of a bond has an RDMA device of its own",
		},
		{
			name: "interfaces cannot be listed for bonds", change: func(w *world) { w.linksErr = errRefused },
			check: "rdma-bond", verdict: report.CannotTell, says: "not permitted", advice: "root", also: withoutLinks(),
		},
		{
			name: "a VF of the node is not trusted", change: vf(false, true),
			check: "vf-trust", verdict: report.Problem, says: "ens1f0v0: VF 0 of ens1f0np0: not trusted, spoof check on",
			advice: "ip link set ens1f0np0 vf 0 trust on spoofchk off",
			after:  func(w *world) { w.vfs[0] = rtnl.VF{} },
		},
		{
			name: "a VF of the node is trusted", change: vf(true, false),
			check: "vf-trust", verdict: report.OK, says: "ens1f0v0: VF 0 of ens1f0np0: trusted",
		},
		{
			name: "interfaces cannot be listed for VFs", change: func(w *world) { w.linksErr = errRefused },
			check: "vf-trust", verdict: report.CannotTell, says: "not permitted", advice: "root", also: withoutLinks(),
		},
		{
			name: "half the lanes", change: func(w *world) { w.write(nic+"current_link_width", "8\n") },
			check: "pcie-link", verdict: report.Problem, says: "mlx5_0: 16.0 GT/s PCIe x8, of 16.0 GT/s PCIe x16", advice: "lspci -vv -s 0000:0b:00.0",
			after: func(w *world) { w.restore(nic + "current_link_width") },
		},
		{
			name: "a slower generation", change: func(w *world) { w.write(nic+"current_link_speed", "8.0 GT/s PCIe\n") },
			check: "pcie-link", verdict: report.Problem, says: "8.0 GT/s PCIe x16, of 16.0", advice: "lspci",
			after: func(w *world) { w.restore(nic + "current_link_speed") },
		},
		{
			name: "the link is unknown", change: func(w *world) { w.write(nic+"current_link_speed", "Unknown\n") },
			check: "pcie-link", verdict: report.CannotTell, says: "Unknown", advice: "LnkSta",
		},
		{
			name: "Soft-RoCE has no link", change: func(w *world) {
				w.remove("sys/class/infiniband/mlx5_0/device")
				w.remove("sys/class/infiniband/mlx5_1/device")
			},
			check: "pcie-link", verdict: report.OK, says: "no RDMA device has a PCIe link",
		},
		{
			name: "peermem is not loaded", change: func(w *world) {
				w.gpu()
				w.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15")
			},
			check: "gpu-direct", verdict: report.Problem, says: "nvidia_peermem is not loaded", advice: "modprobe nvidia_peermem",
			after: func(w *world) { w.write("sys/module/nvidia_peermem/refcnt", "0") },
		},
		{
			name: "peermem is loaded", change: func(w *world) {
				w.gpu()
				w.write("sys/module/nvidia_peermem/refcnt", "0")
			},
			check: "gpu-direct", verdict: report.OK, says: "nvidia_peermem is loaded",
		},
		{
			name: "open kernel modules", change: func(w *world) {
				w.gpu()
				w.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15")
			},
			check: "gpu-direct", verdict: report.OK, says: "dmabuf",
		},
		{
			name: "which NVIDIA driver cannot be told", change: (*world).gpu,
			check: "gpu-direct", verdict: report.CannotTell, says: "nvidia_peermem is not loaded", advice: "/proc/driver/nvidia/version",
		},
	}
}
