// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/shell"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/rtnl"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

func (l *look) cniPlugins() []report.Finding {
	f := l.cniFolders()
	found := false
	for _, dir := range f.bins {
		found = l.there(dir, "the right to read /"+dir) || found
	}
	if !found {
		l.lacks("there is no folder "+f.binDirs()+", the folder of plugins ("+f.from+")", "the folder that the runtime looks in: --cni-bin-dir")
	}
	return each(l, []string{"roce", "roce-ipam"}, func(l *look, name string) report.Finding { return l.plugin(f, name) })
}

func (f folders) binDirs() string { return "/" + strings.Join(f.bins, ", /") }

func (l *look) plugin(f folders, name string) report.Finding {
	install := "kubectl -n roce-cni rollout restart daemonset roce-cni-agent  # it installs the plugins; without it: make install"
	if f.binDirs() != "/opt/cni/bin" {
		install = shell.Command("helm upgrade roce-cni charts/roce-cni -n roce-cni --reuse-values --set cniBinDir=%s", "/"+l.lasting(f.bins[0])) +
			"  # without Helm: the folder of the volume cni-bin in conf-examples/deploy/agent.yaml"
	}
	program := ""
	for _, dir := range f.bins { // a runtime takes the first
		if l.there(dir+"/"+name, "the right to read /"+dir) && program == "" {
			program = "/" + dir + "/" + name
		}
	}
	if program == "" {
		return problem("it is not in "+f.binDirs(), install)
	}
	out, err := l.Run(l.ctx, program, "--version")
	l.need(err, program+" cannot be run: ", "the right to run it")
	line, _, _ := strings.Cut(out, "\n")
	if want := buildversion.BuildString(name); line != want {
		return problem(fmt.Sprintf("it is %q; this program has the version of %q", line, want), install)
	}
	return ok("%s", line)
}

// cniConfig asks whether the runtime calls Multus, or roce itself. A runtime uses the
// first file of the folder, in the order of names.
func (l *look) cniConfig() []report.Finding {
	f := l.cniFolders()
	entries, err := fs.ReadDir(l.Root, f.conf) // in the order of names
	if isNotExist(err) {
		l.lacks("there is no folder /"+f.conf+", the folder of CNI configuration ("+f.from+")", "the folder that the runtime reads: --cni-conf-dir")
	}
	l.need(err, "", "the right to read /"+f.conf)
	var others []string
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(e.Name())) {
			continue
		}
		types := l.pluginTypes(path.Join(f.conf, e.Name()))
		calls := slices.ContainsFunc(types, func(t string) bool { return slices.Contains([]string{"multus", "multus-shim", "roce"}, t) })
		if calls {
			return []report.Finding{called(f.conf, e.Name(), types, others)}
		}
		others = append(others, e.Name())
	}
	return []report.Finding{problem("no file of /"+f.conf+" calls Multus",
		fmt.Sprintf("# install Multus 4.2.4, the version that was tested, with the folders /%s and /%s: "+
			"https://github.com/k8snetworkplumbingwg/multus-cni/tree/v4.2.4; for k3s and RKE2 see docs/quickstart.md", f.conf, l.lasting(f.bins[0])))}
}

// called judges the file that calls Multus or roce: it counts if no other is before it.
func called(dir, name string, types, before []string) report.Finding {
	if len(before) == 0 {
		return ok("/%s calls %s", path.Join(dir, name), types[0])
	}
	// Behind the file that must be first, and before all others: Multus takes the network
	// of the pods from the next file.
	fix := shell.Command("mv %s %s", "/"+path.Join(dir, before[0]), "/"+path.Join(dir, name+"-"+before[0]))
	if types[0] != "roce" {
		fix += " && kubectl -n kube-system rollout restart daemonset kube-multus-ds"
	}
	return problem(fmt.Sprintf("the runtime uses %s, which comes before %s", before[0], name), fix+"  # and in the configuration of the plugin that writes it")
}

