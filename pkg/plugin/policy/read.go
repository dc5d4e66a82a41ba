// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package policy

import (
	"errors"
	"io/fs"
	"math"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Load returns the policy at a path, or the built-in one if there is no file. The
// error is BadConfig for a file that is not as it must be, or that others than root
// can write; the policy is then what could be read of it, and otherwise built in,
// which a DEL goes by.
func Load(file string) (Policy, error) {
	b, err := trusted.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return builtIn(file), nil
	}
	if err != nil {
		return builtIn(file), cnierr.New(cnierr.BadConfig, "read policy of the node", file,
			"make it a file that root alone can write, in a folder that root alone can write: chown root, chmod go-w", "%w", err)
	}
	return Parse(file, b)
}

// Parse reads a policy. The error reports every fault at once, each with its JSON
// path; its code is BadConfig, or Decode if all are faults of JSON's syntax or types.
// The policy is then what could be read, and otherwise built in.
func Parse(file string, b []byte) (Policy, error) {
	f := &strict.Faults{}
	out := builtIn(file)
	top, ok := f.Document(file, b)
	if !ok {
		return out, f.Err("read policy of the node", file)
	}
	v := top.At("version")
	v.Missing("write " + `"version": 1`)
	v.Whole(1, 1, 1)
	out.StateDirs = folders(top.At("stateDirs"), out.StateDirs)
	out.LogDirs = folders(top.At("logDirs"), out.LogDirs)
	out.TableDirs = folders(top.At("tableDirs"), out.TableDirs)
	out.IPAMPaths = folders(top.At("ipamPaths"), out.IPAMPaths)
	namespaces := top.At("namespaces").Object()
	for _, name := range namespaces.Keys() {
		if out.Namespaces == nil {
			out.Namespaces = map[string]Limits{}
		}
		out.Namespaces[name] = limits(namespaces.At(name))
	}
	top.Strict(nil)
	return out, f.Err("read policy of the node", file)
}

// limits reads the limits of a namespace.
func limits(v strict.Value) Limits {
	o := v.Object()
	defer o.Strict(nil)
	l := Limits{
		IPAMTypes: patterns(o.At("ipamTypes")), Pools: patterns(o.At("pools")), RailPools: patterns(o.At("railPools")),
		RequestAddresses: truth(o.At("requestAddresses")), RequestMAC: truth(o.At("requestMAC")), HostLink: truth(o.At("hostLink")),
		Sysctl:        patterns(o.At("sysctl")),
		ProbeRequired: strict.Choice(o.At("probe"), "optional", "required") == "required",
	}
	if m := o.At("masters").Object(); m.Present() {
		l.Masters = &Masters{IfNames: patterns(m.At("ifNames")), Vendors: patterns(m.At("vendors"))}
		m.Strict(nil)
	}
	if modes := o.At("modes"); modes.Present() {
		l.Modes = []conf.Mode{}
		for _, e := range modes.List() {
			l.Modes = append(l.Modes, strict.Choice(e, conf.Bridge, conf.Private, conf.VEPA, conf.Passthru, conf.L2))
		}
	}
	if n := o.At("bcqueuelen"); n.Present() {
		most := uint32(n.Whole(0, 0, math.MaxUint32))
		l.BCQueueLen = &most
	}
	l.VLANs = vlans(o.At("vlans"))
	return l
}

// vlans returns a list of numbers, and of texts such as "100-199".
func vlans(v strict.Value) []VLANs {
	var out []VLANs
	for _, e := range v.List() {
		text := e.Raw()
		if s, err := strconv.Unquote(text); err == nil {
			text = s
		}
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(first, 10, 16)
		b, errB := strconv.ParseUint(last, 10, 16)
		if errA != nil || errB != nil || a < 1 || a > b || b > conf.MaxVLAN {
			e.Bad(`write a number, or a range such as "100-199"`, "%s is neither a VLAN from 1 to %d nor a range of them", e.Raw(), conf.MaxVLAN)
			continue
		}
		out = append(out, VLANs{int(a), int(b)})
	}
	return out
}

// truth returns true or false, nil if neither is said.
func truth(v strict.Value) *bool {
	if !v.Present() {
		return nil
	}
	b := v.True()
	return &b
}

// patterns returns a list of patterns, which allows nothing if it is empty; nil if
// there is none.
func patterns(v strict.Value) []string {
	if !v.Present() {
		return nil
	}
	out := []string{}
	for _, e := range v.List() {
		s, ok := e.Text("")
		if _, err := path.Match(s, ""); ok && (s == "" || err != nil) {
			e.Bad("write a name, or a pattern such as team-a-*", "%q is neither a name nor a pattern", s)
		}
		out = append(out, s)
	}
	return out
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
