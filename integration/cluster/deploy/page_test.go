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

// TestThePageNamesTheMetricsThatThereAre compares the table of docs/cluster.md, and
// the alerts there, with what the agent registers.
func TestThePageNamesTheMetricsThatThereAre(t *testing.T) {
	t.Parallel()
	want := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?:counter|desc)\("([a-z_]+)"`).FindAllStringSubmatch(string(content(t, root+"/pkg/cluster/agent/metrics.go"))+string(content(t, root+"/pkg/cluster/agent/requests.go")), -1) {
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
	for _, m := range regexp.MustCompile(`roce_cni_([a-z_]+[a-z])`).FindAllStringSubmatch(page, -1) {
		if !want[m[1]] {
			t.Errorf("docs/cluster.md speaks of %s", m[0])
		}
	}
}