func (l *look) cniLists() []report.Finding {
	f := l.cniFolders()
	entries, err := fs.ReadDir(l.Root, f.conf)
	if !isNotExist(err) {
		l.need(err, "", "the right to read /"+f.conf)
	}
	var out []report.Finding
	for _, e := range entries {
		if path.Ext(e.Name()) != ".conflist" {
			continue
		}
		types := l.pluginTypes(path.Join(f.conf, e.Name()))
		if roce := slices.Index(types, "roce"); roce >= 0 && slices.Contains(types[roce:], "sbr") {
			file := "/" + path.Join(f.conf, e.Name())
			out = append(out, problem("sbr is behind roce, which has rules and tables of its own",
				shell.Command(`jq 'del(.plugins[] | select(.type == "sbr"))' %s > %s && mv %s %s  # then restart the pods`, file, file+".new", file+".new", file)).About(e.Name()))
		}
	}
	return orOK(out, "no file of /%s has sbr behind roce; rocectl plan tells it of a NetworkAttachmentDefinition", f.conf)
}

func (l *look) pluginTypes(name string) (types []string) {
	const missing = "a file that can be read as CNI configuration"
	var c struct {
		Type    string
		Plugins []struct{ Type string }
	}
	l.need(json.Unmarshal([]byte(l.read(name, "", missing)), &c), "/"+name+": ", missing)
	if c.Type != "" {
		types = append(types, c.Type)
	}
	for _, p := range c.Plugins {
		types = append(types, p.Type)
	}
	return types
}

// checkpoint is where kubelet keeps which devices its device plugins offer, below its root folder.
const checkpoint = "device-plugins/kubelet_internal_checkpoint"

// kubelet returns the root folder of kubelet: that of k0s, of MicroK8s, or the default, which
// k3s and RKE2 have, too.
func (n Node) kubelet() string {
	for _, dir := range []string{"var/lib/k0s/kubelet", "var/snap/microk8s/common/var/lib/kubelet"} {
		if there, err := n.has(dir); there || err != nil {
			return dir
		}
	}
	return "var/lib/kubelet"
}

// devicePlugin asks whether each resource of a device plugin has devices. Which of them
// are for RDMA only the plugins know, so all are looked at.
func (l *look) devicePlugin() []report.Finding {
	file := path.Join(l.kubelet(), checkpoint)
	text := l.read(file, "", "root on a node of Kubernetes with the root folder of kubelet in its usual place")
	var c struct {
		Data struct{ RegisteredDevices map[string][]string } // those that are healthy
	}
	l.need(json.Unmarshal([]byte(text), &c), "/"+file+": ", "a kubelet with a readable file: kubectl describe node has the numbers")
	resources := c.Data.RegisteredDevices
	if len(resources) == 0 {
		l.lacks("no device plugin has registered", "whether the pods are privileged: if not, install k8s-rdma-shared-dev-plugin or sriov-network-device-plugin")
	}
	return each(l, slices.Sorted(maps.Keys(resources)), func(_ *look, name string) report.Finding { return offered(name, len(resources[name])) })
}

func offered(resource string, devices int) report.Finding {
	if devices > 0 {
		return ok("%s", report.Count(devices, "device"))
	}
	fix := "kubectl get pods -A -o wide  # is the device plugin on this node? Its log says which devices it leaves out"
	if strings.Contains(resource, "rdma") {
		fix += ", for example those without all files: rocectl doctor rdma-files"
	}
	return problem("no healthy device, or the plugin has stopped", fix)
}

// poolFill asks whether the RailPools of the node have addresses left. Pools in the
// configuration of a network are known to that alone.
func (l *look) poolFill() []report.Finding {
	return orOK(each(l, l.pools(), (*look).pool), "the node has no RailPool")
}

func (l *look) pools() []string {
	names, err := l.Pools.Pools()
	l.need(err, "", "the right to read the state folder")
	return names
}

