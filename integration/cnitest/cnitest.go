// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package cnitest has what tests of built plugins share: network configurations,
// the calls of a container runtime through libcni, and named network namespaces.
//
// What a node is differs. The tests of integration/cni have many nodes of
// namespaces on one machine, and those of integration/rdma have one node in a
// virtual machine. In integration/cluster/e2e the process is the node, and
// integration/bench has a node with many pods. So each of them puts its node
// together from namespaces. Read this file first for configurations, then call.go
// for calls, netns.go for namespaces and answer.go for what others on the wire do.
package cnitest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Network is a network configuration.
type Network map[string]any

// With returns a copy in which the value at a path such as
// "ipam.subnets.0.gateway" is another one; nil removes it.
func (n Network) With(path string, value any) Network {
	b, err := json.Marshal(n)
	if err != nil {
		panic(err)
	}
	var out Network
	if err := json.Unmarshal(b, &out); err != nil {
		panic(err)
	}
	put(map[string]any(out), strings.Split(path, "."), value)
	return out
}

// Unasked returns a copy without the checks on the wire.
func (n Network) Unasked() Network {
	return n.With("probe", map[string]any{"conflict": "off", "gateway": "off"})
}

// Patient returns a copy that waits longer for the wire than the default says:
// an answer of the test itself may be late on a busy machine. It costs no time
// when there is an answer.
func (n Network) Patient() Network {
	return n.With("probe.conflict.wait", "2s").With("probe.gateway.timeout", "2s")
}

// Pooled returns a copy that takes its addresses from a RailPool.
func (n Network) Pooled(railPool string) Network {
	return n.With("ipam", map[string]any{"type": "roce-ipam", "railPool": railPool})
}

func put(at any, path []string, value any) {
	if list, ok := at.([]any); ok {
		i, err := strconv.Atoi(path[0])
		if err != nil {
			panic(err)
		}
		if len(path) == 1 {
			list[i] = value
			return
		}
		put(list[i], path[1:], value)
		return
	}
	object := at.(map[string]any)
	switch {
	case len(path) == 1 && value == nil:
		delete(object, path[0])
	case len(path) == 1:
		object[path[0]] = value
	default:
		if object[path[0]] == nil {
			object[path[0]] = map[string]any{}
		}
		put(object[path[0]], path[1:], value)
	}
}

// Subnet4 returns the IPv4 subnet of rail i, 172.16.<10+i>.0/24, with the
// gateway .254 and .64 to .127 for pods.
func Subnet4(i int) map[string]any {
	return map[string]any{
		"subnet": fmt.Sprintf("172.16.%d.0/24", 10+i), "gateway": fmt.Sprintf("172.16.%d.254", 10+i),
		"ranges": []any{fmt.Sprintf("172.16.%[1]d.64-172.16.%[1]d.127", 10+i)},
	}
}

// Subnet6 returns the IPv6 subnet of rail i, fd00:<10+i>::/64, with the gateway
// ::fe and ::64 to ::127 for pods.
func Subnet6(i int) map[string]any {
	return map[string]any{
		"subnet": fmt.Sprintf("fd00:%d::/64", 10+i), "gateway": fmt.Sprintf("fd00:%d::fe", 10+i),
		"ranges": []any{fmt.Sprintf("fd00:%[1]d::64-fd00:%[1]d::127", 10+i)},
	}
}
