// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A pod with CAP_NET_ADMIN can add rules that look like ours.
func TestRulesOfThePodDoNotHoldUpDEL(t *testing.T) {
	t.Parallel()
	pool := func(_ *testing.T, w *world, p *pod) attachment { return w.attach(w.rail(0), p, "net1") }
	static := func(t *testing.T, w *world, p *pod) attachment { return w.static(t, p, "172.16.10.64/24", "") }
	many := func(n int, format string) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("rule add from ADDR protocol 82 "+format, i+1))
		}
		return out
	}
	twins := many(3000, "lookup 100 priority 32000 ipproto tcp sport %d")
	odd := []string{"rule add from ADDR goto 32766 priority 5 protocol 82", "rule add from ADDR blackhole priority 6 protocol 82"}
	for _, tt := range []struct {
		name   string
		attach func(t *testing.T, w *world, p *pod) attachment
		rules  []string
		lost   bool // the record
	}{
		{name: "rules that our request matches", attach: pool, rules: twins},
		{name: "the IPAM plugin needs the link", attach: static, rules: twins},
		{name: "fewer than are deleted", attach: pool, rules: twins[:1000]},
		{name: "the record is lost", attach: pool, rules: slices.Concat(twins, odd, many(1000, "lookup 7 priority 1%d")), lost: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.pod(t)
			a := tt.attach(t, w, p)
			addr := addrs(a.mustAdd(t))[0].String()
			p.IP(t, strings.ReplaceAll(strings.Join(tt.rules, "\n"), "ADDR", addr))
			if tt.lost {
				must(t, os.Remove(filepath.Join(w.state, "attachments", a.id, "net1.json")))
			}
			a.mustDel(t)
			if _, err := p.Run("ip", "link", "show", "dev", "net1"); err == nil {
				t.Error("the interface is still there")
			}
			a.mustDel(t)
		})
	}
}
