// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package settings

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestANodeNeedsNoSettings(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "node.json")
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Node{
		Path: path, StateDir: "/run/roce", Log: Log{Level: "info"}, Heal: HealRoutes, Table: "/etc/roce/rails.json",
		IPAMPaths: []string{"/var/lib/cni/networks", "/run/cni/dhcp.sock", "/etc/resolv.conf", "/etc/cni/net.d/whereabouts.d"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
	got, err = Parse(path, []byte(`{"version": 1}`))
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("a file that sets nothing: %v, (-want +got):\n%s", err, d)
	}
}

func TestSettingsOfAFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "node.json")
	const document = `{"version": 1, "stateDir": "/var/lib/roce", "log": {"file": "/var/log/roce.log", "level": "debug"}, "table": "/a", "rdma": {"inUse": "take", "fillers": "remove", "counts": "pods", "foreignGID": "tell"}, "heal": "all", "ipamPaths": ["/d"]}`
	if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	want := Node{Path: path, StateDir: "/var/lib/roce", Log: Log{"/var/log/roce.log", "debug"}, Table: "/a", TakeInUse: true, RemoveFillers: true, CountPods: true, TellForeignGID: true, Heal: HealAll, IPAMPaths: []string{"/d"}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, d)
	}
}

func TestEachWordOfAChoiceIsAccepted(t *testing.T) {
	t.Parallel()
	for document, c := range map[string]struct {
		words []string
		read  func(Node) string
	}{
		`"heal": %q`:                           {[]string{"routes", "off", "all"}, func(n Node) string { return string(n.Heal) }},
		`"log": {"level": %q}`:                 {[]string{"info", "debug", "warn", "error"}, func(n Node) string { return n.Log.Level }},
		`"namespaces": {"a": {"modes": [%q]}}`: {[]string{"bridge", "private", "vepa", "passthru", "l2"}, func(n Node) string { return n.Namespaces["a"].Modes[0] }},
	} {
		for _, w := range c.words {
			if got := c.read(nodeOf(t, fmt.Sprintf(`{"version": 1, `+document+`}`, w))); got != w {
				t.Errorf("%s: got %q, want %q", document, got, w)
			}
		}
	}
	const defaults = `{"version": 1, "rdma": {"inUse": "refuse", "fillers": "keep", "counts": "off", "foreignGID": "off"}}`
	if d := cmp.Diff(Default("/etc/roce/node.json"), nodeOf(t, defaults)); d != "" {
		t.Errorf("the defaults of rdma, written (-want +got):\n%s", d)
	}
}

func TestTheSampleIsAccepted(t *testing.T) {
	t.Parallel()
	const sample = "../../../conf-examples/deploy/samples/node.json"
	b, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Parse(sample, b); err != nil || n.StateDir != DefaultStateDir || len(n.Namespaces) != 2 {
		t.Errorf("%+v, %v", n, err)
	}
}

// TestSettingsThatOthersMayHaveWritten are not used, also not for a DEL.
func TestSettingsThatOthersMayHaveWritten(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(path string) error{
		"mode 0666": func(path string) error { return os.Chmod(path, 0o666) },
		"mode 0620": func(path string) error { return os.Chmod(path, 0o620) },
		"another owner": func(path string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(path, 0o666)
			}
			return os.Chown(path, 1234, 0)
		},
		"a folder that all can write": func(path string) error { return os.Chmod(filepath.Dir(path), 0o777) },
	} {
		path := filepath.Join(t.TempDir(), "node.json")
		if err := errors.Join(os.WriteFile(path, []byte(`{"version": 1}`), 0o600), change(path)); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "users other than root can change it") || got.StateDir != "" || got.Path != path {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
}

