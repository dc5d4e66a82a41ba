// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package foreign

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

// commands has what a shell and ping report when you type what the documents say.
func commands() []Entry {
	return []Entry{
		{
			"shell",
			[]string{"roce-env: command not found", "roce-env: not found", "rocectl: command not found", "rocectl: not found"},
			"the program is there, but not in PATH; or nothing has put it into the container",
			"pod: /roce/roce-env, which an init container installs in the examples of conf-examples/deploy/rdma. Node: /opt/cni/bin/rocectl. Where you have built it: bin/rocectl",
		},
		{
			"shell",
			[]string{"ibdev2netdev: command not found", "ibdev2netdev: not found", "show_gids: command not found", "show_gids: not found"},
			"the program comes with MLNX_OFED or DOCA-OFED only",
			"rocectl rails instead of ibdev2netdev, rocectl gids instead of show_gids; docs/troubleshooting.md has more of them",
		},
		{
			"ping",
			[]string{"local error: message too long"},
			"the packet is larger than the MTU of the interface",
			"-s is the MTU less 28 bytes: 1472 for 1500, 8972 for 9000. Node: rocectl doctor rdma-mtu",
		},
		{
			"ping",
			[]string{"ping: … Network is unreachable"},
			"the pod has no route to the address: the rail lost its routes, or the address is in no subnet of the interface and there is no gateway",
			"node: rocectl check; rocectl repair --yes restores what is lost",
		},
	}
}

// kubernetes has what the API server and the scheduler report.
func kubernetes() []Entry {
	return []Entry{
		{
			"kubelet, scheduler",
			[]string{"Insufficient rdma/", "Insufficient nvidia.com/", "Insufficient mellanox.com/", "Insufficient spidernet.io/"},
			"no node has as many of the resource left as the pod requests: no device plugin runs, its resource has another name, or all are taken",
			"kubectl get nodes -o custom-columns=N:.metadata.name,RAILS:.status.allocatable.rdma/rails; kubectl -n kube-system logs ds/rdma-shared-device-plugin. Raise rdmaHcaMax if all are taken and rocectl gids shows free places",
		},
		{
			"scheduler",
			[]string{"didn't match pod anti-affinity rules"},
			"the pods must be on different nodes, and too few nodes can take them: the other reasons of the line say why",
			"kubectl get nodes; for a test on one node: docs/testing-rdma.md",
		},
		{
			"API server",
			[]string{"violates PodSecurity"},
			"the namespace enforces a Pod Security level, and baseline and restricted do not allow IPC_LOCK",
			"kubectl label namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged --overwrite; or use another namespace, which needs the network too",
		},
		{
			"kubectl",
			[]string{`no matches for kind "NetworkAttachmentDefinition"`},
			"Multus is not installed in the cluster",
			"install Multus first: https://github.com/k8snetworkplumbingwg/multus-cni",
		},
		{
			"kubectl",
			[]string{`no matches for kind "ValidatingAdmissionPolicy"`},
			"Kubernetes is too old for RailPools",
			"update to 1.31 or newer, or use pools on each node: README.md",
		},
	}
}

// nodes has what kubelet and the runtime report.
func nodes() []Entry {
	return []Entry{
		{
			"kubelet",
			[]string{"UnexpectedAdmissionError", "Allocate failed due to", "requested number of devices unavailable"},
			"the device plugin offered the resource and does not any more: it was restarted, or its NIC is gone",
			"delete the pod, so that it is scheduled again; kubectl -n kube-system logs ds/rdma-shared-device-plugin",
		},
		{
			"kubectl",
			[]string{"is waiting to start: PodInitializing", "is waiting to start: ContainerCreating"},
			"there is no log yet: the pod has not begun",
			"try again in a moment; if it stays, kubectl describe pod has the reason",
		},
		{
			"kubelet, runc",
			[]string{"error gathering device information while adding custom device"},
			"a file in /dev/infiniband that the device plugin has given to the pod is gone: the driver was reloaded, or the NIC moved",
			"kubectl -n kube-system rollout restart ds/rdma-shared-device-plugin, and delete the pod",
		},
		{
			"kernel",
			[]string{"exec format error"},
			"the image or the program is for another processor than the node has",
			"build it for the nodes: make deploy GOARCH=arm64 or GOARCH=amd64",
		},
		{
			"kubelet",
			[]string{"cni plugin not initialized", "cni config uninitialized", "No networks found in /etc/cni/net.d"},
			"the node has no CNI configuration yet: neither Multus nor the CNI of eth0 is ready",
			"kubectl -n kube-system get pods -o wide: look for Multus and your CNI on this node. Node: rocectl doctor cni-config",
		},
	}
}

