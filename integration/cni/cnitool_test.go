// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestContainersWithoutKubernetes calls the plugin as docs/without-kubernetes.md says: with
// cnitool, for a container that has a name and no namespace, as podman calls it.
func TestContainersWithoutKubernetes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.pod(t)
	dir := t.TempDir()
	cnitool := filepath.Join(dir, "cnitool")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", cnitool, "github.com/containernetworking/cni/cnitool").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "rails", "plugins": []any{w.rail(0)}})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "rails.conflist"), list, 0o600)
	}
	must(t, err)
	call := func(verb string) {
		t.Helper()
		cmd := exec.Command(cnitool, verb, "rails", p.Path)
		cmd.Env = append(os.Environ(), "NETCONFPATH="+dir, "CNI_PATH="+programs, "CNI_IFNAME=net1", "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web")
		var out []byte
		err := w.node.enter(func() (err error) { out, err = cmd.CombinedOutput(); return err })
		if err != nil {
			t.Fatalf("cnitool %s: %v\n%s", verb, err, out)
		}
	}
	call("add")
	call("check")
	shown, err := w.node.rocectl("show")
	if err != nil || !strings.Contains(shown, "\nweb ") {
		t.Errorf("%v: POD should be web in\n%s", err, shown)
	}
	call("del")
	if shown, _ := w.node.rocectl("show"); strings.Contains(shown, "web") {
		t.Errorf("after DEL\n%s", shown)
	}
}
