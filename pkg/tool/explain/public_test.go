// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package explain

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// publicText is an error text from a public thread.
type publicText struct {
	Text   string `json:"text"`
	Source string `json:"source"`
	Want   lines  `json:"want"`
}

// score counts the answers to texts.
type score struct{ all, right, general, wrong int }

// answered gives Find the texts of a file of testdata/public. An answer is right if it is
// one that the text wants, and wrong if it is another one that is not general.
func answered(t *testing.T, file string, report func(publicText, string)) score {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "public", file))
	if err != nil {
		t.Fatal(err)
	}
	var all []publicText
	if err := yaml.UnmarshalStrict(data, &all); err != nil {
		t.Fatal(err)
	}
	table, s := Load(), score{all: len(all)}
	for _, p := range all {
		got, general := "none", false
		if found := table.Find(Plain(p.Text)); len(found) > 0 {
			got, general = found[0].Texts[0], found[0].General
		}
		switch {
		case slices.Contains(p.Want, got):
			s.right++
			continue
		case general:
			s.general++
		case got != "none":
			s.wrong++
		}
		report(p, got)
	}
	return s
}

// TestPublicTextsAreExplained measures the answers to texts that the patterns were written
// for, and to texts that they were not written for. Of the latter it shows no single
// failure, only that they are answered worse than before.
func TestPublicTextsAreExplained(t *testing.T) {
	t.Parallel()
	open := answered(t, "open.yaml", func(p publicText, got string) {
		t.Errorf("%q finds %q, want %q", p.Text, got, p.Want)
	})
	heldout := answered(t, "heldout.yaml", func(publicText, string) {})
	t.Logf("open: %+v, held out: %+v", open, heldout)
	if heldout.right < 342 || heldout.right+heldout.general < 347 || heldout.wrong > 0 {
		t.Errorf("of the held out texts are answered: %+v; want 342 right, the others in general", heldout)
	}
}
