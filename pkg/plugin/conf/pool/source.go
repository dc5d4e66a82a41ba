// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"math"

	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// FromMaster says how to make subnets from a NIC's own addresses.
type FromMaster struct {
	Gateway string  // FirstHost, LastHost or NoGateway
	Derive  *Derive // nil: any address of the subnet
}

// The gateways of FromMaster: the first or the last host address of the subnet,
// or none.
const (
	FirstHost = "first"
	LastHost  = "last"
	NoGateway = "none"
)

// Derive gives a node PerHost addresses of the subnet, beginning at Base + h x
// PerHost. h is the host part of the NIC's own address.
type Derive struct{ Base, PerHost int }

// Elsewhere returns the key of ipam that says where subnets come from, "" if
// that is "subnets".
func Elsewhere(ipam *strict.Object) string {
	for _, key := range []string{"railPool", "table", "fromMaster"} {
		if v := ipam.At(key); v.Present() && v.Raw() != "false" {
			return key
		}
	}
	return ""
}

// ReadFromMaster reads the keys "fromMaster", "gateway" and "derive" of ipam.
// instead is a hint that says how to write a subnet.
func ReadFromMaster(ipam *strict.Object, instead string) *FromMaster {
	v, gateway, derive := ipam.At("fromMaster"), ipam.At("gateway"), ipam.At("derive")
	if !v.True() {
		wrong := v.Present() && v.Kind() != strict.TrueFalse
		for _, key := range []strict.Value{gateway, derive} {
			if key.Present() && !wrong {
				key.Bad(instead+`, or "fromMaster": true`, "has no effect without fromMaster")
			}
		}
		return nil
	}
	if other := Elsewhere(ipam); other != "fromMaster" {
		v.Bad("keep one of the two", "ipam.%s already defines the subnets", other)
	}
	m := FromMaster{Gateway: strict.Choice(gateway, NoGateway, FirstHost, LastHost)}
	if !gateway.Present() || gateway.Raw() == `""` {
		gateway.Bad(`write which address of the NIC's subnet is the gateway: "first", "last" or "none"`, "missing")
	}
	if d := derive.Object(); d.Present() {
		base, perHost := d.At("base"), d.At("perHost")
		base.Missing("")
		perHost.Missing("")
		m.Derive = &Derive{Base: int(base.Whole(1, 1, math.MaxInt32)), PerHost: int(perHost.Whole(1, 1, 1<<16))}
		d.Strict(nil)
	}
	return &m
}
