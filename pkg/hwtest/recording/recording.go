// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package recording keeps what the kernel of a node told about its NICs: the bytes of
// netlink messages and a part of sysfs. It plays them back to the code that reads them.
//
// It contains only what its lists name, so that nothing of the user gets in by chance:
// no serial numbers, no names of other devices, no counters. Redact replaces what
// identifies the user. Read this file first, then netlink.go and tree.go.
package recording

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/roce-cni/roce-cni/pkg/tool/redact"
)

// Recording is what the kernel told.
type Recording struct {
	Netlink []Message
	Sys     Tree
}

// The files of a Recording.
const (
	netlinkFile = "netlink.json"
	sysFile     = "sys.json"
)

// Redact returns the recording without what identifies the user.
func (r Recording) Redact(with *redact.Redactor) Recording {
	out := Recording{Sys: r.Sys.redact(with)}
	for _, m := range r.Netlink {
		out.Netlink = append(out.Netlink, m.redact(with))
	}
	return out
}

// Files returns the files that have the recording, by name.
func (r Recording) Files() (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, v := range map[string]any{netlinkFile: r.Netlink, sysFile: r.Sys} {
		b, err := Marshal(v)
		if err != nil {
			return nil, err
		}
		out[name] = b
	}
	return out, nil
}

// Marshal returns JSON for people and programs.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// Read reads the files of a recording from a folder.
func Read(folder fs.FS) (Recording, error) {
	var out Recording
	for name, v := range map[string]any{netlinkFile: &out.Netlink, sysFile: &out.Sys} {
		b, err := fs.ReadFile(folder, name)
		if err != nil {
			return Recording{}, err
		}
		if err := Decode(b, v); err != nil {
			return Recording{}, err
		}
	}
	return out, nil
}

// mostObjects is more than a run on any node has.
const mostObjects = 100_000

// Decode is json.Unmarshal of a file that may come from a stranger. An empty object of three
// bytes can take a hundred times as much memory, so their number is limited.
func Decode(b []byte, v any) error {
	if n := bytes.Count(b, []byte("{")) + bytes.Count(b, []byte("[")); n > mostObjects {
		return fmt.Errorf("%d objects and lists, the limit is %d", n, mostObjects)
	}
	return json.Unmarshal(b, v)
}
