// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
)

// candidate is a link with its addresses.
type candidate struct {
	rtnl.Link
	addrs  []rtnl.Address
	slaves []candidate // of a bond
	bond   string      // of a slave
}

// hardware returns the links with the hardware of a link: the slaves of a bond, by PCI
// function, or the link itself.
func (c candidate) hardware() []candidate {
	if len(c.slaves) == 0 {
		return []candidate{c}
	}
	return c.slaves
}

// candidates returns the links that can be selected: all of them, or those of
// p's RDMA device. These links are never candidates: loopback, macvlans,
// macvtaps, ipvlans, ipvtaps, the VLANs that roce has made, and, for a request with a VLAN,
// all VLANs. A representor is a candidate only if p names
// it. Slaves of bonds are candidates that never fit: the bond stands for them.
func (s search) candidates(p conf.Parent) ([]candidate, error) {
	links, err := s.links()
	if err != nil {
		return nil, err
	}
	var of []int32
	if p.RDMA != "" {
		if of, err = s.ofDevice(links, p.RDMA); err != nil {
			return nil, err
		}
	}
	bonded := bonds(links, s.sys)
	var out []candidate
	for _, l := range links {
		if l.Flags&unix.IFF_LOOPBACK != 0 || slices.Contains([]string{"macvlan", "macvtap", "ipvlan", "ipvtap"}, l.Kind) {
			continue
		}
		if ours(l) || s.onVLAN && l.Kind == "vlan" {
			continue
		}
		if Representor(l.PhysPort) && !slices.ContainsFunc(p.IfNames, l.Has) {
			continue
		}
		if p.RDMA == "" || slices.Contains(of, l.Index) {
			out = append(out, candidate{l, s.addrs[l.Index], bonded[l.Index], bondOf(links, l)})
		}
	}
	return out, nil
}

// bonds returns the slaves of each bond, by its index.
func bonds(links []rtnl.Link, sys fs.FS) map[int32][]candidate {
	out := map[int32][]candidate{}
	for _, l := range links {
		if aggregates(l.SlaveKind) {
			out[l.Master] = append(out[l.Master], candidate{Link: l})
		}
	}
	for _, slaves := range out {
		slices.SortStableFunc(slaves, func(a, b candidate) int { return a.onBus(sys).compare(b.onBus(sys)) })
	}
	return out
}

// bondOf returns the name of the bond that a link is a slave of, "" if there is none.
func bondOf(links []rtnl.Link, l rtnl.Link) string {
	i := slices.IndexFunc(links, func(up rtnl.Link) bool { return aggregates(l.SlaveKind) && up.Index == l.Master })
	if i < 0 {
		return ""
	}
	return links[i].Name
}

// Representor says whether port, the name of a link's port in the hardware, is
// that of the representor of a virtual or scalable function, such as "pf0vf3"
// or "c1pf0sf88" (__devlink_port_phys_port_name_get). In switchdev mode each
// function has one representor in the host. A representor gets the frames that
// no rule of the switch takes. It has the PCI address of the physical function.
func Representor(port string) bool {
	if after, ok := strings.CutPrefix(port, "c"); ok {
		port = strings.TrimLeft(after, "0123456789")
	}
	after, ok := strings.CutPrefix(port, "pf")
	after = strings.TrimLeft(after, "0123456789")
	return ok && (strings.HasPrefix(after, "vf") || strings.HasPrefix(after, "sf"))
}

// fitting returns the candidates that have every property that p asks for. sys
// is the root of sysfs, which has the properties of PCI and auxiliary devices.
func fitting(all []candidate, p conf.Parent, sys fs.FS) []candidate {
	return slices.DeleteFunc(slices.Clone(all), func(c candidate) bool { return !c.fits(p, sys) })
}

// choose returns the one candidate that fits.
//
// Errors: BadParent when none or several fit, with their names.
func choose(all []candidate, p conf.Parent, sys fs.FS) (rtnl.Link, error) {
	fit := fitting(all, p, sys)
	switch len(fit) {
	case 1:
		return fit[0].Link, nil
	case 0:
		hint, slaves := slavesOnly(all, p, sys)
		return rtnl.Link{}, cnierr.New(cnierr.BadParent, selecting, "", cmp.Or(hint, "correct the key master: rocectl rails and ip -d link show what there is"),
			"no NIC has all that master asks for%s%s", slaves, leftOut(all, p, sys))
	}
	return rtnl.Link{}, cnierr.New(cnierr.BadParent, selecting, "", "add a key to master so that only one of them matches, or name one",
		"want exactly one NIC, got %d: %s", len(fit), names(fit))
}

