// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package foreign

import "slices"

// Table returns all problems. Of two that one log reports, the more probable cause
// comes first. The remedies use "pod:" and "node:" for where a command is typed.
func Table() []Entry {
	return slices.Concat(container(), devicePlugin(), install(), cluster(), queuePairs(), peers(), devices(), harmless(), slow())
}

// container has what a manifest lacks.
func container() []Entry {
	return []Entry{
		{
			"ibverbs, perftest",
			[]string{"Couldn't allocate MR", "failed to create mr", "ibv_reg_mr … Cannot allocate memory"},
			"the container may not lock the memory that it registers; or its memory limit is too small for it",
			"give the container capabilities.add: [IPC_LOCK], and no memory limit or a larger one; a container that is not root needs a higher ulimit -l: docs/testing-rdma.md. Pod: roce-env says which of them it is",
		},
		{
			"NCCL",
			[]string{"ncclProxyServiceUDS", "Call to ibv_reg_mr … failed", "Call to ibv_reg_mr_iova2 … failed", "Call to ibv_create_qp failed … Cannot allocate memory", "Call to ibv_create_cq failed … Cannot allocate memory"},
			"the container may not lock the memory that NCCL registers; the proxy thread then ends, sometimes with a segmentation fault",
			"give the container capabilities.add: [IPC_LOCK]. Pod: roce-env",
		},
		{
			"UCX",
			[]string{"UCX ERROR ibv_reg_mr", "UCX ERROR … Please set max locked memory", "UCX … failed to register … memory"},
			"the container may not lock the memory that UCX registers",
			"give the container capabilities.add: [IPC_LOCK]. Pod: roce-env",
		},
		{
			"NCCL",
			[]string{"Error while creating shared memory segment", "/dev/shm/nccl-… No space left on device", "unable to allocate shared memory"},
			"/dev/shm of a container is 64 MiB, which is too small for NCCL",
			"mount an emptyDir with medium: Memory at /dev/shm, as conf-examples/deploy/rdma/nccl.yaml does",
		},
		{
			"ibverbs, perftest",
			[]string{"No IB devices found", "Unable to find the Infiniband/RoCE device", "Did not detect devices", "IB device … not found", "failed to open device … uverbs", "cannot access '/dev/infiniband", "无法访问 '/dev/infiniband"},
			"the container has no file for the device in /dev/infiniband, although /sys shows it; or the device has another name; or the image lacks the driver library",
			"request the resource of the device plugin (limits: rdma/rails: 1), install ibverbs-providers in the image, and use the device that roce-env prints. Pod: ls /dev/infiniband, ls /sys/class/infiniband. A bond without RoCE LAG has no mlx5_bond_0. Node without /dev/infiniband: rocectl doctor rdma-modules rdma-files",
		},
		{
			"NCCL",
			[]string{"NET/IB : No device found", "NET/Socket : Using", "Failed to open libibverbs.so", "NCCL WARN Error: network IB not found", "NCCL INFO Using network Socket"},
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
			[]string{"no active messages transport", "network device … is not available", "UCX ERROR no usable transports", "Destination is unreachable"},
			"UCX may not use the device that UCX_NET_DEVICES or UCX_TLS names: no device files, a wrong name, or a wrong GID index",
			`eval "$(roce-env)" in the same shell; request rdma/rails: 1. Pod: ucx_info -d`,
		},
		{
			"UCX",
			[]string{"UCX … gid_index … out of range", "UCX ERROR … invalid gid index", "UCX_IB_GID_INDEX"},
			"the GID index is not one of the table of the port",
			`unset UCX_IB_GID_INDEX, and eval "$(roce-env)" in each start of the program: the index changes with each pod`,
		},
	}
}