func (l *look) pool(name string) report.Finding {
	file, err := l.Pools.Read(name)
	if err != nil {
		return problem(err.Error(), "curl -s "+l.AgentURL+"  # the agent says what it waits for")
	}
	entries, err := l.Leases.List(l.ctx, pool.OfRailPool(name))
	if cnierr.CodeOf(err) == cnierr.Unreadable {
		return problem(err.Error(), "rocectl repair  # shows what it would restore; with --yes it does")
	}
	l.need(err, "", "the right to read the leases in the state folder")
	var used []netip.Addr
	for _, e := range entries {
		if e.InUse() || e.InQuarantine(file.Quarantine) {
			used = append(used, e.Addr)
		}
	}
	worst, lowest := "it has no subnet", 100
	for rail, subnets := range file.Rails {
		for _, s := range subnets {
			taken, size := fillOf(s, used)
			free := 0
			if size > 0 {
				free = 100 - min(100, taken*100/size)
			}
			if free <= lowest {
				worst, lowest = fmt.Sprintf("rail %d: %d of %d addresses of %s leased, set aside or in quarantine", rail, taken, size, s.Prefix), free
			}
		}
	}
	if lowest < 10 {
		return problem(worst, shell.Command("rocectl pool list %s  # who has them; kubectl get railpool %s shows", pool.OfRailPool(name), name)+" whether there are free blocks")
	}
	return ok("%s", worst)
}

// fillOf returns how many addresses of a subnet are taken, and how many the node has
// of it, up to a billion.
func fillOf(s pool.Subnet, used []netip.Addr) (taken, size int) {
	usable := netrange.Minus(s.Ranges, s.Exclude)
	for _, a := range used {
		if slices.ContainsFunc(usable, func(r netrange.Range) bool { return r.Contains(a) }) {
			taken++
		}
	}
	const most = 1_000_000_000 // of IPv6
	if all := netrange.Count(usable); all.IsInt64() {
		return taken, int(min(all.Int64(), most))
	}
	return taken, most
}

func (l *look) poolRoutes() []report.Finding {
	names := l.pools()
	routes, err := l.Routes(l.ctx)
	l.need(err, "the routes cannot be listed: ", rootOfNode)
	nics := map[int32]bool{}
	for _, p := range l.ports() {
		if p.Own != nil {
			nics[p.Own.Index], nics[p.NIC.Index] = true, true
		}
	}
	clash := func(l *look, name string) report.Finding { return l.clash(name, routes, nics) }
	return orOK(each(l, names, clash), "the node has no RailPool")
}

func (l *look) clash(pool string, routes []rtnl.Route, nics map[int32]bool) report.Finding {
	file, err := l.Pools.Read(pool)
	l.need(err, "", "pools")
	for _, s := range slices.Concat(file.Rails...) {
		for _, r := range routes {
			own := r.Table == unix.RT_TABLE_MAIN && r.Type == unix.RTN_UNICAST && r.Index != 0
			if own && r.Dst.Bits() > 0 && r.Dst.Overlaps(s.Prefix) && !nics[r.Index] {
				return problem(fmt.Sprintf("%s of the pool overlaps the route %s of the node", s.Prefix, r.Dst),
					shell.Command("ip route show %s", r.Dst)+"  # who made it? Then give the RailPool subnets that no other network of the cluster has")
			}
		}
	}
	return ok("no other route of the node has addresses of its subnets")
}

func (l *look) agentHealth() []report.Finding {
	pools := l.pools()
	health, err := l.health()
	switch {
	case err == nil && health == "":
		return []report.Finding{ok("healthy, %s on this node", report.Count(len(pools), "pool"))}
	case err == nil:
		return []report.Finding{problem("it says: "+health, "kubectl -n roce-cni logs daemonset/roce-cni-agent --tail 20  # of the pod on this node")}
	case len(pools) == 0:
		found := "no agent answers at " + l.AgentURL + ", and this node has no pool" // no agent may ever have run
		if there, err := l.has(l.kubelet()); !there && err == nil {
			return []report.Finding{ok("%s and no kubelet: nothing needs an agent", found)}
		}
		return []report.Finding{cannotTell(found, "whether a network has ipam.railPool: if so, kubectl -n roce-cni get pods -o wide shows whether an agent runs on this node")}
	case l.ctx.Err() != nil:
		return []report.Finding{cannotTell("it did not answer in time", "more time")}
	}
	return []report.Finding{problem(fmt.Sprintf("the node has %s, and it does not answer: %v", report.Count(len(pools), "pool"), err),
		"kubectl -n roce-cni get pods -o wide  # is there an agent on this node? kubectl apply -k conf-examples/deploy makes it")}
}

