// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
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

// kernelRDMA answers as the kernel of a node with test0 on r0 and test1 on r1, in shared mode.
type kernelRDMA struct{}

func (kernelRDMA) Close() {}

func (kernelRDMA) Dump(context.Context, nlsock.Request) (rows [][]byte, err error) {
	for i := range uint32(2) {
		row := nlsock.AppendText(nlsock.AppendNumber(nil, 1, i+1), 2, fmt.Sprint("test", i))
		rows = append(rows, nlsock.AppendText(nlsock.AppendNumber(row, 3, 1), 67, "roce"))
	}
	return rows, nil
}

func (kernelRDMA) Exchange(_ context.Context, reqs ...nlsock.Request) (out []nlsock.Reply, err error) {
	for i := range reqs { // the mode, and then the ports
		row := nlsock.AppendNumber(nil, 66, 1)
		if i > 0 {
			row = nlsock.AppendText(nlsock.AppendNumber(nlsock.AppendNumber(nil, 12, uint32(nldev.Active)), 50, uint32(i)), 51, fmt.Sprint("r", i-1))
		}
		out = append(out, nlsock.Reply{Rows: [][]byte{row}})
	}
	return out, nil
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
	pod := gids.Node{Sys: sys, Dial: func() (*nldev.Conn, error) { return nldev.New(kernelRDMA{}), nil }}
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
