// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/cmd/internal/plugintest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
)

// runtime calls verbs as a container runtime does. It returns the addresses that ADD prints, or the error.
type runtime struct {
	t      *testing.T
	dir    string
	stdout *os.File // nil: a file that can be written
}

func (r runtime) call(verb plugin.Verb, pod *kerneltest.Netns, container, more string) string {
	r.t.Helper()
	answer, err := plugintest.Call(r.t, r.stdout, func() error {
		return verb(r.t.Context(), &skel.CmdArgs{
			ContainerID: container, Netns: pod.Path, IfName: "net1", Args: "K8S_POD_NAMESPACE=ml;K8S_POD_NAME=of-" + container, Path: r.dir + ":/none",
			StdinData: []byte(`{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "master": "ens1", "rdma": "off"` + more + `}`),
		})
	})
	if err != nil {
		return cnierr.CNI("roce", err).Msg
	}
	return answer
}

// noted returns the calls that were noted, but for their times.
func (r runtime) noted() string {
	r.t.Helper()
	all, _, err := calls.File{Dir: filepath.Join(r.dir, "state")}.After("")
	if err != nil {
		r.t.Fatal(err)
	}
	var out []string
	for _, c := range all {
		out = append(out, fmt.Sprintf("%s %s %s %s %d %t %s", c.Verb, c.Network, c.Pod, c.ContainerID, c.Code, len(c.Steps) > 0, c.Trace))
	}
	return strings.Join(out, "\n")
}

// TestAPodComesAndGoes on a node with settings, a table and a policy. What each call did is noted.
func TestAPodComesAndGoes(t *testing.T) {
	n := kerneltest.NewNode(t)
	n.NIC("ens1")
	pod, other := n.PodAt(filepath.Join(t.TempDir(), "pod")), n.PodAt(filepath.Join(t.TempDir(), "other"))
	r := runtime{t: t, dir: t.TempDir()}
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	t.Setenv("TRACEPARENT", trace)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	set := func(more string) {
		settings := fmt.Sprintf(`{"version": 1, "stateDir": "%s/state", "table": "%[1]s/table"%s}`, r.dir, more)
		if err := os.WriteFile(settingsFile, []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := settingsFile
	settingsFile = filepath.Join(r.dir, "node.json")
	defer func() { settingsFile = before }()
	table := fmt.Sprintf(`{"nodes": {%q: [{"subnet": "10.77.0.0/29", "ranges": ["10.77.0.3-10.77.0.3"]}]}}`, host)
	if err := os.WriteFile(filepath.Join(r.dir, "table"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	const ipam = `, "ipam": {"type": "roce-ipam", "table": true, "quarantine": "0s"}`
	// A want that ends with a blank is the beginning of what is said.
	step := func(name, got, want string) {
		t.Helper()
		if got != want && !(strings.HasSuffix(want, " ") && strings.HasPrefix(got, want)) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	set(`, "namespaces": {"ml": {"masters": {"ifNames": ["ens2"]}}}`)
	step("ADD on a NIC of others", r.call(add, pod, "c1", ipam), `roce[7] `)
	set("")
	step("STATUS", r.call(status, pod, "", ipam), "ok")
	step("ADD", r.call(add, pod, "c1", ipam), "10.77.0.3/29")
	if b, err := os.ReadFile(filepath.Join(r.dir, "state", "attachments", "c1", "net1.json")); err != nil || !strings.Contains(string(b), trace) {
		t.Errorf("the record has not the trace: %s, %v", b, err)
	}
	step("CHECK", r.call(check, pod, "c1", ipam+`, "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "net1", "sandbox": "`+pod.Path+`"}], "ips": [{"address": "10.77.0.3/29", "interface": 0}]}`), "ok")
	step("ADD of a second pod", r.call(add, other, "c2", ipam), "roce[101] ")
	step("GC that knows the first one", r.call(gc, pod, "", ipam+`, "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1"}]`), "ok")
	if !strings.Contains(pod.IP("addr show dev net1"), "10.77.0.3/29") {
		t.Error("the pod has lost its address")
	}
	set(fmt.Sprintf(`, "log": {"file": %q}`, r.dir)) // a log that cannot be opened
	step("ADD without its log", r.call(add, other, "c2", ipam), "roce[5] open log ")
	step("DEL without its log", r.call(del, pod, "c1", ipam), "ok")
	set("")
	if r.stdout, err = os.Open(os.DevNull); err != nil {
		t.Fatal(err)
	}
	defer r.stdout.Close()
	step("ADD that cannot be told", r.call(add, other, "c2", ipam), "roce[5] write result to ")
	r.stdout = nil
	if links := pod.IP("link show") + other.IP("link show"); strings.Contains(links, "net1") {
		t.Errorf("left are %s", links)
	}
	const want = `ADD rail ml/of-c1 c1 7 false TRACE
ADD rail ml/of-c1 c1 0 true TRACE
ADD rail ml/of-c2 c2 101 true TRACE
ADD rail ml/of-c2 c2 5 false TRACE
DEL rail ml/of-c1 c1 0 false TRACE
ADD rail ml/of-c2 c2 5 true TRACE`
	if diff := cmp.Diff(strings.ReplaceAll(want, "TRACE", trace), r.noted()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTheNodeIsAsItsSettingsSay: what only devices would show.
func TestTheNodeIsAsItsSettingsSay(t *testing.T) {
	t.Parallel()
	for _, yes := range []bool{false, true} {
		n, err := node(&skel.CmdArgs{Path: "/a:/b"}, settings.Node{StateDir: "/state", TakeInUse: yes, RemoveFillers: yes}, nil, slog.New(slog.DiscardHandler))
		machine, is := n.Machine.(attach.Linux)
		if err != nil || !is || machine.TakeInUse != yes || n.RemoveFillers != yes || n.Fillers != plan.FillerNetns || n.Records.Dir != "/state" || machine.Records != n.Records {
			t.Errorf("%t: %+v, %v", yes, n, err)
		}
		if diff := cmp.Diff([]string{"/a", "/b"}, n.Addresses.Plugins.Path); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}
