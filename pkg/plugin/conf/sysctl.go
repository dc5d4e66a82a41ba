// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/strict"
)

const sysctlHint = "set other kernel parameters with the tuning plugin or in the pod's securityContext.sysctls"

// sysctls reads "sysctl": settings of the pod's interface. As for the tuning
// plugin, IFNAME stands for its name.
func sysctls(v strict.Value) []Sysctl {
	o := v.Object()
	var out []Sysctl
	for _, key := range o.Keys() {
		s := Sysctl{Value: sysctlValue(o.At(key))}
		var ok bool
		if s.Tree, s.Key, ok = sysctlKey(key); !ok {
			o.At(key).Bad(sysctlHint, "not net.{ipv4,ipv6}.{conf,neigh}.IFNAME.KEY, with the word IFNAME as it is written here")
			continue
		}
		if slices.ContainsFunc(out, func(b Sysctl) bool { return compareSysctl(s, b) == 0 }) {
			o.At(key).Bad("keep one of the two", "the setting appears twice")
			continue
		}
		out = append(out, s)
	}
	slices.SortFunc(out, compareSysctl)
	return out
}

func compareSysctl(a, b Sysctl) int {
	return cmp.Or(cmp.Compare(a.Tree, b.Tree), cmp.Compare(a.Key, b.Key))
}

// sysctlKey splits a key such as net.ipv4.conf.IFNAME.arp_ignore. As for
// sysctl(8), slashes can replace the dots.
func sysctlKey(s string) (tree, key string, ok bool) {
	if !strings.Contains(s, "/") {
		s = strings.ReplaceAll(s, ".", "/")
	}
	m := regexp.MustCompile(`^net/(ipv[46]/(?:conf|neigh))/IFNAME/([a-z0-9_]+)$`).FindStringSubmatch(s)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

func sysctlValue(v strict.Value) string {
	if v.Kind() == strict.ANumber {
		if strings.Trim(v.Raw(), "-0123456789") != "" {
			v.Bad("", "%s is not a whole number", v.Raw())
		}
		return v.Raw()
	}
	s, ok := v.Text("write the value as a string or a number")
	if ok && (strings.TrimSpace(s) == "" || !printable(s)) || !v.Present() {
		v.Bad("", "%q is not a value", s)
	}
	return s
}