// devicePlugin has what the RDMA device plugin reports.
func devicePlugin() []Entry {
	return []Entry{
		{
			"RDMA device plugin",
			[]string{`RDMA device "…" not found`, "missing RDMA device spec for device"},
			"the NIC has no uverbs, umad or rdma_cm file in /dev/infiniband (issm in older versions), so the plugin does not offer it",
			"node: modprobe -a ib_uverbs ib_umad rdma_ucm, in /etc/modules-load.d for the next boot (with rdma-core of the distribution this is automatic); then restart the plugin's pod. Node: rocectl doctor rdma-modules rdma-files",
		},
		{
			"RDMA device plugin",
			[]string{"incorrect RDMA subsystem network namespace"},
			"the node is in exclusive RDMA mode, in which devices cannot be shared",
			"node: rdma system set netns shared, while no other network namespace exists; or use exclusive mode with another device plugin: docs/choosing.md",
		},
		{
			"RDMA device plugin",
			[]string{"no devices in device pool, creating empty resource server", "no PCI network device found"},
			"no NIC of the node fits the selectors, so the node offers 0 of the resource",
			`compare selectors in the ConfigMap with the NICs. Node: rocectl rails, lspci -nn. linkTypes is "ether" for RoCE and "infiniband" for InfiniBand`,
		},
		{
			"RDMA device plugin",
			[]string{"configuration missmatch", "configuration mismatch. Cannot specify both", "no resources configuration found", "contains invalid characters"},
			"config.json in the ConfigMap of the plugin is wrong",
			"start from conf-examples/deploy/rdma/device-plugin/config.yaml; resourceName takes letters, digits and underscores",
		},
	}
}

// install has what is reported while images are built and pulled, and objects applied.
func install() []Entry {
	return []Entry{
		{
			"docker, containerd",
			[]string{"server gave HTTP response to HTTPS client"},
			"the registry has no TLS",
			"give the registry a certificate, or allow HTTP for it: insecure-registries in /etc/docker/daemon.json where you push, and a hosts.toml in /etc/containerd/certs.d (config_path of containerd) on each node",
		},
		{
			"kubelet",
			[]string{"ErrImagePull", "ImagePullBackOff", "Failed to pull image"},
			"the node cannot get the image: its registry is out of reach, asks for a password, or does not have the image",
			"kubectl describe pod names the image and the reason. Set an image of a registry that the node reaches: IMAGE of make deploy, newName in the kustomizations of conf-examples/deploy, image in perftest.yaml",
		},
		{
			"apt-get",
			[]string{"Temporary failure resolving", "Unable to fetch some archives", "Unable to locate package perftest"},
			"the container installs packages with apt-get, as that of perftest.yaml does, and reaches no package mirror",
			"use an image that has the packages: docs/testing-rdma.md lists them. In perftest.yaml it replaces debian:12-slim, and the line with apt-get goes",
		},
		{
			"go",
			[]string{"go: … dial tcp … i/o timeout", "go: … TLS handshake timeout"},
			"the Go module proxy is out of reach",
			"set GOPROXY to a mirror, and run make deploy again",
		},
		{
			"kubectl",
			[]string{`no matches for kind "Rail`},
			"the CRDs of roce-cni are not in the cluster",
			"make deploy, or kubectl apply --server-side -k conf-examples/deploy; then apply the object again",
		},
		{
			"kubectl",
			[]string{`daemon set "roce-cni-agent" rollout to finish`},
			"the agent of some node does not become ready",
			"kubectl -n roce-cni get pods -o wide; kubectl -n roce-cni describe pods: the events name the reason",
		},
		{
			"kubectl",
			[]string{"timed out waiting for the condition on jobs/"},
			"a pod of the test does not start, or the test failed: kubectl wait waits for success only",
			"kubectl get pods -l app=perftest; kubectl describe pods -l app=perftest; kubectl logs job/perftest-client; kubectl logs job/perftest-server",
		},
	}
}

