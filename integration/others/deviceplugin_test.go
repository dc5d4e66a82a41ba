// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package others

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/Mellanox/k8s-rdma-shared-dev-plugin/pkg/resources"
	"sigs.k8s.io/yaml"
)

// TestTheDevicePluginReadsItsConfigMap gives the ConfigMap of the example to the
// plugin's own parser. That parser ignores keys that it does not know:
// integration/cluster/deploy finds those.
func TestTheDevicePluginReadsItsConfigMap(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(examples + "/rdma/device-plugin/config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), filepath.Base(resources.DefaultConfigFilePath))
	if err := os.WriteFile(file, []byte(m.Data["config.json"]), 0o600); err != nil {
		t.Fatal(err)
	}
	rm := resources.NewResourceManager(file, false)
	if err := rm.ReadConfig(); err != nil {
		t.Fatal(err)
	}
	if err := rm.ValidateConfigs(); err != nil {
		t.Fatal(err)
	}
}
