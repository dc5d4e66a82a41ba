// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nic

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// GPU is a GPU and how far it is from a NIC.
type GPU struct {
	// Name is "GPU" and the position in the order of PCI addresses, which is the order
	// of nvidia-smi.
	Name     string   `json:"name"`
	PCI      string   `json:"pci"`
	Distance Distance `json:"distance"`
}

// Distance is how far two PCI functions are from each other, in the words of
// nvidia-smi topo.
type Distance string

// The distances, nearest first.
const (
	PIX  Distance = "PIX"  // at most one PCIe switch between them
	PXB  Distance = "PXB"  // several switches, and no root complex
	PHB  Distance = "PHB"  // through the root complex of one host bridge
	NODE Distance = "NODE" // through several host bridges of one NUMA node
	SYS  Distance = "SYS"  // through the connection between NUMA nodes
)

func distances() []Distance { return []Distance{PIX, PXB, PHB, NODE, SYS} }

func (n Node) nearest(pci string) []GPU {
	all := n.gpus()
	best := len(distances())
	rank := func(g GPU) int { return slices.Index(distances(), g.Distance) }
	for i := range all {
		all[i].Distance = n.distance(pci, all[i].PCI)
		if r := rank(all[i]); r >= 0 {
			best = min(best, r)
		}
	}
	return slices.DeleteFunc(all, func(g GPU) bool { return rank(g) != best })
}

// gpus returns the GPUs of the node: NVIDIA's display controllers, and the 3D
// controllers, AI accelerators and compute GPUs of all vendors. A server's own graphics
// chip is none.
func (n Node) gpus() []GPU {
	entries, _ := fs.ReadDir(n.Sys, "bus/pci/devices")
	var out []GPU
	for _, e := range entries { // in the order of their addresses
		dir := "bus/pci/devices/" + e.Name()
		class, vendor := n.text(dir+"/class"), n.text(dir+"/vendor")
		compute := slices.ContainsFunc([]string{"0x0302", "0x0380", "0x1200"}, func(c string) bool { return strings.HasPrefix(class, c) })
		if compute || vendor == "0x10de" && strings.HasPrefix(class, "0x0300") {
			out = append(out, GPU{Name: fmt.Sprintf("GPU%d", len(out)), PCI: e.Name()})
		}
	}
	return out
}

// distance returns the distance of two functions, "" if the place of one is unknown.
func (n Node) distance(a, b string) Distance {
	x, y := n.place(a), n.place(b)
	if len(x) == 0 || len(y) == 0 {
		return ""
	}
	common := 0
	for common < min(len(x), len(y))-1 && x[common] == y[common] {
		common++
	}
	switch {
	case common == 0 && n.text("bus/pci/devices/"+a+"/numa_node") == n.text("bus/pci/devices/"+b+"/numa_node"):
		return NODE
	case common == 0:
		return SYS
	case common == 1: // only the host bridge
		return PHB
	case max(len(x), len(y))-common <= 2: // a port of the switch and the function
		return PIX
	}
	return PXB
}

// place returns the way from the host bridge to a function: "pci0000:5d",
// "0000:5d:00.0", "0000:5e:00.0"; none if it is unknown.
func (n Node) place(pci string) []string {
	target, _ := fs.ReadLink(n.Sys, "bus/pci/devices/"+pci)
	part := regexp.MustCompile(`^(pci)?[0-9a-f]{4,}:[0-9a-f]{2}(:[0-9a-f]{2}\.[0-7])?$`)
	return slices.DeleteFunc(strings.Split(target, "/"), func(s string) bool { return !part.MatchString(s) })
}