// cluster has what kubelet, Multus and the runtime report.
func cluster() []Entry {
	return []Entry{
		{
			"kubelet, scheduler",
			[]string{"Insufficient rdma/", "Insufficient nvidia.com/", "Insufficient spidernet.io/"},
			"no node has as many of the resource left as the pod requests: no device plugin runs, its resource has another name, or all are taken",
			"kubectl get nodes -o custom-columns=N:.metadata.name,RAILS:.status.allocatable.rdma/rails; kubectl -n kube-system logs ds/rdma-shared-device-plugin. Raise rdmaHcaMax if all are taken and rocectl gids shows free places",
		},
		{
			"kubelet",
			[]string{"UnexpectedAdmissionError", "Allocate failed due to", "requested number of devices unavailable"},
			"the device plugin offered the resource and does not any more: it was restarted, or its NIC is gone",
			"delete the pod, so that it is scheduled again; kubectl -n kube-system logs ds/rdma-shared-device-plugin",
		},
		{
			"Multus",
			[]string{"cannot find a network-attachment-definition", "network-attachment-definitions.k8s.cni.cncf.io … not found"},
			"the network is not in the namespace of the pod, or has another name",
			"kubectl get net-attach-def -A; apply the network in the namespace of the pod, or write NAMESPACE/NAME into the annotation",
		},
		{
			"kubectl",
			[]string{`no matches for kind "NetworkAttachmentDefinition"`},
			"Multus is not installed in the cluster",
			"install Multus first: https://github.com/k8snetworkplumbingwg/multus-cni",
		},
		{
			"Multus, containerd",
			[]string{`failed to find plugin "roce`, `failed to find plugin "roce-ipam"`},
			"the plugins are not in the folder of the runtime on this node",
			"kubectl -n roce-cni get pods -o wide: the agent's init container installs them. If the runtime uses another folder, set it in agent.yaml",
		},
		{
			"kubelet",
			[]string{"cni plugin not initialized", "cni config uninitialized", "No networks found in /etc/cni/net.d"},
			"the node has no CNI configuration yet: neither Multus nor the CNI of eth0 is ready",
			"kubectl -n kube-system get pods -o wide: look for Multus and your CNI on this node. Node: rocectl doctor cni-config",
		},
	}
}

// queuePairs has what fails in a connection, or when it is made.
func queuePairs() []Entry {
	return []Entry{
		{
			"ibverbs, perftest",
			[]string{"Failed to modify QP … to RTR", "Unable to Connect the HCA's through the link", "Failed to modify QP"},
			"the GID at this index is not the pod's, or has no route to the peer",
			"use device and index that roce-env prints, on both sides, again after each start of a pod. Pod: ping -I net1 ADDRESS-OF-PEER",
		},
		{
			"NCCL",
			[]string{"Call to ibv_modify_qp failed", "ibv_modify_qp … failed", "ibv_modify_qp_with_mask"},
			"the GID at this index is not the pod's, or has no route to the peer; a GID index that was copied from another pod is usual",
			`start the program after eval "$(roce-env)" in each pod; remove NCCL_IB_GID_INDEX from the manifest`,
		},
		{
			"perftest, NCCL, UCX",
			[]string{"Failed status 12", "IBV_WC_RETRY_EXC_ERR", "completion with error 12", "status=12", "transport retry counter exceeded", "Transport retry count exceeded"},
			"packets do not arrive: UDP port 4791 is dropped, the MTU is larger than the path's, the rails are not connected, or the link loses packets",
			"pod: ping -I net1 -M do -s 4000 PEER (with the MTU of your network), on each rail. Node: rocectl doctor firewall rdma-mtu rdma-ports; then PFC and ECN on the switches",
		},
		{
			"perftest, NCCL, UCX",
			[]string{"Failed status 13", "IBV_WC_RNR_RETRY_EXC_ERR", "completion with error 13"},
			"the receiver had no buffers ready: its process hangs or has ended",
			"look at the log of the other side",
		},
		{
			"perftest, NCCL, UCX",
			[]string{"Failed status 10", "IBV_WC_REM_ACCESS_ERR", "Failed status 4 ", "IBV_WC_LOC_PROT_ERR"},
			"memory was used after it was released, or keys were exchanged with another process",
			"look at the first error of both sides; use a port of its own for each pair (perftest -p)",
		},
	}
}

