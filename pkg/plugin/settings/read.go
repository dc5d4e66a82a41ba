// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package settings

import (
	"errors"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// Load returns the settings at a path, or the defaults if there is no file. The error
// is that of Parse, or BadConfig for a file that cannot be read, or that others than
// root can write.
func Load(file string) (Node, error) {
	b, err := trusted.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(file), nil
	}
	if err != nil {
		return Node{Path: file}, cnierr.New(cnierr.BadConfig, operationRead, file, trusted.Advice, "%w", err)
	}
	return Parse(file, b)
}

const operationRead = "read settings of the node"

// Parse reads settings. The error reports every fault at once, each with its JSON path;
// its code is BadConfig, or Decode if all are faults of JSON's syntax or types. The
// settings are then what could be read, and otherwise the defaults. A DEL uses them,
// unless StateDir is "": then it is not known where its record is.
func Parse(file string, b []byte) (Node, error) {
	f := &strict.Faults{}
	out := Default(file)
	top, ok := f.Document(file, b)
	if !ok {
		return Node{Path: file}, fault(f, file)
	}
	version := top.At("version")
	version.Missing("write " + `"version": 1`)
	version.Whole(1, 1, 1)
	misspelt := func(key string) bool { return key != "stateDir" && strict.Resembles(key, "stateDir") }
	switch v := top.At("stateDir"); {
	case top.Repeats("stateDir"):
		out.StateDir = ""
	case v.Present():
		out.StateDir, _ = v.Absolute()
	case slices.ContainsFunc(top.Keys(), misspelt):
		out.StateDir = ""
	}
	log := top.At("log").Object()
	out.Log.File, _ = log.At("file").Absolute()
	out.Log.Level = strict.Choice(log.At("level"), "info", "debug", "warn", "error")
	log.Strict(nil)
	rdma := top.At("rdma").Object()
	out.TakeInUse = strict.Choice(rdma.At("inUse"), "refuse", "take") == "take"
	out.RemoveFillers = strict.Choice(rdma.At("fillers"), "keep", "remove") == "remove"
	out.CountPods = strict.Choice(rdma.At("counts"), "off", "pods") == "pods"
	out.TellForeignGID = strict.Choice(rdma.At("foreignGID"), "off", "tell") == "tell"
	rdma.Strict(nil)
	out.Heal = strict.Choice(top.At("heal"), HealRoutes, HealOff, HealAll)
	if s, ok := top.At("table").Absolute(); ok {
		out.Table = s
	}
	out.IPAMPaths = paths(top.At("ipamPaths"), out.IPAMPaths)
	namespaces := top.At("namespaces").Object()
	for _, name := range namespaces.Keys() {
		if out.Namespaces == nil {
			out.Namespaces = map[string]Limits{}
		}
		out.Namespaces[name] = limits(namespaces.At(name))
	}
	top.Strict(nil)
	return out, fault(f, file)
}

// fault returns the faults of the file, with what to do if they do not say it.
func fault(f *strict.Faults, file string) error {
	err := f.Err(operationRead, file)
	var e *cnierr.Error
	if errors.As(err, &e) && e.Hint == "" {
		e.Hint = "correct this file on the node; rocectl install --settings FILE checks a file, and installs it if it has no fault"
	}
	return err
}

func limits(v strict.Value) Limits {
	o := v.Object()
	defer o.Strict(nil)
	l := Limits{
		IPAMTypes: patterns(o.At("ipamTypes")), Pools: patterns(o.At("pools")), RailPools: patterns(o.At("railPools")),
		RequestAddresses: truth(o.At("requestAddresses")), RequestMAC: truth(o.At("requestMAC")), HostLink: truth(o.At("hostLink")),
		Metadata:      o.At("metadata").True(),
		Sysctl:        patterns(o.At("sysctl")),
		ProbeRequired: strict.Choice(o.At("probe"), "optional", "required") == "required",
	}
	if m := o.At("masters").Object(); m.Present() {
		l.Masters = &Masters{IfNames: patterns(m.At("ifNames")), Vendors: patterns(m.At("vendors"))}
		m.Strict(nil)
	}
	if modes := o.At("modes"); modes.Present() {
		l.Modes = []string{}
		for _, e := range modes.List() {
			l.Modes = append(l.Modes, string(strict.Choice(e, conf.Bridge, conf.Private, conf.VEPA, conf.Passthru, conf.L2)))
		}
	}
	if n := o.At("bcqueuelen"); n.Present() {
		l.BCQueueLen = new(uint32(n.Whole(0, 0, math.MaxUint32)))
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
		a, _ := strconv.ParseUint(first, 10, 16) // 0 if it is no number
		b, _ := strconv.ParseUint(last, 10, 16)  // and 65535 if it is too large
		if a < 1 || a > b || b > conf.MaxVLAN {
			e.Bad(`write a number, or a range such as "100-199"`, "%s is neither a VLAN from 1 to %d nor a range of them", e.Raw(), conf.MaxVLAN)
			continue
		}
		out = append(out, VLANs{int(a), int(b)})
	}
	return out
}

func truth(v strict.Value) *bool {
	if !v.Present() {
		return nil
	}
	return new(v.True())
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

func paths(v strict.Value, def []string) []string {
	if !v.Present() {
		return def
	}
	var out []string
	for _, e := range v.List() {
		if s, ok := e.Absolute(); ok {
			out = append(out, s)
		}
	}
	return out
}
