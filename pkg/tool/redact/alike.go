// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package redact

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// NewAlike returns a redactor that replaces an address, a hardware address or a GUID by
// another one of its kind, which is written in the same way. Programs can still read
// the text, and an address and its GID still belong together. Names become "name-1".
func NewAlike() *Redactor {
	r := New()
	r.alike = true
	return r
}

// What replaces values has these beginnings. Networks do not use them, so a
// replacement is no value of the user: "RO" in a local MAC, addresses of class E, and
// addresses for documentation.
const (
	macBegin  = "\x02RO"
	guidBegin = "\x02RO\x00\xff"
	ipv6Begin = "\x20\x01\x0d\xb8RO"
	ipv4Begin = 240
)

// ours are the addresses of our own tests: those for benchmarks (RFC 2544, RFC 5180).
func ours(a netip.Addr) bool {
	return netip.MustParsePrefix("198.18.0.0/15").Contains(a) || netip.MustParsePrefix("2001:2::/48").Contains(a)
}

// MAC returns what replaces a hardware address of six bytes. Others become zeros.
// Addresses of zeros and of groups stay.
func (r *Redactor) MAC(b []byte) []byte {
	switch {
	case len(b) != 6:
		return make([]byte, len(b))
	case b[0]&1 != 0, bytes.Equal(b, make([]byte, 6)), strings.HasPrefix(string(b), macBegin):
		return b
	}
	n := r.number("mac", string(b))
	return append([]byte(macBegin), byte(n>>16), byte(n>>8), byte(n))
}

// GUID returns what replaces a GUID. Zero stays.
func (r *Redactor) GUID(guid uint64) uint64 {
	b := binary.BigEndian.AppendUint64(nil, guid)
	if guid == 0 || strings.HasPrefix(string(b), guidBegin) {
		return guid
	}
	n := r.number("guid", string(b))
	return binary.BigEndian.Uint64(append([]byte(guidBegin), byte(n>>16), byte(n>>8), byte(n)))
}

// Addr returns what replaces an address. Addresses of one IPv4 /24, or of one IPv6
// /64, stay together. An IPv6 address that was made from a MAC is made from what
// replaces the MAC. Addresses that every machine has, groups, and those of our own
// tests stay.
func (r *Redactor) Addr(a netip.Addr) netip.Addr {
	a = a.Unmap()
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || ours(a) || r.replaces(a) || slices.Contains(r.kept, a) {
		return a
	}
	if a.Is4() {
		b := a.As4()
		n := r.number("subnet4", string(b[:3]))
		b[3] = byte(r.number("host4-"+hex.EncodeToString(b[:3]), string(b[:])))
		return netip.AddrFrom4([4]byte{ipv4Begin, byte(n >> 8), byte(n), b[3]})
	}
	b := a.As16()
	own := slices.Clone(b[:])
	if !a.IsLinkLocalUnicast() {
		n := r.number("subnet6", string(b[:8]))
		copy(b[:], append([]byte(ipv6Begin), byte(n>>8), byte(n)))
	}
	if b[11] == 0xff && b[12] == 0xfe {
		mac := r.MAC([]byte{b[8] ^ 2, b[9], b[10], b[13], b[14], b[15]})
		copy(b[8:], []byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	} else {
		binary.BigEndian.PutUint64(b[8:], uint64(r.number("host6", string(own[8:]))))
	}
	if !a.IsLinkLocalUnicast() {
		r.number("ip6", string(own))
	}
	return netip.AddrFrom16(b)
}

func (r *Redactor) replaces(a netip.Addr) bool {
	b := a.AsSlice()
	return a.Is4() && b[0] == ipv4Begin || a.Is6() && strings.HasPrefix(string(b), ipv6Begin)
}

// like returns what replaces a text of a kind.
func (r *Redactor) like(kind, value string) (string, bool) {
	switch kind {
	case "mac":
		mac, err := net.ParseMAC(value)
		if err != nil {
			return "", false
		}
		return net.HardwareAddr(r.MAC(mac)).String(), true
	case "guid":
		b, err := hex.DecodeString(strings.ReplaceAll(value, ":", ""))
		if err != nil || len(b) != 8 {
			return "", false
		}
		return guidText(r.GUID(binary.BigEndian.Uint64(b))), true
	case "device":
		begin, number, _ := strings.Cut(value, "x")
		b, err := hex.DecodeString(number)
		if err != nil {
			return "", false
		}
		if len(b) == 8 {
			return fmt.Sprintf("%sx%016x", begin, r.GUID(binary.BigEndian.Uint64(b))), true
		}
		return begin + "x" + hex.EncodeToString(r.MAC(b)), true
	}
	return "", false
}

func guidText(n uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", n>>48, n>>32&0xffff, n>>16&0xffff, n&0xffff)
}

// alikeText writes an address as the text did: sysfs writes all digits.
func alikeText(text string, a netip.Addr) string {
	if len(text) == len("0000:0000:0000:0000:0000:ffff:0000:0000") && strings.Count(text, ":") == 7 {
		b := a.As16()
		var words []string
		for part := range slices.Chunk(b[:], 2) {
			words = append(words, hex.EncodeToString(part))
		}
		return strings.Join(words, ":")
	}
	return a.String()
}

// Left returns the kinds of values that were replaced and that a text still contains,
// as words or as hexadecimal bytes. IPv4 addresses are looked for as words alone,
// because any four bytes can be one.
func (r *Redactor) Left(text string) []string {
	var out []string
	for _, n := range r.names {
		if r.replaceName(text, n) != text && !slices.Contains(out, n.kind) {
			out = append(out, n.kind)
		}
	}
	text = strings.ToLower(text)
	for key := range r.numbers {
		kind, value, _ := strings.Cut(key, " ")
		for _, form := range forms(kind, value) {
			if strings.Contains(text, form) && !slices.Contains(out, kind) {
				out = append(out, kind)
			}
		}
	}
	slices.Sort(out)
	return out
}

func forms(kind, value string) []string {
	b := []byte(value)
	kind, _, _ = strings.Cut(kind, "-")
	switch kind {
	case "mac":
		return []string{net.HardwareAddr(b).String(), hex.EncodeToString(b)}
	case "guid":
		other := slices.Clone(b)
		slices.Reverse(other)
		return []string{guidText(binary.BigEndian.Uint64(b)), hex.EncodeToString(b), hex.EncodeToString(other)}
	case "host4":
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return nil
		}
		// A longer address can contain it.
		return []string{`"` + a.String() + `"`, " " + a.String() + " ", `"` + a.String() + "/", alikeText(strings.Repeat("0000:", 7)+"0000", a)}
	case "ip6":
		a, ok := netip.AddrFromSlice(b)
		if !ok {
			return nil
		}
		return []string{a.String(), alikeText(strings.Repeat("0000:", 7)+"0000", a), hex.EncodeToString(b)}
	}
	return nil
}
