// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package others

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Mellanox/k8s-rdma-shared-dev-plugin/pkg/resources"
	"sigs.k8s.io/yaml"
)

// TestTheDevicePluginReadsItsConfigMap gives the ConfigMap of the example, and those that
// rocectl generate writes, to the plugin's own parser. That parser ignores keys that it
// does not know: integration/cluster/deploy finds those of the example.
func TestTheDevicePluginReadsItsConfigMap(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../pkg/tool/generate/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, path := range append(paths, examples+"/rdma/device-plugin/config.yaml") {
		if strings.HasSuffix(path, ".in.yaml") {
			continue // what other stacks have
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range strings.Split(string(text), "\n---\n") {
			if !strings.Contains(doc, "kind: ConfigMap\n") {
				continue
			}
			read++
			if err := accepted(t, doc); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	if read < 3 {
		t.Errorf("it has read only %d", read)
	}
}

// accepted gives a ConfigMap to the plugin.
func accepted(t *testing.T, doc string) error {
	t.Helper()
	var m struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal([]byte(doc), &m); err != nil {
		return err
	}
	file := filepath.Join(t.TempDir(), filepath.Base(resources.DefaultConfigFilePath))
	if err := os.WriteFile(file, []byte(m.Data["config.json"]), 0o600); err != nil {
		return err
	}
	rm := resources.NewResourceManager(file, false)
	if err := rm.ReadConfig(); err != nil {
		return err
	}
	return rm.ValidateConfigs()
}
