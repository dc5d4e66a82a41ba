// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

// childMode reads "child" and "mode". The modes of an ipvlan other than l2 have no ARP, so
// that no gateway and no other host could be asked.
func childMode(top *strict.Object) Mode {
	mode := top.At("mode")
	if kind := strict.Choice(top.At("child"), Bridge.Kind(), L2.Kind()); kind == L2.Kind() {
		return strict.Choice(mode, L2)
	}
	return strict.Choice(mode, Bridge, Private, VEPA, Passthru)
}

func bcQueueLen(v strict.Value, mode Mode) uint32 {
	n := uint32(v.Whole(0, 0, maxBCQueueLen))
	if mode == L2 && n != 0 {
		v.Bad("remove the key", "an ipvlan has no queue for broadcasts")
	}
	return n
}

// MaxVLAN is the greatest number of a VLAN (IEEE 802.1Q); the least is 1.
const MaxVLAN = 4094

// VLAN is a VLAN on a NIC of the host.
type VLAN struct {
	ID  int      `json:"id"` // 1 to MaxVLAN
	NIC LinkName `json:"nic"`
}

// Name returns the name of the interface that roce makes for the VLAN: that of the NIC
// with the number behind it. If the kernel does not take such a long name, it is made from
// the number and a hash of the NIC's name.
func (v VLAN) Name() LinkName {
	name := fmt.Sprintf("%s.%d", v.NIC, v.ID)
	if len(name) <= longestIfName {
		return LinkName(name)
	}
	sum := sha256.Sum256([]byte(v.NIC))
	return LinkName(fmt.Sprintf("vlan%d.%s", v.ID, hex.EncodeToString(sum[:3])))
}

func contradictoryVLAN(r Request, f *strict.Faults) {
	switch {
	case r.VLAN == 0:
	case r.LinkInContainer:
		f.Add(cnierr.BadConfig, "vlan", "remove the key, or linkInContainer", "the VLAN would be in the pod's namespace, and is made on the host")
	case r.Prev != nil:
		f.Add(cnierr.BadConfig, "vlan", "set the VLAN in the plugin before roce", "the plugin before roce makes the interface")
	}
}

// MAC is an Ethernet address. The zero value means none.
type MAC [6]byte

// ParseMAC reads an Ethernet address that a host may have. It must have 48
// bits, and must be neither zero nor a group address.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil {
		return MAC{}, err
	}
	if len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("address %s: want 48 bits, got %d", s, len(hw)*8)
	}
	m := MAC(hw)
	if m.IsZero() || m[0]&1 != 0 {
		return MAC{}, fmt.Errorf("address %s: zero or a group address", s)
	}
	return m, nil
}

// IsZero says whether m is the zero value.
func (m MAC) IsZero() bool { return m == MAC{} }

// String returns the usual form with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText returns String, and nothing for the zero value.
func (m MAC) MarshalText() ([]byte, error) {
	if m.IsZero() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (m *MAC) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*m = MAC{}
		return nil
	}
	v, err := ParseMAC(string(b))
	if err != nil {
		return err
	}
	*m = v
	return nil
}

const sysctlHint = "set other kernel parameters with the tuning plugin or in the pod's securityContext.sysctls"

// sysctls reads "sysctl": settings of the pod's interface. As for the tuning
// plugin, IFNAME stands for its name.
func sysctls(v strict.Value) []Sysctl {
	o := v.Object()
	var out []Sysctl
	for _, key := range o.Keys() {
		s := Sysctl{Value: sysctlValue(o.At(key))}
		var ok bool
		if s.Tree, s.Key, ok = sysctlKey(key); !ok {
			o.At(key).Bad(sysctlHint, "not net.{ipv4,ipv6}.{conf,neigh}.IFNAME.KEY, with the word IFNAME as it is written here")
			continue
		}
		if slices.ContainsFunc(out, func(b Sysctl) bool { return compareSysctl(s, b) == 0 }) {
			o.At(key).Bad("keep one of the two", "the setting appears twice")
		}
		out = append(out, s)
	}
	slices.SortFunc(out, compareSysctl)
	return out
}

func compareSysctl(a, b Sysctl) int {
	return cmp.Or(cmp.Compare(a.Tree, b.Tree), cmp.Compare(a.Key, b.Key))
}

// sysctlKey splits a key such as net.ipv4.conf.IFNAME.arp_ignore. As for
// sysctl(8), slashes can replace the dots.
func sysctlKey(s string) (tree, key string, ok bool) {
	if !strings.Contains(s, "/") {
		s = strings.ReplaceAll(s, ".", "/")
	}
	m := regexp.MustCompile(`^net/(ipv[46]/(?:conf|neigh))/IFNAME/([a-z0-9_]+)$`).FindStringSubmatch(s)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

func sysctlValue(v strict.Value) string {
	if v.Kind() == strict.ANumber {
		if strings.Trim(v.Raw(), "-0123456789") != "" {
			v.Bad("", "%s is not a whole number", v.Raw())
		}
		return v.Raw()
	}
	s, ok := v.Text("write the value as a string or a number")
	if ok && (strings.TrimSpace(s) == "" || !printable(s)) || !v.Present() {
		v.Bad("", "%q is not a value", s)
	}
	return s
}
