// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package others

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

const chart = "../../charts/roce-cni"

type object = map[string]any

// rendered returns the objects that Helm would apply with these values.
func rendered(t *testing.T, namespace string, values map[string]any) (map[string]object, error) {
	t.Helper()
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: "roce-cni", Namespace: namespace, IsInstall: true}
	all, err := chartutil.ToRenderValues(c, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	texts, err := engine.Render(c, all)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]object{}
	for name, text := range texts {
		if strings.HasSuffix(name, ".yaml") {
			add(t, out, name, []byte(text))
		}
	}
	for _, crd := range c.CRDObjects() {
		add(t, out, crd.Filename, crd.File.Data)
	}
	return out, nil
}

// applied returns the objects of our kustomizations, as kubectl apply -k makes them,
// but for the namespace, which Helm needs before.
func applied(t *testing.T, folders ...string) map[string]object {
	t.Helper()
	out := map[string]object{}
	for _, name := range folders {
		folder := filepath.Join(examples, name)
		var k struct {
			Resources []string `json:"resources"`
			Images    []struct {
				Name    string `json:"name"`
				NewName string `json:"newName"`
				NewTag  string `json:"newTag"`
			} `json:"images"`
		}
		read(t, folder+"/kustomization.yaml", &k)
		for _, name := range k.Resources {
			path := filepath.Join(folder, name)
			if name == "namespace.yaml" || !strings.HasSuffix(name, ".yaml") {
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range k.Images {
				if i.NewName == "" {
					i.NewName = i.Name
				}
				text = bytes.ReplaceAll(text, []byte("image: "+i.Name+"\n"), []byte("image: "+i.NewName+":"+i.NewTag+"\n"))
			}
			add(t, out, path, text)
		}
	}
	return out
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// add adds the objects of a text, by kind and name.
func add(t *testing.T, to map[string]object, where string, text []byte) {
	t.Helper()
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		var o object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			t.Fatalf("%s: %v\n%s", where, err, doc)
		}
		if len(o) == 0 {
			continue
		}
		name, _ := o["metadata"].(object)["name"].(string)
		key := fmt.Sprintf("%s %s", o["kind"], name)
		if to[key] != nil {
			t.Errorf("%s: %s appears twice", where, key)
		}
		to[key] = o
	}
}

// TestTheChartHasTheObjectsOfTheKustomizations renders the chart with its own values, and with the
// label on pods. Only the chart restarts the device plugin after a change of its configuration.
func TestTheChartHasTheObjectsOfTheKustomizations(t *testing.T) {
	t.Parallel()
	sameObjects(t, nil, "", "crds", "rdma/device-plugin")
	sameObjects(t, map[string]any{"podLabel": map[string]any{"enabled": true}}, "", "crds", "rdma/device-plugin", "pod-label")
}

func sameObjects(t *testing.T, values map[string]any, folders ...string) {
	t.Helper()
	got, err := rendered(t, "roce-cni", values)
	if err != nil {
		t.Fatal(err)
	}
	want := applied(t, folders...)
	delete(template(got["DaemonSet rdma-shared-device-plugin"])["metadata"].(object), "annotations")
	for _, all := range []map[string]object{got, want} {
		data := all["ConfigMap rdma-shared-device-plugin"]["data"].(object)
		var config object
		if err := yaml.Unmarshal([]byte(data["config.json"].(string)), &config); err != nil {
			t.Fatal(err)
		}
		data["config.json"] = config
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%v (-kustomize +helm)\n%s", values, diff)
	}
}

