// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package foreign

import "slices"

// Table returns all problems. Of two that one log reports, the more probable cause
// comes first. The remedies use "pod:" and "node:" for where a command is typed.
func Table() []Entry {
	return slices.Concat(memory(), container(), devicePlugin(), install(), commands(), kubernetes(), nodes(), networks(), multus(), addresses(), queuePairs(), transfers(), peers(), ranks(), devices(), kernel(), harmless(), slow())
}

// memory has what programs report when they may not register memory.
func memory() []Entry {
	return []Entry{
		{
			"ibverbs, perftest",
			[]string{"Couldn't allocate MR", "failed to create mr", "Couldn't register MR", "allocate some locked memory", "ibv_reg_mr … Cannot allocate memory"},
			"the container may not lock the memory that it registers; or its memory limit is too small for it",
			"give the container capabilities.add: [IPC_LOCK], and no memory limit or a larger one; a container that is not root needs a higher ulimit -l: docs/testing-rdma.md. Pod: roce-env says which of them it is",
		},
		{
			"ibverbs, perftest",
			[]string{"Couldn't create CQ", "Couldn't create QP", "Failed to create CQ", "Failed to create QP", "Unable to create QP"},
			"the container may not lock the memory of the queue, or the queue is longer than the NIC can have it (-t, -q)",
			"give the container capabilities.add: [IPC_LOCK]. Pod: roce-env; then try without -t and -q",
		},
		{
			"NCCL, NVSHMEM",
			[]string{"Call to ibv_reg_mr … Bad address", "Call to ibv_reg_mr_iova2 … Bad address", "Call to ibv_reg_dmabuf_mr … failed", "mem registration failed"},
			"the NIC cannot register memory of the GPU (GPUDirect RDMA): nvidia_peermem is not loaded, and dmabuf does not work",
			"node: rocectl doctor gpu-direct. To see whether all else works: NCCL_NET_GDR_LEVEL=LOC",
		},
		{
			"NCCL",
			[]string{"ncclProxyServiceUDS", "Call to ibv_reg_mr … failed", "Call to ibv_reg_mr_iova2 … failed", "Call to ibv_create_qp failed … Cannot allocate memory", "Call to ibv_create_cq failed … Cannot allocate memory"},
			"the container may not lock the memory that NCCL registers; the proxy thread then ends, sometimes with a segmentation fault",
			"give the container capabilities.add: [IPC_LOCK]. Pod: roce-env",
		},
		{
			"UCX",
			[]string{"UCX ERROR ibv_reg_mr", "Please set max locked memory", "UCX … failed to register … memory"},
			"the container may not lock the memory that UCX registers",
			"give the container capabilities.add: [IPC_LOCK]. Pod: roce-env",
		},
		{
			"NCCL",
			[]string{"Error while creating shared memory segment", "/dev/shm/nccl-… No space left on device", "unable to allocate shared memory"},
			"/dev/shm of a container is 64 MiB, which is too small for NCCL",
			"mount an emptyDir with medium: Memory at /dev/shm, as conf-examples/deploy/rdma/nccl.yaml does",
		},
	}
}

