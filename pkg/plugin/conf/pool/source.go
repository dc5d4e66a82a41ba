// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
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

const longestName = 63

// Name returns the name of the pool. The default is the name of the network. Of
// the network's name, it checks only the length.
func Name(v strict.Value, network string, f *strict.Faults) string {
	if !v.Present() {
		if len(network) > longestName {
			f.Add(cnierr.BadConfig, "name", "use a shorter name, or set ipam.pool",
				"%d characters, at most %d can name a pool", len(network), longestName)
		}
		return network
	}
	s, ok := v.Text("")
	if ok && (!regexp.MustCompile(`^[A-Za-z0-9_.-]{1,63}$`).MatchString(s) || s == "." || s == "..") {
		v.Bad("use 1 to 63 letters, digits and _.-", "%q is not the name of a pool", s)
	}
	return s
}

// The default and the longest quarantine of a pool: the time before another pod
// gets a released address.
const (
	StandardQuarantine = 120 * time.Second
	LongestQuarantine  = 24 * time.Hour
)

// Quarantine reads the quarantine of a pool.
func Quarantine(v strict.Value) time.Duration {
	return v.Duration(StandardQuarantine, 0, LongestQuarantine)
}

// RailPool is a pool that spans nodes. The agent of the node writes into a file
// what this node may lease of the pool, and how long the quarantine is.
type RailPool struct {
	Name string
	// Rail is the pool's rail that the only interface of a network is on, nil
	// if the configuration does not say it.
	Rail *int
}

// ReadRailPool reads the keys "railPool" and "rail" of ipam. rails is the
// number of the network's rails, at most 1 for a network with one interface. It
// returns nil if there is no railPool.
func ReadRailPool(ipam *strict.Object, rails int) *RailPool {
	v, rail := ipam.At("railPool"), ipam.At("rail")
	if !v.Present() {
		if rail.Present() {
			rail.Bad(`write "railPool": "compute", or remove the key`, "has no effect without railPool")
		}
		return nil
	}
	p := RailPool{}
	var ok bool
	if p.Name, ok = v.Text(""); ok && !isRailPool(p.Name) {
		v.Bad("kubectl get railpools lists them", "%q is not the name of a RailPool", p.Name)
	}
	for _, other := range []struct{ key, hint string }{
		{"table", "keep one of the two"},
		{"pool", "remove it: networks that name one RailPool share its leases"},
		{"quarantine", "remove it, or set spec.quarantine of the RailPool"},
	} {
		if key := ipam.At(other.key); key.Present() {
			key.Bad(other.hint, "the RailPool defines it")
		}
	}
	if !rail.Present() {
		return &p
	}
	p.Rail = new(int(rail.Whole(0, 0, MaxRails-1)))
	if rails > 1 {
		rail.Bad("remove it", "each of the %d rails uses the RailPool's rail with the same number", rails)
	}
	return &p
}

// OfRailPool returns the name of the node's pool that has the leases of a RailPool. No
// configuration can have this name: there, the name of a pool has no colon.
func OfRailPool(name string) string { return "rail:" + name }

// isRailPool says whether a RailPool can have a name. The limit is lower than
// for other objects, because names of blocks begin with the name of the pool.
func isRailPool(name string) bool {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`).MatchString(name)
}

// MaxRails is how many interfaces one attachment may have.
const MaxRails = 32

// ParseTable returns the subnets of each rail of a node from the file that the settings of
// the node name, for ipam.table: {"nodes": {"gpu-01": [{"subnet": "172.16.0.0/31",
// "gateway": "172.16.0.0"}]}}. Each rail has a subnet or a list of them, in the form of
// ipam.subnets. Faults of other nodes do not matter. The error is BadConfig and names the
// file, also when the file is not JSON: the configuration is, but it names a wrong file.
func ParseTable(file string, content []byte, node string) ([][]Subnet, error) {
	f := &strict.Faults{}
	out := table(file, content, node, f)
	if err := f.Err("read table of rails", file); err != nil {
		return nil, &cnierr.Error{Code: cnierr.BadConfig, Err: err}
	}
	return out, nil
}

func table(file string, content []byte, node string, f *strict.Faults) [][]Subnet {
	top, ok := f.Document(file, content)
	if !ok {
		return nil
	}
	nodes := top.At("nodes")
	nodes.Missing(`write {"nodes": {"gpu-01": [{"subnet": "172.16.0.0/31", "gateway": "172.16.0.0"}]}}`)
	byName := nodes.Object()
	top.Strict(nil)
	if !byName.Present() {
		return nil
	}
	if !byName.Has(node) {
		known := slices.DeleteFunc(slices.Clone(byName.Keys()), func(key string) bool { return !byName.Has(key) })
		nodes.Bad("add the node, under this name", "the table has no node %q, only %s", node, cmp.Or(cnierr.Some(slices.Sorted(slices.Values(known))), "none"))
		return nil
	}
	return ofNode(byName.At(node), f)
}

func ofNode(v strict.Value, f *strict.Faults) [][]Subnet {
	entries := v.List()
	if n := len(entries); v.Kind() == strict.AList && (n == 0 || n > MaxRails) {
		v.Bad("write one entry for each rail", "want 1 to %d rails, got %d", MaxRails, n)
		return nil
	}
	var out [][]Subnet
	for _, e := range entries {
		if e.Kind() == strict.AList {
			out = append(out, subnets(e, f))
		} else {
			out = append(out, []Subnet{subnet(e, f)})
		}
	}
	return out
}
