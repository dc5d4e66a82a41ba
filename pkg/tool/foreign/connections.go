// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package foreign

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
			"perftest",
			[]string{"Found Incompatibility issue with GID types"},
			"one side uses a GID of RoCE v1, or of IPv6, and the other one of RoCE v2, or of IPv4",
			"use device and index that roce-env prints, on both sides",
		},
		{
			"ibverbs, perftest",
			[]string{"can't read sgid of index", "Unable to set up socket connection"},
			"the table of the port has no GID at this index",
			"use device and index that roce-env prints, again after each start of a pod",
		},
		{
			"NCCL, UCX",
			[]string{"ibv_modify_qp … Connection timed out", "ibv_modify_qp_with_mask … Connection timed out", "modifying QP to RTR: Connection timed out"},
			"the peer's address does not answer (ARP, NDP): there is no way from this rail to the peer's, the VLAN is wrong, or the peer is gone",
			"pod: ping -I net1 ADDRESS-OF-PEER, with the interface and the address of the GIDs in the message. Node: rocectl check",
		},
		{
			"NCCL",
			[]string{"ibv_modify_qp … No data available", "ibv_modify_qp_with_mask … No data available"},
			"the GID at this index is not there any more, or belongs to another pod; an index that was copied from another pod is usual",
			`start the program after eval "$(roce-env)" in each pod; remove NCCL_IB_GID_INDEX from the manifest`,
		},
		{
			"NCCL",
			[]string{"Call to ibv_modify_qp failed", "ibv_modify_qp … failed", "ibv_modify_qp_with_mask", "modifying QP to RTR"},
			"the GID at this index is not the pod's, or has no route to the peer; a GID index that was copied from another pod is usual",
			`start the program after eval "$(roce-env)" in each pod; remove NCCL_IB_GID_INDEX from the manifest`,
		},
	}
}

// transfers has the status of a transfer that failed: the numbers of enum ibv_wc_status.
func transfers() []Entry {
	return []Entry{
		{
			"perftest, NCCL, UCX",
			[]string{"Failed status 12", "IBV_WC_RETRY_EXC_ERR", "completion … with error 12,", "completion … with status=12 opcode", "transport retry counter exceeded", "Transport retry count exceeded"},
			"packets do not arrive: UDP port 4791 is dropped, the MTU is larger than the path's, the rails are not connected, or the link loses packets",
			"pod: ping -I net1 -M do -s 4000 PEER (with the MTU of your network), on each rail. Node: rocectl doctor firewall rdma-mtu rdma-ports; then PFC and ECN on the switches",
		},
		{
			"perftest, NCCL, UCX",
			[]string{"Failed status 13", "IBV_WC_RNR_RETRY_EXC_ERR", "completion … with error 13,", "completion … with status=13 opcode", "ready retry count exceeded"},
			"the receiver had no buffers ready: its process hangs or has ended",
			"look at the log of the other side",
		},
		{
			"perftest, NCCL, UCX",
			[]string{"Failed status 10", "IBV_WC_REM_ACCESS_ERR", "completion … with status=10 opcode", "Failed status 4:", "IBV_WC_LOC_PROT_ERR", "completion … with status=4 opcode", "Remote access on", "Local protection on"},
			"memory was used after it was released, or keys were exchanged with another process",
			"look at the first error of both sides; use a port of its own for each pair (perftest -p)",
		},
		{
			"perftest, NCCL, UCX",
			[]string{"Failed status 5:", "IBV_WC_WR_FLUSH_ERR", "completion … with error 5,", "completion … with status=5 opcode"},
			"the connection had ended before: an earlier error, here or on the other side, is the cause",
			"look for the first error in the logs of both sides",
		},
	}
}

// peers has what is reported when the other program fails, or is not found.
func peers() []Entry {
	return []Entry{
		{
			"rdma_cm, perftest -R",
			[]string{"RDMA_CM_EVENT_ADDR_ERROR", "RDMA_CM_EVENT_ROUTE_ERROR", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_REJECTED", "times ADDR_ERROR", "Unable to perform rdma_client function", "unexpected CM event", "waiting for addr/route resolution", "rdma_bind_addr", "rdma_resolve_addr", "rdma_resolve_route"},
			"rdma_cm found no device, no route or no listener for the address: with -R the address must be the one of a rail",
			"use the net1 address of the server. Pod: ip route get ADDRESS from OWN-ADDRESS. Node: rocectl check",
		},
		{
			"perftest",
			[]string{"Couldn't listen to port"},
			"another program of the pod has the port",
			"use another port on both sides (-p), or end the other program",
		},
		{
			"perftest",
			[]string{"Name or service not known", "Temporary failure in name resolution"},
			"the name of the server has no address: its pod is not ready yet, or there is no Service of this name",
			"wait until the server's pod is ready: kubectl get pods,services; or give the client an address of it",
		},
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
	}
}

// ranks has what the ranks of a job report when another one fails.
func ranks() []Entry {
	return []Entry{
		{
			"NCCL",
			[]string{"socketProgress: Connection closed by remote peer", "socketStartConnect: Connect to … failed", "Connection closed by remote peer", "socketPollConnect: connect", "ncclRemoteError"},
			"another rank ended; its own error is the cause. At the start it is often a bootstrap over the wrong interface",
			`look at the log of the rank that is named; eval "$(roce-env)" sets NCCL_SOCKET_IFNAME`,
		},
		{
			"PyTorch, Gloo",
			[]string{"The client socket has timed out", "connectFullMesh failed"},
			"the ranks do not reach each other by TCP: MASTER_ADDR is wrong, or Gloo takes another interface",
			`eval "$(roce-env)" sets GLOO_SOCKET_IFNAME; MASTER_ADDR is the address of eth0 of rank 0, or the name of its Service`,
		},
		{
			"PyTorch",
			[]string{"Watchdog caught collective operation timeout"},
			"a rank waited for the others in vain: one of them has ended or hangs, or packets of RDMA do not arrive",
			"look for the first error in the logs of all ranks; then test the rails without NCCL: docs/testing-rdma.md",
		},
		{
			"NCCL",
			[]string{"unhandled system error", "NCCL error: unhandled", "ncclSystemError"},
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
			[]string{"Segmentation fault", "SIGSEGV received"},
			"the process crashed; if it uses NCCL in a new manifest, the usual cause is that the container may not lock memory",
			"pod: roce-env says whether IPC_LOCK is missing. If not, give the lines above it to rocectl explain, with NCCL_DEBUG=INFO",
		},
	}
}
