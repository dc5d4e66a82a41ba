// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// monitoring has the alerts and the dashboard.
const monitoring = deployment + "/monitoring"

// rules returns what Prometheus reads of a PrometheusRule.
func rules(t *testing.T, manifest []byte) []byte {
	t.Helper()
	var rule struct{ Spec map[string]any }
	must(t, yaml.Unmarshal(manifest, &rule))
	if len(rule.Spec) == 0 {
		t.Fatalf("there are no rules in\n%s", manifest)
	}
	out, err := yaml.Marshal(rule.Spec)
	must(t, err)
	return out
}

// TestAlertsFireWhenTheyShouldAndNotBefore gives Prometheus' own tool series of values, which
// testdata/alerts.yaml has, with what must fire.
func TestAlertsFireWhenTheyShouldAndNotBefore(t *testing.T) {
	t.Parallel()
	need(t, "promtool", "helm")
	manifest, err := os.ReadFile(filepath.Join(monitoring, "rules.yaml"))
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), rules(t, manifest), 0o600))
	cases, err := os.ReadFile("testdata/alerts.yaml")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), cases, 0o600))
	promtool, err := filepath.Abs(filepath.Join(bin, "promtool"))
	must(t, err)
	for _, args := range [][]string{{"check", "rules", "rules.yaml"}, {"test", "rules", "alerts.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
	for _, alert := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(manifest), -1) {
		if !bytes.Contains(cases, []byte("alertname: "+alert[1]+"\n")) {
			t.Errorf("%s has no case", alert[1])
		}
	}

	chart := exec.CommandContext(t.Context(), filepath.Join(bin, "helm"), "template", "x", chart, "--kube-version=1.35.0", "--set=monitoring.enabled=true,monitoring.labels.release=prometheus", "--show-only=templates/monitoring-rules.yaml")
	chart.Env = append(os.Environ(), "HOME="+dir)
	out, err := chart.Output()
	must(t, err)
	if diff := cmp.Diff(string(rules(t, manifest)), string(rules(t, out))); diff != "" || !bytes.Contains(out, []byte("release: prometheus")) {
		t.Errorf("the chart has other rules (-conf-examples +chart)\n%s", diff)
	}
}
