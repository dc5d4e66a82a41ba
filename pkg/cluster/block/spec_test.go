// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func TestEveryFaultOfAPoolIsReportedWithItsPath(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec string
		want []string
	}{
		"nothing":    {`{}`, []string{`"spec": 0 of them define the subnets`, `"spec": want 1 to 32 rails, got 0`}},
		"everything": {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}], "template": {"count": 1, "subnets": [{"subnet": "10.1.0.0/24"}]}}`, []string{`"spec": 2 of them`}},
		"subnets": {
			`{"rails": [{"subnets": [{"subnet": "10.0.0.1/24"}]}, {"subnets": [{"subnet": "10.1.0.0/24", "ranges": ["10.2.0.0/28"], "gateway": "10.1.0.0"}]}, {"subnets": null}]}`,
			[]string{
				`"spec.rails[0].subnets[0].subnet": 10.0.0.1/24 has host bits`, `"spec.rails[1].subnets[0].ranges[0]": 10.2.0.0-10.2.0.15 is not inside`,
				`"spec.rails[1].subnets[0].gateway": 10.1.0.0 is the network address`, `"spec.rails[2].subnets": no subnet`,
			},
		},
		"a gateway outside": {
			`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "gateway": "172.{rail}.0.1"}]}}`,
			[]string{`"spec.template.subnets[0].gateway": rail 0: 172.0.0.1 is not inside 10.0.0.0/24`},
		},
		"overlapping ranges": {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.0/28", "10.0.0.9"]}]}]}`, []string{`"spec.rails[0].subnets[0].ranges": 10.0.0.9 overlaps 10.0.0.0-10.0.0.15`}},
		"rails that overlap": {
			`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}, {"subnets": [{"subnet": "10.0.0.0/25"}]}]}`,
			[]string{`"spec.rails[1].subnets": 10.0.0.0/25 of rail 1 overlaps 10.0.0.0/24 of rail 0`},
		},
		"a template": {
			`{"template": {"count": 33, "subnets": [{"subnet": "10.{rails}.0.0/24"}]}}`,
			[]string{`"spec.template.count": 33 is not in 1 to 32`, `"spec.template.subnets[0].subnet": "10.{rails}.0.0/24"`},
		},
		"rails beyond a number": {`{"template": {"count": 8, "subnets": [{"subnet": "10.{rail+250}.0.0/24"}]}}`, []string{`"spec.template.subnets[0].subnet": rail 6: "10.256.0.0/24" is not a prefix`}},
		"a rack without label":  {`{"template": {"count": 1, "subnets": [{"subnet": "10.0.{rack}.0/24"}]}}`, []string{`"spec.rackLabel": missing`}},
		"a label without rack":  {`{"rackLabel": "x", "template": {"count": 1, "subnets": [{"subnet": "10.0.0.0/24"}]}}`, []string{`"spec.rackLabel": has no effect`}},
		"racks that share": {
			`{"rackLabel": "x", "template": {"count": 12, "subnets": [{"subnet": "10.{rack}{rail}.0.0/24"}]}}`,
			[]string{`"spec": 10.110.0.0/24 of rack "11" overlaps 10.110.0.0/24 of rack "1"`},
		},
		"racks that share across rails": {
			`{"rackLabel": "x", "rails": [{"subnets": [{"subnet": "10.{rack}.0.0/24"}]}, {"subnets": [{"subnet": "10.{rack+1}.0.0/24"}]}]}`,
			[]string{`"spec": 10.1.0.0/24 of rack "1" overlaps 10.1.0.0/24 of rack "0"`},
		},
		"a table": {
			`{"rackLabel": "x", "racks": [
				{"name": "A", "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]},
				{"name": "b", "rails": [{"subnets": [{"subnet": "10.0.0.64/28"}]}]},
				{"name": "b", "rails": [{"subnets": [{"subnet": "10.0.2.0/24"}]}]},
				{"name": "c"}, {"name": "d", "rails": [{"subnets": [{"subnet": "10.{rack}.2.0/24"}]}]}]}`,
			[]string{
				`"spec.racks[0].name": "A" cannot be a part`, `"spec.racks[2].name": rack "b" appears twice`, `"spec.racks[3].rails": no rail`,
				`"spec.racks[4].rails[0].subnets[0].subnet": "10.{rack}.2.0/24" has a brace`, `10.0.0.64/28 of rack "b" overlaps 10.0.0.0/24 of rack "A"`,
			},
		},
		"ranges of a template": {
			`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "ranges": ["10.{rail}.0.99-10.{rail}.0.10", "10.{rail}.0.65/26"]}]}}`,
			[]string{`"spec.template.subnets[0].ranges[0]": rail 0: "10.0.0.99-10.0.0.10" is not a range`, `"spec.template.subnets[0].ranges[1]": rail 0: 10.0.0.65/26 has host bits set`},
		},
		"what is of one rail only": {
			`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "ranges": ["10.0.0.0/25"], "exclude": ["10.{rail}.0.7", "10.0.0.9"], "gateway": "10.0.0.1"}]}}`,
			[]string{
				`"spec.template.subnets[0].ranges[0]": 10.0.0.0/25 has no {rail}, which its subnet 10.{rail}.0.0/24 has`,
				`"spec.template.subnets[0].exclude[1]": 10.0.0.9 has no {rail}`, `"spec.template.subnets[0].gateway": 10.0.0.1 has no {rail}`,
			},
		},
		"one rail": {`{"template": {"count": 1, "subnets": [{"subnet": "10.{rail}.0.0/24", "exclude": ["10.0.0.9"]}]}}`, nil},
		"what is of one rack only": {
			`{"rackLabel": "x", "rails": [{"subnets": [{"subnet": "10.0.{rack}.0/24", "exclude": ["10.0.1.9"]}]}]}`,
			[]string{`"spec.rails[0].subnets[0].exclude[0]": 10.0.1.9 has no {rack}`},
		},
		"an exclusion outside": {
			`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "exclude": ["10.1.0.9"]}]}]}`,
			[]string{`"spec.rails[0].subnets[0].exclude[0]": 10.1.0.9 is not inside 10.0.0.0/24`},
		},
		"reservations outside": {
			`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24"}]}, "reservations": [{"ranges": ["10.1.0.9", "10.2.0.9", "10.0.0.0-10.255.255.255"], "reason": ""}, {"ranges": ["10.0.0.9/28", "fd00::/64"], "reason": ""}]}`,
			[]string{
				`"spec.reservations[0].ranges[1]": 10.2.0.9 is in no subnet`, `"spec.reservations[1].ranges[0]": 10.0.0.9/28 has host bits set`, `"spec.reservations[1].ranges[1]": fd00::-fd00::ffff:ffff:ffff:ffff is in no subnet`,
			},
		},
		"reservations in racks": {
			`{"rackLabel": "x", "template": {"count": 2, "subnets": [{"subnet": "10.{rail}.{rack}.0/24"}]}, "reservations": [{"ranges": ["10.0.255.9", "10.2.0.9"], "reason": ""}]}`,
			[]string{`"spec.reservations[0].ranges[1]": 10.2.0.9 is in no subnet`},
		},
		"reservations in racks that are not counted": {
			`{"rackLabel": "x", "template": {"count": 2, "subnets": [{"subnet": "fd00:{rail}:{rack}::/64"}]}, "reservations": [{"ranges": ["fd00::300:0:0:0:1"], "reason": ""}]}`, nil,
		},
		"reservations in a table": {
			`{"rackLabel": "x", "racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}, {"name": "b", "rails": [{"subnets": [{"subnet": "10.1.0.0/24"}]}]}], "reservations": [{"ranges": ["10.1.0.9", "10.2.0.9"], "reason": ""}]}`,
			[]string{`"spec.reservations[0].ranges[1]": 10.2.0.9 is in no subnet`},
		},
		"a gateway on link":    {`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "gateway": "172.16.0.1", "onLink": true}]}}`, nil},
		"a link-local gateway": {`{"template": {"count": 2, "subnets": [{"subnet": "fd00:{rail}::/64", "gateway": "fe80::1"}]}}`, nil},
		"a template of one rack only": {
			`{"rackLabel": "x", "template": {"count": 1, "subnets": [{"subnet": "10.0.{rack}.0/24", "ranges": ["10.0.1.0/25"]}]}}`,
			[]string{`"spec.template.subnets[0].ranges[0]": 10.0.1.0/25 has no {rack}`},
		},
		"the largest numbers": {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/16"}]}], "blockSize": 4096, "maxBlocksPerNode": 1048576, "fabric": "storage"}`, nil},
		"numbers that are too large": {
			`{"rails": [{"subnets": [{"subnet": "10.0.0.0/16"}]}], "blockSize": 4097, "maxBlocksPerNode": 1048577, "fabric": "Storage"}`,
			[]string{`"spec.blockSize": 4097 is not in 1 to 4096`, `"spec.maxBlocksPerNode": 1048577 is not in 1 to 1048576`, `"spec.fabric": "Storage" is not the name of a network`},
		},
		"numbers below zero": {
			`{"rails": [{"subnets": [{"subnet": "10.0.0.0/16"}]}], "blockSize": -1, "maxBlocksPerNode": -1}`,
			[]string{`"spec.blockSize": -1 is not`, `"spec.maxBlocksPerNode": -1 is not`},
		},
		"too many rails": {
			`{"rails": [` + strings.Repeat(`{"subnets": [{"subnet": "10.0.0.0/24"}]}, `, 32) + `{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`,
			[]string{`"spec": want 1 to 32 rails, got 33`},
		},
		"all else": {
			`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}], "blockSize": 5000, "quarantine": "25h", "sticky": {"ttl": "soon", "slots": "7"}, "reservations": [{"ranges": ["10.0.0.9", "10.0.0.300"], "reason": ""}]}`,
			[]string{
				`"spec.blockSize": 5000 is not in 1 to 4096`, `"spec.quarantine": 25h is not in 0s to 24h0m0s`,
				`"spec.sticky.ttl": "soon" is not a time`, `"spec.sticky.slots": "7" is not a range of host indexes`, `"spec.reservations[0].ranges[1]": "10.0.0.300" is not a range`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := read(t, tt.spec).Validate()
			if tt.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("it is accepted")
			}
			if got := cnierr.CodeOf(err); got != cnierr.BadConfig {
				t.Errorf("code %d: %v", got, err)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %s in\n%v", want, err)
				}
			}
			if got := strings.Count(err.Error(), "\n") + 1; got != len(tt.want) {
				t.Errorf("%d faults, want %d:\n%v", got, len(tt.want), err)
			}
		})
	}
}

