// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// member is a file of an archive.
type member struct {
	text []byte
	mode int64
}

// archive writes files as a compressed tar file.
func (r release) archive(name string, all map[string]member) error {
	text, err := r.tar(all)
	if err != nil {
		return err
	}
	if text, err = compressed(text); err != nil {
		return err
	}
	return r.write(name, text)
}

// tar packs files, and folders: their names end with a slash.
func (r release) tar(all map[string]member) ([]byte, error) {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	for _, path := range slices.Sorted(maps.Keys(all)) {
		m := all[path]
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: m.mode, Size: int64(len(m.text)), ModTime: r.at, Uname: "root", Gname: "root"}
		if strings.HasSuffix(path, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := t.Write(m.text); err != nil {
			return nil, err
		}
	}
	err := t.Close()
	return b.Bytes(), err
}

func compressed(text []byte) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := z.Write(text)
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

// unpacked returns the files of an archive of this release.
func (r release) unpacked(name string) (map[string]member, error) {
	file, err := os.Open(filepath.Join(r.to, name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	all := map[string]member{}
	for t := tar.NewReader(z); ; {
		header, err := t.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(t)
		if err != nil {
			return nil, err
		}
		all[header.Name] = member{text, header.Mode}
	}
}

func (r release) write(name string, text []byte) error {
	return os.WriteFile(filepath.Join(r.to, name), text, 0o644)
}
