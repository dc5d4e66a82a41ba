// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
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

func (l *look) machineID() []report.Finding {
	id, err := l.text("etc/machine-id")
	switch {
	case isNotExist(err):
		return []report.Finding{problem("/etc/machine-id is missing", "systemd-machine-id-setup")}
	case err != nil:
		l.need(err, "", "the right to read /etc/machine-id")
	case !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id):
		return []report.Finding{problem("/etc/machine-id has no 32 hexadecimal digits", "rm /etc/machine-id && systemd-machine-id-setup")}
	}
	return []report.Finding{ok("%s", id)}
}

func (l *look) settings() []report.Finding {
	switch err := l.Settings; {
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
func (l *look) memlock() []report.Finding {
	memory, err := l.memory()
	l.need(err, "how much memory the node has: ", "the right to read /proc/meminfo")
	var out []report.Finding
	for _, name := range l.files("proc/[0-9]*/comm") {
		comm, err := l.text(name)
		if process := path.Dir(name); err == nil && slices.Contains([]string{"containerd", "crio", "dockerd"}, comm) && !l.inPod(process) {
			out = append(out, l.about(comm, func(l *look) report.Finding { return l.limit(comm, process, memory) }))
		}
	}
	if len(out) == 0 {
		l.lacks("no process is called containerd, crio or dockerd", "the PID namespace of the node (hostPID in a pod), or another name of the runtime")
	}
	return out
}

// inPod says whether a process has a PID namespace of its own, as those of most pods. They may
// have any name.
func (n Node) inPod(process string) bool {
	status, _ := n.text(process + "/status") // its limits tell more
	numbers, _ := after(status, "NSpid:")
	return len(strings.Fields(numbers)) > 1
}

// memory returns the memory of the node, in bytes.
func (n Node) memory() (uint64, error) {
	text, err := n.text("proc/meminfo")
	if err != nil {
		return 0, err
	}
	total, found := after(text, "MemTotal:")
	if !found {
		return 0, errors.New("/proc/meminfo has no MemTotal")
	}
	kib, err := strconv.ParseUint(strings.TrimSuffix(total, " kB"), 10, 64)
	return kib << 10, err
}

func (l *look) limit(runtime, process string, memory uint64) report.Finding {
	limits, _ := after(l.read(process+"/limits", "its limits cannot be read: ", "root on the node"), "Max locked memory")
	soft, _, _ := strings.Cut(limits, " ")
	bytes, err := strconv.ParseUint(soft, 10, 64)
	switch {
	case soft == "unlimited":
		return ok("no limit")
	case err != nil:
		return cannotTell("its limits have no line for locked memory", "a kernel with the line Max locked memory in /proc/PID/limits")
	case bytes >= memory:
		return ok("%d MiB, which is all that the node has", bytes>>20)
	}
	return problem(fmt.Sprintf("%d KiB of the %d MiB of the node", bytes>>10, memory>>20),
		fmt.Sprintf("mkdir -p /etc/systemd/system/%[1]s.service.d && printf '[Service]\\nLimitMEMLOCK=infinity\\n' > /etc/systemd/system/%[1]s.service.d/memlock.conf && systemctl daemon-reload && systemctl restart %[1]s  # pods that run keep the old limit",
			l.unit(runtime, process)))
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
func (l *look) hostARP() []report.Finding {
	ports := l.ports()
	addrs, err := l.Addrs(l.ctx)
	l.need(err, "the addresses cannot be listed: ", rootOfNode)
	var names []string
	has := map[string][]netip.Prefix{}
	for _, p := range ports {
		link := p.Interface()
		if link == nil {
			continue
		}
		names = append(names, link.Name)
		for _, addr := range addrs {
			if addr.Index == link.Index && addr.Prefix.Addr().Is4() {
				has[link.Name] = append(has[link.Name], addr.Prefix)
			}
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !sharesSubnet(name, has) })
	return orOK(each(l, names, (*look).apart), "no two RoCE NICs of the node have addresses of one subnet")
}

func sharesSubnet(nic string, has map[string][]netip.Prefix) bool {
	for other, theirs := range has {
		for _, own := range has[nic] {
			if other != nic && slices.ContainsFunc(theirs, func(p netip.Prefix) bool { return own.Contains(p.Addr()) }) {
				return true
			}
		}
	}
	return false
}

// apart judges the settings of an interface. Of a setting and that of "all" the
// kernel takes the larger (IN_DEV_MAXCONF).
func (l *look) apart(name string) report.Finding {
	var is, fix []string
	for _, s := range []struct {
		key   string
		wrong func(int) bool
		want  int
	}{
		{"arp_ignore", func(v int) bool { return v == 0 }, 1},
		{"arp_announce", func(v int) bool { return v < 2 }, 2},
		{"rp_filter", func(v int) bool { return v == 1 }, 2},
	} {
		value := 0
		for _, of := range []string{"all", name} {
			// Slashes, because the name of an interface may have a dot.
			value = max(value, l.number("net/ipv4/conf/"+of+"/"+s.key, s.key+" of "+of+" cannot be read: "))
		}
		is = append(is, fmt.Sprintf("%s=%d", s.key, value))
		if s.wrong(value) {
			fix = append(fix, fmt.Sprintf("%s=%d", shell.Word("net/ipv4/conf/"+name+"/"+s.key), s.want))
		}
	}
	found := strings.Join(is, " ")
	if len(fix) == 0 {
		return ok("%s", found)
	}
	return problem(found+", and another RoCE NIC has an address of the same subnet", "sysctl -w "+strings.Join(fix, " ")+"  # and so in /etc/sysctl.d")
}

// networkManagers asks who configures the RoCE interfaces of the node. Children of pods
// are made in the pods, where neither program sees them.
func (l *look) networkManagers() []report.Finding {
	return l.eachPort(func(l *look, p nic.Port) report.Finding {
		if p.Own == nil {
			return ok("its interface is in another namespace")
		}
		return l.managers(p.Own.Name, p.Own.Index)
	})
}

func (l *look) managers(name string, index int32) report.Finding {
	networkd, err := l.setting(fmt.Sprintf("run/systemd/netif/links/%d", index), "ADMIN_STATE")
	l.need(err, "what systemd-networkd does with "+name+": ", "the right to read /run/systemd/netif")
	manager, err := l.setting(fmt.Sprintf("run/NetworkManager/devices/%d", index), "managed")
	l.need(err, "what NetworkManager does with "+name+": ", "the right to read /run/NetworkManager")
	switch first, second := networkd != "" && networkd != "unmanaged", manager == "true"; {
	case !first && !second:
		return ok("neither manages %s", name)
	case !second:
		return ok("systemd-networkd manages %s", name)
	case !first:
		return ok("NetworkManager manages %s", name)
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
	value, _ := after(text, key+"=")
	return value, err
}

// neighbourTable asks whether the tables of neighbours are large enough. All network
// namespaces of a machine share them.
func (l *look) neighbourTable() []report.Finding {
	leased := map[bool]int{} // by whether the address is an IPv4 address
	if l.Peers > 0 {
		entries, err := l.Leases.List(l.ctx, "")
		l.need(err, "how many addresses are leased: ", "the right to read the leases in the state folder")
		for _, e := range entries {
			if e.State == ledger.Leased {
				leased[e.Addr.Is4()]++
			}
		}
	}
	return []report.Finding{
		l.about("ipv4", func(l *look) report.Finding { return l.table("ipv4", "arp_cache", leased[true]) }),
		l.about("ipv6", func(l *look) report.Finding { return l.table("ipv6", "ndisc_cache", leased[false]) }),
	}
}

// largeTable is how many neighbours of a family a node with RoCE pods should have places for.
const largeTable = 16384

// table judges the table of a family, of which the node has leased some addresses.
func (l *look) table(family, cache string, leased int) report.Finding {
	limit := l.number("net."+family+".neigh.default.gc_thresh3", "its size cannot be read: ")
	entries, overflows, err := l.neighbours(cache)
	l.need(err, fmt.Sprintf("it has %d places: ", limit), "/proc/net/stat of the network namespace of the node")
	found := fmt.Sprintf("%d of %d entries used", entries, limit)
	if overflows > 0 {
		found += fmt.Sprintf(", full %d times since the boot", overflows)
	}
	need := leased * l.Peers
	if need > 0 {
		found += fmt.Sprintf(", and %d leased addresses x %d peers need %d", leased, l.Peers, need)
	}
	// The kernel never sets the count of overflows back. So one of a table that is large
	// now may be older than its size.
	if overflows > 0 && limit < largeTable || entries*5 > limit*4 || need > limit {
		size := max(limit*4, largeTable)
		for size < 2*need {
			size *= 2
		}
		setting := fmt.Sprintf("net.%s.neigh.default.gc_thresh", family)
		return problem(found, fmt.Sprintf("sysctl -w %[1]s3=%[2]d %[1]s2=%[3]d %[1]s1=%[4]d  # and so in /etc/sysctl.d", setting, size, size/2, size/4))
	}
	return ok("%s", found)
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
