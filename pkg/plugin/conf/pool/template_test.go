// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package pool_test

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

func TestTheLeasesOfARailPoolHaveANameOfTheirOwn(t *testing.T) {
	t.Parallel()
	if got := pool.OfRailPool("gpu"); got != "rail:gpu" {
		t.Errorf("got %s", got)
	}
}

func TestPlaceholdersAreTheNumberOfTheRail(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                 "",
		"10.0.0.0/24":                      "10.0.0.0/24",
		"{rail}":                           "7",
		"172.16.{rail+11}.0/24":            "172.16.18.0/24",
		"{rail*2}-{rail*2+1}":              "14-15",
		"{rail*0+5}{rail}":                 "57",
		"{rail*999999+999999}":             "7999992",
		`[{"subnet": "10.{rail}.0.0/16"}]`: `[{"subnet": "10.7.0.0/16"}]`,
		`{"a": {"b": "\"{rail}\""}}`:       `{"a": {"b": "\"7\""}}`,
	} {
		if got := pool.Expand(in, 7); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestBracesThatAreNoPlaceholdersStay(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"{", "{rail", "{rail*", "{rail+1", "}", "{}", "{Rail}", "{rail-1}", "{rail+}", "{rail*}", "{rail+1*2}", "{ rail }", "{rail+1234567}", "{rail+-1}", "{node}"} {
		if got := pool.Expand(s, 7); got != s || pool.ValidTemplate(s) || pool.Varies(s) || !pool.IsTemplate(s) {
			t.Errorf("%s: expands to %s, valid %t, varies %t, in %t", s, got, pool.ValidTemplate(s), pool.Varies(s), pool.IsTemplate(s))
		}
	}
	if s := "a{rail}b{rail+2}"; !pool.ValidTemplate(s) || !pool.Varies(s) || pool.ValidTemplate(s+"}") {
		t.Errorf("%s is not taken for what it is", s)
	}
}
