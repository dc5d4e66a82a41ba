// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestThePageNamesTheMetricsThatThereAre compares the table of docs/cluster.md, the alerts and
// the dashboard with what the agent registers. Prometheus has no error for a metric that is
// missing.
func TestThePageNamesTheMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\w+ "(\w+)"`).FindAllStringSubmatch(string(content(t, root+"/integration/api/testdata/metrics.txt")), -1) {
		want[m[1]] = true
	}
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
			if !want[strings.TrimSuffix(m[1], "_bucket")] {
				t.Errorf("the agent has no metric %s, which docs/cluster.md, the alerts or the dashboard name", m[0])
			}
		}
	}
}
