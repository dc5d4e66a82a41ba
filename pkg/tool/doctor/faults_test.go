// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// faults are changes of the healthy node, in the order of the checks.
func faults() []fault {
	return slices.Concat(moduleFaults(), portFaults(), limitFaults(), nicFaults(), configuredFaults(), settingFaults(), softwareFaults(), taggedFaults())
}

// withoutDevices are the checks that cannot look when the devices cannot be listed.
func withoutDevices() []string {
	return []string{
		"rdma-devices", "rdma-netns-mode", "rdma-ports", "rdma-mtu", "rdma-bond", "pcie-link", "gid-table", "rdma-files", "host-arp", "firewall", "network-managers",
		"eswitch-mode", "nic-firmware", "nic-qos", "pool-routes",
	}
}

// withoutLinks are the checks that cannot look when the interfaces cannot be listed.
func withoutLinks() []string {
	return []string{
		"rdma-ports", "rdma-mtu", "rdma-bond", "vf-trust", "host-arp", "network-managers", "host-link", "left-behind", "tagged-frames",
		"gid-table", "nic-firmware", "nic-qos", "pool-routes",
	}
}

func moduleFaults() []fault {
	return []fault{
		{
			name: "a module is absent", change: func(w *world) { w.remove("sys/module/rdma_ucm") },
			check: "rdma-modules", verdict: report.Problem, says: "not loaded: rdma_ucm", advice: "modprobe -a rdma_ucm",
			after: func(w *world) { w.restore("sys/module/rdma_ucm/refcnt") },
		},
		{
			name: "a module is built in", change: func(w *world) {
				w.remove("sys/module/ib_umad")
				w.write("lib/modules/6.8.0-60-generic/modules.builtin", "kernel/drivers/infiniband/core/ib_umad.ko\n")
			},
			check: "rdma-modules", verdict: report.OK, says: "loaded or built in",
		},
		{
			name: "the list of built-in modules is absent", change: func(w *world) {
				w.remove("sys/module/ib_umad")
				w.remove("lib/modules")
			},
			check: "rdma-modules", verdict: report.CannotTell, says: "ib_umad may be built in", advice: "/lib/modules/6.8.0-60-generic/modules.builtin",
		},
		{
			name: "modules cannot be read", change: func(w *world) { w.deny("sys/module") },
			check: "rdma-modules", verdict: report.CannotTell, says: "permission denied", advice: "/sys/module", also: []string{"rdma-driver", "gid-table", "gpu-direct", "pcie-acs"},
		},
		{
			name: "OFED runs", change: func(w *world) {
				w.write("sys/module/mlx_compat/refcnt", "12")
				w.write("sys/module/mlx5_core/version", "24.10-0.7.0\n")
				w.write("usr/bin/ofed_info", "#!/bin/bash")
			},
			check: "rdma-driver", verdict: report.OK, says: "OFED 24.10-0.7.0 on Linux 6.8.0-60-generic", also: []string{"gid-table"},
		},
		{
			name: "OFED is installed for another kernel", change: func(w *world) { w.write("usr/bin/ofed_info", "#!/bin/bash") },
			check: "rdma-driver", verdict: report.Problem, says: "the drivers of Linux 6.8.0-60-generic run", advice: "dkms autoinstall",
			after: func(w *world) {
				w.write("sys/module/mlx_compat/refcnt", "12")
				w.write("sys/module/mlx5_core/version", "24.10-0.7.0\n")
			},
		},
		{
			name: "the kernel's release cannot be read", change: func(w *world) { w.deny("proc/sys/kernel/osrelease") },
			check: "rdma-driver", verdict: report.CannotTell, advice: "osrelease",
		},
		{
			name: "the kernel has no RDMA", change: func(w *world) { w.rdmaErr = unix.EPROTONOSUPPORT },
			check: "rdma-devices", verdict: report.Problem, says: "no RDMA", advice: "modprobe", also: withoutDevices(),
			after: func(w *world) { w.rdmaErr = nil },
		},
		{
			name: "there is no device", change: func(w *world) { w.rdma.Devices = nil },
			check: "rdma-devices", verdict: report.Problem, says: "no device", advice: "lspci -k", also: withoutDevices(),
			after: func(w *world) { w.rdma = healthy(w.t).rdma },
		},
		{
			name: "devices cannot be listed", change: func(w *world) { w.rdmaErr = errRefused },
			check: "rdma-devices", verdict: report.CannotTell, says: "not permitted", advice: "root", also: withoutDevices(),
		},
		{
			name: "exclusive until the next boot", change: func(w *world) { w.rdma.Exclusive = true },
			check: "rdma-netns-mode", verdict: report.Problem, says: "exclusive now, and shared after the next boot (the kernel's default)",
			advice: "netns_mode=0",
			after:  func(w *world) { w.write("etc/modprobe.d/zz-roce.conf", "options ib_core netns_mode=0\n") },
		},
		{
			name: "shared until the next boot", change: func(w *world) { w.write("etc/modprobe.d/rdma.conf", "# x\noptions ib_core netns_mode=0\n") },
			check: "rdma-netns-mode", verdict: report.Problem, says: "shared now, and exclusive after the next boot", advice: "netns_mode=1",
			after: func(w *world) { w.write("etc/modprobe.d/zz-roce.conf", "options ib_core netns_mode=1\n") },
		},
		{
			name: "exclusive for good", change: func(w *world) {
				w.rdma.Exclusive = true
				w.write("usr/lib/modprobe.d/rdma.conf", "options ib_core netns_mode=1")
				w.write("etc/modprobe.d/rdma.conf", "options ib-core netns_mode=N")
			},
			check: "rdma-netns-mode", verdict: report.OK, says: "exclusive, also after the next boot (/etc/modprobe.d/rdma.conf)",
		},
		{
			name: "exclusive by the command line", change: func(w *world) {
				w.rdma.Exclusive = true
				w.write("etc/modprobe.d/rdma.conf", "options ib_core netns_mode=1")
				w.write("proc/cmdline", "ro ib_core.netns_mode=0 quiet")
			},
			check: "rdma-netns-mode", verdict: report.OK, says: "(the kernel's command line)",
		},
		{
			name: "modprobe.d cannot be read", change: func(w *world) { w.deny("etc/modprobe.d") },
			check: "rdma-netns-mode", verdict: report.CannotTell, says: "shared now", advice: "modprobe.d",
		},
	}
}

