// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/json"
	"net/netip"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
)

// addrs returns the addresses of a result.
func addrs(res *current.Result) []netip.Addr {
	out := make([]netip.Addr, 0, len(res.IPs))
	for _, ip := range res.IPs {
		a, _ := netip.AddrFromSlice(ip.Address.IP)
		out = append(out, a.Unmap())
	}
	return out
}

// addrOfResult returns the only address of a result.
func addrOfResult(t testing.TB, res *current.Result) netip.Addr {
	t.Helper()
	got := addrs(res)
	if len(got) != 1 {
		t.Fatalf("the result has the addresses %v, want one", got)
	}
	return got[0]
}

// text returns the configuration as a plugin gets it.
func (a attachment) text(t testing.TB) string {
	t.Helper()
	b, err := json.Marshal(a.network)
	must(t, err)
	return string(b)
}

func parse(t testing.TB, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