// TestTheValuesReachTheirPlaces sets each value and looks where it appears.
func TestTheValuesReachTheirPlaces(t *testing.T) {
	t.Parallel()
	gpu := map[string]any{"example.org/gpu": "true"}
	got, err := rendered(t, "other", map[string]any{
		"imageRegistry":    "mirror.example.org",
		"image":            map[string]any{"tag": "v9"},
		"imagePullSecrets": []any{map[string]any{"name": "pull"}},
		"cniBinDir":        "/usr/libexec/cni",
		"agent":            map[string]any{"nodeSelector": gpu, "serviceClusterIPRange": "10.96.0.0/12,fd00:96::/108", "lldp": true},
		"gc":               map[string]any{"replicas": 3},
		"devicePlugin":     map[string]any{"nodeSelector": gpu},
		"podLabel": map[string]any{"enabled": true, "apiVersion": "v1beta1", "classes": map[string]any{
			"big": map[string]any{"network": "infra/rails", "resource": "example.org/rdma", "shm": "64Gi"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	for part, times := range map[string]int{
		"image: mirror.example.org/roce-cni:v9\n":                                6,
		"image: mirror.example.org/mellanox/k8s-rdma-shared-dev-plugin:v1.5.3\n": 1,
		"image: ":                     8, // one is a word of the policy of the label
		"example.org/gpu: \"true\"\n": 3,
		"path: /usr/libexec/cni\n":    1,
		"replicas: 3\n":               1,
		"- --service-cluster-ip-range=10.96.0.0/12,fd00:96::/108\n": 1,
		"- --lldp\n":                             1,
		"- NET_RAW\n":                            2,
		"- name: pull\n":                         4,
		"name: big\n":                            1,
		"network: infra/rails\n":                 1,
		"resource: example.org/rdma\n":           1,
		"shm: 64Gi\n":                            1,
		"admissionregistration.k8s.io/v1beta1\n": 2,
		"namespace roce-cni ":                    0,
		"namespace: roce-cni\n":                  0,
		"namespace: kube-system\n":               0,
	} {
		if n := strings.Count(string(text), part); n != times {
			t.Errorf("%q appears %d times, want %d", part, n, times)
		}
	}
	if t.Failed() {
		t.Logf("%s", text)
	}
}

func template(set object) object { return set["spec"].(object)["template"].(object) }

// TestThePluginHasTheConfigurationOfTheValues reads it with the plugin's own parser. It reads
// the file only when it starts, so each configuration makes other pods.
func TestThePluginHasTheConfigurationOfTheValues(t *testing.T) {
	t.Parallel()
	pods := map[string]string{}
	for name, c := range map[string]struct {
		values map[string]any
		want   string
	}{
		"the chart's own": {map[string]any{}, `{"linkTypes":["ether"],"vendors":["15b3"]}`},
		"three values": {
			map[string]any{"resourceName": "fast", "rdmaHcaMax": 7, "selectors": map[string]any{"vendors": []any{"1dd8"}, "deviceIDs": []any{"1021"}, "linkTypes": nil}},
			`"resourceName":"fast","rdmaHcaMax":7,"selectors":{"deviceIDs":["1021"],"vendors":["1dd8"]}`,
		},
		"all of it": {
			map[string]any{"rdmaHcaMax": 7, "config": map[string]any{"configList": []any{map[string]any{"resourceName": "own", "rdmaHcaMax": 9, "selectors": map[string]any{"ifNames": []any{"ens1"}}}}}},
			`"rdmaHcaMax":9,`,
		},
	} {
		got, err := rendered(t, "roce-cni", map[string]any{"devicePlugin": c.values})
		if err != nil {
			t.Fatal(err)
		}
		text, err := yaml.Marshal(got["ConfigMap rdma-shared-device-plugin"])
		if err != nil {
			t.Fatal(err)
		}
		if err := accepted(t, string(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if config := got["ConfigMap rdma-shared-device-plugin"]["data"].(object)["config.json"].(string); !strings.Contains(strings.Join(strings.Fields(config), ""), c.want) {
			t.Errorf("%s: no %s in\n%s", name, c.want, config)
		}
		sum := fmt.Sprint(template(got["DaemonSet rdma-shared-device-plugin"])["metadata"].(object)["annotations"])
		if pods[sum] != "" {
			t.Errorf("%s and %s have pods with the same %s", name, pods[sum], sum)
		}
		pods[sum] = name
	}
}

// TestTheUninstallerReplacesTheAgents: it has the folders and nodes of theirs.
func TestTheUninstallerReplacesTheAgents(t *testing.T) {
	t.Parallel()
	got, err := rendered(t, "roce-cni", map[string]any{"uninstall": true})
	if err != nil {
		t.Fatal(err)
	}
	if got["DaemonSet roce-cni-agent"] != nil {
		t.Error("the agents are there still")
	}
	if diff := cmp.Diff(applied(t, "uninstall")["DaemonSet roce-cni-uninstall"], got["DaemonSet roce-cni-uninstall"]); diff != "" {
		t.Errorf("(-kustomize +helm)\n%s", diff)
	}
	moved, err := rendered(t, "roce-cni", map[string]any{"uninstall": true, "cniBinDir": "/usr/libexec/cni", "stateDir": "/run/other", "agent": map[string]any{"nodeSelector": map[string]any{"a": "b"}}})
	if err != nil {
		t.Fatal(err)
	}
	pod := template(moved["DaemonSet roce-cni-uninstall"])["spec"].(object)
	var folders []any
	for _, v := range pod["volumes"].([]any) {
		folders = append(folders, v.(object)["hostPath"].(object)["path"])
	}
	if diff := cmp.Diff([]any{"/usr/libexec/cni", "/etc/roce", "/run/other", map[string]any{"a": "b"}}, append(folders, pod["nodeSelector"])); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestTheNotesNameTheNamespace: they are what Helm prints after an installation.
func TestTheNotesNameTheNamespace(t *testing.T) {
	t.Parallel()
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	for namespace, want := range map[string]string{
		"roce-cni": "kubectl roce generate --subnet '172.{rail+16}.0.0/16' --image registry.example.org/roce-cni:devel-tools >rails.yaml\n",
		"network":  "kubectl roce generate --subnet '172.{rail+16}.0.0/16' --image registry.example.org/roce-cni:devel-tools --plugin-namespace network >rails.yaml\n",
	} {
		values, err := chartutil.ToRenderValues(c, nil, chartutil.ReleaseOptions{Name: "roce-cni", Namespace: namespace}, chartutil.DefaultCapabilities)
		if err != nil {
			t.Fatal(err)
		}
		texts, err := engine.Render(c, values)
		if err != nil {
			t.Fatal(err)
		}
		notes := texts["roce-cni/templates/NOTES.txt"]
		if !strings.Contains(notes, want) || !strings.Contains(notes, "RDMA device plugin are in the namespace "+namespace+".") || strings.Count(notes, "\n  kubectl ") != 3 ||
			!strings.Contains(notes, "kubectl apply -f rails.yaml && kubectl -n "+namespace+" rollout restart daemonset/rdma-shared-device-plugin\n") {
			t.Errorf("%s: got\n%s", namespace, notes)
		}
	}
}

func TestTheDevicePluginCanBeLeftOut(t *testing.T) {
	t.Parallel()
	got, err := rendered(t, "roce-cni", map[string]any{"devicePlugin": map[string]any{"enabled": false}})
	if err != nil {
		t.Fatal(err)
	}
	for key := range got {
		if strings.Contains(key, "rdma-shared-device-plugin") {
			t.Errorf("%s is there", key)
		}
	}
}

// TestAClassOfTheLabelCanBeReplaced: the chart's own class is not there then.
func TestAClassOfTheLabelCanBeReplaced(t *testing.T) {
	t.Parallel()
	got, err := rendered(t, "roce-cni", map[string]any{"podLabel": map[string]any{"enabled": true, "classes": map[string]any{
		"rails": nil, "big": map[string]any{"network": "big", "resource": "rdma/big", "shm": "1Ti"},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if got["ConfigMap rails"] != nil || got["ConfigMap big"] == nil {
		t.Errorf("the classes are %v and %v", got["ConfigMap rails"], got["ConfigMap big"])
	}
}

// TestMistypedValuesAreRefused asks the schema.
func TestMistypedValuesAreRefused(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]map[string]any{
		"an unknown key":          {"imageRegistri": "x"},
		"a relative path":         {"cniBinDir": "opt/cni/bin"},
		"no CIDR":                 {"agent": map[string]any{"serviceClusterIPRange": "10.96.0.0"}},
		"a word as switch":        {"agent": map[string]any{"lldp": "on"}},
		"a number as text":        {"gc": map[string]any{"replicas": "two"}},
		"a key of no NIC":         {"devicePlugin": map[string]any{"selectors": map[string]any{"vendor": []any{"15b3"}}}},
		"a class without network": {"podLabel": map[string]any{"classes": map[string]any{"big": map[string]any{"resource": "rdma/rails", "shm": "8Gi"}}}},
		"no size":                 {"podLabel": map[string]any{"classes": map[string]any{"rails": map[string]any{"shm": "much"}}}},
		"one vendor":              {"devicePlugin": map[string]any{"selectors": map[string]any{"vendors": "15b3"}}},
	} {
		if _, err := rendered(t, "roce-cni", values); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
