// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev/nldevtest"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// kernelRDMA is a kernel with test0 on r0 and test1 on r1, in shared mode. Each of the programs has
// a queue pair on the device of its number.
func kernelRDMA(programs ...int) (out nldevtest.Kernel) {
	for i, pid := range programs {
		out.Devices = append(out.Devices, nldevtest.Device{Name: fmt.Sprint("test", i), Netdev: fmt.Sprint("r", i), NetdevIndex: uint32(i + 1), Program: pid})
	}
	return out
}

// answerOf is what a command prints, with its error, in lines with one blank between words.
func answerOf(cmd *cobra.Command, args ...string) string {
	var out bytes.Buffer
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(append([]string{}, args...)) // nil would be the test's own
	if called, err := cmd.ExecuteC(); err != nil {
		cli.PrintError(&out, called, err)
		if status := cli.StatusError(0); errors.As(err, &status) {
			fmt.Fprintln(&out, status)
		}
	}
	return regexp.MustCompile(` +`).ReplaceAllString(out.String(), " ")
}

// TestCommandsAboutDevicesTellPodsApart has two pods with programs: job, of which the record says
// which of two equal entries is its own, and one without a record.
func TestCommandsAboutDevicesTellPodsApart(t *testing.T) {
	t.Parallel()
	n := kerneltest.NewNode(t)
	n.NIC("r0")
	n.NIC("r1")
	n.IP("addr add 172.16.0.9/24 dev r0")
	n.IP("addr add 172.17.0.9/24 dev r1")
	dir := t.TempDir()
	pod, stranger := n.PodAt(filepath.Join(dir, "pod")), n.PodAt(filepath.Join(dir, "stranger"))
	for addr, in := range map[string]*kerneltest.Netns{"net1 172.16.0.5": pod, "net2 172.17.0.5": pod, "net1 172.16.0.6": stranger} {
		link, addr, _ := strings.Cut(addr, " ")
		in.IP("link add " + link + " type veth peer name peer" + link)
		in.IP("link set " + link + " up")
		in.IP("link set peer" + link + " up")
		in.IP("addr add " + addr + "/16 dev " + link)
	}
	sys := fstest.MapFS{}
	entry := func(device, index int, addr, netdev string) {
		port := fmt.Sprintf("class/infiniband/test%d/ports/1/", device)
		for name, text := range map[string]string{"gids": plan.GIDText(netip.MustParseAddr(addr)), "gid_attrs/types": "RoCE v2", "gid_attrs/ndevs": netdev} {
			sys[fmt.Sprint(port, name, "/", index)] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	entry(0, 0, "172.16.0.9", "r0")
	entry(0, 1, "172.16.0.6", "net1")
	entry(0, 2, "172.16.0.5", "net1")
	entry(1, 0, "172.17.0.5", "net2")
	entry(1, 1, "172.17.0.9", "r1")
	entry(1, 2, "172.17.0.7", "r1")
	entry(1, 3, "172.17.0.5", "net2")
	for _, name := range []string{"port_xmit_data", "port_rcv_data"} {
		sys["class/infiniband/test0/ports/1/counters/"+name] = &fstest.MapFile{Data: []byte("7")}
	}
	program := func(in *kerneltest.Netns) int {
		cmd := exec.CommandContext(t.Context(), "sleep", "600")
		if err := in.Do(cmd.Start); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	programs := []int{program(pod), program(stranger)}
	node := &nodeFlags{stateDir: filepath.Join(dir, "state"), sys: sys, dial: kernelRDMA(programs...).Dial}
	ns, err := netns.At(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	rec := record.Record{
		Network: "rails", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: "job"}, Netns: pod.Path, NetnsID: ns.ID, Committed: true,
	}
	target := func(device, index int, link, addr string) plan.GID {
		a := netip.MustParseAddr(addr)
		rec.Plan.Interfaces = append(rec.Plan.Interfaces, plan.Interface{Rail: device, Name: conf.LinkName(link), Addresses: []plan.LeasedAddress{{Prefix: netip.PrefixFrom(a, 16)}}})
		return plan.GID{Device: plan.RDMADevice{Name: fmt.Sprint("test", device), Port: 1}, Targets: []plan.GIDTarget{{Link: conf.LinkName(link), Addr: a, Index: &index}}}
	}
	rec.Plan.Ops = plan.InPod(target(0, 2, "net1", "172.16.0.5"), target(1, 3, "net2", "172.17.0.5"))
	save(t, node.stateDir, rec)
	torn := filepath.Join(node.stateDir, "attachments", "c9", "net1.json") // which hides nothing
	if err := errors.Join(os.Mkdir(filepath.Dir(torn), 0o700), os.WriteFile(torn, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	kept := regexp.MustCompile(`^# (net|r)\d|^export NCCL_IB_GID_INDEX|^(false|env\[)|"(interface|address|device|port|gidIndex)":`)
	const unusable = "env[103] open RDMA device \"test0\": no folder of /sys/class/infiniband_verbs is for it: ib_uverbs is not loaded on the node\n"
	const undecided = "env[108] choose GID index for \"net1, net2\": the indexes differ (net1 2, net2 3), and NCCL takes one for all rails; " +
		"by itself, with NCCL_IB_ADDR_RANGE=172.16.0.0/15, it would take 0 instead of 2 on net1, 0 instead of 3 on net2\n"
	for _, c := range []struct{ args, want string }{
		{"ml/job", "# net1 172.16.0.5: test0 port 1, GID index 2\n# net2 172.17.0.5: test1 port 1, GID index 3\n" +
			"# net1: ib_write_bw -d test0 -i 1 -x 2\n# net2: ib_write_bw -d test1 -i 1 -x 3\nfalse # see the error\n" +
			undecided},
		{"--container c1 -o json", ` "interface": "net1", "address": "172.16.0.5", "device": "test0", "port": 1, "gidIndex": 2` + "\n" +
			` "interface": "net2", "address": "172.17.0.5", "device": "test1", "port": 1, "gidIndex": 3` + "\n" + undecided},
		{"--ifname net2 --netns " + pod.Path, "# net2 172.17.0.5: test1 port 1, GID index 3\nexport NCCL_IB_GID_INDEX=3\n# net2: ib_write_bw -d test1 -i 1 -x 3\n"},
		{fmt.Sprint("--ifname net1 --pid ", programs[0]), "# net1 172.16.0.5: test0 port 1, GID index 2\nexport NCCL_IB_GID_INDEX=2\n# net1: ib_write_bw -d test0 -i 1 -x 2\n"},
		{"--ifname r0", "# r0 172.16.0.9: test0 port 1, GID index 0\nexport NCCL_IB_GID_INDEX=0\n# r0: ib_write_bw -d test0 -i 1 -x 0\nfalse # see the error\n" + unusable},
		{"--ifname r0 -o json", ` "interface": "r0", "address": "172.16.0.9", "device": "test0", "port": 1, "gidIndex": 0` + "\n" + unusable},
	} {
		var got strings.Builder
		for line := range strings.Lines(answerOf(envCommand(node), strings.Fields(c.args)...)) {
			if kept.MatchString(line) && !strings.Contains(line, "locked memory") { // that depends on the machine
				got.WriteString(line)
			}
		}
		if diff := cmp.Diff(c.want, strings.ReplaceAll(got.String(), ",\n", ",")); diff != "" {
			t.Errorf("env %s (-want +got)\n%s", c.args, diff)
		}
	}
	const table = `DEVICE PORT INDEX GID IPV4 TYPE POD INTERFACE
test0 1 0 0000:0000:0000:0000:0000:ffff:ac10:0009 172.16.0.9 v2 host r0
test0 1 1 0000:0000:0000:0000:0000:ffff:ac10:0006 172.16.0.6 v2 DIR/stranger net1
test0 1 2 0000:0000:0000:0000:0000:ffff:ac10:0005 172.16.0.5 v2 ml/job net1
# test0/1 on r0: 3 of 3 entries used, 0 free: room for 0 more pods with one IPv4 address, or for 0 with an IPv6 address too
test1 1 0 0000:0000:0000:0000:0000:ffff:ac11:0005 172.17.0.5 v2 ? net2
test1 1 1 0000:0000:0000:0000:0000:ffff:ac11:0009 172.17.0.9 v2 host r1
test1 1 2 0000:0000:0000:0000:0000:ffff:ac11:0007 172.17.0.7 v2 ? r1
test1 1 3 0000:0000:0000:0000:0000:ffff:ac11:0005 172.17.0.5 v2 ml/job net2
# test1/1 on r1: 4 of 4 entries used, 0 free: room for 0 more pods with one IPv4 address, or for 0 with an IPv6 address too
# test1/1: 172.17.0.5 appears 2 times, at 0 and 3
# test1: process PID (sleep) has queue pairs, and is in a network namespace without a record: its GID index stays taken until it ends, even without an entry
gids[107] read record "DIR/state/attachments/c9/net1.json": unexpected end of JSON input
hint: delete the pod: DEL removes what carries its mark; keep the file for a bug report
`
	if diff := cmp.Diff(table, strings.NewReplacer(dir, "DIR", fmt.Sprintf("process %d ", programs[1]), "process PID ").Replace(answerOf(gidsCommand(node)))); diff != "" {
		t.Errorf("gids (-want +got)\n%s", diff)
	}
	const use = `ml/job net1 test0 RC 1 0 0 0 B 0 0 B/s 0 B/s
? - test1 RC 1 0 0 0 B 0 - -
top[107] read record `
	if got := answerOf(topCommand(node), "--once", "--no-headers"); !strings.HasPrefix(got, use) {
		t.Errorf("top: got\n%swant\n%s", got, use)
	}
	if got := answerOf(topCommand(node), "-o", "json"); strings.Count(got, `"device": "test0"`) != 1 {
		t.Errorf("top as JSON, once:\n%s", got)
	}
}
