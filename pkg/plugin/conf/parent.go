// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

func parent(v strict.Value) Parent {
	if k := v.Kind(); k != strict.AnObject && k != strict.Absent {
		return Parent{Name: parentName(v)}
	}
	return selector(v, `write a name as a string: "master": "ens1f0"; patterns go into ifNames`,
		"name the NIC, or select it by pci, subnet, ifNames or other properties")
}

// selector reads the properties that select NICs. named is the hint for a key
// that would be a name. empty is the hint for an object without property.
func selector(v strict.Value, named, empty string) Parent {
	o := v.Object()
	defer o.Strict(func(key string) string {
		if key == "name" || key == "ifName" || key == "master" {
			return named
		}
		return ""
	})
	p := Parent{
		RDMA:      word(o.At("rdma"), `[A-Za-z0-9_.-]{1,63}`, "the name of an RDMA device such as mlx5_0", ""),
		PCI:       word(o.At("pci"), `[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]`, "a PCI address such as 0000:0b:00.0", "write it with its domain, as lspci -D does"),
		IfNames:   ifNames(o.At("ifNames")),
		Vendors:   words(o.At("vendors"), `[0-9a-f]{4}`, "a PCI vendor such as 15b3", "write four hexadecimal digits, as lspci -nn does"),
		DeviceIDs: words(o.At("deviceIDs"), `[0-9a-f]{4}`, "a PCI device such as 101b", "write four hexadecimal digits, as lspci -nn does"),
		Drivers:   words(o.At("drivers"), `[A-Za-z0-9_-]+`, "the name of a driver such as mlx5_core", ""),
		LinkTypes: words(o.At("linkTypes"), `[a-z0-9_/]+`, "a link type such as ether", ""),
		Function:  Function(word(o.At("function"), "physical|virtual|scalable", "one of physical, virtual, scalable", "")),
	}
	if s := o.At("subnet"); s.Present() {
		p.Subnet, _ = s.Prefix()
	}
	if o.Present() && !slices.ContainsFunc(o.Keys(), o.Has) {
		v.Bad(empty, "the selector is empty")
	}
	return p
}

// parentName reads the name of the parent. An alternative name may be longer
// than a name (ALTIFNAMSIZ).
func parentName(v strict.Value) LinkName {
	s, _ := v.Text("write a name or a selector object")
	if s == "" {
		return ""
	}
	problem := linkNameProblem(s, 127)
	if problem == "" && !plainLink(s) {
		problem = notPlain
	}
	if problem != "" {
		v.Bad("", "%q %s", s, problem)
	}
	return LinkName(s)
}

func ifNames(v strict.Value) []string {
	out := words(v, `[^/\s]+`, "a pattern such as enp*np0", "")
	for i, s := range out {
		if _, err := path.Match(s, ""); err != nil {
			v.Bad("close the bracket, or write \\[ for a bracket", "element %d, %q, is not a pattern", i, s)
		}
	}
	return out
}

// words reads a list of at least one word: an empty list would select nothing
// or everything.
func words(v strict.Value, pattern, what, hint string) []string {
	var out []string
	for _, e := range v.List() {
		out = append(out, word(e, pattern, what, hint))
	}
	if v.Empty() {
		v.Bad("remove the key to select by the others", "the list is empty")
	}
	return out
}

// word reads a string that matches a pattern. It changes hexadecimal numbers to
// lower case, as in sysfs.
func word(v strict.Value, pattern, what, hint string) string {
	s, ok := v.Text("")
	if !ok {
		return ""
	}
	if strings.Contains(pattern, "[0-9a-f]") {
		s = strings.ToLower(s)
	}
	if !regexp.MustCompile(`^(?:`+pattern+`)$`).MatchString(s) || !printable(s) {
		v.Bad(hint, "%q is not %s", s, what)
	}
	return s
}

// macAddress returns the MAC. As in upstream macvlan, runtimeConfig wins over
// CNI_ARGS, and CNI_ARGS over the configuration.
func macAddress(top, runtime *strict.Object, args string, mode Mode, rails int, f *strict.Faults) MAC {
	var won MAC
	source := ""
	take := func(code cnierr.Code, subject, s string) {
		if s == "" {
			return
		}
		m, err := ParseMAC(s)
		if err != nil {
			f.Add(code, subject, "use a unicast address such as 02:00:00:00:00:01", "%w", err)
			return
		}
		won, source = m, subject
	}
	inConfig, _ := top.At("mac").Text("")
	inRuntime, _ := runtime.At("mac").Text("")
	take(cnierr.BadConfig, "mac", inConfig)
	take(cnierr.BadEnv, "CNI_ARGS MAC", args)
	take(cnierr.BadConfig, "runtimeConfig.mac", inRuntime)
	if rails > 1 && source != "" {
		f.Add(cnierr.BadConfig, source, "leave the MAC out: each rail gets one of its own", "%d rails cannot have one MAC", rails)
	}
	if mode.SharesMAC() && source != "" {
		f.Add(cnierr.BadConfig, source, "leave the MAC out, or use another mode", "in %s mode the MAC is the master's", mode)
	}
	return won
}
