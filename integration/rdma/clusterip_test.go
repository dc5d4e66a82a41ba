// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// kubeProxyNFT has what kube-proxy in the mode nftables makes for one Service with one
// endpoint, with its names shortened. The cluster's own pods are 10.244.0.0/16.
const kubeProxyNFT = `table ip kube-proxy {
	chain mark-for-masquerade { meta mark set meta mark | 0x4000; }
	chain endpoint {
		ip saddr 10.244.0.2 jump mark-for-masquerade
		meta l4proto tcp dnat to 10.244.0.2:8080
	}
	chain service {
		ip daddr 10.96.0.1 tcp dport 80 ip saddr != 10.244.0.0/16 jump mark-for-masquerade
		numgen random mod 1 vmap { 0 : goto endpoint }
	}
	map service-ips {
		type ipv4_addr . inet_proto . inet_service : verdict
		elements = { 10.96.0.1 . tcp . 80 : goto service }
	}
	chain services { ip daddr . meta l4proto . th dport vmap @service-ips; }
	chain nat-prerouting {
		type nat hook prerouting priority dstnat
		jump services
	}
	chain masquerading {
		meta mark & 0x4000 == 0 return
		meta mark set meta mark ^ 0x4000
		masquerade fully-random
	}
	chain nat-postrouting {
		type nat hook postrouting priority srcnat
		jump masquerading
	}
}
`

// TestLongSharedClusterIPByNFTables has a pod of the cluster's CNI, which is the endpoint of a
// Service. A pod with a link reaches the Service by its ClusterIP.
func TestLongSharedClusterIPByNFTables(t *testing.T) {
	n := newNode(t, "shared")
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("nft is missing: install the Debian package nftables")
	}
	endpoint := n.pod()
	finally(t, "nft delete table ip kube-proxy; ip link del cni0; sysctl -qw net.ipv4.ip_forward="+shell(t, "cat /proc/sys/net/ipv4/ip_forward"))
	shell(t, `sysctl -qw net.ipv4.ip_forward=1
		ip link add cni0 type veth peer name eth0 netns `+endpoint.Name+`
		ip addr add 10.244.0.1/24 dev cni0; ip link set cni0 up
		ip -n `+endpoint.Name+` addr add 10.244.0.2/24 dev eth0
		ip -n `+endpoint.Name+` link set eth0 up`)
	answer := filepath.Join(t.TempDir(), "answer")
	if err := os.WriteFile(answer, []byte("#!/bin/sh\necho the endpoint answers\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	background(t, "ip", "netns", "exec", endpoint.Name, "busybox", "nc", "-ll", "-p", "8080", "-e", answer)

	a := n.attach(n.linkedTo(n.rail(0), 64), n.pod()).as("eth0")
	n.meets(a.pod, a.mustAdd()[0])
	ask := func() (string, error) {
		return try("ip", "netns", "exec", a.pod.Name, "busybox", "nc", "-w", "10", "10.96.0.1", "80")
	}
	if out, err := ask(); err == nil {
		t.Errorf("without kube-proxy the Service answers %q", out)
	}
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte(kubeProxyNFT), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "nft", "-f", rules)
	cnitest.Await(t, "the Service answers", func() bool {
		out, err := ask()
		return err == nil && strings.Contains(out, "the endpoint answers")
	})
	a.mustCheck()
	a.mustDel()
	n.nothingLeft()
}
