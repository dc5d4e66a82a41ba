// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// member is a file of an archive.
type member struct {
	text []byte
	mode int64
}

// archive writes files as a compressed tar file, with its sum beside it.
func (r release) archive(name string, all map[string]member) error {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		m := all[path]
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: m.mode, Size: int64(len(m.text)), ModTime: r.at, Uname: "root", Gname: "root"}
		if err := t.WriteHeader(header); err != nil {
			return err
		}
		if _, err := t.Write(m.text); err != nil {
			return err
		}
	}
	if err := errors.Join(t.Close(), z.Close()); err != nil {
		return err
	}
	return r.write(name, b.Bytes())
}

// write writes a file and its SHA-256 sum, as sha256sum -c reads it.
func (r release) write(name string, text []byte) error {
	sum := fmt.Sprintf("%x  %s\n", sha256.Sum256(text), name)
	return errors.Join(
		os.WriteFile(filepath.Join(r.to, name), text, 0o644),
		os.WriteFile(filepath.Join(r.to, name+".sha256"), []byte(sum), 0o644),
	)
}
