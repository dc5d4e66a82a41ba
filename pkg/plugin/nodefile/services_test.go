// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func servicesOf(dir string) string { return filepath.Join(dir, "pools", "_services") }

func cidrs(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func TestServicesThatAreWrittenAreRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "roce")
	for _, want := range [][]netip.Prefix{cidrs("10.96.0.0/12"), cidrs("10.96.0.0/12", "fd00:96::/108")} {
		for i, wrote := range []bool{true, false} {
			if got, err := at(dir).WriteServices(want); got != wrote || err != nil {
				t.Errorf("write %d of %v: %v, error %v", i, want, got, err)
			}
		}
		if got, err := at(dir).Services(); !slices.Equal(got, want) || err != nil {
			t.Errorf("got %v, error %v, want %v", got, err, want)
		}
	}
	if info, err := os.Stat(servicesOf(dir)); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, error %v", info.Mode(), err)
	}
	if entries, err := os.ReadDir(dir + "/pools"); err != nil || len(entries) != 1 {
		t.Errorf("%v in the folder, error %v", entries, err)
	}
	if pools, err := at(dir).Pools(); len(pools) > 0 || err != nil {
		t.Errorf("the file counts as the pools %v, error %v", pools, err)
	}
}

func TestServicesThatCannotBeAreNotWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, list := range [][]netip.Prefix{nil, cidrs("0.0.0.0/0"), cidrs("10.96.0.0/12", "169.254.0.0/16"), {netip.Prefix{}}} {
		if _, err := at(dir).WriteServices(list); cnierr.CodeOf(err) != cnierr.Bug {
			t.Errorf("%v: got %v, want code %d", list, err, cnierr.Bug)
		}
	}
	if _, err := os.Stat(servicesOf(dir)); err == nil {
		t.Error("there is a file")
	}
}

func TestServicesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		content string // "": no file
		want    cnierr.Code
		says    string
	}{
		"missing":        {"", cnierr.TryAgain, "rocectl agent has not written it yet"},
		"another boot":   {`{"version": 1, "bootID": "boot-0", "services": ["10.96.0.0/12"]}`, cnierr.TryAgain, "of another boot"},
		"a later boot":   {`{"version": 1, "bootID": "boot-2", "services": ["10.96.0.0/12"]}`, cnierr.TryAgain, "of another boot"},
		"torn":           {`{"version": 1, "bootID"`, cnierr.Unreadable, "unexpected end of JSON input"},
		"newer":          {`{"version": 2, "bootID": "boot-1", "services": ["10.96.0.0/12"]}`, cnierr.Unreadable, "version 2"},
		"more keys":      {`{"version": 1, "bootID": "boot-1", "services": ["10.96.0.0/12"], "x": 1}`, cnierr.Unreadable, `"x"`},
		"none":           {`{"version": 1, "bootID": "boot-1", "services": []}`, cnierr.Unreadable, "services: none"},
		"no CIDR":        {`{"version": 1, "bootID": "boot-1", "services": ["x"]}`, cnierr.Unreadable, `"x"`},
		"everything":     {`{"version": 1, "bootID": "boot-1", "services": ["10.96.0.0/12", "::/0"]}`, cnierr.Unreadable, "services[1]: ::/0"},
		"bits of a host": {`{"version": 1, "bootID": "boot-1", "services": ["10.96.0.1/12"]}`, cnierr.Unreadable, "services[0]: 10.96.0.1/12"},
	} {
		dir := t.TempDir()
		if c.content != "" {
			plant(t, servicesOf(dir), c.content)
		}
		_, err := at(dir).Services()
		e := cnierr.CNI("roce", err)
		if e == nil || cnierr.Code(e.Code) != c.want || !strings.Contains(e.Msg, c.says) || !strings.Contains(e.Msg, servicesOf(dir)) || !strings.Contains(e.Details, "rocectl agent") {
			t.Errorf("%s: got %+v, want code %d and %q", name, e, c.want, c.says)
		}
	}
}