// networks has what Multus reports about the networks of a pod.
func networks() []Entry {
	return []Entry{
		{
			"Multus",
			[]string{"cannot find a network-attachment-definition", "network-attachment-definitions.k8s.cni.cncf.io … not found"},
			"the network is not in the namespace of the pod, or has another name",
			"kubectl get net-attach-def -A; apply the network in the namespace of the pod, or write NAMESPACE/NAME into the annotation",
		},
		{
			"Multus",
			[]string{"namespace isolation enabled"},
			"Multus allows a pod only the networks of its own namespace (namespaceIsolation)",
			"apply the network in the namespace of the pod, and write its name without NAMESPACE/ into the annotation; one RailPool serves all namespaces",
		},
		{
			"Multus",
			[]string{"parsePodNetworkAnnotation: failed to parse", "parsePodNetworkObjectName: Failed to parse"},
			"the annotation k8s.v1.cni.cncf.io/networks is neither a list of names nor JSON",
			"write the name of the network, as in README.md: k8s.v1.cni.cncf.io/networks: rails",
		},
	}
}

// multus has what Multus reports about programs and the cluster.
func multus() []Entry {
	return []Entry{
		{
			"Multus, containerd",
			[]string{`failed to find plugin "roce`, `failed to find plugin "roce-ipam"`},
			"the plugins are not in the folder of the runtime on this node",
			"kubectl -n roce-cni get pods -o wide: the agent's init container installs them. If the runtime uses another folder, set it in agent.yaml",
		},
		{
			"containerd",
			[]string{`failed to find plugin "multus`},
			"the programs of Multus are not in the folder of the runtime on this node",
			"kubectl -n kube-system get pods -o wide: Multus installs them when its pod starts. Node: rocectl doctor cni-config",
		},
		{
			"Multus",
			[]string{"multus.sock: connect"},
			"the daemon of Multus (thick) does not run on this node",
			"kubectl -n kube-system get pods -o wide: look for Multus on this node, and at its log",
		},
		{
			"Multus",
			[]string{"error getting pod: Unauthorized"},
			"the token in the kubeconfig of Multus has expired",
			"restart the pods of Multus: they write it again. kubectl -n kube-system get ds shows the name of its DaemonSet",
		},
		{
			"Multus",
			[]string{"error getting pod: Get"},
			"Multus does not reach the API server from this node",
			"the end of the message says why. Node: curl -k of the address in it; kube-proxy, or what replaces it",
		},
		{
			"Multus",
			[]string{"readinessindicatorfile"},
			"the CNI of eth0 is not ready on this node, and Multus waits for its file",
			"kubectl -n kube-system get pods -o wide: look for your CNI (Calico, Cilium, …) on this node. Node: ls /etc/cni/net.d",
		},
		{
			"Multus, containerd",
			[]string{"netplugin failed with no error message: signal: killed"},
			"the kernel or the runtime has ended a plugin: too little memory, or it took too long",
			"node: dmesg for the memory limit of the Multus pod, which holds for the plugins too; raise it. If it is not that: the log of the runtime",
		},
	}
}

// addresses has what other network plugins report about addresses and NICs.
func addresses() []Entry {
	return []Entry{
		{
			"host-local, whereabouts",
			[]string{"no IP addresses available in range set", "Could not allocate IP in range"},
			"the range of the other IPAM plugin is full, often with leases of pods that are gone",
			"remove what is stale: on the node /var/lib/cni/networks, in the cluster kubectl get ippools.whereabouts.cni.cncf.io -A. A pool of roce reclaims them: docs/migrating.md",
		},
		{
			"macvlan, ipvlan",
			[]string{"failed to lookup master"},
			"the node has no NIC of the name that the network has as master",
			"names differ between nodes: choose the NIC with a selector of roce, docs/configuration.md. Node: ip link",
		},
	}
}
