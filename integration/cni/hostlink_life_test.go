// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// linkedPod is a pod of which roce has made eth0, and a server in it.
type linkedPod struct {
	*pod
	attachment
	addr netip.Addr
}

// linkedPods returns pods of the node with addresses of both families.
func (l *linked) linkedPods(t *testing.T, n int) []linkedPod {
	t.Helper()
	var out []linkedPod
	for range n {
		p := l.bare(t)
		a := l.attach(linkedTo(l.node, cnitest.Subnet4(0), cnitest.Subnet6(0)), p, "eth0")
		out = append(out, linkedPod{p, a, addrs(a.mustAdd(t))[0]})
		p.serve(t, netip.AddrPortFrom(out[len(out)-1].addr, 8080))
	}
	return out
}

// probed wants that the node reaches the pod.
func (l *linked) probed(t *testing.T, p linkedPod, when string) {
	t.Helper()
	l.mustSee(t, "a probe "+when, netip.AddrPortFrom(p.addr, 8080), "172.16.10.1", "10.0.0.7")
}

// hostEnds returns the ends of veth pairs of roce on the node.
func (l *linked) hostEnds(t *testing.T) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(l.MustRun(t, "ip", "-oneline", "link", "show", "type", "veth")) {
		if strings.Contains(line, "alias roce:") {
			name, _, _ := strings.Cut(strings.Fields(line)[1], "@")
			out = append(out, name)
		}
	}
	return out
}

// lookPlain is a snapshot without what a master without filters shows while it has children.
func (w *world) lookPlain(t *testing.T) string {
	t.Helper()
	return promiscuity.ReplaceAllString(w.snapshot(t), "")
}

func (l *linked) unchangedPlain(t *testing.T, before string) {
	t.Helper()
	if after := l.lookPlain(t); after != before {
		t.Errorf("the node is not as it was. Before:\n%s\nafter:\n%s", before, after)
	}
}

func TestWhateverIsGoneDelRemovesTheLink(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(t *testing.T, l *linked, p linkedPod){
		"the namespace":    func(t *testing.T, _ *linked, p linkedPod) { p.Remove(t) },
		"the host's end":   func(t *testing.T, l *linked, _ linkedPod) { l.IP(t, "link del "+l.hostEnds(t)[0]) },
		"the pod's end":    func(t *testing.T, _ *linked, p linkedPod) { p.IP(t, "link del host0") },
		"the pod's name":   func(t *testing.T, _ *linked, p linkedPod) { p.IP(t, "link set host0 name other0") },
		"the rule":         func(t *testing.T, l *linked, _ linkedPod) { l.IP(t, "rule del priority 500") },
		"nothing, but GC":  func(t *testing.T, l *linked, p linkedPod) { l.collect(t, p) },
		"the record":       func(t *testing.T, l *linked, p linkedPod) { l.loseRecord(t, p) },
		"the table's rows": func(t *testing.T, l *linked, _ linkedPod) { l.IP(t, "route flush table 8200") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLinked(t)
			before := l.lookPlain(t)
			p := l.linkedPods(t, 1)[0]
			spoil(t, l, p)
			p.mustDel(t)
			p.mustDel(t)
			if ends := l.hostEnds(t); len(ends) > 0 {
				t.Errorf("the node still has %v", ends)
			}
			cnitest.Await(t, "the node is as it was", func() bool { return l.lookPlain(t) == before })
			l.nothingLeased(t)
		})
	}
}

// TestAPodWithNetAdminHarmsOnlyItsOwnLink has a pod change all that it has of its link, take
// the address of another pod, and hand its end to a third one.
func TestAPodWithNetAdminHarmsOnlyItsOwnLink(t *testing.T) {
	t.Parallel()
	l := newLinked(t)
	elsewhere := l.bare(t)
	before := l.lookPlain(t)
	pods := l.linkedPods(t, 2)
	victim, attacker := pods[0], pods[1]
	for _, commands := range []string{
		"route flush dev host0", "neigh flush all dev host0 nud permanent",
		fmt.Sprintf("addr add %s/32 dev host0", victim.addr),
		"link set host0 address 02:00:00:00:00:07", "link set host0 mtu 9000", "link set host0 alias roce:other/eth0",
		"link set host0 down", "link set host0 up", "link set host0 netns " + elsewhere.Name,
		"link add host0 type bridge",
	} {
		attacker.IP(t, commands)
		l.probed(t, victim, "of another pod, after: "+commands)
	}
	for range 2 {
		attacker.mustDel(t)
	}
	if ends := l.hostEnds(t); len(ends) != 1 {
		t.Errorf("the node has the ends %v, want that of the other pod alone", ends)
	}
	l.probed(t, victim, "after the DEL of the attacker")
	victim.mustCheck(t)
	victim.mustDel(t)
	cnitest.Await(t, "the node is as it was", func() bool { return l.lookPlain(t) == before })
	l.nothingLeased(t)
}

func (l *linked) collect(t *testing.T, p linkedPod) {
	t.Helper()
	if err := p.call().GC(t, types.GCAttachment{ContainerID: "other", IfName: "eth0"}); err != nil {
		t.Errorf("GC: %v", err)
	}
}

func (l *linked) loseRecord(t *testing.T, p linkedPod) {
	t.Helper()
	must(t, os.Remove(filepath.Join(l.state, "attachments", p.attachment.id, "eth0.json")))
	for _, f := range []string{"-4", "-6"} { // the rule stays: only records say which pods have it
		l.MustRun(t, "ip", f, "rule", "del", "priority", "500")
	}
}

func TestRepairRestoresALink(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(t *testing.T, l *linked, p linkedPod)
		says  string
	}{
		"the host's end is gone": {func(t *testing.T, l *linked, _ linkedPod) { l.IP(t, "link del "+l.hostEnds(t)[0]) }, "check veth pair"},
		"the host's end has another name": {func(t *testing.T, l *linked, _ linkedPod) {
			l.IP(t, fmt.Sprintf("link set dev %[1]s down\nlink set dev %[1]s name other0\nlink set dev other0 up", l.hostEnds(t)[0]))
		}, `its name is "other0" now`},
		"the pod's end is gone": {func(t *testing.T, _ *linked, p linkedPod) { p.IP(t, "link del host0") }, "check veth pair"},
		"a neighbour is gone": {func(t *testing.T, l *linked, p linkedPod) {
			l.IP(t, fmt.Sprintf("neigh del %s dev %s", p.addr, l.hostEnds(t)[0]))
		}, "check neighbour"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLinked(t)
			p := l.linkedPods(t, 1)[0]
			l.probed(t, p, "before")
			c.spoil(t, l, p)
			if err := p.check(t); err == nil || !strings.Contains(err.Msg, c.says) {
				t.Errorf("CHECK: %v, want %q", err, c.says)
			}
			l.mustRocectl(t, "repair", "--yes")
			p.mustCheck(t)
			l.probed(t, p, "after the repair")
		})
	}
}
