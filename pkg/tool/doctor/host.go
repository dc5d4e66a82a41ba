// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (n Node) machineID(_ context.Context) []report.Finding {
	id, err := n.text("etc/machine-id")
	switch {
	case isNotExist(err):
		return []report.Finding{problem("/etc/machine-id is missing", "systemd-machine-id-setup")}
	case err != nil:
		return []report.Finding{cannotTell(err.Error(), "the right to read /etc/machine-id")}
	case !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id):
		return []report.Finding{problem("/etc/machine-id has no 32 hexadecimal digits", "rm /etc/machine-id && systemd-machine-id-setup")}
	}
	return []report.Finding{ok("%s", id)}
}

func (n Node) settings(_ context.Context) []report.Finding {
	switch err := n.Settings; {
	case err == nil:
		return []report.Finding{ok("%s, or the defaults without it", conf.SettingsFile)}
	case errors.Is(err, fs.ErrPermission):
		return []report.Finding{cannotTell(err.Error(), "root, to read "+conf.SettingsFile)}
	default:
		return []report.Finding{problem(err.Error(), "# in "+conf.SettingsFile+": "+cnierr.CNI("", err).Details)}
	}
}

// memlock asks how much memory a container may lock. It inherits the limit of its
// runtime, because Kubernetes has no field for it.
func (n Node) memlock(_ context.Context) []report.Finding {
	memory, err := n.memory()
	if err != nil {
		return []report.Finding{cannotTell("how much memory the node has: "+err.Error(), "the right to read /proc/meminfo")}
	}
	var out []report.Finding
	for _, name := range n.files("proc/[0-9]*/comm") {
		comm, err := n.text(name)
		if err == nil && slices.Contains([]string{"containerd", "crio", "dockerd"}, comm) && !n.inPod(path.Dir(name)) {
			out = append(out, n.limit(comm, path.Dir(name), memory).About(comm))
		}
	}
	if len(out) == 0 {
		return []report.Finding{cannotTell("no process is called containerd, crio or dockerd", "the PID namespace of the node (hostPID in a pod), or another name of the runtime")}
	}
	return out
}

// inPod says whether a process has a PID namespace of its own, as those of most pods. They may
// have any name.
func (n Node) inPod(process string) bool {
	text, err := n.text(process + "/status")
	if err != nil {
		return false // its limits tell more
	}
	for line := range strings.Lines(text) {
		if numbers, found := strings.CutPrefix(line, "NSpid:"); found {
			return len(strings.Fields(numbers)) > 1
		}
	}
	return false // a kernel without PID namespaces
}

