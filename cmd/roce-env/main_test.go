// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev/nldevtest"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"roce-env": main}) }

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, RequireUniqueNames: true,
		Condition: func(cond string) (bool, error) {
			devices, _ := os.ReadDir("/sys/class/infiniband") // there is none without RDMA
			return cond == "rdma" && len(devices) > 0, nil
		},
	})
}

// TestAPodIsToldAllThatItLacks: its devices have no files, and the indexes of its rails differ. The
// settings of one interface are complete.
func TestAPodIsToldAllThatItLacks(t *testing.T) {
	t.Parallel()
	n := kerneltest.NewNode(t)
	sys := fstest.MapFS{}
	for i, e := range []struct {
		device, index int
		link, addr    string
	}{{0, 0, "net1", "172.16.0.5"}, {1, 0, "r1", "172.17.0.4"}, {1, 1, "net2", "172.17.0.5"}} {
		if e.link != "r1" {
			n.IP(fmt.Sprintf("link add %s type veth peer name peer%d", e.link, i))
			n.IP("link set " + e.link + " up")
			n.IP("addr add " + e.addr + "/16 dev " + e.link)
		}
		for name, text := range map[string]string{"gids": plan.GIDText(netip.MustParseAddr(e.addr)), "gid_attrs/types": "RoCE v2", "gid_attrs/ndevs": e.link} {
			sys[fmt.Sprintf("class/infiniband/test%d/ports/1/%s/%d", e.device, name, e.index)] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	kernel := nldevtest.Kernel{Devices: []nldevtest.Device{{Name: "test0", Netdev: "r0", NetdevIndex: 1}, {Name: "test1", Netdev: "r1", NetdevIndex: 2}}}
	pod := gids.Node{Sys: sys, Dial: kernel.Dial}
	const file = "open RDMA device \"test%d\": no folder of /sys/class/infiniband_verbs is for it: ib_uverbs is not loaded on the node"
	for only, c := range map[conf.LinkName]struct{ lines, index, says string }{
		"": {
			"# net1 172.16.0.5: test0 port 1, GID index 0\n# net2 172.17.0.5: test1 port 1, GID index 1\n", "",
			"choose GID index for \"net1, net2\": the indexes differ (net1 0, net2 1)\n" + fmt.Sprintf(file, 0) + "\n" + fmt.Sprintf(file, 1),
		},
		"net2": {"# net2 172.17.0.5: test1 port 1, GID index 1\n", "1", fmt.Sprintf(file, 1)},
	} {
		var out strings.Builder
		err := run(&out, pod, only)
		var says []string
		for _, e := range cnierr.Each(err) {
			text, _, _ := strings.Cut(e.Error(), ", and NCCL")
			if !strings.Contains(text, "locked memory") { // that depends on the machine
				says = append(says, text)
			}
		}
		if diff := cmp.Diff(c.says, strings.Join(says, "\n")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", only, diff)
		}
		got := out.String()
		if !strings.HasPrefix(got, c.lines) || !strings.HasSuffix(got, "\nfalse # see the error\n") || strings.Contains(got, "export NCCL_IB_GID_INDEX="+c.index+"\n") != (c.index != "") {
			t.Errorf("%s prints\n%s", only, got)
		}
	}
}
