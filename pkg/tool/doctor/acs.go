// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// pcieACS asks whether the bridges above the NICs send what goes from one device to
// another up to the root complex. It matters where there are GPUs.
func pcieACS() Check {
	return Check{
		Name: "pcie-acs",
		Asks: "do PCIe bridges let NICs and GPUs talk to each other directly (ACS off)?",
		Why:  "GPUDirect RDMA then goes through the root complex of the CPU, which is slower and may hang on some platforms",
		look: func(ctx context.Context, n Node) []report.Finding {
			gpus := false
			for _, m := range []string{"nvidia", "amdgpu"} {
				there, err := n.has("sys/module/" + m)
				if err != nil {
					return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
				}
				gpus = gpus || there
			}
			if !gpus {
				return []report.Finding{ok("no driver of GPUs is loaded")}
			}
			s, err := n.RDMA(ctx)
			if err != nil {
				return unlisted(err)
			}
			var out []report.Finding
			for _, d := range s.Devices {
				out = append(out, n.bridges(d.Name).About(d.Name))
			}
			if len(out) == 0 {
				return []report.Finding{ok("no RDMA device")}
			}
			return out
		},
	}
}

// bridges judges those between a device and the root of its bus.
func (n Node) bridges(device string) report.Finding {
	path, err := fs.ReadLink(n.Root, "sys/class/infiniband/"+device)
	if err != nil {
		return cannotTell("its place on the bus cannot be read: "+err.Error(), "the right to read /sys/class/infiniband")
	}
	// ../../devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/infiniband/mlx5_0
	address := regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	above := slices.DeleteFunc(strings.Split(path, "/"), func(part string) bool { return !address.MatchString(part) })
	if len(above) == 0 {
		return ok("it is on no PCI bus")
	}
	above = above[:len(above)-1] // without the device itself
	var redirecting []string
	for _, bridge := range above {
		config, err := fs.ReadFile(n.Root, "sys/bus/pci/devices/"+bridge+"/config")
		if err != nil {
			return cannotTell("the bridge "+bridge+" cannot be read: "+err.Error(), "the right to read /sys/bus/pci")
		}
		if len(config) <= extended {
			return cannotTell(fmt.Sprintf("of the bridge %s only %d bytes can be read", bridge, len(config)), "root on the node")
		}
		if redirects(config) {
			redirecting = append(redirecting, bridge)
		}
	}
	if len(redirecting) == 0 {
		return ok("%s above it, none redirects", count(len(above), "bridge"))
	}
	var fix []string
	for _, bridge := range redirecting {
		fix = append(fix, shell.Command("setpci -s %s", bridge)+" ECAP_ACS+0x6.w=0000")
	}
	return problem("redirected by "+strings.Join(redirecting, ", "),
		strings.Join(fix, "\n")+"\n# until the next boot; for good in the BIOS. In a virtual machine ACS must stay: use ATS")
}

// What of a PCIe configuration space is looked at (PCI Express Base Specification,
// 7.6.3 and 7.7.11).
const (
	extended    = 0x100 // where the extended capabilities start
	acsID       = 0x0d
	acsControl  = 6    // offset of the control register
	acsRedirect = 0x0c // requests and completions from peer to peer
)

// redirects says whether a bridge has ACS on for traffic between its ports.
func redirects(config []byte) bool {
	// Each capability names the offset of the next one. There cannot be more than fit.
	for at, n := extended, 0; at >= extended && at+8 <= len(config) && n < len(config)/8; n++ {
		header := binary.LittleEndian.Uint32(config[at:])
		if header&0xffff == acsID {
			return binary.LittleEndian.Uint16(config[at+acsControl:])&acsRedirect != 0
		}
		at = int(header >> 20)
	}
	return false
}