// memory returns the memory of the node, in bytes.
func (n Node) memory() (uint64, error) {
	text, err := n.text("proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) >= 2 && words[0] == "MemTotal:" {
			kib, err := strconv.ParseUint(words[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

func (n Node) limit(runtime, process string, memory uint64) report.Finding {
	text, err := n.text(process + "/limits")
	if err != nil {
		return cannotTell("its limits cannot be read: "+err.Error(), "root on the node")
	}
	for line := range strings.Lines(text) {
		rest, found := strings.CutPrefix(line, "Max locked memory")
		if !found {
			continue
		}
		soft := strings.Fields(rest + " ?")[0]
		if soft == "unlimited" {
			return ok("no limit")
		}
		bytes, err := strconv.ParseUint(soft, 10, 64)
		if err != nil {
			break
		}
		if bytes >= memory {
			return ok("%d MiB, which is all that the node has", bytes>>20)
		}
		return problem(fmt.Sprintf("%d KiB of the %d MiB of the node", bytes>>10, memory>>20),
			fmt.Sprintf("mkdir -p /etc/systemd/system/%[1]s.service.d && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > /etc/systemd/system/%[1]s.service.d/memlock.conf && systemctl daemon-reload && systemctl restart %[1]s  # pods that run keep the old limit",
				n.unit(runtime, process)))
	}
	return cannotTell("its limits have no line for locked memory", "a kernel with the line Max locked memory in /proc/PID/limits")
}

// unit returns the systemd unit of a runtime: that of k3s also runs containerd.
func (n Node) unit(runtime, process string) string {
	group, _ := n.text(process + "/cgroup") // without it, the usual name
	if m := regexp.MustCompile(`/([\w.@-]+)\.service(/|$)`).FindStringSubmatch(group); m != nil {
		return m[1]
	}
	return map[string]string{"containerd": "containerd", "crio": "crio", "dockerd": "docker"}[runtime]
}

// hostARP asks whether the node answers ARP on the NIC that has the address, where
// several RoCE NICs have addresses of one subnet. Pods have their own settings, which
// ADD makes.
func (n Node) hostARP(ctx context.Context) []report.Finding {
	ports, unknown := n.ports(ctx)
	if unknown != nil {
		return unknown
	}
	addrs, err := n.Addrs(ctx)
	if err != nil {
		return []report.Finding{cannotTell("the addresses cannot be listed: "+err.Error(), "root in the network namespace of the node")}
	}
	var nics []addressed
	for _, p := range ports {
		link := p.Interface()
		if link == nil {
			continue
		}
		a := addressed{name: link.Name}
		for _, addr := range addrs {
			if addr.Index == link.Index && addr.Prefix.Addr().Is4() {
				a.addrs = append(a.addrs, addr.Prefix)
			}
		}
		nics = append(nics, a)
	}
	var out []report.Finding
	for _, i := range nics {
		if i.shares(nics) {
			out = append(out, n.apart(i.name).About(i.name))
		}
	}
	if len(out) == 0 {
		return []report.Finding{ok("no two RoCE NICs of the node have addresses of one subnet")}
	}
	return out
}

// addressed is an interface with its IPv4 addresses.
type addressed struct {
	name  string
	addrs []netip.Prefix
}

// shares says whether another NIC has an address in a subnet of this one.
func (i addressed) shares(all []addressed) bool {
	for _, a := range i.addrs {
		for _, other := range all {
			for _, b := range other.addrs {
				if other.name != i.name && a.Contains(b.Addr()) {
					return true
				}
			}
		}
	}
	return false
}

// apart judges the settings of an interface. Of a setting and that of "all" the
// kernel takes the larger (IN_DEV_MAXCONF).
func (n Node) apart(name string) report.Finding {
	value := map[string]int{}
	for _, key := range []string{"arp_ignore", "arp_announce", "rp_filter"} {
		for _, of := range []string{"all", name} {
			// Slashes, because the name of an interface may have a dot.
			v, err := n.number("net/ipv4/conf/" + of + "/" + key)
			if err != nil {
				return cannotTell(fmt.Sprintf("%s of %s cannot be read: %v", key, of, err), "the network namespace of the node")
			}
			value[key] = max(value[key], v)
		}
	}
	found := fmt.Sprintf("arp_ignore=%d arp_announce=%d rp_filter=%d", value["arp_ignore"], value["arp_announce"], value["rp_filter"])
	var fix []string
	if value["arp_ignore"] == 0 {
		fix = append(fix, shell.Word("net/ipv4/conf/"+name+"/arp_ignore")+"=1")
	}
	if value["arp_announce"] < 2 {
		fix = append(fix, shell.Word("net/ipv4/conf/"+name+"/arp_announce")+"=2")
	}
	if value["rp_filter"] == 1 {
		fix = append(fix, shell.Word("net/ipv4/conf/"+name+"/rp_filter")+"=2")
	}
	if len(fix) == 0 {
		return ok("%s", found)
	}
	return problem(found+", and another RoCE NIC has an address of the same subnet", "sysctl -w "+strings.Join(fix, " ")+"  # and so in /etc/sysctl.d")
}

// networkManagers asks who configures the RoCE interfaces of the node. Children of pods
// are made in the pods, where neither program sees them.
func (n Node) networkManagers(ctx context.Context) []report.Finding {
	return n.eachPort(ctx, func(p nic.Port) report.Finding {
		if p.Own == nil {
			return ok("its interface is in another namespace")
		}
		return n.managers(p.Own.Name, p.Own.Index)
	})
}

// managers judges an interface by the files in which both programs keep its state.
func (n Node) managers(name string, index int32) report.Finding {
	networkd, err := n.setting(fmt.Sprintf("run/systemd/netif/links/%d", index), "ADMIN_STATE")
	if err != nil {
		return cannotTell("what systemd-networkd does with "+name+": "+err.Error(), "the right to read /run/systemd/netif")
	}
	manager, err := n.setting(fmt.Sprintf("run/NetworkManager/devices/%d", index), "managed")
	if err != nil {
		return cannotTell("what NetworkManager does with "+name+": "+err.Error(), "the right to read /run/NetworkManager")
	}
	var by []string
	if networkd != "" && networkd != "unmanaged" {
		by = append(by, "systemd-networkd")
	}
	if manager == "true" {
		by = append(by, "NetworkManager")
	}
	switch len(by) {
	case 0:
		return ok("neither manages %s", name)
	case 1:
		return ok("%s manages %s", by[0], name)
	}
	return problem("both systemd-networkd and NetworkManager manage "+name,
		shell.Command(`printf '[keyfile]\nunmanaged-devices+=interface-name:%%s\n' %s > %s && nmcli general reload`, name, "/etc/NetworkManager/conf.d/"+name+".conf"))
}

// setting returns a value of a file with lines KEY=VALUE, "" if there is no file or
// no such line.
func (n Node) setting(name, key string) (string, error) {
	text, err := n.text(name)
	if isNotExist(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), key+"="); found {
			return value, nil
		}
	}
	return "", nil
}

// neighbourTable asks whether the tables of neighbours are large enough. All network
// namespaces of a machine share them.
func (n Node) neighbourTable(ctx context.Context) []report.Finding {
	leased := map[bool]int{} // by whether the address is an IPv4 address
	if n.Peers > 0 {
		entries, err := n.Leases.List(ctx, "")
		if err != nil {
			return []report.Finding{cannotTell("how many addresses are leased: "+err.Error(), "the right to read the leases in the state folder")}
		}
		for _, e := range entries {
			if e.State == ledger.Leased {
				leased[e.Addr.Is4()]++
			}
		}
	}
	return []report.Finding{n.table("ipv4", "arp_cache", leased[true]), n.table("ipv6", "ndisc_cache", leased[false])}
}

// largeTable is how many neighbours of a family a node with RoCE pods should have places for.
const largeTable = 16384

// table judges the table of a family, of which the node has leased some addresses.
func (n Node) table(family, cache string, leased int) report.Finding {
	limit, err := n.number("net." + family + ".neigh.default.gc_thresh3")
	if err != nil {
		return cannotTell("its size cannot be read: "+err.Error(), "the network namespace of the node").About(family)
	}
	entries, overflows, err := n.neighbours(cache)
	if err != nil {
		return cannotTell(fmt.Sprintf("it has %d places: %v", limit, err), "/proc/net/stat of the network namespace of the node").About(family)
	}
	found := fmt.Sprintf("%d of %d entries used", entries, limit)
	if overflows > 0 {
		found += fmt.Sprintf(", full %d times since the boot", overflows)
	}
	need := leased * n.Peers
	if need > 0 {
		found += fmt.Sprintf(", and %d leased addresses x %d peers need %d", leased, n.Peers, need)
	}
	// The kernel never sets the count of overflows back. So one of a table that is large
	// now may be older than its size.
	if overflows > 0 && limit < largeTable || entries*5 > limit*4 || need > limit {
		size := max(limit*4, largeTable)
		for size < 2*need {
			size *= 2
		}
		setting := fmt.Sprintf("net.%s.neigh.default.gc_thresh", family)
		return problem(found, fmt.Sprintf("sysctl -w %[1]s3=%[2]d %[1]s2=%[3]d %[1]s1=%[4]d  # and so in /etc/sysctl.d", setting, size, size/2, size/4)).About(family)
	}
	return ok("%s", found).About(family)
}

// neighbours returns how many entries a table has, and how often it was full. The
// file has a line for each CPU (neigh_stat_seq_show), each with all entries.
func (n Node) neighbours(cache string) (entries, overflows int, err error) {
	text, err := n.text("proc/net/stat/" + cache)
	if err != nil {
		return 0, 0, err
	}
	lines := strings.Split(text, "\n")
	names := strings.Fields(lines[0])
	first, last := slices.Index(names, "entries"), slices.Index(names, "table_fulls")
	if first < 0 || last < 0 {
		return 0, 0, errors.New("/proc/net/stat/" + cache + " has no column table_fulls")
	}
	for _, line := range lines[1:] {
		words := strings.Fields(line)
		if len(words) != len(names) {
			return 0, 0, errors.New("/proc/net/stat/" + cache + " has a line of another length")
		}
		all, err := strconv.ParseUint(words[first], 16, 32)
		if err != nil {
			return 0, 0, err
		}
		full, err := strconv.ParseUint(words[last], 16, 32)
		if err != nil {
			return 0, 0, err
		}
		entries, overflows = int(all), overflows+int(full)
	}
	return entries, overflows, nil
}