// peers has what is reported when the other program fails, or is not found.
func peers() []Entry {
	return []Entry{
		{
			"perftest",
			[]string{"Couldn't connect to", "Unable to init the socket connection", "Unable to open file descriptor for socket connection"},
			"the server does not run yet, or the address is not reachable by TCP, port 18515",
			"start the server first; give the client an address of the server's pod, such as that of eth0",
		},
		{
			"perftest",
			[]string{"ethernet_read_keys: Couldn't read remote address", "ethernet_write_keys: Couldn't write", "Unable to read to socket/rdma_cm", "Failed to exchange data between server and clients"},
			"the other side ended with an error before the transfer began",
			"look at the output of the other side: its error is the cause. Options such as -q, -a, -s and -R must be equal on both sides",
		},
		{
			"rdma_cm, perftest -R",
			[]string{"RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_REJECTED", "rdma_resolve_addr", "rdma_resolve_route"},
			"rdma_cm found no device, no route or no listener for the address: with -R the address must be the one of a rail",
			"use the net1 address of the server. Pod: ip route get ADDRESS from OWN-ADDRESS. Node: rocectl check",
		},
		{
			"NCCL",
			[]string{"socketProgress: Connection closed by remote peer", "socketStartConnect: Connect to … failed", "Connection closed by remote peer"},
			"another rank ended; its own error is the cause. At the start it is often a bootstrap over the wrong interface",
			`look at the log of the rank that is named; eval "$(roce-env)" sets NCCL_SOCKET_IFNAME`,
		},
		{
			"NCCL",
			[]string{"unhandled system error", "NCCL error: unhandled"},
			"NCCL says only that a system call failed; the cause is a WARN line above it",
			"NCCL_DEBUG=INFO, and give the WARN lines to rocectl explain. In a new manifest, IPC_LOCK is the usual cause",
		},
		{
			"NCCL",
			[]string{"unhandled cuda error"},
			"not RDMA: the GPU or its driver",
			"pod: nvidia-smi; node: dmesg",
		},
		{
			"perftest",
			[]string{"Couldn't create IB resources"},
			"perftest says only that it could not begin; the cause is a line above it",
			"give all of its output to rocectl explain. Pod: roce-env",
		},
		{
			"shell, Python, Ray",
			[]string{"Segmentation fault", "SIGSEGV received", "段错误"},
			"the process crashed; if it uses NCCL in a new manifest, the usual cause is that the container may not lock memory",
			"pod: roce-env says whether IPC_LOCK is missing. If not, give the lines above it to rocectl explain, with NCCL_DEBUG=INFO",
		},
	}
}

// devices has what the NIC and the kernel report.
func devices() []Entry {
	return []Entry{
		{
			"perftest",
			[]string{"Port number … state is Down", "Couldn't set the link layer"},
			"the port is down, or perftest took another device than you mean: without -d it takes the first",
			"use -d with the device that roce-env prints. Node: rdma link, ip link show NIC; cable and switch port",
		},
		{
			"perftest",
			[]string{"Couldn't get context for the device"},
			"the device cannot be opened or used: its port is down, or its file is missing",
			"pod: ls /dev/infiniband, and roce-env. Node: rdma link",
		},
		{
			"perftest, ibstat, mlxconfig",
			[]string{"Link layer: InfiniBand", "Link type : IB", "LINK_TYPE_P… IB(1)"},
			"the port is InfiniBand, not Ethernet: RoCE and macvlan are impossible on it",
			"docs/choosing.md has the ways for InfiniBand. Node: mlxconfig -d PCI query | grep LINK_TYPE",
		},
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
