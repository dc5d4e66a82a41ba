// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// sumsOf returns the SHA-256 sums of all files of the release by name, and the names in order.
func (r release) sumsOf() (sums map[string]string, names []string, err error) {
	entries, err := os.ReadDir(r.to)
	if err != nil {
		return nil, nil, err
	}
	sums = map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.to, e.Name()))
		if err != nil {
			return nil, nil, err
		}
		names = append(names, e.Name())
		sums[e.Name()] = fmt.Sprintf("%x", sha256.Sum256(text))
	}
	return sums, names, nil
}

// provenance writes what the files are built from, and by what: an in-toto statement with
// SLSA's provenance v1. It is not signed, and has no time, so that two builds are equal.
func (r release) provenance() error {
	sums, names, err := r.sumsOf()
	if err != nil {
		return err
	}
	subjects := []any{}
	for _, name := range names {
		subjects = append(subjects, map[string]any{"name": name, "digest": map[string]string{"sha256": sums[name]}})
	}
	text, err := json.MarshalIndent(map[string]any{
		"_type":         "https://in-toto.io/Statement/v1",
		"subject":       subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{
			"buildDefinition": map[string]any{
				"buildType":          page + "/blob/" + r.version + "/docs/releasing.md",
				"externalParameters": map[string]any{"command": "make release", "version": r.version},
				"internalParameters": map[string]any{"go": runtime.Version(), "sourceDateEpoch": r.at.Unix()},
				"resolvedDependencies": []any{
					map[string]any{"uri": "git+" + page + "@refs/tags/" + r.version, "digest": map[string]string{"gitCommit": r.commit}},
				},
			},
			"runDetails": map[string]any{"builder": map[string]string{"id": r.builder}},
		},
	}, "", "  ")
	if err != nil {
		return err
	}
	return r.write("roce-cni-provenance-"+r.version+".json", append(text, '\n'))
}

// sums writes the SHA-256 sums of all files, as sha256sum -c reads them.
func (r release) sums() error {
	sums, names, err := r.sumsOf()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "%s  %s\n", sums[name], name)
	}
	return r.write("SHA256SUMS", []byte(b.String()))
}