// container has what else a manifest or an image lacks.
func container() []Entry {
	return []Entry{
		{
			"ibverbs",
			[]string{"no userspace device-specific driver found"},
			"the image has no library for the driver of the NIC",
			"install ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL, Rocky) in the image, or the vendor's own package",
		},
		{
			"rdma_cm",
			[]string{"librdmacm: Fatal: unable to open", "librdmacm: Fatal: no RDMA devices found", "librdmacm: … couldn't read ABI version", "rdma_create_event_channel: No such"},
			"the container has no /dev/infiniband/rdma_cm: it does not request the resource, or rdma_ucm is not loaded on the node",
			"request the resource of the device plugin (limits: rdma/rails: 1). Pod: ls /dev/infiniband. Node: rocectl doctor rdma-modules rdma-files",
		},
		{
			"ibverbs, perftest",
			[]string{"No IB devices found", "Unable to find the Infiniband/RoCE device", "Did not detect devices", "IB device … not found", "Failed to get IB devices list", "failed to open device … uverbs", "cannot access '/dev/infiniband"},
			"the container has no file for the device in /dev/infiniband, although /sys shows it; or the device has another name; or the image lacks the driver library",
			"request the resource of the device plugin (limits: rdma/rails: 1), install ibverbs-providers in the image, and use the device that roce-env prints. Pod: ls /dev/infiniband, ls /sys/class/infiniband. A bond without RoCE LAG has no mlx5_bond_0. Node without /dev/infiniband: rocectl doctor rdma-modules rdma-files",
		},
		{
			"NCCL",
			[]string{"NET/IB : No device found", "NET/Socket : Using", "Failed to open libibverbs.so", "NET/IB : Unable to open device", "NCCL WARN Error: network IB not found", "NCCL INFO Using network Socket"},
			"NCCL uses TCP: the image lacks libibverbs, the container has no device files, or NCCL_IB_HCA names other devices",
			`install libibverbs1, librdmacm1 and ibverbs-providers in the image, request rdma/rails: 1, and start the program after eval "$(roce-env)"`,
		},
		{
			"NCCL",
			[]string{"Bootstrap : no socket interface found", "NCCL WARN Bootstrap : no socket"},
			"NCCL_SOCKET_IFNAME names an interface that the pod does not have",
			`eval "$(roce-env)" sets it to the interface of the pod's default route`,
		},
		{
			"UCX",
			[]string{"no active messages transport", "network device … is not available", "network devices … are not available", "transport … is not available", "transports … are not available", "UCX ERROR no usable transports", "Destination is unreachable"},
			"UCX may not use the device that UCX_NET_DEVICES or UCX_TLS names: no device files, a wrong name, or a wrong GID index",
			`eval "$(roce-env)" in the same shell; request rdma/rails: 1. Pod: ucx_info -d`,
		},
		{
			"UCX",
			[]string{"UCX … gid_index … out of range", "UCX ERROR … invalid gid index", "ibv_query_gid(…failed"},
			"the GID index is not one of the table of the port",
			`unset UCX_IB_GID_INDEX, and eval "$(roce-env)" in each start of the program: the index changes with each pod`,
		},
	}
}

// devices has what is reported about the port of a NIC.
func devices() []Entry {
	return []Entry{
		{
			"perftest, ibstat, rdma",
			[]string{"Port number … state is Down", "Couldn't set the link layer", "Physical state: Disabled", "physical_state DISABLED"},
			"the port is down, or perftest took another device than you mean: without -d it takes the first",
			"use -d with the device that roce-env prints. Node: rdma link, ip link show NIC; cable and switch port",
		},
		{
			"ibverbs, perftest",
			[]string{"Couldn't get context for the device", "uverbs… Operation not permitted", "Failed to open device"},
			"the device cannot be opened or used: its port is down, its file is missing, or the file was mounted with hostPath, which does not give the right to open it",
			"request the resource of the device plugin (limits: rdma/rails: 1) in place of a hostPath. Pod: ls /dev/infiniband, and roce-env. Node: rdma link",
		},
		{
			"NCCL, kernel",
			[]string{"async event : port error", "async event: device fatal", "async event: local catastrophic error", "Cable unplugged", "Cable error"},
			"the port of the NIC went down, or its driver was reset",
			"node: rdma link, dmesg; cable and switch port",
		},
		{
			"perftest",
			[]string{"Requested mtu is higher than active mtu"},
			"-m asks for a larger RoCE MTU than the MTU of the interface allows",
			"leave out -m, or set a larger MTU on NICs and switches: docs/testing-rdma.md has which is needed. Node: rocectl doctor rdma-mtu",
		},
		{
			"perftest, ibstat, mlxconfig",
			[]string{"Link layer: InfiniBand", "Link type : IB", "LINK_TYPE_P… IB(1)"},
			"the port is InfiniBand, not Ethernet: RoCE and macvlan are impossible on it",
			"docs/choosing.md has the ways for InfiniBand. Node: mlxconfig -d PCI query | grep LINK_TYPE",
		},
	}
}