// health returns what the agent says is wrong, "" if nothing is.
func (l *look) health() (string, error) {
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, l.AgentURL, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if err != nil || res.StatusCode == http.StatusOK {
		return "", err
	}
	return strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", "; "), nil
}

// folders are where the runtime of the node looks for CNI configuration and for plugins. The
// names begin without "/", as those of Node.Root.
type folders struct {
	conf string
	bins []string
	from string // what says so
}

// needsFolders is what a check needs where the configuration of containerd cannot be read.
const needsFolders = "the folders of the runtime: --cni-conf-dir and --cni-bin-dir, or root, to read its configuration"

// cniFolders returns the folders that the user names, otherwise those in the configuration of
// containerd, otherwise the ones that all runtimes use by default.
func (l *look) cniFolders() folders {
	f := folders{"etc/cni/net.d", []string{"opt/cni/bin"}, "the default of runtimes"}
	// As the distributions of containerd start it: k3s, RKE2, MicroK8s, k0s, and the packages that kubeadm uses.
	for _, config := range []string{
		"var/lib/rancher/k3s/agent/etc/containerd/config.toml", "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
		"var/snap/microk8s/current/args/containerd.toml", "etc/k0s/containerd.toml", "etc/containerd/config.toml",
	} {
		if l.there(config, needsFolders) {
			f.from = "/" + config
			l.readContainerd(config, &f)
			break
		}
	}
	if l.ConfDir != "" {
		f.conf, f.from = rootless(l.ConfDir), "--cni-conf-dir"
	}
	if l.BinDir != "" {
		f.bins = []string{rootless(l.BinDir)}
	}
	return f
}

// lasting returns the folder in which to install what containerd reads in a folder. That of k3s
// before October 2024 is of one release, and current links to the release that runs.
func (l *look) lasting(dir string) string {
	const releases = "var/lib/rancher/k3s/data"
	if current := releases + "/current/bin"; path.Dir(path.Dir(dir)) == releases && l.there(current, needsFolders) {
		return current
	}
	return dir
}

// rootless returns a path of the node as Node.Root takes it.
func rootless(dir string) string { return strings.TrimPrefix(path.Clean("/"+dir), "/") }

type containerd struct {
	Imports []string
	Plugins map[string]struct { // the name of the plugin differs by version
		CNI struct {
			ConfDir string   `toml:"conf_dir"`
			BinDir  string   `toml:"bin_dir"`
			BinDirs []string `toml:"bin_dirs"` // since containerd 2.1
		} `toml:"cni"`
	}
}

// readContainerd reads a configuration of containerd, and the files that it imports, of which
// the last one counts.
func (l *look) readContainerd(config string, f *folders) {
	files := []string{config}
	for i := 0; i < len(files); i++ {
		var c containerd
		l.need(toml.Unmarshal([]byte(l.read(files[i], "", needsFolders)), &c), "parse /"+files[i]+": ", needsFolders)
		for _, p := range c.Plugins {
			if p.CNI.ConfDir != "" {
				f.conf = rootless(p.CNI.ConfDir)
			}
			if p.CNI.BinDir != "" {
				p.CNI.BinDirs = append(p.CNI.BinDirs, p.CNI.BinDir)
			}
			for j, dir := range p.CNI.BinDirs {
				f.bins = append(f.bins[:j:j], rootless(dir))
			}
		}
		for _, pattern := range c.Imports {
			if !path.IsAbs(pattern) {
				pattern = path.Join("/", path.Dir(files[i]), pattern)
			}
			for _, file := range l.files(rootless(pattern)) {
				if !slices.Contains(files, file) {
					files = append(files, file)
				}
			}
		}
	}
}
