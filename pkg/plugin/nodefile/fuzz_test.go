// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

// FuzzFile checks that no content makes parse panic, that what it accepts is the same once it
// is written and read again, and that the node may lease nothing outside of its ranges.
func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"version": 1, "bootID": "b", "pool": "gpu", "quarantine": "2m", "rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.16-10.0.0.31"], "exclude": ["10.0.0.20"], "gateway": "10.0.0.254"}]}]}`))
	f.Add([]byte(`{"version": 1, "pool": "gpu", "quarantine": "0s", "rails": [{"subnets": [{"subnet": "fd00::/64", "ranges": ["fd00::20-fd00::2f"]}]}], "sticky": true}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		first, boot, err := parse(content)
		if err != nil {
			return
		}
		b, err := json.Marshal(first.form(boot))
		if err != nil {
			t.Fatal(err)
		}
		again, _, err := parse(b)
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v\n%s", err, b)
		}
		if diff := cmp.Diff(first, again, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-first +again):\n%s", diff)
		}
		for i, subnets := range first.Subnets() {
			for j, s := range subnets {
				ours := netrange.Minus([]netrange.Range{netrange.Of(s.Prefix)}, s.Exclude)
				if out := netrange.Minus(ours, first.Rails[i][j].Ranges); len(out) > 0 {
					t.Errorf("%v may be requested, and is not in %v", out, first.Rails[i][j].Ranges)
				}
			}
		}
	})
}
