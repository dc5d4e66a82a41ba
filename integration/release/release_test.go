// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

const commit = "0123456789abcdef0123456789abcdef01234567"

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
	r := release{version: "v1.2.3", commit: commit, builder: "https://example.org/builder", from: filepath.Join(dir, "bin"), to: filepath.Join(dir, "dist"), root: "../..", at: time.Unix(1700000000, 0).UTC()}
	err = errors.Join(os.Mkdir(r.from, 0o700), os.Mkdir(r.to, 0o700))
	for _, name := range shipped() {
		err = errors.Join(err, os.WriteFile(filepath.Join(r.from, name), program, 0o700))
	}
	for _, r.arch = range append(architectures(), "") {
		err = errors.Join(err, r.make())
	}
	if err != nil {
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
	if len(want) != 13 || len(got) != len(want) {
		t.Errorf("%d and %d files, want 13", len(want), len(got))
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
	return members(t, z)
}

func members(t *testing.T, archive io.Reader) map[*tar.Header]string {
	t.Helper()
	out := map[*tar.Header]string{}
	for r := tar.NewReader(archive); ; {
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

func TestTheChartHasTheVersionAndTheImageOfTheRelease(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"roce-cni/Chart.yaml":  {"\nversion: 1.2.3\n", "\nappVersion: v1.2.3\n"},
		"roce-cni/values.yaml": {"\nimage:\n  registry: " + registry + "\n  repository: roce-cni\n"},
	}
	for header, text := range headers(t, packed(t)["roce-cni-chart-v1.2.3.tgz"]) {
		for _, part := range want[header.Name] {
			if !strings.Contains(text, part) {
				t.Errorf("%s has no %q:\n%s", header.Name, part, text)
			}
		}
		delete(want, header.Name)
	}
	if len(want) > 0 {
		t.Errorf("the chart has no %v", want)
	}
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
	for _, arch := range architectures() {
		name := "kubectl-roce-linux-" + arch + "-v1.2.3.tgz"
		sum := sha256.Sum256([]byte(files[name]))
		if m := files["roce.yaml"]; !strings.Contains(m, fmt.Sprintf("sha256: %x\n", sum)) || !strings.Contains(m, "/v1.2.3/"+name+"\n") {
			t.Errorf("%s is not in\n%s", name, m)
		}
	}
}

// TestTheImageIsWhatTheDockerfileDescribes follows the archive from index.json to the layers, as
// skopeo and containerd do, and checks each digest.
func TestTheImageIsWhatTheDockerfileDescribes(t *testing.T) {
	t.Parallel()
	dockerfile, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	blobs := map[string]string{}
	for header, text := range members(t, strings.NewReader(packed(t)["roce-cni-image-v1.2.3.tar"])) {
		blobs[header.Name] = text
	}
	var top, index struct{ Manifests []descriptor }
	decode(t, blobs["index.json"], &top)
	if len(top.Manifests) != 1 || top.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "v1.2.3" {
		t.Fatalf("index.json has %+v", top)
	}
	decode(t, blob(t, blobs, top.Manifests[0]), &index)
	var got []string
	for _, m := range index.Manifests {
		got = append(got, m.Platform["os"]+"/"+m.Platform["architecture"])
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}
		decode(t, blob(t, blobs, m), &manifest)
		var config struct {
			Architecture string
			Config       struct {
				Entrypoint []string
				Labels     map[string]string
			}
		}
		decode(t, blob(t, blobs, manifest.Config), &config)
		if config.Architecture != m.Platform["architecture"] {
			t.Errorf("the configuration of %v is for %s", m.Platform, config.Architecture)
		}
		if want := fmt.Sprintf("\nENTRYPOINT [%q]\n", config.Config.Entrypoint[0]); !strings.Contains(string(dockerfile), want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
		labels := map[string]string{}
		for _, l := range regexp.MustCompile(`(org\.\S+)="(.*)"`).FindAllStringSubmatch(strings.ReplaceAll(string(dockerfile), "$VERSION", "v1.2.3"), -1) {
			labels[l[1]] = l[2]
		}
		if diff := cmp.Diff(labels, config.Config.Labels); diff != "" {
			t.Errorf("labels (-Dockerfile +image)\n%s", diff)
		}
		if len(manifest.Layers) != 1 {
			t.Fatalf("%d layers, want 1", len(manifest.Layers))
		}
		files := map[string]int64{}
		for header := range headers(t, blob(t, blobs, manifest.Layers[0])) {
			if header.Typeflag == tar.TypeReg {
				files["/"+header.Name] = header.Mode
			}
		}
		if diff := cmp.Diff(copied(t, string(dockerfile)), files); diff != "" {
			t.Errorf("files (-Dockerfile +image)\n%s", diff)
		}
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// copied returns the files of the lines COPY, and their modes.
func copied(t *testing.T, dockerfile string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, line := range regexp.MustCompile(`(?m)^COPY --chmod=(\d+) (.*) (\S+)$`).FindAllStringSubmatch(dockerfile, -1) {
		mode, err := strconv.ParseInt(line[1], 8, 64)
		if err != nil {
			t.Fatal(err)
		}
		for from := range strings.FieldsSeq(line[2]) {
			to := line[3]
			if strings.HasSuffix(to, "/") {
				to += filepath.Base(from)
			}
			out[to] = mode
		}
	}
	return out
}

// blob returns what a descriptor names.
func blob(t *testing.T, all map[string]string, d descriptor) string {
	t.Helper()
	text := all["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if sum := sha256.Sum256([]byte(text)); d.Digest != fmt.Sprintf("sha256:%x", sum) || d.Size != len(text) {
		t.Fatalf("the blob of %+v has %d bytes and the sum %x", d, len(text), sum)
	}
	return text
}

func decode(t *testing.T, text string, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
}

// TestTheStatementNamesAllFiles reads provenance and SHA256SUMS.
func TestTheStatementNamesAllFiles(t *testing.T) {
	t.Parallel()
	const statement, list = "roce-cni-provenance-v1.2.3.json", "SHA256SUMS"
	files := packed(t)
	var s struct {
		Subject []struct {
			Name   string
			Digest map[string]string
		}
		Predicate struct {
			BuildDefinition struct {
				ResolvedDependencies []struct{ Digest map[string]string }
			}
			RunDetails struct{ Builder struct{ ID string } }
		}
	}
	decode(t, files[statement], &s)
	got := map[string]string{}
	for _, subject := range s.Subject {
		got[subject.Name] = subject.Digest["sha256"]
	}
	want := map[string]string{}
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != list {
			want[name] = fmt.Sprintf("%x", sha256.Sum256([]byte(files[name])))
			fmt.Fprintf(&sums, "%s  %s\n", want[name], name)
		}
	}
	if diff := cmp.Diff(sums.String(), files[list]); diff != "" {
		t.Errorf("%s (-want +got)\n%s", list, diff)
	}
	delete(want, statement)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got)\n%s", statement, diff)
	}
	if p := s.Predicate; p.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"] != commit || p.RunDetails.Builder.ID != "https://example.org/builder" {
		t.Errorf("got %+v", p)
	}
}
