// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package policy

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/cnierr"
	"github.com/roce-cni/roce-cni/pkg/conf/strict"
	"github.com/roce-cni/roce-cni/pkg/trusted"
)

// Load returns the policy at a path, or the built-in one if there is no file. The
// error is BadConfig for a file that is not as it must be, or that others than root
// can write; the policy is then what could be read of it, and otherwise built in,
// which a DEL goes by.
func Load(path string) (Policy, error) {
	b, err := trusted.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return builtIn(path), nil
	}
	if err != nil {
		return builtIn(path), cnierr.New(cnierr.BadConfig, "read policy of the node", path,
			"make it a file that root alone can write, in a folder that root alone can write: chown root, chmod go-w", "%w", err)
	}
	return Parse(path, b)
}

// Parse reads a policy. The error reports every fault at once, each with its JSON
// path; its code is BadConfig, or Decode if all are faults of JSON's syntax or types.
// The policy is then what could be read, and otherwise built in.
func Parse(path string, b []byte) (Policy, error) {
	f := &strict.Faults{}
	out := builtIn(path)
	top, ok := f.Document(path, b)
	if !ok {
		return out, f.Err("read policy of the node", path)
	}
	v := top.At("version")
	v.Missing("write " + `"version": 1`)
	v.Whole(1, 1, 1)
	out.StateDirs = folders(top.At("stateDirs"), out.StateDirs)
	out.LogDirs = folders(top.At("logDirs"), out.LogDirs)
	out.TableDirs = folders(top.At("tableDirs"), out.TableDirs)
	top.Strict(nil)
	return out, f.Err("read policy of the node", path)
}

// folders returns a list of absolute paths, or the default.
func folders(v strict.Value, def []string) []string {
	if !v.Present() {
		return def
	}
	var out []string
	for _, e := range v.List() {
		s, ok := e.Text("")
		switch {
		case !ok:
		case !filepath.IsAbs(s) || s == "/" || filepath.Clean(s) != s:
			e.Bad("", "%q is not a clean absolute path below /", s)
		default:
			out = append(out, s)
		}
	}
	return out
}
