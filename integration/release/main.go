// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// The program release packs the built programs of one architecture: an archive as the
// CNI plugins have it, kubectl's plugin, the test of NICs, their SHA-256 sums, and a list
// of what is linked (CycloneDX). With -chart it packs the Helm chart, with -krew it writes the
// manifest of the kubectl plugin.
//
// The same input gives the same bytes: names are sorted, times are those of -time,
// and owners are root. "make release" runs it. Read pack.go for the archives, and
// sbom.go for the list.
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
	from, to      string // the folder of the programs, and that of the archives
	root          string // of the project
	at            time.Time
}

func main() {
	var r release
	var seconds int64
	var chart, krew bool
	flag.StringVar(&r.version, "version", "", "the `VERSION`, such as v1.2.3")
	flag.StringVar(&r.arch, "arch", "", "the architecture of the programs, as Go calls it")
	flag.StringVar(&r.from, "from", "bin", "the `FOLDER` of the programs")
	flag.StringVar(&r.to, "to", "dist", "the `FOLDER` for the archives")
	flag.StringVar(&r.root, "root", ".", "the `FOLDER` of the project")
	flag.Int64Var(&seconds, "time", 0, "the time of all files, in seconds since 1970 (SOURCE_DATE_EPOCH)")
	flag.BoolVar(&chart, "chart", false, "pack the chart")
	flag.BoolVar(&krew, "krew", false, "write the manifest for krew, of the archives in -to")
	flag.Parse()
	r.at = time.Unix(seconds, 0).UTC()
	do := r.programs
	switch {
	case chart:
		do = r.chart
	case krew:
		do = r.krew
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err) //nolint:forbidigo // main touches the process
		os.Exit(1)                               //nolint:forbidigo // as above
	}
}

// hwtest has an archive of its own, because it is no part of an installation.
const hwtest = "roce-hwtest"

// shipped are the programs that are packed.
func shipped() []string { return []string{"roce", "roce-env", hwtest, "roce-ipam", "rocectl"} }

// programs packs the programs of one architecture.
func (r release) programs() error {
	if r.version == "" || r.arch == "" {
		return errors.New("-version and -arch are needed")
	}
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

// chart packs the Helm chart with the version of the release.
func (r release) chart() error {
	if r.version == "" {
		return errors.New("-version is needed")
	}
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
		if filepath.Base(name) == "Chart.yaml" {
			text = bytes.Replace(text, []byte("appVersion: devel"), []byte("appVersion: "+r.version), 1)
			text = bytes.Replace(text, []byte("version: 0.1.0"), []byte("version: "+strings.TrimPrefix(r.version, "v")), 1)
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
	const page = "https://github.com/roce-cni/roce-cni"
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
	for _, arch := range []string{"amd64", "arm64"} {
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
