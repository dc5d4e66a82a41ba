// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program release packs the built programs of one architecture: an archive as the
// CNI plugins have it, kubectl's plugin, the test of NICs, and a list of what is linked
// (CycloneDX). Without -arch it makes the rest of them: the Helm chart, the manifest of the
// kubectl plugin, the image of both architectures, a statement of where all of this comes
// from, and the SHA-256 sums.
//
// The same input gives the same bytes: names are sorted, times are those of -time,
// and owners are root. "make release" runs it. Read pack.go for the archives, image.go for
// the image, sbom.go for the list, and provenance.go for the statement.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// release is one run of the program.
type release struct {
	version, arch string
	commit        string // from which it is built
	builder       string // the URI of what has built it
	from, to      string // the folder of the programs, and that of the archives
	root          string // of the project
	at            time.Time
}

func main() {
	var r release
	var seconds int64
	flag.StringVar(&r.version, "version", "", "the `VERSION`, such as v1.2.3")
	flag.StringVar(&r.arch, "arch", "", "the architecture of the programs, as Go calls it; without it, what follows from those of all")
	flag.StringVar(&r.commit, "commit", "", "the `HASH` of the commit")
	flag.StringVar(&r.builder, "builder", "", "the `URI` of what has built the programs")
	flag.StringVar(&r.from, "from", "bin", "the `FOLDER` of the programs")
	flag.StringVar(&r.to, "to", "dist", "the `FOLDER` for the archives")
	flag.StringVar(&r.root, "root", ".", "the `FOLDER` of the project")
	flag.Int64Var(&seconds, "time", 0, "the time of all files, in seconds since 1970 (SOURCE_DATE_EPOCH)")
	flag.Parse()
	r.at = time.Unix(seconds, 0).UTC()
	if err := r.make(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err) //nolint:forbidigo // main touches the process
		os.Exit(1)                               //nolint:forbidigo // as above
	}
}

// make makes the files of one architecture, or what follows from those of all.
func (r release) make() error {
	if r.version == "" {
		return errors.New("-version is needed")
	}
	if r.arch != "" {
		return r.programs()
	}
	for _, do := range []func() error{r.chart, r.krew, r.image, r.provenance, r.sums} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// page is where the project is, and registry where its images are.
const (
	page     = "https://github.com/roce-cni/roce-cni"
	registry = "ghcr.io/roce-cni"
)

// architectures are those of a release.
func architectures() []string { return []string{"amd64", "arm64"} }

// hwtest has an archive of its own, because it is no part of an installation.
const hwtest = "roce-hwtest"

// shipped are the programs that are packed.
func shipped() []string { return []string{"roce", "roce-env", hwtest, "roce-ipam", "rocectl"} }

// programs packs the programs of one architecture.
func (r release) programs() error {
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	all := map[string]member{"LICENSE": {license, 0o644}}
	for _, name := range shipped() {
		text, err := os.ReadFile(filepath.Join(r.from, name))
		if err != nil {
			return err
		}
		all[name] = member{text, 0o755}
	}
	plugin := map[string]member{"LICENSE": all["LICENSE"], "kubectl-roce": all["rocectl"]}
	test := map[string]member{"LICENSE": all["LICENSE"], hwtest: all[hwtest]}
	bom, err := r.sbom(all)
	if err != nil {
		return err
	}
	delete(all, hwtest)
	return errors.Join(
		r.archive(r.name("roce-cni", "tgz"), all),
		r.archive(r.name("kubectl-roce", "tgz"), plugin),
		r.archive(r.name(hwtest, "tgz"), test),
		r.write(r.name("roce-cni", "cdx.json"), bom),
	)
}

// name returns the name of a file of this architecture.
func (r release) name(what, suffix string) string {
	return fmt.Sprintf("%s-linux-%s-%s.%s", what, r.arch, r.version, suffix)
}

// chart packs the Helm chart with the version and the image of the release.
func (r release) chart() error {
	all := map[string]member{}
	folder := filepath.Join(r.root, "charts")
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		switch filepath.Base(name) {
		case "Chart.yaml":
			text = bytes.Replace(text, []byte("appVersion: devel"), []byte("appVersion: "+r.version), 1)
			text = bytes.Replace(text, []byte("version: 0.1.0"), []byte("version: "+strings.TrimPrefix(r.version, "v")), 1)
		case "values.yaml":
			text = bytes.Replace(text, []byte("registry: registry.example.org"), []byte("registry: "+registry), 1)
		}
		all[name] = member{text, 0o644}
		return err
	})
	if err != nil {
		return err
	}
	return r.archive("roce-cni-chart-"+r.version+".tgz", all)
}

// krew writes the manifest for the index of kubectl plugins.
func (r release) krew() error {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: roce
spec:
  version: %s
  homepage: %s
  shortDescription: Plan, generate and explain RoCE networks of pods
  description: |
    The tool of roce-cni. On a workstation it plans and generates
    networks, shows what the reaper would free, and explains errors.
  platforms:
`, r.version, page)
	for _, arch := range architectures() {
		r.arch = arch
		name := r.name("kubectl-roce", "tgz")
		text, err := os.ReadFile(filepath.Join(r.to, name))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, `    - selector: {matchLabels: {os: linux, arch: %s}}
      uri: %s/releases/download/%s/%s
      sha256: %x
      bin: kubectl-roce
`, arch, page, r.version, name, sha256.Sum256(text))
	}
	return r.write("roce.yaml", []byte(b.String()))
}
