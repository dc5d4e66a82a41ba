// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// bom is the part of CycloneDX 1.5 that we write. It has no serial number and no time,
// so that two builds are equal.
type bom struct {
	Format   string `json:"bomFormat"`
	Spec     string `json:"specVersion"`
	Version  int    `json:"version"`
	Metadata struct {
		Component component `json:"component"`
	} `json:"metadata"`
	Components []component `json:"components"`
}

type component struct {
	Type       string      `json:"type"`
	Ref        string      `json:"bom-ref"`
	Name       string      `json:"name"`
	Version    string      `json:"version"`
	PURL       string      `json:"purl,omitempty"`
	Hashes     []hash      `json:"hashes,omitempty"`
	Components []component `json:"components,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

// sbom lists the programs with their sums, and the modules that are linked into any
// of them, as the linker recorded them.
func (r release) sbom(all map[string]member) ([]byte, error) {
	b := bom{Format: "CycloneDX", Spec: "1.5", Version: 1}
	b.Metadata.Component = component{Type: "application", Ref: "roce-cni", Name: "roce-cni", Version: r.version}
	modules := map[string]component{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == "LICENSE" {
			continue
		}
		info, err := buildinfo.Read(bytes.NewReader(all[name].text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(all[name].text))
		b.Metadata.Component.Components = append(b.Metadata.Component.Components,
			component{Type: "file", Ref: name, Name: name, Version: r.version, Hashes: []hash{{"SHA-256", sum}}})
		add(modules, "stdlib", strings.TrimPrefix(info.GoVersion, "go"))
		for _, d := range info.Deps {
			if d.Replace != nil {
				d = d.Replace
			}
			add(modules, d.Path, d.Version)
		}
	}
	b.Components = slices.SortedFunc(maps.Values(modules), func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
	text, err := json.MarshalIndent(b, "", "  ")
	return append(text, '\n'), err
}

// add adds a Go module.
func add(to map[string]component, path, version string) {
	purl := fmt.Sprintf("pkg:golang/%s@%s", path, version)
	to[purl] = component{Type: "library", Ref: purl, Name: path, Version: version, PURL: purl}
}
