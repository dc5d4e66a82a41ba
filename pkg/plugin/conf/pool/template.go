// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// TemplateHint says which placeholders a string may have: they stand for the number
// of a rail.
const TemplateHint = "write {rail}, {rail+N}, {rail*N} or {rail*N+M}; the first rail is 0"

// placeholder is a placeholder in a string. It stands for the number of the
// rail, times a number and plus a number.
type placeholder struct{ start, end, times, plus int }

// next returns the first placeholder of s at or after from. It uses no regular
// expression: that would be compiled again for each string, because we have no
// package-level variables, and a RailPool may have thousands of subnets.
func next(s string, from int) (p placeholder, ok bool) {
	const opening = "{rail"
	for {
		at := strings.Index(s[from:], opening)
		if at < 0 {
			return placeholder{}, false
		}
		p = placeholder{start: from + at}
		from = p.start + len(opening)
		rest := s[from:]
		p.times, rest = factor(rest, '*', 1)
		p.plus, rest = factor(rest, '+', 0)
		if strings.HasPrefix(rest, "}") {
			p.end = len(s) - len(rest) + 1
			return p, true
		}
	}
}

// factor reads a sign and a number of at most six digits, so that none
// overflows. If there is no such number, it returns standard, and s unchanged.
func factor(s string, sign byte, standard int) (n int, rest string) {
	const most = 6
	if s == "" || s[0] != sign {
		return standard, s
	}
	i := 1
	for ; i < len(s) && i <= most && '0' <= s[i] && s[i] <= '9'; i++ {
		n = 10*n + int(s[i]-'0')
	}
	if i == 1 {
		return standard, s
	}
	return n, s[i:]
}

// IsTemplate says whether s has a brace: it is a template, or was meant to be one.
func IsTemplate(s string) bool { return strings.ContainsAny(s, "{}") }

// Varies says whether s has a placeholder.
func Varies(s string) bool {
	_, ok := next(s, 0)
	return ok
}

// ValidTemplate says whether every brace of s belongs to a placeholder.
func ValidTemplate(s string) bool {
	return !IsTemplate(replace(s, func(placeholder) string { return "" }))
}

// Expand replaces the placeholders of s by their numbers for a rail, in
// decimal, and leaves everything else. In a JSON text it changes only strings:
// outside of strings, no brace is before a letter.
func Expand(s string, rail int) string {
	return replace(s, func(p placeholder) string { return strconv.Itoa(rail*p.times + p.plus) })
}

func replace(s string, by func(placeholder) string) string {
	var out strings.Builder
	done := 0
	for p, ok := next(s, 0); ok; p, ok = next(s, done) {
		out.WriteString(s[done:p.start])
		out.WriteString(by(p))
		done = p.end
	}
	out.WriteString(s[done:])
	return out.String()
}

const (
	deriving   = "derive subnets from master"
	deriveHint = "give the NIC one address of each family that its pods need, or write the subnets into ipam.subnets; see the addresses: ip addr show dev "
)

// Subnets returns the subnets that follow from a NIC's own addresses: one for each
// family that the NIC has, IPv4 before IPv6. Errors: BadParent for a NIC without an
// address, or with several subnets of a family; BadConfig for settings that do not fit
// into a subnet.
func (from FromMaster) Subnets(nic string, addrs []netip.Prefix) ([]Subnet, error) {
	var out []Subnet
	for _, own := range addrs {
		prefix := own.Masked()
		if own.IsSingleIP() {
			continue
		}
		if n := len(out); n > 0 && out[n-1].Prefix.Addr().Is4() == prefix.Addr().Is4() {
			if out[n-1].Prefix == prefix && from.Derive == nil {
				continue
			}
			return nil, cnierr.New(cnierr.BadParent, deriving, nic, deriveHint+nic,
				"it has %s and addresses of %s: want one of each family", own, out[n-1].Prefix)
		}
		s, err := from.around(nic, own)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, cnierr.New(cnierr.BadParent, deriving, nic, deriveHint+nic, "it has no address with a subnet")
	}
	return out, nil
}

func (from FromMaster) around(nic string, own netip.Prefix) (Subnet, error) {
	s := Subnet{Prefix: own.Masked(), Ranges: []netrange.Range{netrange.Of(own)}}
	if own.Bits() == own.Addr().BitLen()-1 {
		return s, cnierr.New(cnierr.BadParent, deriving, nic,
			"remove the address from the NIC, and write in ipam.table that the pod gets it", "its subnet %s has only one address for this end of the link, and the NIC has it", s.Prefix)
	}
	s.Gateway = gatewayAt(from.Gateway, s.Prefix)
	if s.Gateway == own.Addr() {
		return s, cnierr.New(cnierr.BadConfig, deriving, nic,
			"set ipam.gateway to the other end of the subnet, or to "+NoGateway, "the gateway would be %s, the NIC's own address", own.Addr())
	}
	if from.Derive == nil {
		return s, nil
	}
	base, per, index := uint64(from.Derive.Base), uint64(from.Derive.PerHost), netrange.Index(own.Addr(), own)
	host := netrange.ToNumber(index)
	first := base + host*per
	pods := netrange.Range{First: netrange.AtNumber(first, own), Last: netrange.AtNumber(first+per-1, own)}
	hint := fmt.Sprintf("give the NICs host indexes below ipam.derive.base (%d), and choose base and perHost so that all addresses fit into %s", base, s.Prefix)
	switch {
	case host >= base:
		return s, cnierr.New(cnierr.BadConfig, deriving, nic, hint,
			"its address %s has host index %d, which is in the range of the pods", own.Addr(), netrange.Number(index))
	case !pods.Within(s.Ranges[0]):
		return s, cnierr.New(cnierr.BadConfig, deriving, nic, hint,
			"host indexes %d to %d are not in %s", first, first+per-1, s.Prefix)
	}
	s.Ranges = []netrange.Range{pods}
	return s, nil
}

func gatewayAt(which string, subnet netip.Prefix) netip.Addr {
	all := netrange.Of(subnet)
	a, next := all.First, netip.Addr.Next
	switch which {
	case LastHost:
		a, next = all.Last, netip.Addr.Prev
	case FirstHost:
	default:
		return netip.Addr{}
	}
	for unusable := netrange.Unusable(subnet); unusable[a] != ""; {
		a = next(a)
	}
	return a
}
