// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// metrics returns the labels of each metric of the agent.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, m := range regexp.MustCompile(`(?m)^\w+ "(\w+)"(.*)$`).FindAllStringSubmatch(string(content(t, root+"/integration/api/testdata/metrics.txt")), -1) {
		out[m[1]] = strings.Fields(strings.ReplaceAll(m[2], `"`, ""))
	}
	return out
}

// query is one of an alert or of the dashboard, with the texts that name its labels.
type query struct{ expr, text string }

func queries(t *testing.T) (out []query) {
	t.Helper()
	var rule struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Expr        string
					Annotations map[string]string
				}
			}
		}
	}
	must(t, "read the alerts", yaml.Unmarshal(content(t, monitoring+"/rules.yaml"), &rule))
	for _, r := range rule.Spec.Groups[0].Rules {
		out = append(out, query{r.Expr, strings.Join(slices.Sorted(maps.Values(r.Annotations)), " ")})
	}
	var board struct {
		Panels []struct {
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	must(t, "read the dashboard", json.Unmarshal(content(t, monitoring+"/dashboard.json"), &board))
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			out = append(out, query{q.Expr, q.LegendFormat})
		}
	}
	return out
}

// TestQueriesUseTheLabelsThatThereAre compares the labels in the alerts and the dashboard with those
// that the agent sets. A query with another label finds nothing, and Prometheus has no error.
func TestQueriesUseTheLabelsThatThereAre(t *testing.T) {
	t.Parallel()
	of := metrics(t)
	scraped := []string{"node", "instance", "le", "exported_namespace", "exported_pod"} // of Prometheus, and of podmonitor.yaml
	list := regexp.MustCompile(`\b(?:by|on) \(([^)]*)\)`)
	names := regexp.MustCompile(`\w+`)
	for _, q := range queries(t) {
		known := slices.Clone(scraped)
		for _, m := range regexp.MustCompile(`roce_cni_([a-z_]+[a-z])(?:\{([^}]*)\})?`).FindAllStringSubmatch(q.expr, -1) {
			labels := of[strings.TrimSuffix(m[1], "_bucket")]
			known = append(known, labels...)
			for _, one := range regexp.MustCompile(`(\w+)[!=]`).FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(labels, one[1]) && !slices.Contains(scraped, one[1]) {
					t.Errorf("%s: %s has no label %s", q.expr, m[1], one[1])
				}
			}
		}
		kept := known
		if groups := list.FindAllStringSubmatch(q.expr, -1); len(groups) > 0 {
			kept = nil
			for _, g := range groups {
				kept = append(kept, names.FindAllString(g[1], -1)...)
			}
			for _, label := range kept {
				if !slices.Contains(known, label) {
					t.Errorf("%s: no metric in it has the label %s", q.expr, label)
				}
			}
		}
		for _, m := range regexp.MustCompile(`\{\{ ?(?:\$labels\.)?(\w+) ?\}\}`).FindAllStringSubmatch(q.text, -1) {
			if !slices.Contains(kept, m[1]) {
				t.Errorf("%s: the result has no label %s, which its text names", q.expr, m[1])
			}
		}
	}
}

// TestThePageNamesTheMetricsThatThereAre compares the table of docs/cluster.md, the alerts and
// the dashboard with what the agent registers. Prometheus has no error for a metric that is
// missing.
func TestThePageNamesTheMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	want := metrics(t)
	page := string(content(t, root+"/docs/cluster.md"))
	got := map[string]bool{}
	_, table, _ := strings.Cut(page, "| metric |")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		names, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(names, -1) {
			got[m[1]] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("docs/cluster.md has other metrics than the agent (-want +got)\n%s", diff)
	}
	for _, text := range []string{page, string(content(t, monitoring+"/rules.yaml")), string(content(t, monitoring+"/dashboard.json"))} {
		for _, m := range regexp.MustCompile(`roce_cni_([a-z_]+[a-z])`).FindAllStringSubmatch(text, -1) {
			if _, there := want[strings.TrimSuffix(m[1], "_bucket")]; !there {
				t.Errorf("the agent has no metric %s, which docs/cluster.md, the alerts or the dashboard name", m[0])
			}
		}
	}
}