func TestNamesThatCannotBeginABlocksAreRefused(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"gpu": true, "a": true, "gpu-1": true, "9": true, strings.Repeat("a", 40): true,
		"": false, "gpu.1": false, "GPU": false, "-gpu": false, "gpu-": false, "../x": false, strings.Repeat("a", 41): false,
	} {
		p := read(t, flat)
		p.Name = name
		if err := p.Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestARackThatThePoolDoesNotKnowIsRefused(t *testing.T) {
	t.Parallel()
	byNumber := read(t, `{"rackLabel": "example.org/rack", "template": {"count": 1, "subnets": [{"subnet": "10.0.{rack}.0/24"}]}}`)
	table := read(t, `{"rackLabel": "example.org/rack", "racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}]}`)
	for rack, p := range map[string]block.Pool{"": byNumber, "07": byNumber, "a": byNumber, "-1": byNumber, "256": byNumber, "b": table} {
		want := "the node's rack \"" + rack + "\" is not "
		if rack == "256" { // an address has no room for it
			want = "10.0.256.0/24"
		}
		if _, err := p.Space(rack); cnierr.CodeOf(err) != cnierr.BadConfig || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rack %q: %v", rack, err)
		}
	}
	// A pool that is the same everywhere does not ask.
	if s, err := read(t, flat).Space("07"); err != nil || s.Name(1) != "gpu-1" {
		t.Errorf("%v, error %v", s.Name(1), err)
	}
}

