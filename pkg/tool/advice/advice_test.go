// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package advice

import (
	"maps"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/gidtable"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// portOf returns port 1 of a device with 16 places. Each GID is one of RoCE v2,
// or of v1 with "v1 " before it; "" is an empty place.
func portOf(device string, entries ...string) gids.Port {
	p := gids.Port{Match: discover.Match{Device: nldev.Device{Name: device}, Port: nldev.Port{Number: 1}}, Size: 16, Model: "MT4129"}
	for i, g := range entries {
		if g == "" {
			continue
		}
		kind := gidtable.RoCEv2
		if rest, ok := strings.CutPrefix(g, "v1 "); ok {
			g, kind = rest, gidtable.RoCEv1
		}
		p.Entries = append(p.Entries, gidtable.Entry{Index: i, GID: netip.MustParseAddr(g), Type: kind, Netdev: "net1"})
	}
	return p
}

// rails returns one for each port, with its address at the place that is asked
// for: net1 on the first and so on.
func rails(ports []gids.Port, at ...int) []gids.Rail {
	var out []gids.Rail
	for i, p := range ports {
		for _, e := range p.Entries {
			if e.Index == at[i] {
				out = append(out, gids.Rail{Link: conf.LinkName("net" + string(rune('1'+i))), Addr: e.GID, Port: p, Index: e.Index})
			}
		}
	}
	return out
}

func variables(a Settings) map[string]string {
	out := map[string]string{}
	for _, v := range a.Set {
		out[v.Name] = v.Value
	}
	return out
}

func TestEqualIndexesAreLogged(t *testing.T) {
	t.Parallel()
	ports := []gids.Port{portOf("mlx5_0", "fe80::1", "172.16.0.5"), portOf("mlx5_10", "fe80::1", "172.17.0.5")}
	all := rails(ports, 1, 1)
	all[0].Notes, all[1].Notes = []string{"net1 is slow"}, []string{"net2 is down"}
	got, err := Tell(gids.Namespace{Rails: all, Out: "eth0", OutAddr: netip.MustParseAddr("10.0.0.7"), Apart: "net1 to net2"})
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Set: []Variable{
			{"NCCL_IB_HCA", "=mlx5_0:1,mlx5_10:1"},
			{"NCCL_IB_GID_INDEX", "1"},
			{"NVSHMEM_HCA_LIST", "mlx5_0:1,mlx5_10:1"},
			{"NVSHMEM_IB_GID_INDEX", "1"},
			{"UCX_NET_DEVICES", "mlx5_0:1,mlx5_10:1"},
			{"UCX_IB_GID_INDEX", "1"},
			{"MC_GID_INDEX", "1"},
			{"MC_TE_FILTERS", "mlx5_0,mlx5_10"},
			{"MC_MS_FILTERS", "mlx5_0,mlx5_10"},
			{"MOONCAKE_DEVICE", "mlx5_0,mlx5_10"},
			{"NCCL_CROSS_NIC", "0"},
			{"MC_ENABLE_DEST_DEVICE_AFFINITY", "1"},
			{"NCCL_SOCKET_IFNAME", "=eth0"},
			{"NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "eth0"},
			{"GLOO_SOCKET_IFNAME", "eth0"},
			{"VLLM_HOST_IP", "10.0.0.7"},
			{"VLLM_NIXL_SIDE_CHANNEL_HOST", "10.0.0.7"},
			{"SGLANG_HOST_IP", "10.0.0.7"},
		},
		Why:      []string{"net1 is slow", "net2 is down", "NCCL_CROSS_NIC=0 and MC_ENABLE_DEST_DEVICE_AFFINITY=1, because the pod has no route from net1 to net2: a rail reaches only the same rail of other pods"},
		Perftest: []string{"ib_write_bw -d mlx5_0 -i 1 -x 1", "ib_write_bw -d mlx5_10 -i 1 -x 1"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Settings{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestARangeIsPrintedOnlyIfNCCLFindsTheEntriesByIt(t *testing.T) {
	t.Parallel()
	second := portOf("mlx5_1", "fe80::2", "172.17.0.5")
	for _, tc := range []struct {
		name   string
		first  gids.Port
		at     int
		within string // "": NCCL cannot find them
		says   string
	}{
		{"another's is out of range", portOf("mlx5_0", "fe80::1", "10.0.0.1", "172.16.0.5"), 2, "172.16.0.0/15", "since NCCL 2.26.2"},
		{"v1 before v2", portOf("mlx5_0", "v1 fe80::1", "fe80::1", "v1 172.16.0.5", "172.16.0.5"), 3, "172.16.0.0/15", "since NCCL 2.26.2"},
		{"another's is first", portOf("mlx5_0", "fe80::1", "172.16.0.4", "172.16.0.5"), 2, "", "take 1 instead of 2 on net1"},
		{"the host's IPv4 is at place 0", portOf("mlx5_0", "10.0.0.1", "fe80::1", "172.16.0.5"), 2, "", "take 0 instead of 2 on net1"},
		{"the IPv4 link-local addresses of a cable", portOf("mlx5_0", "fe80::1", "v1 169.254.0.5", "169.254.0.5"), 2, "168.0.0.0/5", "since NCCL 2.26.2"},
		{"nothing in common", portOf("mlx5_0", "fe80::1", "", "10.0.0.5"), 2, "0.0.0.0/0", "since NCCL 2.26.2"},
		{"an empty place between", portOf("mlx5_0", "fe80::1", "", "", "172.16.0.5"), 3, "172.16.0.0/15", "since NCCL 2.26.2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a, err := Tell(gids.Namespace{Rails: rails([]gids.Port{tc.first, second}, tc.at, 1)})
			got := variables(a)
			want := map[string]string{"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1", "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1", "NVSHMEM_HCA_LIST": "mlx5_0:1,mlx5_1:1"}
			for _, library := range []string{"NCCL", "NVSHMEM"} {
				if tc.within != "" {
					want[library+"_IB_GID_INDEX"], want[library+"_IB_ROCE_VERSION_NUM"] = "-1", "2"
					want[library+"_IB_ADDR_FAMILY"], want[library+"_IB_ADDR_RANGE"] = "AF_INET", tc.within
				}
			}
			maps.DeleteFunc(got, func(name, _ string) bool {
				return strings.HasPrefix(name, "UCX_IB_") || strings.HasSuffix(name, "_FILTERS") || name == "MOONCAKE_DEVICE"
			})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if tc.within == "" && cnierr.CodeOf(err) != cnierr.NoGID || tc.within != "" && err != nil {
				t.Errorf("error %v", err)
			}
			if why := strings.Join(a.Why, "\n"); !strings.Contains(why, tc.says) || !strings.Contains(why, "the indexes differ (net1 ") {
				t.Errorf("it says %q, want %q", why, tc.says)
			}
		})
	}
}

func TestARangeOfIPv6(t *testing.T) {
	t.Parallel()
	ports := []gids.Port{portOf("mlx5_0", "10.0.0.1", "fd00:0:0:1::5"), portOf("mlx5_1", "fe80::1", "10.0.1.1", "fd00:0:0:2::5")}
	a, err := Tell(gids.Namespace{Rails: rails(ports, 1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	got := variables(a)
	if got["NCCL_IB_ADDR_FAMILY"] != "AF_INET6" || got["NCCL_IB_ADDR_RANGE"] != "fd00::/62" {
		t.Errorf("got %v", got)
	}
}

func TestRailsOfBothFamiliesNeedEqualIndexes(t *testing.T) {
	t.Parallel()
	ports := []gids.Port{portOf("mlx5_0", "172.16.0.5"), portOf("mlx5_1", "fe80::1", "fd00::5")}
	if _, err := Tell(gids.Namespace{Rails: rails(ports, 0, 1)}); cnierr.CodeOf(err) != cnierr.NoGID || !strings.Contains(err.Error(), "both families") {
		t.Errorf("got %v", err)
	}
}

func TestUCXFindsTheFirstEntryOfItsOrderByItself(t *testing.T) {
	t.Parallel()
	ports := []gids.Port{portOf("mlx5_0", "fe80::1", "v1 172.16.0.5", "172.16.0.5"), portOf("mlx5_1", "172.17.0.5")}
	a, err := Tell(gids.Namespace{Rails: rails(ports, 2, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if got := variables(a)["UCX_IB_GID_INDEX"]; got != "auto" {
		t.Errorf("UCX_IB_GID_INDEX=%q, want auto", got)
	}
}

// TestUCXTakesUDPacketsOfAllNICs: UCX of 2024 and older drops them unless it is told not to look.
func TestUCXTakesUDPacketsOfAllNICs(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{"MT4129": "", "BCM57608": "n", "": "n"} {
		p := portOf("bnxt_re0", "172.16.0.5")
		p.Model = model
		a, err := Tell(gids.Namespace{Rails: rails([]gids.Port{portOf("mlx5_0", "172.17.0.5"), p}, 0, 0)})
		if got := variables(a)["UCX_UD_VERBS_ETH_DGID_CHECK"]; got != want || err != nil {
			t.Errorf("model %q: got %q (%v), want %q", model, got, err, want)
		}
	}
}

// TestUCXFindsTheEntriesByTheirAddresses: by itself it would take entries of others.
func TestUCXFindsTheEntriesByTheirAddresses(t *testing.T) {
	t.Parallel()
	second := portOf("mlx5_1", "172.17.0.4", "172.17.0.5")
	for _, tc := range []struct {
		name  string
		first gids.Port
		at    int
		want  string // "": UCX cannot find them
	}{
		{"another's is first", portOf("mlx5_0", "fe80::1", "v1 172.16.0.5", "172.16.0.5"), 2, "172.16.0.5/32,172.17.0.5/32"},
		{"only that of the second one is", portOf("mlx5_0", "172.16.0.5"), 0, "172.16.0.5/32,172.17.0.5/32"},
		{"the address exists twice", portOf("mlx5_0", "172.16.0.5", "fe80::1", "172.16.0.5"), 2, ""},
		{"IPv6", portOf("mlx5_0", "fe80::1", "fe80::2", "fd00::5"), 2, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			a, _ := Tell(gids.Namespace{Rails: rails([]gids.Port{tc.first, second}, tc.at, 1)}) // NCCL cannot find them
			got := variables(a)
			if got["UCX_IB_ROCE_SUBNETS"] != tc.want {
				t.Errorf("UCX_IB_ROCE_SUBNETS=%q, want %q", got["UCX_IB_ROCE_SUBNETS"], tc.want)
			}
			if index, set := got["UCX_IB_GID_INDEX"]; set { // UCX refuses both
				t.Errorf("UCX_IB_GID_INDEX=%q, want none", index)
			}
			why := strings.Join(a.Why, "\n")
			if !strings.Contains(why, "no UCX_IB_GID_INDEX: ") || strings.Contains(why, "UCX 1.18") != (tc.want != "") {
				t.Errorf("it says %q", why)
			}
		})
	}
}

// TestThePageSaysWhatReadsEachVariable looks for all variables in the table of docs/rdma.md.
func TestThePageSaysWhatReadsEachVariable(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/rdma.md")
	if err != nil {
		t.Fatal(err)
	}
	own, other := portOf("mlx5_0", "172.16.0.5"), portOf("mlx5_1", "172.17.0.4", "172.17.0.5")
	for _, at := range [][]int{{0, 0}, {0, 1}} {
		ports := []gids.Port{own, other}
		ports[0].Function, ports[1].Function = "0000:0b:00.7", "0000:0b:01.0"
		ports[0].Model = "IRDMA"
		a, _ := Tell(gids.Namespace{Rails: rails(ports, at...), Out: "eth0", OutAddr: netip.MustParseAddr("10.0.0.7"), Apart: "net1 to net2"})
		for _, v := range a.Set {
			if strings.HasPrefix(v.Name, "NVSHMEM_IB_") {
				continue // as for NCCL
			}
			if !regexp.MustCompile("(?m)^\\|[^|]*`" + v.Name + "`[^|]*\\| ").Match(page) {
				t.Errorf("the table of docs/rdma.md lacks %s", v.Name)
			}
		}
	}
}

func TestMooncakeTakesNamesOfDevicesAndOneIndex(t *testing.T) {
	t.Parallel()
	first, second := portOf("mlx4_0", "172.16.0.5"), portOf("mlx4_0", "", "172.17.0.5")
	second.Number = 2
	a, _ := Tell(gids.Namespace{Rails: rails([]gids.Port{first, second}, 0, 1)})
	got := variables(a)
	if index, set := got["MC_GID_INDEX"]; set || got["MC_TE_FILTERS"] != "mlx4_0" {
		t.Errorf("got the index %q and the devices %q, want none and mlx4_0", index, got["MC_TE_FILTERS"])
	}
	if why := strings.Join(a.Why, "\n"); !strings.Contains(why, "no MC_GID_INDEX: the indexes differ (net1 0, net2 1)") {
		t.Errorf("it says %q", why)
	}
}

func TestAPortIsOneRailToPrograms(t *testing.T) {
	t.Parallel()
	p := portOf("mlx5_0", "fe80::1", "172.16.0.5", "172.16.0.6")
	both := []gids.Rail{
		{Link: "net1", Addr: netip.MustParseAddr("172.16.0.5"), Port: p, Index: 1},
		{Link: "net2", Addr: netip.MustParseAddr("172.16.0.6"), Port: p, Index: 2},
	}
	a, err := Tell(gids.Namespace{Rails: both})
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Set: []Variable{
			{"NCCL_IB_HCA", "=mlx5_0:1"},
			{"NCCL_IB_GID_INDEX", "1"},
			{"NVSHMEM_HCA_LIST", "mlx5_0:1"},
			{"NVSHMEM_IB_GID_INDEX", "1"},
			{"UCX_NET_DEVICES", "mlx5_0:1"},
			{"UCX_IB_GID_INDEX", "1"},
			{"MC_GID_INDEX", "1"},
			{"MC_TE_FILTERS", "mlx5_0"},
			{"MC_MS_FILTERS", "mlx5_0"},
			{"MOONCAKE_DEVICE", "mlx5_0"},
		},
		Why:      []string{"net2 is left out: net1 has mlx5_0:1 already, and a program uses one GID of a port"},
		Perftest: []string{"ib_write_bw -d mlx5_0 -i 1 -x 1", "ib_write_bw -d mlx5_0 -i 1 -x 2"},
	}
	if diff := cmp.Diff(want, a, cmp.AllowUnexported(Settings{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestNCCLDoesNotJoinRails(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		at      [2]string // the PCI functions of two devices
		virtual bool      // both, but not "a PF"
		want    map[string]string
	}{
		{"two NICs", [2]string{"0000:0b:00.0", "0000:3b:00.0"}, false, map[string]string{}},
		{"VFs of two NICs", [2]string{"0000:0b:00.2", "0000:3b:00.2"}, true, map[string]string{}},
		{"two ports of a NIC", [2]string{"0000:0b:00.0", "0000:0b:00.1"}, false, map[string]string{}},
		{"VFs of one PCI device", [2]string{"0000:0b:00.2", "0000:0b:00.3"}, true, map[string]string{"NCCL_IB_MERGE_NICS": "0"}},
		{"a PF and its VF", [2]string{"0000:0b:00.0", "0000:0b:00.3"}, true, map[string]string{}},
		{"a NIC and Soft-RoCE", [2]string{"0000:0b:00.0", ""}, false, map[string]string{}},
		{"VFs of one bus", [2]string{"0000:0b:00.7", "0000:0b:01.0"}, true, map[string]string{"NCCL_IB_MERGE_VFS": "0"}},
		{"NICs of one bus, as in a guest", [2]string{"0000:00:03.0", "0000:00:04.0"}, false, map[string]string{"NCCL_IB_MERGE_VFS": "0"}},
		{"another domain", [2]string{"0000:0b:00.2", "10000:0b:01.0"}, true, map[string]string{}},
		{"Soft-RoCE", [2]string{"", ""}, false, map[string]string{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			ports := []gids.Port{portOf("mlx5_0", "172.16.0.5"), portOf("mlx5_1", "172.17.0.5")}
			for i := range ports {
				ports[i].Function, ports[i].Virtual = tc.at[i], tc.virtual && !(i == 0 && strings.HasPrefix(tc.name, "a PF"))
			}
			ports = append([]gids.Port{portOf("mlx5_9", "172.18.0.5")}, ports...) // Soft-RoCE
			a, err := Tell(gids.Namespace{Rails: rails(ports, 0, 0, 0), Out: "eth0"})
			if err != nil {
				t.Fatal(err)
			}
			got := variables(a)
			if got["GLOO_SOCKET_IFNAME"] != "eth0" || got["VLLM_HOST_IP"] != "" {
				t.Errorf("of an interface without address it says %v", got)
			}
			maps.DeleteFunc(got, func(name, _ string) bool { return !strings.Contains(name, "_MERGE_") })
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for name := range tc.want {
				if why := strings.Join(a.Why, "\n"); !strings.Contains(why, name) || !strings.Contains(why, "net2 on "+tc.at[0]+" and net3 on "+tc.at[1]) {
					t.Errorf("it says %q, want %s and the rails", why, name)
				}
			}
		})
	}
}
