// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

func TestVendorsOfALinkAreThoseOfItsNICs(t *testing.T) {
	t.Parallel()
	sys := fstest.MapFS{
		"class/net/enp1s0/device/vendor": {Data: []byte("0x15b3\n")},
		"class/net/enp2s0/device/vendor": {Data: []byte("0x8086\n")},
		"class/net/bond0/lower_enp1s0":   {},
		"class/net/bond0/lower_enp2s0":   {},
		"class/net/bond0.7/lower_bond0":  {},
		"class/net/dummy0/mtu":           {},
	}
	for link, want := range map[string][]string{
		"enp1s0": {"15b3"}, "bond0": {"15b3", "8086"}, "bond0.7": {"15b3", "8086"}, "dummy0": nil, "none": nil,
	} {
		if got := vendors(sys, link); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", link, got, want)
		}
	}
}

func TestPodsUseOnlyTheNICsOfTheirNamespace(t *testing.T) {
	t.Parallel()
	s := settings.Node{Namespaces: map[string]settings.Limits{"train": {Masters: &settings.Masters{IfNames: []string{"ens1"}}}}}
	for _, c := range []struct {
		namespace, nic string
		may            bool
	}{{"train", "ens1", true}, {"train", "ens2", false}, {"default", "ens2", true}, {"default", "ens1", true}} {
		parent, err := Allowed(s, conf.Request{Pod: conf.Pod{Namespace: c.namespace}})
		if err != nil {
			t.Fatal(err)
		}
		if err := parent(plan.Link{Name: conf.LinkName(c.nic)}); (err == nil) != c.may || !c.may && cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("%s for a pod of %s: %v, may be the parent: %v", c.nic, c.namespace, err, c.may)
		}
		on := &plan.OnVLAN{VLAN: conf.VLAN{ID: 7, NIC: conf.LinkName(c.nic)}}
		if err := parent(plan.Link{Name: "storage", VLAN: on}); (err == nil) != c.may {
			t.Errorf("a VLAN of %s for a pod of %s: %v, may be the parent: %v", c.nic, c.namespace, err, c.may)
		}
	}
}

// A plugin that a namespace may not use has leased nothing to its pods.
func TestOnlyAllowedIPAMPluginsAreCalled(t *testing.T) {
	t.Parallel()
	s := settings.Node{Namespaces: map[string]settings.Limits{"train": {IPAMTypes: []string{"host-local"}}, "*": {IPAMTypes: []string{}}}}
	log := slog.New(slog.DiscardHandler)
	for _, tt := range []struct{ namespace, kind, want string }{
		{"train", "host-local", "host-local"},
		{"default", "host-local", ""},
		{"train", "dhcp", ""},
		{"default", conf.PoolType, conf.PoolType},
		{"default", "", ""},
	} {
		if got := ipamPlugin(s, tt.namespace, tt.kind, `{}`, log); got != tt.want {
			t.Errorf("%+v: got %q", tt, got)
		}
	}
	if g := ForGC(s, conf.GC{IPAM: "dhcp", Raw: `{}`}, log); g.IPAM != "" {
		t.Errorf("GC has the plugin %q", g.IPAM)
	}
}

// TestADELGoesOnWithSettingsThatHaveAFault, if they tell the state folder: it calls no other plugin
// then. Nothing is done in a folder that other users can change.
func TestADELGoesOnWithSettingsThatHaveAFault(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		text           string
		stateDir, ipam string
		code, all      cnierr.Code // of the error of a DEL, and of other verbs
		logs           bool
	}{
		{`{"version": 1, "stateDir": "DIR"}`, dir, "host-local", 0, 0, false},
		{`{"version": 1, "stateDir": "DIR", "namespaces": {"ml": {}, "*": {"ipamTypes": []}}}`, dir, "host-local", 0, 0, false},
		{`{"version": 1, "stateDir": "DIR", "namespaces": {"ml": {"ipamTypes": []}, "*": {}}}`, dir, "", 0, 0, true},
		{`{"version": 1, "stateDir": "DIR", "logs": 1}`, dir, "", 0, cnierr.BadConfig, true},
		{`{"version": 1, "stateDirs": "DIR"}`, "", "host-local", cnierr.BadConfig, cnierr.BadConfig, false},
		{`{"version": 1, "stateDir": "DIR/open", "logs": 1}`, open, "", cnierr.IO, cnierr.BadConfig, true},
		{`{"version": 1, "stateDir": "DIR/open"}`, open, "host-local", cnierr.IO, cnierr.IO, false},
	} {
		file := filepath.Join(t.TempDir(), "node.json")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(tt.text, "DIR", dir)), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		given := conf.Del{IPAM: "host-local", Raw: `{}`, Pod: conf.Pod{Namespace: "ml"}}
		s, d, err := SettingsForDEL(file, given, slog.New(slog.NewTextHandler(&log, nil)))
		if s.StateDir != tt.stateDir || d.IPAM != tt.ipam || code(err) != tt.code || (log.Len() > 0) != tt.logs {
			t.Errorf("DEL with %s: %q, %q, %v; the log is %s", tt.text, s.StateDir, d.IPAM, err, log.String())
		}
		if s, err := Settings(file); s.StateDir != tt.stateDir || code(err) != tt.all {
			t.Errorf("%s: %q, %v", tt.text, s.StateDir, err)
		}
	}
}

// code returns 0 for no error.
func code(err error) cnierr.Code {
	if err == nil {
		return 0
	}
	return cnierr.CodeOf(err)
}

// TestARequestThatTheSettingsForbidIsRefused by its pool.
func TestARequestThatTheSettingsForbidIsRefused(t *testing.T) {
	t.Parallel()
	s := settings.Node{Namespaces: map[string]settings.Limits{"train": {Pools: []string{"gpu"}}}}
	for pool, want := range map[string]cnierr.Code{"gpu": 0, "storage": cnierr.BadConfig} {
		req := conf.Request{Attachment: conf.Attachment{ContainerID: "c1"}, Pod: conf.Pod{Namespace: "train"}, IPAM: conf.IPAM{Type: conf.PoolType, Pool: pool}}
		if _, err := Allowed(s, req); code(err) != want {
			t.Errorf("pool %s: %v", pool, err)
		}
	}
}
