// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (l *look) nicFirmware() []report.Finding {
	byDriver := map[string]map[nic.Driver][]string{}
	var out []report.Finding
	for _, p := range l.ports() {
		if p.Device.Protocol != roce || p.Own == nil {
			continue
		}
		link := p.Cables()[0]
		d, err := l.Driver(link)
		if err != nil {
			out = append(out, cannotTell("its driver does not answer: "+err.Error(), "a driver with ethtool -i").About(link))
			continue
		}
		if byDriver[d.Name] == nil {
			byDriver[d.Name] = map[nic.Driver][]string{}
		}
		byDriver[d.Name][d] = append(byDriver[d.Name][d], link)
	}
	for _, name := range slices.Sorted(maps.Keys(byDriver)) {
		out = append(out, sameVersion(byDriver[name]).About(name))
	}
	return orOK(out, noInterface)
}

// noInterface is what there is to say of NICs if there is none.
const noInterface = "the node has no RoCE NIC with an interface"

// versions names both. A driver of a virtual NIC reports no firmware.
func versions(d nic.Driver) string {
	return fmt.Sprintf("version %s, firmware %s", cmp.Or(d.Version, "unknown"), cmp.Or(d.Firmware, "unknown"))
}

// sameVersion judges the NICs of a driver. Most NICs are taken for right.
func sameVersion(nics map[nic.Driver][]string) report.Finding {
	all := slices.SortedFunc(maps.Keys(nics), func(a, b nic.Driver) int {
		return cmp.Or(len(nics[b])-len(nics[a]), slices.Compare(nics[a], nics[b]))
	})
	most := all[0]
	if len(all) == 1 {
		return ok("%s", versions(most))
	}
	found := ""
	for _, d := range all {
		found += fmt.Sprintf("; %v: %s", nics[d], versions(d))
	}
	return problem(found[2:], shell.Command("ethtool -i %s", nics[all[1]][0])+"  # then update the firmware as the vendor says (mlxfwmanager), and reboot")
}

func (l *look) pcieLink() []report.Finding {
	return orOK(each(l, deviceNames(l.system()), (*look).pcie), "no RDMA device has a PCIe link of its own")
}

// pcie judges the link of a device. It says nothing of a device without one, such as
// Soft-RoCE's, and of a VF, which has the link of its PF.
func (l *look) pcie(device string) report.Finding {
	dir := "sys/class/infiniband/" + device + "/device/"
	if there, err := l.has(dir + "max_link_speed"); err == nil && !there {
		return report.Finding{}
	}
	if vf, err := l.has(dir + "physfn"); err == nil && vf {
		return report.Finding{}
	}
	read := func(name string) string { return l.read(dir+name, "its link cannot be read: ", sysInfiniband) }
	fast, wide, most := read("current_link_speed"), read("current_link_width"), read("max_link_speed")
	speed, fastest := gigatransfers(fast), gigatransfers(most)
	width, widest := lanes(wide), lanes(read("max_link_width"))
	if speed == 0 || fastest == 0 || width == 0 || widest == 0 {
		return cannotTell(fmt.Sprintf("its link is %s x%s", fast, wide), "a kernel that knows the speed: lspci -vv shows LnkSta")
	}
	found := fmt.Sprintf("%s x%d", fast, width)
	if speed < fastest || width < widest {
		return problem(fmt.Sprintf("%s, of %s x%d that the NIC can have", found, most, widest),
			"lspci -vv -s "+l.pci(device)+" | grep LnkSta  # then reseat the card, use a slot with all lanes, and look at the BIOS settings of the slot")
	}
	return ok("%s", found)
}

// gigatransfers reads "16.0 GT/s PCIe"; 0 for what is unknown.
func gigatransfers(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	v, _ := strconv.ParseFloat(number, 64)
	return v
}

// lanes reads a width; 0 for what is unknown.
func lanes(text string) int {
	v, _ := strconv.Atoi(text)
	if v > 64 { // 255: unknown
		return 0
	}
	return v
}

func (l *look) gpuDirect() []report.Finding {
	switch {
	case !l.module("nvidia"):
		return []report.Finding{ok("no driver of NVIDIA GPUs is loaded")}
	case l.module("nvidia_peermem"):
		return []report.Finding{ok("nvidia_peermem is loaded")}
	}
	version := l.read("proc/driver/nvidia/version", "nvidia_peermem is not loaded: ", "/proc/driver/nvidia/version, which says whether the open kernel modules run")
	if strings.Contains(version, "Open Kernel Module") {
		return []report.Finding{ok("by dmabuf: NVIDIA's open kernel modules run")}
	}
	return []report.Finding{problem("nvidia_peermem is not loaded, and NVIDIA's closed kernel modules have no dmabuf",
		"modprobe nvidia_peermem && echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf")}
}

// pcieACS asks whether the bridges above the NICs send what goes from one device to
// another up to the root complex. It matters where there are GPUs.
func (l *look) pcieACS() []report.Finding {
	if nvidia, amd := l.module("nvidia"), l.module("amdgpu"); !nvidia && !amd {
		return []report.Finding{ok("no driver of GPUs is loaded")}
	}
	return orOK(each(l, deviceNames(l.system()), (*look).bridges), "no RDMA device")
}

