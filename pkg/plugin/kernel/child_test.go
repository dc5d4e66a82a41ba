// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestALinkHasTheQueueAndTheMTUThatAreAskedFor(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	op := child(t)
	op.BCQueueLen = 2500
	pair := plan.Veth{Name: "veth1", MAC: conf.MAC{2, 0, 0, 0, 2, 1}, PodEnd: "host0", PodMAC: conf.MAC{2, 0, 0, 0, 2, 2}, MTU: 1450, Mark: op.Mark}
	do(t, k, plan.Op{Kind: op}, plan.Op{Kind: plan.Up{Link: op.Name, MTU: 1400}}, plan.OnHost(pair)[0])
	got := pod.IP("-d link show dev net1") + pod.IP("link show dev host0") + node.IP("link show dev veth1")
	if !strings.Contains(got, "bcqueuelen 2500") || !strings.Contains(got, ",UP") || strings.Count(got, "mtu 1400 ") != 1 || strings.Count(got, "mtu 1450 ") != 2 {
		t.Errorf("got %s", got)
	}
	do(t, k, kerneltest.Attachment(kerneltest.Container(t), nic, nic).Runs()[0]...)
	do(t, k, plan.InPod(plan.Up{Link: "net1", MTU: 1300}, plan.Up{Link: "net1-1", MTU: 1450})...)
	if got := pod.IP("link show dev net1") + pod.IP("link show dev net1-1"); !strings.Contains(got, "mtu 1300 ") || !strings.Contains(got, "mtu 1450 ") {
		t.Errorf("each of a run has an MTU of its own: got %s", got)
	}
}

// TestPairsAreMadeInTurnUntilOneFails: what comes after it is not made.
func TestPairsAreMadeInTurnUntilOneFails(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	node.IP("link add taken0 type veth peer name other0")
	pair := plan.Veth{Name: "taken0", MAC: conf.MAC{2, 0, 0, 0, 2, 1}, PodEnd: "host0", PodMAC: conf.MAC{2, 0, 0, 0, 2, 2}, Mark: child(t).Mark}
	second := pair
	second.Name, second.PodEnd, second.MAC, second.PodMAC = "veth2", "host1", conf.MAC{2, 0, 0, 0, 3, 1}, conf.MAC{2, 0, 0, 0, 3, 2}
	err := k.Do(t.Context(), plan.OnHost(pair, second)...)
	if left := node.IP("-o link"); err == nil || strings.Contains(left, "veth2") {
		t.Errorf("got %v and\n%s", err, left)
	}
	do(t, k, plan.OnHost(second)...)
}

// TestTheLinkWithTheNameIsRemovedFirst has two links that are ours: one has the name, the other the mark.
func TestTheLinkWithTheNameIsRemovedFirst(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	op := child(t)
	do(t, k, plan.Op{Kind: op})
	pod.IP("link set net1 down")
	pod.IP("link set net1 name marked0")
	pod.IP("link add link marked0 name net1 address " + op.MAC.String() + " type macvlan mode bridge")
	for _, left := range []string{"marked0", ""} {
		undo(t, k, plan.Ops{{Kind: op}})
		var got []string
		for line := range strings.Lines(pod.IP("-br link show type macvlan")) {
			name, _, _ := strings.Cut(line, "@")
			got = append(got, name)
		}
		if strings.Join(got, " ") != left {
			t.Errorf("got %q, want %q", got, left)
		}
	}
}

// mounted lets a Kernel know of the namespaces at these paths, behind one at a path that is too long to be opened,
// and of no others.
func mounted(t *testing.T, k *kernel.Kernel, paths ...string) {
	t.Helper()
	info := fmt.Sprintf("1 1 0:4 net:[1] /%s rw\n", strings.Repeat("x", unix.PathMax))
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		info += fmt.Sprintf("1 1 %d:%d net:[%d] %s rw\n", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino, path)
	}
	proc := t.TempDir()
	dir := filepath.Join(proc, "thread-self")
	if err := cmp.Or(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "mountinfo"), []byte(info), 0o600)); err != nil {
		t.Fatal(err)
	}
	k.Procfs(proc)
}

