// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

func TestPodsOfTwoPoolsGetNoCommonAddress(t *testing.T) {
	t.Parallel()
	first := space(t, `{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "ranges": ["10.{rail}.0.0-10.{rail}.0.127"], "gateway": "10.{rail}.0.1", "exclude": ["10.{rail}.0.64/26"]}]}}`, "")
	for name, tt := range map[string]struct{ spec, clash string }{
		"other subnets":                     {`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail+2}.0.0/24"}]}}`, ""},
		"other ranges of the same":          {`{"template": {"count": 2, "subnets": [{"subnet": "10.{rail}.0.0/24", "ranges": ["10.{rail}.0.128/25"]}]}}`, ""},
		"what the first excludes":           {`{"rails": [{"subnets": [{"subnet": "10.0.0.64/26"}]}]}`, ""},
		"what the first reserves":           {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/24", "ranges": ["10.0.0.64-10.0.0.90"]}]}]}`, ""},
		"what the second excludes":          {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/16", "exclude": ["10.0.0.0/26"]}]}]}`, ""},
		"what the second reserves":          {`{"reservations": [{"ranges": ["10.0.0.0-10.0.0.63"], "reason": "x"}], "rails": [{"subnets": [{"subnet": "10.0.0.0/16"}]}]}`, ""},
		"the gateway, and the ends":         {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/30", "exclude": ["10.0.0.2"]}]}]}`, ""},
		"one address":                       {`{"rails": [{"subnets": [{"subnet": "10.1.0.62/31"}]}]}`, "10.1.0.62-10.1.0.63"},
		"another rail":                      {`{"rails": [{"subnets": [{"subnet": "10.9.0.0/24"}]}, {"subnets": [{"subnet": "10.0.0.0/27"}]}]}`, "10.0.0.2-10.0.0.30"},
		"around it":                         {`{"rails": [{"subnets": [{"subnet": "10.0.0.0/8"}]}]}`, "10.0.0.2-10.0.0.63"},
		"the second subnet of a rail":       {`{"rails": [{"subnets": [{"subnet": "fd00::/64"}, {"subnet": "10.1.0.32/28"}]}]}`, "10.1.0.33-10.1.0.46"},
		"IPv6 alone, which the first lacks": {`{"rails": [{"subnets": [{"subnet": "fd00::/64"}]}]}`, ""},
	} {
		p := read(t, tt.spec)
		p.Name = "second"
		second, err := p.Space("")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		err = second.Apart(first)
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

func TestThePoolIsApartFromItself(t *testing.T) {
	t.Parallel()
	p := read(t, `{"rackLabel": "rack", "template": {"count": 1, "subnets": [{"subnet": "10.{rack}.0.0/24"}]}}`)
	var spaces []block.Space
	for _, rack := range []string{"1", "1", "2"} {
		s, err := p.Space(rack)
		if err != nil {
			t.Fatal(err)
		}
		spaces = append(spaces, s)
	}
	for _, s := range spaces[1:] {
		if err := s.Apart(spaces[0]); err != nil {
			t.Error(err)
		}
	}
}
