// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestFoldersOfANodeWithoutPolicy(t *testing.T) {
	t.Parallel()
	p, err := Load(filepath.Join(t.TempDir(), "policy.json"))
	if err != nil {
		t.Fatal(err)
	}
	const devinfo = "k8s.cni.cncf.io/devinfo/cni/x.json"
	for _, r := range []conf.Request{
		{StateDir: "/run/roce"},
		{StateDir: "/run/roce/rails"},
		{StateDir: "/run/roce", Log: conf.Log{File: "/var/log/roce/a.log"}, IPAM: conf.IPAM{Table: "/etc/roce/rails.json"}, DeviceInfoFile: "/run/" + devinfo},
		{StateDir: "/run/roce", DeviceInfoFile: "/var/run/" + devinfo},
	} {
		if err := p.Request(r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	for _, dir := range []string{
		"/", "/run", "/run/roces", "/etc", "/run/roce/pools", "/run/roce/attachments/c1", "/proc/self/root/run/roce",
		"/run/roce/leases.db", "/run/roce/leases.db.new", "/run/roce/leases.db.damaged/x", "/run/roce/moves.lock", "/run/roce/common", "/run/roce/common/x", "/run/roce/rails/pools", "/run/roce/rails/leases.lock",
	} {
		if p.StateDir(dir) == nil {
			t.Errorf("stateDir %s is allowed", dir)
		}
	}
	for _, path := range []string{"/etc/cron.d/x", "/var/log/roce", "/var/log/roces/x", "/etc/roce"} {
		r := conf.Request{StateDir: path, Log: conf.Log{File: path}, IPAM: conf.IPAM{Table: path}, DeviceInfoFile: path}
		if err := p.Request(r); err == nil || strings.Count(err.Error(), path) < 4 {
			t.Errorf("%s is allowed for some key: %v", path, err)
		}
	}
}

func TestPolicyOfAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "policy.json")
	const policy = `{"version": 1, "stateDirs": ["/var/lib/roce"], "logDirs": [], "tableDirs": ["/a", "/b/c"], "ipamPaths": ["/d"]}`
	if err := os.WriteFile(path, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	want := Policy{Path: path, StateDirs: []string{"/var/lib/roce"}, TableDirs: []string{"/a", "/b/c"}, IPAMPaths: []string{"/d"}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, d)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	got, err = Load(path)
	if d := cmp.Diff(builtIn(path), got); d != "" || cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "users other than root can change it") {
		t.Errorf("a file that all can write: %v, (-want +got):\n%s", err, d)
	}
}

func TestEveryFaultOfAPolicyIsReported(t *testing.T) {
	t.Parallel()
	for document, want := range map[string][]string{
		`{`:              {"unexpected end"},
		`[]`:             {"want an object"},
		`{}`:             {`"version": missing`},
		`{"version": 2}`: {`"version": 2 is not in 1 to 1`},
		`{"version": 1, "stateDir": [], "logDirs": "/x", "tableDirs": ["x", "/", "/a/", 5]}`: {
			`"stateDir": unknown key`, `"logDirs": want a list`, `"tableDirs[0]": "x"`, `"tableDirs[1]": "/"`, `"tableDirs[2]": "/a/"`, `"tableDirs[3]": want a string`,
		},
	} {
		_, err := Parse("/etc/roce/policy.json", []byte(document))
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v, want %s", document, err, text)
			}
		}
	}
}

func TestPathsOfAnotherIPAMPlugin(t *testing.T) {
	t.Parallel()
	p := builtIn("/etc/roce/policy.json")
	for config, key := range map[string]string{
		`{"ipam": {"type": "host-local"}}`: "",
		`{"ipam": {"type": "host-local", "dataDir": "/var/lib/cni/networks", "resolvConf": "/etc/resolv.conf", "subnet": "10.0.0.0/24"}}`: "",
		`{"log": {"file": "/x"}, "ipam": {"dataDir": ""}}`:                               "",
		`{"ipam": {"dataDir": "/etc"}}`:                                                  "ipam.dataDir",
		`{"ipam": {"dataDir": "etc"}}`:                                                   "ipam.dataDir",
		`{"ipam": {"DATADIR": "../etc"}}`:                                                "ipam.DATADIR",
		`{"IPAM": {"dataDir": "/etc"}, "ipam": {}}`:                                      "IPAM.dataDir",
		`{"ipam": {"dataDir": "/etc", "dataDir": "/var/lib/cni/networks"}}`:              "ipam.dataDir",
		`{"ipam": {"dataDir": "/var/lib/cni/networks/../../.."}}`:                        "ipam.dataDir",
		`{"ipam": {"dataDir": "/var/lib/cni/networksx"}}`:                                "ipam.dataDir",
		`{"ipam": {"socketPath": "run/containerd/containerd.sock"}}`:                     "ipam.socketPath",
		`{"ipam": {"plugin_ſocket": "run/x"}}`:                                           "ipam.plugin_ſocket",
		`{"ipam": {"profile": "default", "type": "x", "range": "10.0.0.0/24"}}`:          "",
		`{"ipam": {"anything": [["/etc/shadow"]]}}`:                                      "ipam.anything",
		`{"ipam": {"kubernetes": {"kubeconfig": "/home/x/.kube/config"}}}`:               "ipam.kubernetes.kubeconfig",
		`{"ipam": {"daemonSocketPath": "/proc/self/root/run/cni/dhcp.sock", "x": null}}`: "ipam.daemonSocketPath",
	} {
		err := p.IPAMPlugin("", "host-local", []byte(config))
		if (err != nil) != (key != "") || err != nil && !strings.Contains(err.Error(), `"`+key+`"`) {
			t.Errorf("%s: %v, want a fault of %q", config, err, key)
		}
	}
}

func TestPluginsThatLeaseNothingAreNoIPAMPlugins(t *testing.T) {
	t.Parallel()
	p := builtIn("/etc/roce/policy.json")
	for kind, allowed := range map[string]bool{
		"host-local": true, "static": true, "dhcp": true, "whereabouts": true, "nv-ipam": true,
		"bridge": false, "host-device": false, "macvlan": false, "tuning": false, "rocectl": false, "multus": false,
	} {
		r := conf.Request{StateDir: "/run/roce", IPAM: conf.IPAM{Type: kind, Raw: []byte(`{"ipam": {}}`)}}
		for of, err := range map[string]error{"ADD": p.Request(r), "DEL": p.IPAMPlugin("team", kind, r.IPAM.Raw), "GC": p.IPAMPlugin("", kind, r.IPAM.Raw)} {
			if (err == nil) != allowed || err != nil && !strings.Contains(err.Error(), "is not an IPAM plugin") {
				t.Errorf("%s with %s: %v", of, kind, err)
			}
		}
	}
}
