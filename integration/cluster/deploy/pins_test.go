// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	image  = regexp.MustCompile(`(?m)^\s*(?:- )?image: (\S+)`)
	digest = regexp.MustCompile(`^[^@]+@sha256:[0-9a-f]{64}$`)
	tagged = regexp.MustCompile(`/[^/:@]+:[^/:@]*[0-9][^/:@]*$`) // a version has a digit
)

// TestImagesOfOthersHaveADigestOrAVersion: a tag such as latest is another program
// tomorrow. docs/security.md says which images have a digest, and how to pin the others.
func TestImagesOfOthersHaveADigestOrAVersion(t *testing.T) {
	t.Parallel()
	ours := []string{"registry.example.org/roce-cni:devel", "registry.example.org/roce-cni:devel-tools"} // of make image and make image-tools
	seen := map[string]int{}
	check := func(where, name string) {
		kind := "version"
		switch {
		case slices.Contains(ours, name):
			return
		case digest.MatchString(name):
			kind = "digest"
		case !tagged.MatchString(name):
			t.Errorf("%s: %s has neither a digest nor a version", where, name)
		}
		seen[kind]++
	}
	err := filepath.WalkDir("../../../conf-examples", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		renamed := kustomizedImages(t, filepath.Dir(path))
		for _, m := range image.FindAllStringSubmatch(string(text), -1) {
			name := m[1]
			if strings.HasPrefix(name, "[") || strings.HasPrefix(name, "{") {
				t.Errorf("%s: write the image in a line of its own: %s", path, name)
				continue
			}
			if to, there := renamed[name]; there {
				name = to
			}
			check(path, name)
		}
		return nil
	})
	must(t, "conf-examples", err)
	if seen["digest"] < 4 || seen["version"] < 4 {
		t.Errorf("%v: the test does not find the images", seen)
	}
}

// kustomizedImages returns what the kustomization.yaml of a folder makes of image names.
func kustomizedImages(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		return nil
	}
	var k struct {
		Images []struct{ Name, NewName, NewTag, Digest string } `json:"images"`
	}
	must(t, dir, yaml.Unmarshal(text, &k))
	out := map[string]string{}
	for _, i := range k.Images {
		name := i.Name
		if i.NewName != "" {
			name = i.NewName
		}
		if i.NewTag != "" {
			name += ":" + i.NewTag
		}
		if i.Digest != "" {
			name += "@" + i.Digest
		}
		out[i.Name] = name
	}
	return out
}
