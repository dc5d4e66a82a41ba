// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// write sends an object as kubectl does, and returns what the user is told.
func write(t *testing.T, c *ground.Cluster, method, kind, name, rest string) error {
	t.Helper()
	body, err := yaml.YAMLToJSON([]byte(fmt.Sprintf("apiVersion: roce-cni.io/v1alpha1\nkind: %s\nmetadata: {name: %q}\n%s", kind, name, rest)))
	if err != nil {
		t.Fatalf("%v:\n%s", err, rest)
	}
	path := "/apis/roce-cni.io/v1alpha1/" + strings.ToLower(kind) + "s"
	contentType := "application/json"
	if method != http.MethodPost {
		path, contentType = path+"/"+name, "application/merge-patch+json"
	}
	return client(t, c.Admin()).CoreV1().RESTClient().Verb(method).AbsPath(path).Param("fieldValidation", "Strict").
		SetHeader("Content-Type", contentType).Body(body).Do(t.Context()).Error()
}

func TestPeopleCanReadPoolsAndBlocks(t *testing.T) {
	t.Parallel()
	c := shared(t)
	need(t, "kubectl")
	must(t, write(t, c, http.MethodPost, "RailPool", "readable", `spec: {rails: [{subnets: [{subnet: 10.1.0.0/24}]}]}`))
	must(t, write(t, c, http.MethodPost, "RailBlock", "readable-3", `spec: {pool: readable, index: 3, size: 16, nodeName: n1, machineID: m1}`))
	for _, tt := range []struct{ command, want string }{
		{"get railpools readable", "NAME SIZE BLOCKS CLAIMED USED FREE VALID AGE readable"},
		{"get railblocks readable-3", "NAME POOL INDEX NODE SIZE USED FREE AGE readable-3 readable 3 n1"},
		{"get railblocks --field-selector spec.nodeName=n1,spec.pool=readable -o name", "railblock.roce-cni.io/readable-3"},
		{"explain railpool.spec", "Exactly one of rails, template and racks defines the subnets."},
		{"explain railpool.spec.template.subnets.exclude", "It may be extended: pods keep their addresses"},
		{"explain railblock.spec.machineID", "Another machine under the same name does not own the block."},
	} {
		got := strings.Join(strings.Fields(kubectl(t, c, strings.Fields(tt.command)...)), " ")
		if !strings.Contains(got, tt.want) {
			t.Errorf("kubectl %s:\n%s\nwant %s", tt.command, got, tt.want)
		}
	}
}

// TestKubectlFindsThePlugin runs rocectl under the name that kubectl looks for.
func TestKubectlFindsThePlugin(t *testing.T) {
	t.Parallel()
	c := shared(t)
	need(t, "kubectl", "../../../bin/rocectl")
	must(t, write(t, c, http.MethodPost, "RailPool", "listed", `spec: {rails: [{subnets: [{subnet: 10.77.0.0/24}]}]}`))
	must(t, write(t, c, http.MethodPost, "RailBlock", "listed-3", `spec: {pool: listed, index: 3, size: 16, nodeName: nowhere, machineID: m1}`))
	must(t, write(t, c, http.MethodPost, "RailNode", "listed", "status: {rails: [{rail: 3, netdev: ens3, device: mlx5_3, port: 1, state: ACTIVE, speed: 400000, mtu: 9000}]}"))
	dir := t.TempDir()
	program, err := filepath.Abs(rocectl)
	must(t, err)
	must(t, os.Symlink(program, filepath.Join(dir, "kubectl-roce")))
	must(t, c.WriteKubeconfig(filepath.Join(dir, "kubeconfig"), c.Admin().BearerToken))
	for verb, want := range map[string]string{
		"pools":            `(?m)^listed +0 +0 +0 +0 +not seen by the reaper yet`,
		"pools --by block": `(?m)^listed-3 +nowhere +10\.77\.0\.48-10\.77\.0\.63 `,
		"pools --by node":  `(?m)^nowhere +gone +listed +1 `,
		"rails":            `(?m)^listed +3 +ens3 +mlx5_3/1 +ACTIVE +400G +9000 `,
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), append([]string{"roce"}, strings.Fields(verb)...)...)
		cmd.Env = append(os.Environ(), "PATH="+dir, "KUBECONFIG="+filepath.Join(dir, "kubeconfig"))
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("kubectl roce %s: %v, want %s in\n%s", verb, err, want, out)
		}
	}
}

// TestPeopleLearnWhichRightsTheyNeed has a user without rights. The commands of the error give
// them, as they are printed.
func TestPeopleLearnWhichRightsTheyNeed(t *testing.T) {
	t.Parallel()
	c := own(t)
	need(t, "kubectl", "../../../bin/rocectl")
	kubectl(t, c, "apply", "-k", deployment+"/crds")
	kubectl(t, c, "wait", "--for=condition=Established", "crd/railpools.roce-cni.io", "crd/railblocks.roce-cni.io", "crd/railnodes.roce-cni.io")
	kubectl(t, c, "create", "serviceaccount", "reader", "-n", "default")
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, c.WriteKubeconfig(path, strings.TrimSpace(kubectl(t, c, "create", "token", "reader", "-n", "default"))))
	says := func(args string) string {
		out, _ := exec.Command(rocectl, append(strings.Fields(args), "--kubeconfig="+path)...).CombinedOutput()
		return string(out)
	}
	const rails, generate = "rails --cluster", "generate --cluster --subnet=10.{rail+16}.0.0/16"
	_, commands, _ := strings.Cut(says(rails), "gives you the right to read: ")
	commands = strings.TrimSpace(commands)
	for args, resource := range map[string]string{"pools": "railpools", "pools --by block": "railpools", "pools --by node": "railpools", rails: "railnodes", generate: "railnodes"} {
		out := says(args)
		for _, want := range []string{`User "system:serviceaccount:default:reader" cannot list resource "` + resource + `" in API group "roce-cni.io" at the cluster scope`, commands} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: want %q in\n%s", args, want, out)
			}
		}
	}
	for command := range strings.SplitSeq(strings.Replace(commands, "NAME", "system:serviceaccount:default:reader", 1), " && ") {
		kubectl(t, c, strings.Fields(command)[1:]...)
	}
	for args, want := range map[string]string{
		"pools": "POOL", "pools --by block": "BLOCK", "pools --by node": "NODE", rails: "no agent has reported", generate: "no agent has reported",
	} {
		eventually(t, args+" with the rights", func(context.Context) error { // the API server learns of them a moment later
			if out := says(args); !strings.Contains(out, want) {
				return errors.New(out)
			}
			return nil
		})
	}
}

// TestApplyingTheFolderAgainWritesNothing is an upgrade to what is there already:
// kubectl says configured where it has written.
func TestApplyingTheFolderAgainWritesNothing(t *testing.T) {
	t.Parallel()
	c := own(t)
	kubectl(t, c, "apply", "-k", deployment+"/crds")
	kubectl(t, c, "wait", "--for=condition=Established", "crd/railpools.roce-cni.io", "crd/railblocks.roce-cni.io", "crd/railleases.roce-cni.io", "crd/railnodes.roce-cni.io")
	kubectl(t, c, "apply", "-k", deployment)
	for _, line := range strings.Split(strings.TrimSpace(kubectl(t, c, "apply", "-k", deployment)), "\n") {
		if !strings.HasSuffix(line, " unchanged") {
			t.Error(line)
		}
	}
}