// TestEachFindingOfALinkHasItsRemedy compares all that Check says. Behind a finding of what a
// program may set is the MTU that repair raises it to.
func TestEachFindingOfALinkHasItsRemedy(t *testing.T) {
	t.Parallel()
	const renamed = "HOST link set nic0 down\nHOST link set nic0 name other0\nHOST link set other0 up\n"
	for name, tt := range map[string]struct {
		script string
		want   []string
	}{
		"nothing": {"", nil},
		"the VLAN has a lower MTU than its NIC": {"HOST link set vlan0 mtu 1400", []string{
			"want MTU 1500, got 1400: its NIC had that for a time, or a program set it; rocectl repair raises it -> restore it: IP link set dev net1 mtu 1500 [raise 1500]",
		}},
		"the VLAN and its NIC have a lower MTU": {"HOST link set vlan0 mtu 1400\nHOST link set nic0 mtu 1400", []string{
			"want MTU 1500, got 1400 -> restore it: IP link set dev net1 mtu 1500 [raise 0]",
		}},
		"the NIC was renamed": {renamed, []string{
			`want master nic0, got other0 -> restore it: ip link set dev other0 name nic0 [raise 0]`,
		}},
		"the NIC is down under another name": {renamed + "HOST link set other0 down", []string{
			`its NIC other0 (nic0 in ADD) is down -> restore it: ip link set dev other0 up`,
			`want master nic0, got other0 -> restore it: ip link set dev other0 name nic0 [raise 0]`,
		}},
		"the NIC has no carrier": {"WIRE link set nic0 down", []string{`its NIC nic0 has no carrier -> look at cable and switch port of the NIC`}},
		"the link is gone, the NIC renamed": {renamed + "link del net1", []string{
			"the pod has no such interface -> restore it: RECREATE",
			`want master nic0, got other0 -> restore it: ip link set dev other0 name nic0 [raise 0]`,
		}},
		"all is different": {"link set net1 alias x\nlink set net1 type macvlan mode private\nlink set net1 mtu 1400\nlink set net1 address 02:00:00:00:00:99\nlink set net1 alias MARK", []string{
			"want mode bridge, got private -> restore it: IP link set dev net1 type macvlan mode bridge",
			"want MAC 02:00:00:00:00:05, got 02:00:00:00:00:99 -> restore it: IP link set dev net1 address 02:00:00:00:00:05 [raise 0]",
			"want MTU 1500, got 1400: its NIC had that for a time, or a program set it; rocectl repair raises it -> restore it: IP link set dev net1 mtu 1500 [raise 1500]",
		}},
		"mark and mode are different": {"link set net1 alias x\nlink set net1 type macvlan mode vepa", []string{
			"want alias MARK, got x, want mode bridge, got vepa -> restore it: IP link set dev net1 alias MARK && IP link set dev net1 type macvlan mode bridge",
		}},
		"the NIC has a lower MTU": {"HOST link set nic0 mtu 1400", []string{
			"want MTU 1500, got 1400 -> restore it: IP link set dev net1 mtu 1500 [raise 0]",
		}},
		"the link has a higher MTU": {"HOST link set nic0 mtu 1600\nlink set net1 mtu 1600", []string{
			"want MTU 1500, got 1600 -> restore it: IP link set dev net1 mtu 1500 [raise 0]",
		}},
		"the link is elsewhere": {"link set net1 name moved0\nlink set moved0 netns ELSEWHERE", []string{
			"it was moved to the namespace PATH, as \"moved0\" -> restore it: ELSEWHERE link del dev moved0 && RECREATE",
		}},
		"another link has the name": {"link del net1\nlink add net1 type bridge\nlink set net1 address 02:00:00:00:00:77", []string{
			"want the interface with alias MARK, got a link of kind bridge with address 02:00:00:00:00:77 -> restore it: IP link del dev net1 && RECREATE",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, pod, k := machine(t)
			op := child(t)
			is := facts(t, k)
			op.NIC = plan.NIC{Index: is.Index, MAC: is.MAC}
			if strings.Contains(tt.script, "vlan0") { // another NIC is the VLAN: not every kernel has VLANs
				node.NIC("vlan0")
				op.Parent, op.NIC, op.VLAN = "vlan0", plan.NIC{}, conf.VLAN{ID: 7, NIC: nic}
			}
			do(t, k, plan.Op{Kind: op})
			at := filepath.Join(t.TempDir(), "elsewhere")
			if strings.Contains(tt.script, "ELSEWHERE") {
				mounted(t, k, node.PodAt(at).Path)
			}
			for line := range strings.Lines(strings.NewReplacer("MARK", op.Mark, "ELSEWHERE", at).Replace(tt.script)) {
				if on, is := strings.CutPrefix(line, "HOST "); is {
					node.IP(on)
				} else if on, is := strings.CutPrefix(line, "WIRE "); is {
					node.Wire.IP(on)
				} else {
					pod.IP(line)
				}
			}
			var got []string
			for _, err := range cnierr.Each(k.Check(t.Context(), plan.Op{Kind: op})) {
				var e *cnierr.Error
				if !errors.As(err, &e) || e.Code != cnierr.Damaged || e.Op != "check macvlan" || e.Subject != "net1" {
					t.Errorf("got %+v", err)
					continue
				}
				s := e.Err.Error() + " -> " + e.Hint
				var changed *kernel.ChangedError
				if errors.As(err, &changed) {
					s += fmt.Sprintf(" [raise %d]", changed.Raise)
				}
				got = append(got, s)
			}
			words := strings.NewReplacer(
				strings.Join(plan.Op{Kind: op}.Commands(plan.NetnsName(pod.Path)), " && "), "RECREATE",
				plan.IP(plan.NetnsName(pod.Path)), "IP", op.Mark, "MARK", plan.IP(at), "ELSEWHERE", at, "PATH")
			for i := range got {
				got[i] = words.Replace(got[i])
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
