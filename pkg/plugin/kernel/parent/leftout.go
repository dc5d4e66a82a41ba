// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"cmp"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
)

// leftOut names the NICs that p leaves out, for the end of an error message. For each
// it has the key of p that the NIC does not fit, and what the NIC has instead. Links
// with hardware come first, because a node has many virtual links that are never meant.
func leftOut(all []candidate, p conf.Parent, sys fs.FS) string {
	all = slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return c.bond != "" || c.fits(p, sys) })
	virtual := func(c candidate) int {
		dir, _ := c.hardware()[0].device(sys)
		return number(dir == "")
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(virtual(a), virtual(b)), Natural(a.Name, b.Name))
	})
	if len(all) == 0 {
		return "; there is no other NIC"
	}
	var out []string
	for i, c := range all {
		if i == maxNames {
			out = append(out, fmt.Sprintf("and %d more", len(all)-maxNames))
			break
		}
		key := c.lacks(p, sys)
		out = append(out, fmt.Sprintf("%s (%s %s)", c.Name, key, c.property(key, sys)))
	}
	return "; left out: " + strings.Join(out, ", ")
}

// slavesOnly is for a p that fits slaves of bonds, which are no NICs to a selector. It returns
// what to write instead, and how many they are; "" and "" if p fits none.
func slavesOnly(all []candidate, p conf.Parent, sys fs.FS) (hint, what string) {
	var slaves, bonds []string
	for _, c := range all {
		if c.bond != "" && c.lacks(p, sys) == "" {
			slaves, bonds = append(slaves, c.Name), append(bonds, c.bond)
		}
	}
	if len(slaves) == 0 {
		return "", ""
	}
	slices.Sort(bonds)
	bonds = slices.Compact(bonds)
	return fmt.Sprintf("a bond is one NIC, and stands for its slaves: count it once, and in ifNames write %s in place of slaves", list(bonds)),
		fmt.Sprintf("; %d more are slaves of bonds: %s", len(slaves), list(slaves))
}

// property returns what the link has for a key of a selector, "none" for nothing. Of a bond
// it is the hardware of the first slave.
func (c candidate) property(key string, sys fs.FS) string {
	on := c.hardware()[0]
	dir, id := on.listed(sys)
	var has string
	switch key {
	case "subnet":
		has = prefixes(c.addrs)
	case "ifNames":
		has = strings.Join(append([]string{c.Name}, c.AltNames...), " ")
	case "linkTypes":
		has = c.Encap()
	case "function":
		has = string(on.function(sys))
	case "pci":
		has = id
	case "vendors":
		has = bare(readID(sys, dir+"/vendor"))
	case "deviceIDs":
		has = bare(readID(sys, dir+"/device"))
	case "drivers":
		has = on.driver(sys)
	}
	return cmp.Or(has, "none")
}

func prefixes(addrs []rtnl.Address) string {
	var out []string
	for _, a := range addrs {
		out = append(out, a.Prefix.String())
	}
	return strings.Join(out, " ")
}
