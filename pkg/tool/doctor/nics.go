// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"cmp"
	"context"
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

func (n Node) nicFirmware(ctx context.Context) []report.Finding {
	ports, unknown := n.ports(ctx)
	if unknown != nil {
		return unknown
	}
	byDriver := map[string]map[nic.Driver][]string{}
	var out []report.Finding
	for _, p := range ports {
		if p.Device.Protocol != roce || p.Own == nil {
			continue
		}
		link := p.Cables()[0]
		d, err := n.Driver(link)
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
	if len(out) == 0 {
		return []report.Finding{ok("the node has no RoCE NIC with an interface")}
	}
	return out
}

// versions names both. A driver of a virtual NIC reports no firmware.
func versions(d nic.Driver) string {
	return fmt.Sprintf("version %s, firmware %s", cmp.Or(d.Version, "unknown"), cmp.Or(d.Firmware, "unknown"))
}

// sameVersion judges the NICs of a driver. Most NICs are taken for right.
func sameVersion(nics map[nic.Driver][]string) report.Finding {
	all := slices.SortedFunc(maps.Keys(nics), func(a, b nic.Driver) int {
		if n := len(nics[b]) - len(nics[a]); n != 0 {
			return n
		}
		return slices.Compare(nics[a], nics[b])
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

func (n Node) pcieLink(ctx context.Context) []report.Finding {
	return n.eachDevice(ctx, "no RDMA device has a PCIe link of its own", n.pcie)
}

// pcie judges the link of a device. is is false for a device without one, such as
// Soft-RoCE's, and for a VF, which has the link of its PF.
func (n Node) pcie(device string) (f report.Finding, is bool) {
	dir := "sys/class/infiniband/" + device + "/device/"
	if there, err := n.has(dir + "max_link_speed"); err == nil && !there {
		return f, false
	}
	if vf, err := n.has(dir + "physfn"); err == nil && vf {
		return f, false
	}
	var v [4]string
	for i, name := range []string{"current_link_speed", "max_link_speed", "current_link_width", "max_link_width"} {
		text, err := n.text(dir + name)
		if err != nil {
			return cannotTell("its link cannot be read: "+err.Error(), "the right to read /sys/class/infiniband"), true
		}
		v[i] = text
	}
	speed, fastest := gigatransfers(v[0]), gigatransfers(v[1])
	width, widest := lanes(v[2]), lanes(v[3])
	if speed == 0 || fastest == 0 || width == 0 || widest == 0 {
		return cannotTell(fmt.Sprintf("its link is %s x%s", v[0], v[2]), "a kernel that knows the speed: lspci -vv shows LnkSta"), true
	}
	found := fmt.Sprintf("%s x%d", v[0], width)
	if speed < fastest || width < widest {
		return problem(fmt.Sprintf("%s, of %s x%d that the NIC can have", found, v[1], widest),
			"lspci -vv -s "+n.pci(device)+" | grep LnkSta  # then reseat the card, use a slot with all lanes, and look at the BIOS settings of the slot"), true
	}
	return ok("%s", found), true
}

// gigatransfers reads "16.0 GT/s PCIe"; 0 for what is unknown.
func gigatransfers(text string) float64 {
	number, _, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0
	}
	return v
}

// lanes reads a width; 0 for what is unknown.
func lanes(text string) int {
	v, err := strconv.Atoi(text)
	if err != nil || v > 64 { // 255: unknown
		return 0
	}
	return v
}

func (n Node) gpuDirect(_ context.Context) []report.Finding {
	var loaded [2]bool
	for i, m := range []string{"nvidia", "nvidia_peermem"} {
		there, err := n.has("sys/module/" + m)
		if err != nil {
			return []report.Finding{cannotTell(err.Error(), "the right to read /sys/module")}
		}
		loaded[i] = there
	}
	switch {
	case !loaded[0]:
		return []report.Finding{ok("no driver of NVIDIA GPUs is loaded")}
	case loaded[1]:
		return []report.Finding{ok("nvidia_peermem is loaded")}
	}
	version, err := n.text("proc/driver/nvidia/version")
	if err != nil {
		return []report.Finding{cannotTell("nvidia_peermem is not loaded: "+err.Error(), "/proc/driver/nvidia/version, which says whether the open kernel modules run")}
	}
	if strings.Contains(version, "Open Kernel Module") {
		return []report.Finding{ok("by dmabuf: NVIDIA's open kernel modules run")}
	}
	return []report.Finding{problem("nvidia_peermem is not loaded, and NVIDIA's closed kernel modules have no dmabuf",
		"modprobe nvidia_peermem && echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf")}
}

// pcieACS asks whether the bridges above the NICs send what goes from one device to
// another up to the root complex. It matters where there are GPUs.
func (n Node) pcieACS(ctx context.Context) []report.Finding {
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
	return n.eachDevice(ctx, "no RDMA device", func(device string) (report.Finding, bool) { return n.bridges(device), true })
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
func (n Node) nicQoS(ctx context.Context) []report.Finding {
	ports, unknown := n.ports(ctx)
	if unknown != nil {
		return unknown
	}
	nics := map[nic.QoS][]string{}
	var out []report.Finding
	for _, p := range ports {
		if p.Device.Protocol != roce || p.Own == nil {
			continue
		}
		for i, link := range p.Cables() {
			if vf, err := n.has("sys/class/net/" + link + "/device/physfn"); err == nil && vf {
				continue // it has the settings of its PF
			}
			q, err := n.QoS(link)
			if err != nil {
				out = append(out, cannotTell("its driver does not tell PFC: "+err.Error(), shell.Command("mlnx_qos -i %s", link)+", or the tool of the NIC's vendor").About(link))
				continue
			}
			nics[q] = append(nics[q], link)
			if f, wrong := n.forced(p, q); wrong && i == 0 {
				out = append(out, f)
			}
		}
	}
	if len(nics)+len(out) == 0 {
		return []report.Finding{ok("the node has no RoCE NIC with an interface")}
	}
	if len(nics) > 1 {
		out = append(out, differentQoS(nics))
	}
	for _, q := range slices.SortedFunc(maps.Keys(nics), func(a, b nic.QoS) int { return cmp.Compare(nics[a][0], nics[b][0]) }) {
		out = append(out, fitting(q, nics[q], len(nics) > 1)...)
	}
	return out
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
func (n Node) forced(p nic.Port, q nic.QoS) (f report.Finding, wrong bool) {
	file := fmt.Sprintf("sys/class/infiniband/%s/tc/%d/traffic_class", p.Device.Name, p.Number)
	text, err := n.text(file)
	var class int
	if err != nil || len(q.Lossless()) == 0 {
		return f, false
	}
	if _, err := fmt.Sscanf(text, "Global tclass=%d", &class); err != nil || class < 0 || class > 255 || q.DSCP[class>>2]&q.PFC != 0 {
		return f, false
	}
	return problem(fmt.Sprintf("its driver gives all packets traffic class %d, which is DSCP %d, and that has no PFC: %s", class, class>>2, q),
		shell.Command("echo %d >/%s", q.Lossless()[0]<<2, file)+"  # the DSCP of your switches, times 4").About(p.String()), true
}