func TestAPoolWithoutAFreeSlotIsRefused(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{
		`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.1-10.0.0.9"]}]}, {"subnets": [{"subnet": "10.1.0.0/24", "ranges": ["10.1.0.10-10.1.0.19"]}]}]}`,
		`{"rails": [{"subnets": [{"subnet": "fd00::/32", "ranges": ["fd00:0:1::10-fd00:0:1::ff"]}]}]}`, // slots beyond MaxBlocks
	} {
		p := read(t, spec)
		if _, err := p.Space(""); err == nil || !strings.Contains(err.Error(), "no host index is usable") {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func TestRailsMayShareASubnet(t *testing.T) {
	t.Parallel()
	p := read(t, `{"rackLabel": "x", "racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}, {"subnets": [{"subnet": "10.0.0.0/24"}]}]}]}`)
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
}

func TestNodesAreSelectedByAllLabels(t *testing.T) {
	t.Parallel()
	s := block.PoolSpec{NodeSelector: map[string]string{"gpu": "h100", "zone": ""}}
	if !s.Selects(map[string]string{"gpu": "h100", "zone": "", "more": "x"}) {
		t.Error("not selected")
	}
	for _, labels := range []map[string]string{nil, {"gpu": "h100"}, {"gpu": "a100", "zone": ""}} {
		if s.Selects(labels) {
			t.Errorf("%v: selected", labels)
		}
	}
	if !(block.PoolSpec{}).Selects(nil) {
		t.Error("without selector a node is not selected")
	}
}

// The JSON of a pool is that of the CRD: what is written comes back.
func TestAPoolSurvivesJSON(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("testdata/pool.json")
	must(t, err)
	p := read(t, string(content))
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	back, err := json.MarshalIndent(p.Spec, "", "  ")
	if diff := cmp.Diff(strings.TrimSpace(string(content)), string(back)); err != nil || diff != "" {
		t.Errorf("error %v, (-file +written)\n%s", err, diff)
	}
}
