// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// writeImage writes a container image of one layer with these files, by their
// names in it, as docker save does.
func writeImage(t *testing.T, to, name string, entrypoint []string, files map[string]string) {
	t.Helper()
	contents := map[string][]byte{}
	for inside, outside := range files {
		text, err := os.ReadFile(outside)
		must(t, err)
		contents[inside] = text
	}
	layer := pack(t, contents)
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	must(t, err)
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	must(t, err)
	image := pack(t, map[string][]byte{"config.json": config, "layer.tar": layer, "manifest.json": manifest})
	must(t, os.WriteFile(to, image, 0o600))
}

// pack makes a tar archive of files that all users may run, and of their folders.
func pack(t *testing.T, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	var made []string
	for name, text := range files {
		if dir := path.Dir(name); dir != "." && !slices.Contains(made, dir) {
			made = append(made, dir)
			must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}))
		}
		must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(text))}))
		_, err := w.Write(text)
		must(t, err)
	}
	must(t, w.Close())
	return out.Bytes()
}

// images brings what the pods run into containerd, with ctr and its flags: registries are not asked.
func (n *node) images(t *testing.T, ctr ...string) {
	t.Helper()
	shell, err := filepath.EvalSymlinks(filepath.Join(bin, "busybox"))
	must(t, err)
	sleep := []string{"/bin/busybox", "sleep", "1000000"}
	for _, image := range []struct {
		name       string
		entrypoint []string
		files      map[string]string
	}{
		{"registry.k8s.io/pause:local", sleep, map[string]string{"bin/busybox": shell}},
		{"docker.io/library/shell:local", sleep, map[string]string{"bin/busybox": shell}},
		{"docker.io/library/roce-cni:local", []string{"/rocectl"}, map[string]string{
			"rocectl":           filepath.Join(programs, "rocectl"),
			"plugins/roce":      filepath.Join(programs, "roce"),
			"plugins/roce-ipam": filepath.Join(programs, "roce-ipam"),
		}},
	} {
		file := filepath.Join(t.TempDir(), "image.tar")
		writeImage(t, file, image.name, image.entrypoint, image.files)
		run(t, append(ctr, "-n", "k8s.io", "images", "import", file)...)
	}
}
