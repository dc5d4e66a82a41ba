// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/plugin/settings"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// settingFaults are of the network settings of the node.
func settingFaults() []fault {
	const (
		stat     = "proc/net/stat/arp_cache"
		networkd = "run/systemd/netif/links/2"
	)
	oneSubnet := func(w *world) { w.addrs["ens2f0np0"] = "172.16.11.2/24" }
	set := func(w *world, of, key, value string) { w.write("proc/sys/net/ipv4/conf/"+of+"/"+key, value) }
	soft := func(rules string) func(*world) {
		return func(w *world) {
			w.write("sys/class/infiniband/mlx5_0/parent", "ens1f0np0\n")
			w.programs["nft"] = rules
			if rules == "" {
				delete(w.programs, "nft")
			}
		}
	}
	return []fault{
		{
			name: "two NICs in one subnet", change: oneSubnet,
			check: "host-arp", verdict: report.Problem, says: "ens2f0np0: arp_ignore=0 arp_announce=0 rp_filter=0",
			advice: "sysctl -w net/ipv4/conf/ens2f0np0/arp_ignore=1 net/ipv4/conf/ens2f0np0/arp_announce=2",
			after: func(w *world) {
				for _, nic := range []string{"ens1f0np0", "ens2f0np0"} {
					set(w, nic, "arp_ignore", "1")
					set(w, nic, "arp_announce", "2")
				}
			},
		},
		{
			name: "strict rp_filter", change: func(w *world) {
				oneSubnet(w)
				set(w, "all", "arp_ignore", "1")
				set(w, "all", "arp_announce", "2")
				set(w, "all", "rp_filter", "1")
			},
			check: "host-arp", verdict: report.Problem, says: "ens1f0np0: arp_ignore=1 arp_announce=2 rp_filter=1", advice: "sysctl -w net/ipv4/conf/ens1f0np0/rp_filter=2 ",
			after: func(w *world) {
				set(w, "ens1f0np0", "rp_filter", "2")
				set(w, "ens2f0np0", "rp_filter", "2")
			},
		},
		{
			name: "two NICs in one subnet that are apart", change: func(w *world) {
				oneSubnet(w)
				set(w, "all", "arp_ignore", "1")
				set(w, "all", "arp_announce", "2")
			},
			check: "host-arp", verdict: report.OK, says: "ens1f0np0: arp_ignore=1",
		},
		{
			name: "settings cannot be read", change: func(w *world) {
				oneSubnet(w)
				w.deny("proc/sys/net/ipv4/conf")
			},
			check: "host-arp", verdict: report.CannotTell, says: "permission denied", advice: "namespace",
		},
		{
			name: "two programs manage a NIC", change: func(w *world) {
				w.write(networkd, "# This is private data. Do not parse.\nADMIN_STATE=configured\nOPER_STATE=routable\n")
				w.write("run/NetworkManager/devices/2", "[device]\nmanaged=true\n")
			},
			check: "network-managers", verdict: report.Problem, says: "mlx5_0/1: both systemd-networkd and NetworkManager manage ens1f0np0", advice: "conf.d/ens1f0np0.conf && nmcli general reload",
			after: func(w *world) { w.write("run/NetworkManager/devices/2", "[device]\nmanaged=false\n") },
		},
		{
			name: "NetworkManager alone", change: func(w *world) {
				w.write(networkd, "ADMIN_STATE=unmanaged\n")
				w.write("run/NetworkManager/devices/2", "[device]\nmanaged=true\n")
			},
			check: "network-managers", verdict: report.OK, says: "NetworkManager manages ens1f0np0",
		},
		{
			name: "what networkd does cannot be read", change: func(w *world) { w.deny("run/systemd/netif") },
			check: "network-managers", verdict: report.CannotTell, says: "permission denied", advice: "/run/systemd/netif",
		},
		{
			name: "the neighbour table was full", change: func(w *world) {
				w.write(stat, strings.Replace(string(w.files[stat].Data), "00000000\n", "00000007\n", 1))
			},
			check: "neighbour-table", verdict: report.Problem, says: "ipv4: 130 of 4096 entries used, full 7 times", advice: "net.ipv4.neigh.default.gc_thresh3=16384",
			after: func(w *world) { w.write("proc/sys/net/ipv4/neigh/default/gc_thresh3", "16384\n") },
		},
		{
			name: "too many peers for the neighbour table", change: func(w *world) {
				w.pool(15)
				w.peers = 511
			},
			check: "neighbour-table", verdict: report.Problem, says: "ipv4: 130 of 4096 entries used, and 15 leased addresses x 511 peers need 7665", advice: "gc_thresh3=16384",
			after: func(w *world) { w.write("proc/sys/net/ipv4/neigh/default/gc_thresh3", "16384\n") },
		},
		{
			name: "the neighbour table was full before it was enlarged", change: func(w *world) {
				w.write(stat, strings.Replace(string(w.files[stat].Data), "00000000\n", "00000007\n", 1))
				w.write("proc/sys/net/ipv4/neigh/default/gc_thresh3", "16384\n")
			},
			check: "neighbour-table", verdict: report.OK, says: "ipv4: 130 of 16384 entries used, full 7 times",
		},
		{
			name: "few peers", change: func(w *world) {
				w.pool(15)
				w.peers = 63
			},
			check: "neighbour-table", verdict: report.OK, says: "and 15 leased addresses x 63 peers need 945",
		},
		{
			name: "the neighbour table is nearly full", change: func(w *world) { w.write("proc/sys/net/ipv6/neigh/default/gc_thresh3", "160\n") },
			check: "neighbour-table", verdict: report.Problem, says: "ipv6: 130 of 160 entries used", advice: "net.ipv6.neigh.default.gc_thresh3=16384",
			after: func(w *world) { w.write("proc/sys/net/ipv6/neigh/default/gc_thresh3", "16384\n") },
		},
		{
			name: "no statistics of neighbours", change: func(w *world) { w.remove(stat) },
			check: "neighbour-table", verdict: report.CannotTell, says: "ipv4: it has 4096 places", advice: "/proc/net/stat",
		},
		{
			name: "a rule drops RoCE", change: soft("table inet filter { # handle 2\n\tchain input { # handle 1\n\t\tudp dport { 53, 4700-4800 } counter drop # handle 7\n\t}\n}\n"),
			check: "firewall", verdict: report.Problem, says: "udp dport { 53, 4700-4800 } counter drop", advice: "nft delete rule inet filter input handle 7",
			after: func(w *world) { w.programs["nft"] = "table inet filter { # handle 2\n}\n" },
		},
		{
			name: "rules that let RoCE pass", change: soft("udp dport 4791 accept\nudp dport 53 drop\nudp dport != 4791 drop\ntcp dport 4791 reject\n"),
			check: "firewall", verdict: report.OK, says: "no rule",
		},
		{
			name: "a chain drops by default", change: soft("type filter hook input priority filter; policy drop;\n"),
			check: "firewall", verdict: report.CannotTell, says: "a chain drops", advice: "nft list ruleset",
		},
		{
			name: "no nft", change: soft(""),
			check: "firewall", verdict: report.CannotTell, says: "not found", advice: "nft",
		},
		{
			name: "settings with an unknown key", change: func(w *world) { w.settings = settingsOf(`{"version": 1, "policy": {}}`) },
			check: "settings", verdict: report.Problem, says: `"policy": unknown key`, advice: "# in /etc/roce/node.json: use one of version, stateDir",
			after: func(w *world) { w.settings = nil },
		},
		{
			name: "the settings cannot be read", change: func(w *world) { w.settings = fs.ErrPermission },
			check: "settings", verdict: report.CannotTell, says: "permission denied", advice: "root",
		},
		{
			name: "no machine ID", change: func(w *world) { w.remove("etc/machine-id") },
			check: "machine-id", verdict: report.Problem, says: "missing", advice: "systemd-machine-id-setup",
			after: func(w *world) { w.restore("etc/machine-id") },
		},
		{
			name: "a machine ID that is to be made", change: func(w *world) { w.write("etc/machine-id", "uninitialized\n") },
			check: "machine-id", verdict: report.Problem, says: "32 hexadecimal digits", advice: "systemd-machine-id-setup",
			after: func(w *world) { w.restore("etc/machine-id") },
		},
		{
			name: "the machine ID cannot be read", change: func(w *world) { w.deny("etc/machine-id") },
			check: "machine-id", verdict: report.CannotTell, says: "permission denied", advice: "/etc/machine-id",
		},
	}
}

