// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"fmt"
	"strconv"
)

// pcieBridges returns QEMU's arguments for the PCIe topology of the type PCIe, in the words
// of lspci: host bridges (pxb-pcie), root ports, and switches, of which each has an upstream
// port (x3130) and downstream ports (xio3130).
//
//	NUMA node 0
//	├─ host bridge 10
//	│  ├─ root port ─ switch
//	│  │              ├─ nic0
//	│  │              ├─ GPU
//	│  │              └─ switch ─ nic1
//	│  └─ root port ─ nic2
//	└─ host bridge 40
//	   └─ root port ─ nic3
//	NUMA node 1
//	└─ host bridge 80
//	   └─ root port ─ nic4
func pcieBridges(memory int) []string {
	args := []string{"-smp", "sockets=2"} // QEMU puts each into a node of its own
	for node := range 2 {
		args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=memory%d,size=%dM", node, memory/2),
			"-numa", fmt.Sprintf("node,nodeid=%d,memdev=memory%d", node, node))
	}
	for _, device := range []string{
		"pxb-pcie,bus=pcie.0,id=host10,bus_nr=0x10,numa_node=0",
		"pxb-pcie,bus=pcie.0,id=host40,bus_nr=0x40,numa_node=0",
		"pxb-pcie,bus=pcie.0,id=host80,bus_nr=0x80,numa_node=1",
		"pcie-root-port,id=root0,bus=host10,addr=0,chassis=1",
		"x3130-upstream,id=switch0,bus=root0",
		"xio3130-downstream,id=nic0,bus=switch0,addr=0,chassis=2",
		"xio3130-downstream,id=gpu,bus=switch0,addr=1,chassis=3",
		"xio3130-downstream,id=below,bus=switch0,addr=2,chassis=4",
		"x3130-upstream,id=switch1,bus=below",
		"xio3130-downstream,id=nic1,bus=switch1,addr=0,chassis=5",
		"pcie-root-port,id=nic2,bus=host10,addr=1,chassis=6",
		"pcie-root-port,id=nic3,bus=host40,addr=0,chassis=7",
		"pcie-root-port,id=nic4,bus=host80,addr=0,chassis=8",
		"bochs-display,bus=gpu", // its class, 0380, is that of GPUs, too
	} {
		args = append(args, "-device", device)
	}
	return args
}

// pcieBus returns where the NIC of a rail is.
func pcieBus(rail int) string {
	if rail < 5 {
		return "nic" + strconv.Itoa(rail)
	}
	return "pcie.0"
}
