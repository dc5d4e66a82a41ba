// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// TestEachCommandKnowsWhereTheStateIs: by the settings of the node, or by its flag. With settings that
// do not tell it, and with a folder that is missing, a node would look as if it had no pod.
func TestEachCommandKnowsWhereTheStateIs(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	before := settingsFile
	settingsFile = at("node.json")
	defer func() { settingsFile = before }()
	const network = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "master": "ens1", "linkInContainer": true, "rdma": "off"}`
	for name, text := range map[string]string{"node.json": `{"version": 1, "stateDirs": "/x"}`, "net.json": network} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range []string{
		"show", "trace", "check", "repair", "repair --yes", "forget c1", "pool list", "pool release p 10.0.0.1", "status", "doctor",
		"bundle --out " + at("x"), "env ml/job", "verify ml/job", "rails", "gids", "top --once", "uninstall --to " + dir, "plan " + at("net.json"),
	} {
		const unknown = "read settings of the node \"%s\": \"stateDirs\": unknown key\nhint: did you mean \"stateDir\"?\n"
		if got := call(strings.Fields(args)...); !strings.Contains(got, fmt.Sprintf(unknown, settingsFile)) {
			t.Errorf("%s, with settings that have a fault, says\n%s", args, got)
		}
		got := call(append(strings.Fields(args), "--state-dir", at("none"))...)
		if !strings.Contains(got, fmt.Sprintf("rocectl[7] look for state folder %q: there is none\n", at("none"))) {
			t.Errorf("%s, with a folder that is missing, says\n%s", args, got)
		}
	}
	if left := names(t, dir); len(left) != 2 {
		t.Errorf("it leaves %v", left)
	}
	// A fault that does not hide the folder is none here.
	if err := os.WriteFile(settingsFile, fmt.Appendf(nil, `{"version": 1, "stateDir": %q, "logs": 1}`, dir), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{"show": "POD  INTERFACE", "repair": "# this node has no attachments\n", "pool list": "POOL  ADDRESS"} {
		if got := call(strings.Fields(args)...); !strings.HasPrefix(got, want) {
			t.Errorf("%s says\n%s", args, got)
		}
	}
}

// TestAttachmentsAreChosen by each flag, and by all together.
func TestAttachmentsAreChosen(t *testing.T) {
	t.Parallel()
	s := record.Store{Dir: t.TempDir(), BootID: "b"}
	for _, r := range []struct{ container, ifName, namespace, pod, second string }{
		{"aa1", "net1", "ml", "job", "net1-1"}, {"aa1", "net2", "ml", "job", ""}, {"ab2", "net1", "web", "job", ""}, {"c3", "eth9", "", "solo", ""},
	} {
		rec := record.Record{
			Network: "rail", Attachment: conf.Attachment{ContainerID: conf.ContainerID(r.container), IfName: conf.LinkName(r.ifName)},
			Pod: conf.Pod{Namespace: r.namespace, Name: r.pod}, Netns: "/run/netns/x",
			Plan: plan.Plan{Interfaces: []plan.Interface{{Name: conf.LinkName(r.ifName)}, {Name: conf.LinkName(r.second)}}},
		}
		release, err := s.Lock(t.Context(), rec.ContainerID)
		if err == nil {
			err = s.Save(rec)
			release()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		s    selection
		want string
	}{
		{selection{}, "aa1/net1 aa1/net2 ab2/net1 c3/eth9"},
		{selection{pod: "job"}, "aa1/net1 aa1/net2 ab2/net1"},
		{selection{pod: "web/job"}, "ab2/net1"},
		{selection{pod: "solo"}, "c3/eth9"},
		{selection{namespace: "ml"}, "aa1/net1 aa1/net2"},
		{selection{container: "a"}, "aa1/net1 aa1/net2 ab2/net1"},
		{selection{container: "ab"}, "ab2/net1"},
		{selection{container: "b2"}, `look for attachment "b2": this node has no record of it`},
		{selection{ifName: "net1"}, "aa1/net1 ab2/net1"},
		{selection{ifName: "net1-1"}, "aa1/net1"},
		{selection{pod: "job", namespace: "ml", container: "aa", ifName: "net2"}, "aa1/net2"},
		{selection{pod: "job", namespace: "web", container: "ab2", ifName: "net9"}, `look for attachment "web job ab2 net9": this node has no record of it`},
	} {
		keys, err := tt.s.from(s)
		var got []string
		for _, k := range keys {
			got = append(got, string(k.ContainerID)+"/"+string(k.IfName))
		}
		if err != nil {
			if got = append(got, err.Error()); cnierr.CodeOf(err) != cnierr.BadConfig {
				t.Errorf("%+v: %v", tt.s, err)
			}
		}
		if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%+v (-want +got)\n%s", tt.s, diff)
		}
	}
	if got := (selection{ifName: "x"}).of([]string{"ml/job"}); got != (selection{ifName: "x", pod: "ml/job"}) {
		t.Errorf("with an argument: %+v", got)
	}
}