// registered is what kubelet of the healthy node has written about its device plugins.
const registered = "var/lib/kubelet/" + checkpoint

// settingsOf returns what is wrong with the text of a node.json.
func settingsOf(text string) error {
	_, err := settings.Parse("/etc/roce/node.json", []byte(text))
	return err
}

// softwareFaults are of the programs that roce-cni needs, and of its own state.
func softwareFaults() []fault {
	return []fault{
		{
			name: "the plugin is not installed", change: func(w *world) { w.remove("opt/cni/bin/roce") },
			check: "cni-plugins", verdict: report.Problem, says: "roce: it is not in /opt/cni/bin", advice: "make install",
			after: func(w *world) { w.restore("opt/cni/bin/roce") },
		},
		{
			name: "an old plugin", change: func(w *world) { w.programs["/opt/cni/bin/roce-ipam"] = "CNI roce-ipam plugin v0.1.0\nCNI" },
			check: "cni-plugins", verdict: report.Problem, says: `roce-ipam: it is "CNI roce-ipam plugin v0.1.0"; this program`, advice: "rollout restart",
			after: func(w *world) { w.programs = healthy(w.t).programs },
		},
		{
			name: "a plugin cannot be run", change: func(w *world) { delete(w.programs, "/opt/cni/bin/roce") },
			check: "cni-plugins", verdict: report.CannotTell, says: "roce: /opt/cni/bin/roce cannot be run", advice: "right to run",
		},
		{
			name: "plugins are elsewhere", change: func(w *world) { w.remove("opt/cni/bin") },
			check: "cni-plugins", verdict: report.CannotTell, says: "there is no folder /opt/cni/bin, the folder of plugins (the default of runtimes)", advice: "--cni-bin-dir",
		},
		{
			name: "the configuration of containerd is no TOML", change: func(w *world) { w.write("etc/containerd/config.toml", "[plugins") },
			check: "cni-plugins", verdict: report.CannotTell, says: "parse /etc/containerd/config.toml: ", advice: "--cni-conf-dir and --cni-bin-dir", also: []string{"cni-config", "cni-lists"},
		},
		{
			name: "no Multus", change: func(w *world) { w.remove("etc/cni/net.d/00-multus.conf") },
			check: "cni-config", verdict: report.Problem, says: "no file of /etc/cni/net.d calls Multus", advice: "# install Multus 4.2.4, the version that was tested, with the folders /etc/cni/net.d and /opt/cni/bin",
			after: func(w *world) { w.restore("etc/cni/net.d/00-multus.conf") },
		},
		{
			name: "another plugin comes first", change: func(w *world) { w.write("etc/cni/net.d/00-cilium.conflist", `{"plugins": [{"type": "cilium-cni"}]}`) },
			check: "cni-config", verdict: report.Problem, says: "the runtime uses 00-cilium.conflist, which comes before 00-multus.conf", advice: "mv /etc/cni/net.d/00-cilium.conflist /etc/cni/net.d/00-multus.conf-00-cilium.conflist && kubectl",
			after: func(w *world) {
				w.remove("etc/cni/net.d/00-cilium.conflist")
				w.write("etc/cni/net.d/00-multus.conf-00-cilium.conflist", `{"plugins": [{"type": "cilium-cni"}]}`)
			},
		},
		{
			name: "a configuration that is no JSON", change: func(w *world) { w.write("etc/cni/net.d/00-multus.conf", "{") },
			check: "cni-config", verdict: report.CannotTell, says: "/etc/cni/net.d/00-multus.conf", advice: "CNI configuration",
		},
		{
			name: "sbr behind roce", change: func(w *world) {
				w.write("etc/cni/net.d/20-rails.conflist", `{"plugins": [{"type": "roce"}, {"type": "tuning"}, {"type": "sbr"}]}`)
			},
			check: "cni-lists", verdict: report.Problem, says: "20-rails.conflist: sbr is behind roce", advice: `jq 'del(.plugins[] | select(.type == "sbr"))' /etc/cni/net.d/20-rails.conflist`,
			after: func(w *world) {
				w.write("etc/cni/net.d/20-rails.conflist", `{"plugins": [{"type": "roce"}, {"type": "tuning"}]}`)
			},
		},
		{
			name: "a list that is no JSON", change: func(w *world) { w.write("etc/cni/net.d/20-rails.conflist", "{") },
			check: "cni-lists", verdict: report.CannotTell, says: "/etc/cni/net.d/20-rails.conflist", advice: "CNI configuration",
		},
		{
			name: "a resource without devices", change: func(w *world) {
				w.write(registered, `{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {"nvidia.com/gpu": ["GPU-1"], "rdma/hca_shared": []}}, "Checksum": 1}`)
			},
			check: "device-plugin", verdict: report.Problem, says: "rdma/hca_shared: no healthy device", advice: "rocectl doctor rdma-files",
			after: func(w *world) { w.restore(registered) },
		},
		{
			name: "no device plugin", change: func(w *world) { w.write(registered, `{"Data": {"RegisteredDevices": {}}}`) },
			check: "device-plugin", verdict: report.CannotTell, says: "no device plugin has registered", advice: "privileged",
		},
		{
			name: "no kubelet", change: func(w *world) { w.remove(registered) },
			check: "device-plugin", verdict: report.CannotTell, says: "there is no /var/lib/kubelet/device-plugins", advice: "root folder of kubelet",
		},
		{
			name: "a pool is nearly empty", change: func(w *world) {
				w.pool(19)
				w.end(2)
			},
			check: "pools", verdict: report.Problem, says: "gpu: rail 0: 19 of 20 addresses of 172.20.0.0/16 leased, set aside or in quarantine", advice: "rocectl pool list rail:gpu",
			after: (*world).release,
		},
		{
			name: "addresses of a pool are set aside", change: func(w *world) {
				w.pool(17)
				w.setAside("172.20.0.35", "172.20.0.34", "172.16.0.1")
			},
			check: "pools", verdict: report.Problem, says: "gpu: rail 0: 19 of 20 addresses of 172.20.0.0/16", advice: "rocectl pool list rail:gpu",
			after: (*world).release,
		},
		{
			name: "a pool has addresses", change: func(w *world) { w.pool(3) },
			check: "pools", verdict: report.OK, says: "gpu: rail 0: 3 of 20 addresses",
		},
		{
			name: "a pool has no block since the boot", change: func(w *world) { w.pools.BootID = "another" },
			check: "pools", verdict: report.Problem, says: "of another boot", advice: "/healthz", also: []string{"host-link", "pool-routes"},
			after: func(w *world) { w.pools.BootID = bootID },
		},
		{
			name: "leases cannot be read", change: func(w *world) {
				w.pool(1)
				w.spoil("leases.db")
			},
			check: "pools", verdict: report.Problem, says: "leases.db", advice: "rocectl repair",
			after: func(w *world) {
				if err := os.Remove(filepath.Join(w.pools.Dir, "leases.db")); err != nil {
					w.t.Fatal(err)
				}
			},
		},
		{
			name: "the agent is absent", change: func(w *world) { w.agent = nil },
			check: "agent", verdict: report.Problem, says: "the node has 1 pool, and it does not answer", advice: "kubectl -n roce-cni get pods",
			after: func(w *world) { w.agent = healthy(w.t).agent },
		},
		{
			name: "the agent waits for something", change: func(w *world) {
				w.agent = func(out http.ResponseWriter, _ *http.Request) {
					http.Error(out, "pool gpu: no free block", http.StatusServiceUnavailable)
				}
			},
			check: "agent", verdict: report.Problem, says: "it says: pool gpu: no free block", advice: "logs daemonset/roce-cni-agent",
			after: func(w *world) { w.agent = healthy(w.t).agent },
		},
		{
			name: "no agent was ever here", change: func(w *world) {
				w.agent, w.pools.Dir = nil, w.t.TempDir()
			},
			check: "agent", verdict: report.CannotTell, says: "no agent answers", advice: "ipam.railPool",
		},
		{
			name: "a node of no cluster needs no agent", change: func(w *world) {
				w.agent, w.pools.Dir = nil, w.t.TempDir()
				w.remove("var/lib/kubelet")
			},
			check: "agent", verdict: report.OK, says: "no kubelet", also: []string{"device-plugin"},
		},
		{
			name: "the state folder cannot be read", change: func(w *world) { w.spoil("pools") },
			check: "pools", verdict: report.CannotTell, says: "list the pools", advice: "state folder", also: []string{"agent", "pool-routes"},
		},
		{
			name: "the state folder of the agent cannot be read", change: func(w *world) { w.spoil("pools") },
			check: "agent", verdict: report.CannotTell, says: "list the pools", advice: "state folder", also: []string{"pools", "pool-routes"},
		},
	}
}