func TestEveryFaultOfTheSettingsIsReported(t *testing.T) {
	t.Parallel()
	for document, c := range map[string]struct {
		stateDir string // that a DEL uses; "" if it is not known
		want     []string
	}{
		``:                                     {"", []string{"unexpected end"}},
		`{`:                                    {"", []string{"unexpected end"}},
		`[]`:                                   {"", []string{"want an object"}},
		`{}`:                                   {"/run/roce", []string{`"version": missing`}},
		`{"version": 2, "stateDir": "/new"}`:   {"/new", []string{`"version": 2 is not in 1 to 1`, "correct this file on the node"}},
		`{"version": "1"`:                      {"", []string{"unexpected end", "correct this file on the node"}},
		`{"stateDir": null}`:                   {"/run/roce", []string{`"version": missing`}},
		`{"stateDir": null, "statedir": "/x"}`: {"", []string{`"statedir": unknown key`}},
		`{"version": 1, "stateDir": "/x", "stateDir": "/y"}`: {"", []string{`"stateDir": the key appears twice`}},
		`{"version": 1, "ipamPath": [], "log": {"files": "/x"}, "tabel": "/x"}`: {"/run/roce", []string{
			`"ipamPath": unknown key`, `did you mean "ipamPaths"?`, `"log.files": unknown key`, `did you mean "file"?`, `"tabel": unknown key`, `did you mean "table"?`,
		}},
		`{"version": 1, "rdma": {"inuse": "take"}}`:                         {"/run/roce", []string{`"rdma.inuse": unknown key`, `did you mean "inUse"?`}},
		`{"version": 1, "statedirs": "/x"}`:                                 {"", []string{`"statedirs": unknown key`, `did you mean "stateDir"?`}},
		`{"version": 1, "stateDir": "run/roce"}`:                            {"", []string{`"stateDir": "run/roce" is not a clean absolute path below /`}},
		`{"version": 1, "stateDir": "/run//x"}`:                             {"", []string{`"stateDir": "/run//x" is not a clean absolute path`}},
		`{"version": 1, "stateDir": "/"}`:                                   {"", []string{`"stateDir": "/" is not a clean absolute path`}},
		`{"version": 1, "stateDir": "/run/x\n"}`:                            {"", []string{`"stateDir": "/run/x\n" is not a clean absolute path`}},
		`{"version": 1, "stateDir": 5}`:                                     {"", []string{`"stateDir": want a string`}},
		`{"version": 1, "stateDir": "` + strings.Repeat("/run", 257) + `"}`: {"", []string{`of at most 1024 bytes`}},
		`{"version": 1, "log": {"file": "x", "level": "trace"}, "table": 7, "ipamPaths": ["x", "/", "/a/", 5]}`: {"/run/roce", []string{
			`"log.file": "x"`, `"log.level": "trace" is none of info, debug, warn, error`, `"table": want a string`,
			`"ipamPaths[0]": "x"`, `"ipamPaths[1]": "/"`, `"ipamPaths[2]": "/a/"`, `"ipamPaths[3]": want a string`,
		}},
	} {
		got, err := Parse("/etc/roce/node.json", []byte(document))
		if got.StateDir != c.stateDir || got.Path != "/etc/roce/node.json" || slices.Contains(got.IPAMPaths, "") {
			t.Errorf("%s: %+v, want the state folder %q", document, got, c.stateDir)
		}
		var e *cnierr.Error
		for _, text := range c.want {
			if !errors.As(err, &e) || !strings.Contains(e.Error()+e.Hint, text) {
				t.Errorf("%s: %v, want %s", document, err, text)
			}
		}
	}
}