// bridges judges those between a device and the root of its bus.
func (l *look) bridges(device string) report.Finding {
	path, err := fs.ReadLink(l.Root, "sys/class/infiniband/"+device)
	l.need(err, "its place on the bus cannot be read: ", sysInfiniband)
	// ../../devices/pci0000:5d/0000:5d:00.0/0000:5e:00.0/infiniband/mlx5_0
	address := regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	above := slices.DeleteFunc(strings.Split(path, "/"), func(part string) bool { return !address.MatchString(part) })
	if len(above) == 0 {
		return ok("it is on no PCI bus")
	}
	above = above[:len(above)-1] // without the device itself
	var redirecting []string
	for _, bridge := range above {
		config, err := fs.ReadFile(l.Root, "sys/bus/pci/devices/"+bridge+"/config")
		l.need(err, "the bridge "+bridge+" cannot be read: ", "the right to read /sys/bus/pci")
		if len(config) <= extended {
			l.lacks(fmt.Sprintf("of the bridge %s only %d bytes can be read", bridge, len(config)), "root on the node")
		}
		if redirects(config) {
			redirecting = append(redirecting, bridge)
		}
	}
	if len(redirecting) == 0 {
		return ok("%s above it, none redirects", report.Count(len(above), "bridge"))
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

// nicQoS asks whether all RoCE NICs treat their traffic alike, and whether what they do for
// it fits together. Whether a rail should be lossless depends on the switches, so that is for
// people.
func (l *look) nicQoS() []report.Finding {
	nics := map[nic.QoS][]string{}
	var out []report.Finding
	for _, p := range l.ports() {
		if p.Device.Protocol != roce || p.Own == nil {
			continue
		}
		for i, link := range p.Cables() {
			if vf, err := l.has("sys/class/net/" + link + "/device/physfn"); err == nil && vf {
				continue // it has the settings of its PF
			}
			q, err := l.QoS(link)
			if err != nil {
				out = append(out, cannotTell("its driver does not tell PFC: "+err.Error(), shell.Command("mlnx_qos -i %s", link)+", or the tool of the NIC's vendor").About(link))
				continue
			}
			nics[q] = append(nics[q], link)
			if f := l.forced(p, q); f.Verdict != "" && i == 0 {
				out = append(out, f)
			}
		}
	}
	if len(nics) > 1 {
		out = append(out, differentQoS(nics))
	}
	for _, q := range slices.SortedFunc(maps.Keys(nics), func(a, b nic.QoS) int { return cmp.Compare(nics[a][0], nics[b][0]) }) {
		out = append(out, fitting(q, nics[q], len(nics) > 1)...)
	}
	return orOK(out, noInterface)
}

func differentQoS(nics map[nic.QoS][]string) report.Finding {
	var found []string
	for q, names := range nics {
		found = append(found, strings.Join(names, ", ")+": "+q.String())
	}
	slices.Sort(found)
	return problem(strings.Join(found, "; "), "dcb pfc show; dcb app show  # then set the same on all: dcb pfc set dev NIC prio-pfc 3:on, or mlnx_qos -i NIC --pfc 0,0,0,1,0,0,0,0 --trust dscp")
}

// fitting judges the settings of NICs. told says that they are in another finding already.
func fitting(q nic.QoS, links []string, told bool) (out []report.Finding) {
	names := strings.Join(links, ", ")
	if q.PFC != 0 && len(q.Lossless()) == 0 {
		out = append(out, cannotTell(fmt.Sprintf("%s: no DSCP leads to priority %s, so only packets with a VLAN tag of this priority have PFC", names, q.PFC),
			shell.Command("a mapping (dcb app add dev %s dscp-prio DSCP:PRIORITY; mlnx_qos -i %s --trust dscp), or to know that programs set this priority (SL) on a VLAN", links[0], links[0])))
	}
	if lossy := q.PFC &^ q.ECN; q.TellsECN && lossy != 0 {
		out = append(out, problem(fmt.Sprintf("%s: ECN is off for priority %s, which has PFC: the switch pauses the port before a sender slows down", names, lossy),
			shell.Command("echo 1 >/sys/class/net/%[1]s/ecn/roce_np/enable/%[2]d\necho 1 >/sys/class/net/%[1]s/ecn/roce_rp/enable/%[2]d  # and so for each NIC and priority", links[0], bits.TrailingZeros8(uint8(lossy)))))
	}
	if len(out) == 0 && !told {
		out = append(out, ok("%s: %s", names, q))
	}
	if !q.TellsECN {
		out = append(out, cannotTell(names+": its driver does not tell ECN", "the tool of the NIC's vendor, or NVIDIA's own driver; and the configuration of the switches"))
	}
	return out
}

// forced finds a traffic class that the driver gives to all packets of a port, and that has no PFC
// although another one has. Only NVIDIA's own driver has this setting.
func (n Node) forced(p nic.Port, q nic.QoS) report.Finding {
	file := fmt.Sprintf("sys/class/infiniband/%s/tc/%d/traffic_class", p.Device.Name, p.Number)
	text, _ := n.text(file) // no other driver has it
	var class int
	if _, err := fmt.Sscanf(text, "Global tclass=%d", &class); err != nil || class < 0 || class > 255 || len(q.Lossless()) == 0 || q.DSCP[class>>2]&q.PFC != 0 {
		return report.Finding{}
	}
	return problem(fmt.Sprintf("its driver gives all packets traffic class %d, which is DSCP %d, and that has no PFC: %s", class, class>>2, q),
		shell.Command("echo %d >/%s", q.Lossless()[0]<<2, file)+"  # the DSCP of your switches, times 4").About(p.String())
}
