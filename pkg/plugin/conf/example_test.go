// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"fmt"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func ExampleParse() {
	in := conf.Input{ContainerID: "c1", Netns: "/run/netns/pod", IfName: "net1", Stdin: []byte(`{
		"cniVersion": "1.1.0", "name": "gpu1-rail", "type": "roce", "master": "enp11s0f0np0",
		"ipam": {
			"type": "roce-ipam",
			"subnets": [{"subnet": "172.16.11.0/24", "ranges": ["172.16.11.1-172.16.11.200"], "gateway": "172.16.11.254"}]
		}
	}`)}
	r, err := conf.Parse(in)
	if err != nil {
		fmt.Println(err)
		return
	}
	s := r.Rails[0].Subnets[0]
	fmt.Println("one of", s.Ranges, "via", s.Gateway, "on", r.Rails[0].Parent.Name)
	fmt.Println("leased from pool", r.IPAM.Pool, "and routed by", r.Routing.Mode)

	in.Stdin = []byte(`{"cniVersion": "1.1.0", "name": "gpu1-rail", "mtu": "9000", "routing": {"tabel": 100}}`)
	_, err = conf.Parse(in)
	e := cnierr.CNI("roce", err)
	fmt.Println(e.Msg)
	fmt.Println(e.Details)
	// Output:
	// one of [172.16.11.1-172.16.11.200] via 172.16.11.254 on enp11s0f0np0
	// leased from pool gpu1-rail and routed by policy
	// roce[7] check configuration "gpu1-rail": "mtu": want a number, got a string; "routing.tabel": unknown key
	// "mtu": write it without quotes; "routing.tabel": did you mean "table"?
}