func TestPathsOfAnotherIPAMPlugin(t *testing.T) {
	t.Parallel()
	p := Default("/etc/roce/node.json")
	for config, key := range map[string]string{
		`{"ipam": {"type": "host-local"}}`: "",
		`{"ipam": {"type": "host-local", "dataDir": "/var/lib/cni/networks", "resolvConf": "/etc/resolv.conf", "subnet": "10.0.0.0/24"}}`: "",
		`{"ipam": {"dataDir": "/var/lib/cni/networks/rail"}}`:                                                                             "",
		`{"ipam": "/etc"}`: "", `{"ipam": ["/etc"]}`: "", `"/etc"`: "", `{"ipam": {"dataDir": "/etc", `: "ipam.dataDir",
		`{"log": {"file": "/x"}, "ipam": {"dataDir": ""}}`: "",
		`{"ipam": {"dataDir": "/etc"}}`:                    "ipam.dataDir",
		`{"name": "x", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.0.0/24"}]], "dataDir": "/etc"}}`: "ipam.dataDir",
		`{"ipam": {"dataDir": "etc"}}`:                                                   "ipam.dataDir",
		`{"ipam": {"DATADIR": "../etc"}}`:                                                "ipam.DATADIR",
		`{"IPAM": {"dataDir": "/etc"}, "ipam": {}}`:                                      "IPAM.dataDir",
		`{"ipam": {"dataDir": "/etc", "dataDir": "/var/lib/cni/networks"}}`:              "ipam.dataDir",
		`{"ipam": {"dataDir": "/var/lib/cni/networks/../../.."}}`:                        "ipam.dataDir",
		`{"ipam": {"dataDir": "/var/lib/cni/networksx"}}`:                                "ipam.dataDir",
		`{"ipam": {"socketPath": "run/containerd/containerd.sock"}}`:                     "ipam.socketPath",
		`{"ipam": {"plugin_ſocket": "run/x"}}`:                                           "ipam.plugin_ſocket",
		`{"ipam": {"log_file": "etc/x"}}`:                                                "ipam.log_file",
		`{"ipam": {"logfile": "etc/x"}}`:                                                 "ipam.logfile",
		`{"ipam": {"resolvConf": "etc/x"}}`:                                              "ipam.resolvConf",
		`{"ipam": {"kubeconfig": "etc/x"}}`:                                              "ipam.kubeconfig",
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

// Multus gives the file of a pod's device; an annotation of the pod could give any other.
func TestDeviceInformationIsWrittenOnlyWhereMultusKeepsIt(t *testing.T) {
	t.Parallel()
	for file, allowed := range map[string]bool{
		"": true, "/run/k8s.cni.cncf.io/devinfo/cni/x.json": true, "/var/run/k8s.cni.cncf.io/devinfo/x.json": true,
		"/run/k8s.cni.cncf.io/devinfo": false, "/run/k8s.cni.cncf.io/devinfo2/x": false, "/etc/cron.d/x": false, "/var/etc/x": false,
	} {
		err := Default("/etc/roce/node.json").Request(conf.Request{DeviceInfoFile: file})
		if (err == nil) != allowed || err != nil && !strings.Contains(err.Error(), `"runtimeConfig.CNIDeviceInfoFile"`) {
			t.Errorf("%s: %v, want it allowed: %t", file, err, allowed)
		}
	}
}

// GC and STATUS are about no pod, so they may call what some namespace may use.
func TestTheIPAMPluginOfANamespace(t *testing.T) {
	t.Parallel()
	p := nodeOf(t, `{"version": 1, "namespaces": {"*": {"ipamTypes": ["roce-ipam"]}, "infra": {"ipamTypes": ["stat*"]}, "none": {"ipamTypes": []}}}`)
	for _, c := range []struct {
		namespace, kind string
		ok              bool
	}{{"none", "roce-ipam", false}, {"team", "static", false}, {"infra", "static", true}, {"", "static", true}, {"infra", "roce-ipam", false}, {"", "roce-ipam", true}, {"", "dhcp", false}} {
		if err := p.IPAMPlugin(c.namespace, c.kind, []byte(`{"ipam": {}}`)); (err == nil) != c.ok || err != nil && cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestPluginsThatLeaseNothingAreNoIPAMPlugins(t *testing.T) {
	t.Parallel()
	p := Default("/etc/roce/node.json")
	for kind, allowed := range map[string]bool{
		"host-local": true, "static": true, "dhcp": true, "whereabouts": true, "nv-ipam": true,
		"bandwidth": false, "bridge": false, "dummy": false, "firewall": false, "host-device": false, "ib-sriov": false, "ipvlan": false,
		"loopback": false, "macvlan": false, "multus": false, "multus-shim": false, "ovs": false, "portmap": false, "ptp": false, "rdma": false,
		"roce-env": false, "rocectl": false, "sbr": false, "sriov": false, "tap": false, "tuning": false, "vlan": false, "vrf": false,
	} {
		r := conf.Request{IPAM: conf.IPAM{Type: kind, Raw: []byte(`{"ipam": {}}`)}}
		for of, err := range map[string]error{"ADD": p.Request(r), "DEL": p.IPAMPlugin("team", kind, r.IPAM.Raw), "GC": p.IPAMPlugin("", kind, r.IPAM.Raw)} {
			if (err == nil) != allowed || err != nil && !strings.Contains(err.Error(), "is not an IPAM plugin") {
				t.Errorf("%s with %s: %v", of, kind, err)
			}
		}
	}
}