// kernel has what the kernel and its tools report.
func kernel() []Entry {
	return []Entry{
		{
			"rdma",
			[]string{"set netns…Device or resource busy", "error: Device or resource busy"},
			"the mode can change only while the host has no other network namespace",
			"node: lsns -t net shows them; or set it for the next boot: echo options ib_core netns_mode=1 > /etc/modprobe.d/ib_core.conf (0 is exclusive)",
		},
		{
			"kernel",
			[]string{"unable to add gid … error=-28", "unable to add gid"},
			"the GID table of the NIC is full",
			"node: rocectl gids shows the owners of the entries; put fewer pods or addresses on this NIC, or lower rdmaHcaMax",
		},
		{
			"kernel",
			[]string{"macvlan … Device or resource busy", "RTNETLINK answers: Device or resource busy"},
			"the NIC is the slave of a bond or the port of a bridge: it cannot have children",
			"use the bond itself as parent. Node: ip -d link show NIC",
		},
		{
			"modprobe",
			[]string{"Module ib_umad not found", "Module ib_uverbs not found", "Module rdma_ucm not found"},
			"the node does not have the RDMA modules of the kernel that runs",
			"install the package with all modules of this kernel (Ubuntu: linux-modules-extra-$(uname -r); RHEL: kernel-modules, kernel-modules-extra), or DOCA-OFED. Node: rocectl doctor rdma-modules",
		},
		{
			"modprobe, lsmod",
			[]string{"Module nvidia_peermem not found", "could not insert 'nvidia_peermem'"},
			"GPUDirect RDMA by nvidia_peermem needs the GPU driver built against the RDMA stack that runs",
			"load it after the RDMA driver, reinstall the GPU driver after DOCA-OFED, or use dmabuf with the open GPU kernel modules. Node: rocectl doctor gpu-direct",
		},
	}
}

// harmless has what looks like an error and is none.
func harmless() []Entry {
	return []Entry{
		{
			"perftest",
			[]string{"Conflicting CPU frequency values"},
			"harmless: the clock of the CPU changes, so times are less exact; bandwidth is not affected",
			"use -F, which ignores it",
		},
		{
			"NCCL",
			[]string{"async event : GID table change"},
			"harmless: a pod with an address on this NIC started or ended. All pods that share the NIC are told",
			"nothing, as long as roce-env in the pod prints the same indexes as before",
		},
		{
			"Open MPI",
			[]string{"There was an error initializing an OpenFabrics device"},
			"harmless if UCX is used: the old openib code of Open MPI does not know the NIC",
			"mpirun --mca pml ucx --mca btl ^openib",
		},
		{
			"NCCL",
			[]string{"No plugin found (libnccl-net.so)", "Could not find: libnccl-net.so"},
			"harmless: there is no network plugin in the image, so NCCL uses its own code for RDMA",
			"nothing; the lines with NET/IB tell which devices it uses",
		},
		{
			"ibverbs",
			[]string{"Warning: couldn't stat '/sys/class/infiniband/", "couldn't stat '/sys/class/infiniband"},
			"harmless: in exclusive mode /dev/infiniband shows devices that belong to other network namespaces",
			"nothing; rdma dev shows the devices of the pod",
		},
		{
			"ibverbs",
			[]string{"Warning: couldn't load driver"},
			"harmless if your NIC is of another vendor: the library of that driver is not installed",
			"if it is your NIC: install ibverbs-providers in the image",
		},
	}
}

// slow has what is no error and costs speed.
func slow() []Entry {
	return []Entry{
		{
			"perftest",
			[]string{"Mtu : 1024[B]"},
			"no error, but slow: the MTU of the interface is less than 2200, so RoCE sends packets of 1024 bytes",
			"set an MTU of 4200 or more on the NICs and the switches: docs/testing-rdma.md. Node: rocectl doctor rdma-mtu",
		},
	}
}
