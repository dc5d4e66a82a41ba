// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

func TestPodsOfTwoPoolsGetNoCommonAddress(t *testing.T) {
	t.Parallel()
	first := read(t, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "ranges": ["10.{rail}.0.0-10.{rail}.0.127"], "gateway": "10.{rail}.0.1", "exclude": ["10.{rail}.0.64/26"]}]}}`)
	for name, tt := range map[string]struct{ spec, clash string }{
		"other subnets":                     {`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail+2}.0.0/24"}]}}`, ""},
		"other ranges of the same":          {`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "ranges": ["10.{rail}.0.128/25"]}]}}`, ""},
		"what the first excludes":           {`{"rails": [{"subnets": [{"subnet": "10.0.0.64/26"}]}]}`, ""},
		"what the first reserves":           {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.64-10.0.0.90"]}]}]}`, ""},
		"what the second excludes":          {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/16", "exclude": ["10.0.0.0/26"]}]}]}`, ""},
		"what the second reserves":          {`{"reservations": [{"ranges": ["10.0.0.0-10.0.0.63"], "reason": "x"}], "rails": [{"subnets": [{"subnet": "10.0.0.0/16"}]}]}`, ""},
		"the gateway":                       {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/30", "exclude": ["10.0.0.2"]}]}]}`, "10.0.0.1"},
		"the same gateway, and the ends":    {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.128/25"], "gateway": "10.0.0.1"}]}]}`, ""},
		"one address":                       {`{"rails": [{"subnets": [{"subnet": "10.1.0.62/31"}]}]}`, "10.1.0.62-10.1.0.63"},
		"another rail":                      {`{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}, {"subnets": [{"subnet": "10.0.0.0/27"}]}]}`, "10.0.0.1-10.0.0.30"},
		"around it":                         {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/8"}]}]}`, "10.0.0.1-10.0.0.63"},
		"the second subnet of a rail":       {`{"rails": [{"subnets": [{"subnet": "fd00::/64"}, {"subnet": "10.1.0.32/28"}]}]}`, "10.1.0.33-10.1.0.46"},
		"IPv6 alone, which the first lacks": {`{"rails": [{"subnets": [{"subnet": "fd00::/64"}]}]}`, ""},
		"another network":                   {`{"fabric": "storage", "rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`, ""},
		"one of the racks":                  {`{"rackLabel": "rack", "rails": [{"subnets": [{"subnet": "10.{rack}.0.32/28"}]}]}`, "10.0.0.33-10.0.0.46"},
		"none of the racks":                 {`{"rackLabel": "rack", "rails": [{"subnets": [{"subnet": "10.{rack+2}.0.32/28"}]}]}`, ""},
		"a rack behind one that is apart":   {`{"rackLabel": "rack", "racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "10.0.0.64/26"}]}]}, {"name": "b", "rails": [{"subnets": [{"subnet": "10.1.0.32/28"}]}]}]}`, "10.1.0.33-10.1.0.46"},
		"a rack of the table":               {`{"rackLabel": "rack", "racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}]}, {"name": "b", "rails": [{"subnets": [{"subnet": "10.1.0.32/28"}]}]}]}`, "10.1.0.33-10.1.0.46"},
	} {
		second := read(t, tt.spec)
		second.Name = "second"
		err := second.Apart(first)
		if tt.clash == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tt.clash != "" && (cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), `"second": `+tt.clash+` are addresses of RailPool "gpu"`)) {
			t.Errorf("%s: got %v, want %s", name, err, tt.clash)
		}
		if (first.Apart(second) == nil) != (err == nil) {
			t.Errorf("%s: it depends on which was first", name)
		}
	}
}

func TestAPoolWithAFaultKeepsItsSubnets(t *testing.T) {
	t.Parallel()
	ours := space(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`, "")
	bad := read(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.300"]}]}]}`)
	bad.Name = "bad"
	if err := ours.Apart(bad); err == nil {
		t.Error("what nodes have of it is free")
	}
	if err := bad.Apart(read(t, `{"rails": [{"subnets": [{"subnet": "10.0.0.0/24"}]}]}`)); err != nil {
		t.Errorf("nothing is claimed of it, and it is said: %v", err)
	}
	const table = `{"rackLabel": "rack", "racks": [{"name": "a", "rails": [{"subnets": [{"subnet": "%s", "ranges": ["%s"]}]}]}, {"name": "b", "rails": [{"subnets": [{"subnet": "%s", "ranges": ["300"]}]}]}]}`
	for racks, clash := range map[string]bool{
		fmt.Sprintf(table, "10.9.0.0/24", "10.9.0.9", "10.0.0.0/25"):    true,
		fmt.Sprintf(table, "10.0.0.0/23", "10.0.1.0/24", "10.9.0.0/24"): false, // rack a has no fault
	} {
		p := read(t, racks)
		p.Name = "racks"
		if err := ours.Apart(p); (err != nil) != clash {
			t.Errorf("%s: %v", racks, err)
		}
	}
	bad.Spec.Template, bad.Spec.Rails = &block.Template{Count: 1 << 40, Subnets: bad.Spec.Rails[0].Subnets}, nil
	if err := ours.Apart(bad); err == nil {
		t.Error("a template with too many rails has no addresses")
	}
}

func TestThePoolIsApartFromItself(t *testing.T) {
	t.Parallel()
	p := read(t, `{"rackLabel": "rack", "template": {"count": 1, "subnets": [{"subnet": "10.{rack}.0.0/24"}]}}`)
	if err := p.Apart(p); err != nil {
		t.Error(err)
	}
}

// TestTheRackOfANodeIsComparedForAnyNumber has a rack beyond those that are
// looked at for all pools.
func TestTheRackOfANodeIsComparedForAnyNumber(t *testing.T) {
	t.Parallel()
	const spec = `{"rackLabel": "rack", "template": {"count": 1, "subnets": [{"subnet": "fd00:{rack}::/64", "ranges": ["fd00:{rack}::10-fd00:{rack}::ff"]}]}}`
	ours, theirs := space(t, spec, "4000"), read(t, spec)
	theirs.Name = "theirs"
	if err := ours.Apart(theirs); err == nil {
		t.Error("both have rack 4000")
	}
}
