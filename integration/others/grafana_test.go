// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package others

import (
	"errors"
	"os"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// TestGrafanaKnowsEachKeyOfTheDashboard reads it with Grafana's own types. Grafana ignores keys that it
// does not know, and sets those that are missing.
func TestGrafanaKnowsEachKeyOfTheDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(examples + "/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	plugins.RegisterDefaultPlugins()
	var found cog.BuildErrors
	//nolint:staticcheck // all versions of Grafana read this schema, and only new ones version 2
	if err := new(dashboard.Dashboard).UnmarshalJSONStrict(text); err != nil && !errors.As(err, &found) {
		t.Fatal(err)
	}
	for _, one := range found {
		if one.Message != "required field is missing from input" {
			t.Error(one)
		}
	}
}
