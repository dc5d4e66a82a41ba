// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
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

// promtool runs it in a folder.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	program, err := filepath.Abs(filepath.Join(bin, "promtool"))
	must(t, err)
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}

// TestTheDashboardShowsWhatIsWrong gives series of values to promtool, with what each query of the
// dashboard must find in them, which testdata/dashboard.yaml has.
func TestTheDashboardShowsWhatIsWrong(t *testing.T) {
	t.Parallel()
	need(t, "promtool")
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ RefID, Expr string }
		}
	}
	text, err := os.ReadFile(filepath.Join(monitoring, "dashboard.json"))
	must(t, err)
	must(t, yaml.Unmarshal(text, &board))
	queries := map[string]string{}
	variables := strings.NewReplacer("$node", ".*", "$pool", ".*", "$__rate_interval", "4m", "$__range", "1h")
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			name := p.Title
			if len(p.Targets) > 1 {
				name += " " + q.RefID
			}
			queries[name] = variables.Replace(q.Expr)
		}
	}
	text, err = os.ReadFile("testdata/dashboard.yaml")
	must(t, err)
	var cases struct {
		Interval string           `json:"evaluation_interval"`
		Tests    []map[string]any `json:"tests"`
	}
	must(t, yaml.UnmarshalStrict(text, &cases))
	for _, one := range cases.Tests[0]["promql_expr_test"].([]any) {
		panel := one.(map[string]any)
		name := panel["expr"].(string)
		if panel["expr"] = queries[name]; queries[name] == "" {
			t.Errorf("the dashboard has no panel %q", name)
		}
		delete(queries, name)
	}
	if len(queries) > 0 {
		t.Errorf("testdata/dashboard.yaml has no case of %q", slices.Sorted(maps.Keys(queries)))
	}
	text, err = yaml.Marshal(cases)
	must(t, err)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "dashboard.yaml"), text, 0o600))
	promtool(t, dir, "test", "rules", "dashboard.yaml")
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
	promtool(t, dir, "check", "rules", "rules.yaml")
	promtool(t, dir, "test", "rules", "alerts.yaml")
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
