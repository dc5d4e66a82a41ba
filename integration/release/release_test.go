// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// built is roce-env, the smallest of the programs.
var built = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "roce-env")
	build := exec.Command("go", "build", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", "-o", path, "../../cmd/roce-env")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// first is a release for the tests that only look at it.
var first = sync.OnceValues(pack)

func packed(t *testing.T) map[string]string {
	t.Helper()
	files, err := first()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// pack packs a release and returns its files. Each program in it is a copy of roce-env.
func pack() (map[string]string, error) {
	program, err := built()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r := release{version: "v1.2.3", from: filepath.Join(dir, "bin"), to: filepath.Join(dir, "dist"), root: "../..", at: time.Unix(1700000000, 0).UTC()}
	err = errors.Join(os.Mkdir(r.from, 0o700), os.Mkdir(r.to, 0o700))
	for _, name := range shipped() {
		err = errors.Join(err, os.WriteFile(filepath.Join(r.from, name), program, 0o700))
	}
	for _, r.arch = range []string{"amd64", "arm64"} {
		err = errors.Join(err, r.programs())
	}
	if err := errors.Join(err, r.chart(), r.krew()); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r.to)
	out := map[string]string{}
	for _, e := range entries {
		text, readErr := os.ReadFile(filepath.Join(r.to, e.Name()))
		err = errors.Join(err, readErr)
		out[e.Name()] = string(text)
	}
	return out, err
}

func TestTwoReleasesAreEqual(t *testing.T) {
	t.Parallel()
	want := packed(t)
	got, err := pack()
	if err != nil {
		t.Fatal(err)
	}
	if len(want) != 20 || len(got) != len(want) {
		t.Errorf("%d and %d files, want 20", len(want), len(got))
	}
	for name := range want {
		if want[name] != got[name] {
			t.Errorf("%s differs", name)
		}
	}
}

func TestTheArchivesHaveTheProgramsAtTheTop(t *testing.T) {
	t.Parallel()
	files := packed(t)
	for name, want := range map[string]map[string]int64{
		"roce-cni-linux-arm64-v1.2.3.tgz":     {"LICENSE": 0o644, "roce": 0o755, "roce-env": 0o755, "roce-ipam": 0o755, "rocectl": 0o755},
		"roce-hwtest-linux-amd64-v1.2.3.tgz":  {"LICENSE": 0o644, "roce-hwtest": 0o755},
		"kubectl-roce-linux-amd64-v1.2.3.tgz": {"LICENSE": 0o644, "kubectl-roce": 0o755},
	} {
		got := map[string]int64{}
		for header := range headers(t, files[name]) {
			got[header.Name] = header.Mode
			if header.Uid != 0 || header.ModTime.Unix() != 1700000000 {
				t.Errorf("%s: %s is of user %d, at %v", name, header.Name, header.Uid, header.ModTime)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// headers returns the files of an archive with their contents.
func headers(t *testing.T, archive string) map[*tar.Header]string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	out := map[*tar.Header]string{}
	for r := tar.NewReader(z); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		out[header] = string(text)
	}
}

func TestTheChartHasTheVersionOfTheRelease(t *testing.T) {
	t.Parallel()
	for header, text := range headers(t, packed(t)["roce-cni-chart-v1.2.3.tgz"]) {
		if header.Name != "roce-cni/Chart.yaml" {
			continue
		}
		if !strings.Contains(text, "\nversion: 1.2.3\n") || !strings.Contains(text, "\nappVersion: v1.2.3\n") {
			t.Errorf("got\n%s", text)
		}
		return
	}
	t.Error("there is no Chart.yaml")
}

func TestTheListNamesWhatIsLinked(t *testing.T) {
	t.Parallel()
	var b bom
	if err := json.Unmarshal([]byte(packed(t)["roce-cni-linux-amd64-v1.2.3.cdx.json"]), &b); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, c := range b.Components {
		found[c.Name] = c.Version != "" && strings.HasPrefix(c.PURL, "pkg:golang/")
	}
	if !found["stdlib"] || !found["github.com/containernetworking/cni"] || b.Format != "CycloneDX" || len(b.Metadata.Component.Components) != 5 {
		t.Errorf("got %+v", b)
	}
}

func TestTheManifestForKrewHasTheSums(t *testing.T) {
	t.Parallel()
	files := packed(t)
	for _, arch := range []string{"amd64", "arm64"} {
		sum, name, _ := strings.Cut(strings.TrimSpace(files["kubectl-roce-linux-"+arch+"-v1.2.3.tgz.sha256"]), "  ")
		if m := files["roce.yaml"]; !strings.Contains(m, "sha256: "+sum+"\n") || !strings.Contains(m, "/v1.2.3/"+name+"\n") {
			t.Errorf("%s is not in\n%s", name, m)
		}
	}
}
