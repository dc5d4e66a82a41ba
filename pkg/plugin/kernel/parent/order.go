// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package parent

import (
	"cmp"
	"context"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
)

// SortByPCI sorts links as rails.order "pci" does: by PCI function and port, then by
// name. A bond has the place of its first slave. Links that are on no PCI bus come last.
// all are the links of the namespace, and sys is the root of sysfs.
func SortByPCI(links, all []rtnl.Link, sys fs.FS) {
	slaves := bonds(all, sys)
	key := func(l rtnl.Link) seat {
		at := candidate{Link: l, slaves: slaves[l.Index]}.onBus(sys)
		at.name = l.Name
		return at
	}
	slices.SortFunc(links, func(a, b rtnl.Link) int { return key(a).compare(key(b)) })
}

// seat is the sort key of a NIC. The first field that differs decides.
type seat struct {
	none   bool   // it is on no PCI bus: sorted after all that are
	pci    pciID  // of the function
	device string // RDMA device
	port   int    // of the function, or of the RDMA device
	name   string
}

func (a seat) compare(b seat) int {
	return cmp.Or(
		cmp.Compare(number(a.none), number(b.none)),
		slices.Compare(a.pci[:], b.pci[:]),
		Natural(a.device, b.device),
		cmp.Compare(a.port, b.port),
		Natural(a.name, b.name),
	)
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// pciID is a PCI address: domain, bus, device, function.
type pciID [4]uint64

func parsePCI(s string) (id pciID, ok bool) {
	parts := strings.FieldsFunc(s, func(r rune) bool { return r == ':' || r == '.' })
	if len(parts) != len(id) {
		return pciID{}, false
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 32)
		if err != nil {
			return pciID{}, false
		}
		id[i] = n
	}
	return id, true
}

// onBus returns the seat of a link by its PCI function. That is the function of
// the link, or the one that its auxiliary or virtio device belongs to; the path
// of the device's folder in sysfs names it. Ports of one function are sorted by
// the port number in sysfs.
func (c candidate) onBus(sys fs.FS) seat {
	c = c.hardware()[0]
	dir, id := c.device(sys)
	at := seat{port: c.port(sys)}
	if pci, ok := parsePCI(id); ok {
		at.pci = pci
		return at
	}
	path, err := fs.ReadLink(sys, dir)
	if err == nil {
		for _, part := range slices.Backward(strings.Split(path, "/")) {
			if pci, ok := parsePCI(part); ok {
				at.pci = pci
				return at
			}
		}
	}
	return seat{none: true}
}

// port returns the number of the link's port, from 0 (net/core/net-sysfs.c).
func (c candidate) port(sys fs.FS) int {
	n, _ := strconv.Atoi(discover.Text(sys, "class/net/"+c.Name+"/dev_port")) // 0 without the file
	return n
}

// devicePorts returns the seats of the links that belong to RDMA devices, by
// index of the link. If several devices have a link, the first device counts.
func (s search) devicePorts() (map[int32]seat, error) {
	links, err := s.links()
	if err != nil {
		return nil, err
	}
	known, err := s.devices()
	if err != nil {
		return nil, err
	}
	var all []string
	for _, d := range known.Devices {
		all = append(all, d.Name)
	}
	for _, f := range discover.Files(s.sys) { // also those that pods have
		all = append(all, f.Device)
	}
	slices.SortFunc(all, Natural)
	out := map[int32]seat{}
	for _, device := range slices.Compact(all) {
		for port, index := range through(links, known, device, s.sys) {
			if _, has := out[index]; !has {
				out[index] = seat{device: device, port: port}
			}
		}
	}
	return out, nil
}

// Natural compares names, numbers in them by value: mlx5_2 before mlx5_10.
func Natural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		p, q := leading(x), leading(y)
		n, errN := strconv.ParseUint(p, 10, 64)
		m, errM := strconv.ParseUint(q, 10, 64)
		order := strings.Compare(p, q)
		if errN == nil && errM == nil {
			order = cmp.Compare(n, m)
		}
		if order != 0 {
			return order
		}
		x, y = x[len(p):], y[len(q):]
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(a, b))
}

// leading returns the digits at the beginning of s, or, if there are none,
// everything before the first digit.
func leading(s string) string {
	digit := func(r rune) bool { return r >= '0' && r <= '9' }
	first := digit(rune(s[0]))
	end := strings.IndexFunc(s, func(r rune) bool { return digit(r) != first })
	if end < 0 {
		return s
	}
	return s[:end]
}

// Layers returns the index of a link, then the indexes of the links directly
// below it, and so on down: see plan.Link. For a link with nothing below it,
// Layers asks the kernel nothing.
func Layers(ctx context.Context, c Namespace, l rtnl.Link) ([][]int32, error) {
	out := [][]int32{{l.Index}}
	if !stacked(l) {
		return out, nil
	}
	links, err := c.Links(ctx)
	if err != nil {
		return nil, err
	}
	for layer := below(links, []int32{l.Index}); len(layer) > 0 && len(out) <= len(links); {
		out = append(out, layer)
		layer = below(links, layer)
	}
	return out, nil
}

// stacked says whether a link sends its frames through lower links. A veth is
// not stacked: its lower link is its other end.
func stacked(l rtnl.Link) bool {
	return aggregates(l.Kind) || slices.Contains([]string{"vlan", "macvlan", "macvtap"}, l.Kind)
}

func aggregates(kind string) bool { return kind == "bond" || kind == "team" }

// below returns the links directly below the links of a layer. It leaves out a
// lower link in another namespace, because its index means nothing here.
func below(links []rtnl.Link, layer []int32) []int32 {
	var out []int32
	for _, l := range links {
		if aggregates(l.SlaveKind) && slices.Contains(layer, l.Master) {
			out = append(out, l.Index)
		}
		if slices.Contains(layer, l.Index) && stacked(l) && l.Lower.Index != 0 && l.Lower.NSID == rtnl.NoNSID {
			out = append(out, l.Lower.Index)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Top returns the index of the link that takes the frames of a link: the bond,
// if the link is a slave, or else the link itself.
func Top(links []rtnl.Link, index int32) int32 {
	for _, l := range links {
		if l.Index == index && aggregates(l.SlaveKind) {
			return l.Master
		}
	}
	return index
}