func names(cs []candidate) string {
	var out []string
	for _, c := range cs {
		out = append(out, c.Name)
	}
	return list(out)
}

// fits says whether the link has every property that p asks for: for each list
// that is not empty, one of its elements. A bond has the hardware of each slave.
func (c candidate) fits(p conf.Parent, sys fs.FS) bool { return c.bond == "" && c.lacks(p, sys) == "" }

// lacks returns the first key of p that the link does not fit, "" if it fits all.
func (c candidate) lacks(p conf.Parent, sys fs.FS) string {
	switch {
	case p.Subnet.IsValid() && !slices.ContainsFunc(c.addrs, func(a rtnl.Address) bool {
		return p.Subnet.Contains(a.Prefix.Addr()) && a.Prefix.Bits() >= p.Subnet.Bits()
	}):
		return "subnet"
	case len(p.IfNames) > 0 && !slices.ContainsFunc(p.IfNames, c.matches):
		return "ifNames"
	case len(p.LinkTypes) > 0 && !slices.Contains(p.LinkTypes, c.Encap()):
		return "linkTypes"
	}
	var key string
	for _, on := range c.hardware() {
		if key = on.differs(p, sys); key == "" {
			break
		}
	}
	return key
}

// differs returns the first key of p that the link's own hardware does not fit.
func (c candidate) differs(p conf.Parent, sys fs.FS) string {
	if p.PCI == "" && p.Function == "" && len(p.Vendors)+len(p.DeviceIDs)+len(p.Drivers) == 0 {
		return ""
	}
	dir, id := c.listed(sys)
	switch {
	case p.Function != "" && p.Function != c.function(sys):
		return "function"
	case p.PCI != "" && !strings.EqualFold(p.PCI, id):
		return "pci"
	case !among(p.Vendors, func() string { return discover.Text(sys, dir+"/vendor") }):
		return "vendors"
	case !among(p.DeviceIDs, func() string { return discover.Text(sys, dir+"/device") }):
		return "deviceIDs"
	case !among(p.Drivers, func() string { return c.driver(sys) }):
		return "drivers"
	}
	return ""
}

// matches says whether the link's name or an alternative name matches glob.
func (c candidate) matches(glob string) bool {
	return slices.ContainsFunc(append([]string{c.Name}, c.AltNames...), func(name string) bool {
		ok, err := path.Match(glob, name)
		return err == nil && ok
	})
}

// device returns the folder of the link's device in sysfs and the name of the
// device, "" if it has none. It reads sysfs because kernels before 5.14 do not
// report the device with the link.
func (c candidate) device(sys fs.FS) (dir, id string) {
	id, bus := c.Dev, c.Bus
	if id == "" {
		id = linkBase(sys, "class/net/"+c.Name+"/device")
		bus = linkBase(sys, "class/net/"+c.Name+"/device/subsystem")
	}
	if id == "" {
		return "", ""
	}
	return path.Join("bus", cmp.Or(bus, "pci"), "devices", id), id
}

// listed returns the device as lspci lists it. That is the same, but for a virtio NIC: its
// virtio device has numbers of its own, and is on a PCI function.
func (c candidate) listed(sys fs.FS) (dir, id string) {
	dir, id = c.device(sys)
	if target, err := fs.ReadLink(sys, dir); err == nil && strings.HasPrefix(dir, "bus/virtio/") {
		function := path.Base(path.Dir(target))
		if _, ok := parsePCI(function); ok {
			return "bus/pci/devices/" + function, function
		}
	}
	return dir, id
}

// driver returns the name of the link's driver, "" if it has none.
func (c candidate) driver(sys fs.FS) string {
	dir, _ := c.device(sys)
	return linkBase(sys, dir+"/driver")
}

// among says whether want is empty or contains what get returns. It ignores a
// leading 0x of a number: sysfs writes it, lspci does not.
func among(want []string, get func() string) bool {
	if len(want) == 0 {
		return true
	}
	got := bare(get())
	return got != "" && slices.ContainsFunc(want, func(w string) bool { return bare(w) == got })
}

func bare(s string) string { return strings.TrimPrefix(strings.ToLower(s), "0x") }

func linkBase(sys fs.FS, name string) string {
	target, err := fs.ReadLink(sys, name)
	if err != nil {
		return "" // is none
	}
	return path.Base(target)
}

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
	for _, c := range all {
		key := c.lacks(p, sys)
		out = append(out, fmt.Sprintf("%s (%s %s)", c.Name, key, c.property(key, sys)))
	}
	return "; left out: " + cnierr.Some(out)
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
		has = bare(discover.Text(sys, dir+"/vendor"))
	case "deviceIDs":
		has = bare(discover.Text(sys, dir+"/device"))
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