func portFaults() []fault {
	port := func(device string) string { return "sys/class/infiniband/" + device + "/ports/1/" }
	return []fault{
		{
			name: "a cable is out", change: func(w *world) { w.port(1).State = nldev.Down },
			check: "rdma-ports", verdict: report.Problem, says: "mlx5_1/1: DOWN, although ens2f0np0 is up", advice: "ethtool ens2f0np0",
			after: func(w *world) { w.rdma = healthy(w.t).rdma },
		},
		{
			name: "an interface is down", change: func(w *world) { w.port(1).State, w.link(1).Flags = nldev.Down, 0 },
			check: "rdma-ports", verdict: report.Problem, says: "mlx5_1/1: DOWN, because ens2f0np0 is down", advice: "ip link set ens2f0np0 up",
			after: func(w *world) { w.port(1).State, w.link(1).Flags = nldev.Active, unix.IFF_UP },
		},
		{
			name: "InfiniBand", change: func(w *world) {
				w.rdma.Devices[0].Protocol = "ib"
				w.write(port("mlx5_0")+"link_layer", "InfiniBand\n")
			},
			check: "rdma-ports", verdict: report.Problem, says: "mlx5_0/1: its link layer is InfiniBand", advice: "mlxconfig -d 0000:0b:00.0 set LINK_TYPE_P1=2",
			after: func(w *world) {
				w.rdma = healthy(w.t).rdma
				w.restore(port("mlx5_0") + "link_layer")
			},
		},
		{
			name: "RoCE is off", change: func(w *world) { w.rdma.Devices[0].Protocol = "" },
			check: "rdma-ports", verdict: report.Problem, says: "switchdev mode, or RoCE is off", advice: "pci/0000:0b:00.0 name enable_roce",
			after: func(w *world) { w.rdma = healthy(w.t).rdma },
		},
		{
			name: "iWARP", change: func(w *world) { w.rdma.Devices[0].Protocol = "iw" },
			check: "rdma-ports", verdict: report.Problem, says: "it speaks iw, not RoCE", advice: "rdma link",
			after: func(w *world) { w.rdma = healthy(w.t).rdma },
		},
		{
			name: "a pod has the interface", change: func(w *world) { w.port(0).NetdevIndex, w.routes = 0, w.routes[1:] },
			check: "rdma-ports", verdict: report.OK, says: "interface in another namespace", also: []string{"rdma-mtu"},
		},
		{
			name: "the link layer cannot be read", change: func(w *world) { w.deny(port("mlx5_0") + "link_layer") },
			check: "rdma-ports", verdict: report.CannotTell, says: "mlx5_0/1: its link layer cannot be read", advice: "sysfs",
		},
		{
			name: "MTU 1500", change: func(w *world) { w.link(0).MTU = 1500 },
			check: "rdma-mtu", verdict: report.Problem, says: "mlx5_0/1: MTU 1500 of ens1f0np0, so RoCE uses 1024", advice: "ip link set ens1f0np0 mtu 9000",
			after: func(w *world) { w.link(0).MTU = 9000 },
		},
		{
			name: "the smallest MTU that will do", change: func(w *world) { w.link(0).MTU = 4192 },
			check: "rdma-mtu", verdict: report.OK, says: "so RoCE uses 4096",
		},
		{
			name: "interfaces cannot be listed", change: func(w *world) { w.linksErr = errRefused },
			check: "rdma-mtu", verdict: report.CannotTell, says: "not permitted", advice: "root", also: withoutLinks(),
		},
		{
			name: "a table is full", change: func(w *world) { w.gids("mlx5_0", 256, 255) },
			check: "gid-table", verdict: report.Problem, says: "mlx5_0/1: 255 of 256 entries used, room for 0 more pods", advice: "rocectl gids",
			after: func(w *world) { w.gids("mlx5_0", 256, 4) },
		},
		{
			name: "fillers take places of a table that is nearly full", change: func(w *world) {
				w.gids("mlx5_0", 256, 240)
				w.write("sys/class/infiniband/mlx5_0/ports/1/gids/200", "0000:0000:0000:0000:0000:ffff:a9fe:4001")
				w.write("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/200", "gids-0a1b2c3d")
				w.write("sys/class/infiniband/mlx5_0/ports/1/gids/201", "0000:0000:0000:0000:0000:ffff:a9fe:4002") // of a pod
				w.write("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/201", "net1")
			},
			check: "gid-table", verdict: report.Problem, says: "240 of 256 entries used, 1 of them by fillers of roce, room for 8 more pods", advice: "ip netns del roce-gids",
			after: func(w *world) { w.gids("mlx5_0", 256, 4) },
		},
		{
			name: "a table has some room", change: func(w *world) { w.gids("mlx5_0", 32, 28) },
			check: "gid-table", verdict: report.OK, says: "28 of 32 entries used, room for 2 more pods",
		},
		{
			name: "OFED hides entries", change: func(w *world) { w.write("sys/module/mlx_compat/refcnt", "12") },
			check: "gid-table", verdict: report.CannotTell, says: "4 of 256 entries used as far as this namespace sees", advice: "rocectl gids",
		},
		{
			name: "a file is absent", change: func(w *world) { w.remove("dev/infiniband/uverbs1") },
			check: "rdma-files", verdict: report.Problem, says: "mlx5_1: without uverbs1", advice: "udevadm trigger",
			after: func(w *world) { w.restore("dev/infiniband/uverbs1") },
		},
		{
			name: "the kernel makes no file", change: func(w *world) { w.chars["mlx5_0"] = w.chars["mlx5_0"][1:] },
			check: "rdma-files", verdict: report.Problem, says: "mlx5_0: without uverbs", advice: "modprobe -a ib_uverbs",
			after: func(w *world) { w.chars = healthy(w.t).chars },
		},
		{
			name: "/dev cannot be read", change: func(w *world) { w.deny("dev/infiniband") },
			check: "rdma-files", verdict: report.CannotTell, says: "permission denied", advice: "/dev/infiniband",
		},
	}
}

func limitFaults() []fault {
	return []fault{
		{
			name: "systemd's default limit", change: func(w *world) {
				w.write("proc/911/limits", "Max locked memory         8388608              8388608              bytes     \n")
			},
			check: "memlock", verdict: report.Problem, says: "containerd: 8192 KiB of the 2064134 MiB", advice: "LimitMEMLOCK=infinity",
			after: func(w *world) { w.restore("proc/911/limits") },
		},
		{
			name: "no runtime in sight", change: func(w *world) { w.remove("proc/911") },
			check: "memlock", verdict: report.CannotTell, says: "containerd, crio or dockerd", advice: "hostPID",
		},
		{
			name: "limits cannot be read", change: func(w *world) { w.deny("proc/911/limits") },
			check: "memlock", verdict: report.CannotTell, says: "permission denied", advice: "root",
		},
	}
}
