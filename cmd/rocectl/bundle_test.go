// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
)

// TestABundleHasNothingThatIdentifiesAUser packs a node with a record, a lease and a
// log, and looks for each of their names and addresses.
func TestABundleHasNothingThatIdentifiesAUser(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	boot, err := plugin.BootID()
	if err != nil {
		t.Fatal(err)
	}
	const secret = "a-password"
	record := fmt.Sprintf(`{"version": 3, "bootID": %q, "network": "secretnet", "containerID": "0123abcd", "ifName": "net1",
 "pod": {"namespace": "skunkworks", "name": "trainer-0"}, "netns": "/run/netns/cni-1", "netnsID": {"dev": 4, "ino": 1}, "config": {"password": %q},
 "ipam": "roce-ipam", "pool": "secretpool", "committed": true, "saved": 1,
 "plan": {"interfaces": [{"name": "net1", "mac": "02:00:5e:10:20:30", "mtu": 9000, "addresses": [{"prefix": "10.77.0.2/24"}]}], "ops": [
  {"op": "macvlan", "place": "pod", "args": {"name": "net1", "parent": "ens1f0", "mode": "bridge", "mtu": 9000, "mac": "02:00:5e:10:20:30", "mark": "roce:0123abcd/net1"}},
  {"op": "rule", "place": "pod", "args": {"from": "10.77.0.2/32", "table": 100, "priority": 32000}}]}}`, boot, secret)
	file := filepath.Join(state, "attachments", "0123abcd", "net1.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(record), 0o600)); err != nil {
		t.Fatal(err)
	}
	in, err := folderAt(state)
	if err != nil {
		t.Fatal(err)
	}
	_, err = in.book.Acquire(t.Context(), ipam.Ask{
		Pool: "otherpool", Subnets: []ipam.Subnet{{Prefix: netip.MustParsePrefix("fd00:77::/64")}},
		Owner: ipam.Owner{ContainerID: "9f9f", IfName: "net2", Network: "othernet", PodNamespace: "research", PodName: "server-1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(state, "attachments", "0fed", "net1.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(torn), 0o700), os.WriteFile(torn, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "roce.log")
	if err := os.WriteFile(log, []byte(`level=WARN msg="10.77.0.9 of skunkworks/trainer-0 is used by 02-00-5E-aa-bb-cc at acme.example"`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other.log")
	if err := os.WriteFile(other, []byte("from othersite.example\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "bundle.tar.gz")
	if got := call("bundle", "--state-dir", state, "--out", out, "--log", log, "--log", other, "--name", "acme.example", "--name", "othersite.example"); !strings.Contains(got, "files; look at it before you send it") {
		t.Fatal(got)
	}
	files := unpack(t, out)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	all := ""
	for _, text := range files {
		all += text
	}
	for _, not := range []string{
		"secretnet", "0123abcd", "skunkworks", "trainer-0", "cni-1", secret, "secretpool", "02:00:5e:10:20:30", "10.77.0.", "otherpool", "fd00:77", "9f9f",
		"othernet", "research", "server-1", "02-00-5E-aa", "acme.example", "othersite", boot, state,
	} {
		if i := strings.Index(all, not); i >= 0 {
			t.Errorf("%q is left: %s", not, all[max(0, i-60):min(len(all), i+60)])
		}
	}
	if at := regexp.MustCompile(`\b` + regexp.QuoteMeta(host) + `\b`).FindStringIndex(all); at != nil {
		t.Errorf("the name of the node is left: %s", all[max(0, at[0]-60):min(len(all), at[1]+60)])
	}
	for name, want := range map[string]string{
		"show.json": `"netns": "/run/netns/netns-1"`, "doctor.txt": "machine-id", "check.txt": "namespace-1/pod-",
		"rails.txt": "rocectl[107] read record", "log-1.txt": "is used by mac-", "log-2.txt": "from name-2\n", "versions.txt": "rocectl ", "gids.txt": "", "rails.json.txt": "", "dmesg.txt": "",
	} {
		text, there := files["roce-bundle/"+name]
		if !there || !strings.Contains(text, want) {
			t.Errorf("%s: %t, want %q in\n%s", name, there, want, text)
		}
	}
	// What a command has printed before its error is beside the error.
	for name, want := range map[string]string{
		"show.txt": "POD INTERFACE ADDRESSES MASTER RDMA GID INDEX TABLES NETWORK STATE namespace-1/pod-1 net1 ip-1/24 ens1f0 - - 100 network-1 attached " +
			`rocectl[107] read record "/folder-1/attachments/0fed/net1.json": unexpected end of JSON input ` +
			"hint: delete the pod: DEL removes what carries its mark; keep the file for a bug report",
		"pool-list.txt": "POOL ADDRESS STATE AGE POD INTERFACE pool-2 ip-2 leased 0s namespace-2/pod-2 net2",
	} {
		if diff := cmp.Diff(want, strings.Join(strings.Fields(files["roce-bundle/"+name]), " ")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if got := call("bundle", "--state-dir", state, "--out", filepath.Join(state, "no", "such")); !strings.Contains(got, "rocectl[5] write bundle") {
		t.Errorf("got %s, want that the file cannot be written", got)
	}
}

// TestABundleKeepsWordsThatAreNoNamesOfTheUser: a node, a pod and a pool can be called as
// roce calls a thing. If these words were replaced, a reader could not read the file.
func TestABundleKeepsWordsThatAreNoNamesOfTheUser(t *testing.T) {
	t.Setenv("NODE_NAME", "ok")
	programs, state := t.TempDir(), t.TempDir()
	t.Setenv("PATH", programs)
	for name, script := range map[string]string{"uname": `echo "$*"`, "ofed_info": "echo v5; exit 3", "dmesg": "echo mlx5; exit 1"} {
		if err := os.WriteFile(filepath.Join(programs, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	boot, err := plugin.BootID()
	if err != nil {
		t.Fatal(err)
	}
	record := fmt.Sprintf(`{"version": 3, "bootID": %q, "network": "rails", "containerID": "0123abcd", "ifName": "net1",
 "pod": {"namespace": "default", "name": "table"}, "netns": "/run/netns/cni-1", "netnsID": {"dev": 4, "ino": 1},
 "ipam": "roce-ipam", "pool": "gpu", "committed": true, "saved": 1, "plan": {"interfaces": [{"name": "net1", "mac": "02:00:5e:10:20:30", "mtu": 9000}], "ops": [
  {"op": "rule", "place": "pod", "args": {"from": "10.77.0.2/32", "table": 100, "priority": 32000}}]}}`, boot)
	file := filepath.Join(state, "attachments", "0123abcd", "net1.json")
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(record), 0o600)); err != nil {
		t.Fatal(err)
	}
	second := strings.ReplaceAll(record, `"net1"`, `"net2"`) // the names of which are told once
	if err := os.WriteFile(filepath.Join(filepath.Dir(file), "net2.json"), []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "bundle.tar.gz")
	got := call("bundle", "--state-dir", state, "--out", out, "--name", "rule")
	for _, want := range []string{`# the name "ok" of a node is not replaced`, `# the name "table" of a pod is not replaced`, `# the name "gpu" of a pool is not replaced`} {
		if strings.Count(got, want) != 1 {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	files := unpack(t, out)
	if doctor := files["roce-bundle/doctor.txt"]; !strings.Contains(doctor, "ok  ") || !strings.Contains(doctor, "nic-firmware") {
		t.Errorf("doctor.txt is spoilt:\n%s", doctor)
	}
	if show := files["roce-bundle/show.json"]; !strings.Contains(show, `"table": 100`) || !strings.Contains(show, `"op": "name-1"`) {
		t.Errorf("show.json has not its words, or has a name of --name:\n%s", show)
	}
	const found = "\nuname -rvm: -rvm\nofed_info -s: v5 (exit status 3)\nibv_devinfo -l:  (exec: \"ibv_devinfo\": executable file not found in $PATH)\n"
	if versions := files["roce-bundle/versions.txt"]; !strings.HasSuffix(versions, found) || files["roce-bundle/dmesg.txt"] != "dmesg: exit status 1\n" {
		t.Errorf("versions.txt and dmesg.txt do not say which program failed:\n%s%s", versions, files["roce-bundle/dmesg.txt"])
	}
}

// unpack returns the files of a bundle.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[h.Name] = string(b)
	}
}

func TestABundleHasNoCommandsOfUsers(t *testing.T) {
	t.Parallel()
	const mine = "[1.0] mlx5_core 0000:13:00.0: x\n[2.0] failed to add GID: no space\n"
	got := aboutRDMA(mine + "[3.0] audit: type=1400 uid=0 gid=0 comm=\"secret\" exe=/usr/bin/rdma\n[3.5] audit[123]: USER_CMD pid=7 cmd=\"rdma dev\"\n[4.0] process x: uid=5 gid=7 egid=7\n")
	if got != mine {
		t.Errorf("got %q", got)
	}
}

func TestABundleThatCannotBeWrittenLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := write(filepath.Join(dir, "b.tar.gz"), []entry{{"node", "text"}, {"no name\x00", "text"}}, redact.New()); err == nil {
		t.Error("tar takes the name")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v is left, error %v", left, err)
	}
}

// TestABundleHasTheEndOfALog, with whole lines, or why the log cannot be read. A record that
// cannot be read is named beside the others.
func TestABundleHasTheEndOfALog(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "roce.log")
	const line = "0123456789abcde\n" // the size of which divides that of the end
	if err := os.WriteFile(log, []byte("x"+strings.Repeat(line, maxLog/len(line))+"last\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(log); len(got) != maxLog-len(line)+len("last\n") || !strings.HasPrefix(got, line) || !strings.HasSuffix(got, line+"last\n") {
		t.Errorf("%d bytes, from %.20q", len(got), got)
	}
	if err := os.WriteFile(log, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(log); got != line {
		t.Errorf("of a short log: %q", got)
	}
	if got := tail(log + "x"); !strings.Contains(got, "no such file") {
		t.Errorf("of a missing log: %q", got)
	}
	if got := recordsText([]record.Record{{Network: "a"}, {Config: []byte(`"secret"`)}}, errors.New("c2 is torn")); strings.Contains(got, "secret") || !strings.Contains(got, `"network": "a"`) || !strings.HasSuffix(got, "\nc2 is torn\n") {
		t.Errorf("of records: %s", got)
	}
}
