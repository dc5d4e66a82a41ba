// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

func TestRailsOfSeveralMastersGoTogether(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	node.NIC("nic1")
	other := open(t, node.Pod())
	ops := kerneltest.Attachment(kerneltest.Container(t), nic, "nic1", nic)
	do(t, k, ops...)
	theirs := child(t) // of another pod on the same NIC
	do(t, other, plan.Op{Kind: theirs})
	undo(t, k, ops.Teardown())
	if links := pod.IP("-o link"); strings.Count(links, "\n") != 1 {
		t.Errorf("want lo to be left, got\n%s", links)
	}
	if err := other.Check(t.Context(), plan.Op{Kind: theirs}); err != nil {
		t.Error(err)
	}
}

// TestUndoFindsTheLinksThatThePodHasMoved has links of the attachment in two other namespaces, behind one that
// cannot be opened, beside a link with a MAC of ours and one with a mark of ours.
func TestUndoFindsTheLinksThatThePodHasMoved(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	links := kerneltest.Attachment(kerneltest.Container(t), nic, nic, nic).Runs()[0]
	do(t, k, links...)
	first, dir := links[0].Kind.(plan.Child), t.TempDir()
	one, two := node.PodAt(filepath.Join(dir, "one")), node.PodAt(filepath.Join(dir, "two"))
	pod.IP("link set net1 netns " + one.Path)
	pod.IP("link set net1-1 netns " + two.Path + " name moved0")
	pod.IP("link set net1-2 netns " + two.Path)
	node.IP("link add link " + nic + " name later0 netns " + one.Path + " address " + first.MAC.String() + " type macvlan mode bridge")
	two.IP("link add other0 type bridge")
	two.IP("link set other0 alias " + first.Mark)
	wantLinks := func(ns *kerneltest.Netns, want string) {
		t.Helper()
		var got []string
		for line := range strings.Lines(ns.IP("-br link")) {
			name, _, _ := strings.Cut(strings.Fields(line)[0], "@")
			got = append(got, name)
		}
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("got links %q, want %q", got, want)
		}
	}
	k = open(t, pod)
	mounted(t, k, one.Path, two.Path)
	undo(t, k, plan.InPod(plan.Child{Name: first.Name, Mark: first.Mark})) // the record is lost
	wantLinks(one, "later0 lo net1")
	wantLinks(two, "lo moved0 net1-2 other0")
	k = open(t, pod)
	mounted(t, k, one.Path, two.Path)
	undo(t, k, links)
	wantLinks(one, "later0 lo")
	wantLinks(two, "lo other0")
}

// ipvlans is a Linux that shows macvlans as ipvlans of mode l3. What real ones do is in
// kerneltest.Suite, on kernels that have them.
type ipvlans struct{ nlsock.Socket }

func (s ipvlans) Dump(ctx context.Context, req nlsock.Request) ([][]byte, error) {
	rows, err := s.Socket.Dump(ctx, req)
	shown(rows, "ipvlan", nl.IFLA_IPVLAN_MODE, 1)
	return rows, err
}

// TestAnIpvlanOfAnotherProgramKeepsItsMode has one on the host, one in the pod, one of ours, and a NIC with none.
func TestAnIpvlanOfAnotherProgramKeepsItsMode(t *testing.T) {
	t.Parallel()
	node, pod, k := machine(t)
	req := conf.Request{Mode: conf.L2, Rails: []conf.Rail{{Parent: conf.Parent{Name: "nosuch0"}}, {Parent: conf.Parent{Name: nic}}}}
	for _, name := range []conf.LinkName{"nic1", "nic2", "nic3"} {
		node.NIC(string(name))
		req.Rails = append(req.Rails, conf.Rail{Parent: conf.Parent{Name: name}})
	}
	node.IP("link add link nic1 name other0 type macvlan")
	node.IP("link add link nic2 name other1 netns " + pod.Path + " type macvlan")
	node.IP("link add link nic3 name ours0 type macvlan")
	node.IP("link set ours0 alias " + plan.MarkPrefix + "c2/net1")
	index, _, _ := strings.Cut(node.IP("-o link show dev nic1"), ":")
	pod.IP("link add index " + index + " name eth9 type bridge") // which is not what other0 is on
	pod.IP("link set eth9 up")
	if err := k.Through(func(s nlsock.Socket) nlsock.Socket { return ipvlans{s} }); err != nil {
		t.Fatal(err)
	}
	inPod := conf.Request{Mode: conf.L2, LinkInContainer: true, Rails: []conf.Rail{{Parent: conf.Parent{Name: "eth9"}}}}
	if f, err := plan.Only(k.Facts(t.Context(), inPod)); err != nil || fmt.Sprint(f.Parent.Index) != index {
		t.Errorf("a link of the pod: %+v, %v", f.Parent, err)
	}
	for mode, beside := range map[conf.Mode]string{
		conf.Bridge: "<nil>", conf.L2: `use master "%s": the ipvlan "%s" in the namespace %s has mode l3, and all ipvlans of a NIC have one mode`,
	} {
		req.Mode = mode
		rails, err := k.Facts(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`select master "nosuch0": there is no such interface`, "<nil>", beside, beside, "<nil>"}
		if mode == conf.L2 {
			want[2], want[3] = fmt.Sprintf(beside, "nic1", "other0", "host"), fmt.Sprintf(beside, "nic2", "other1", pod.Path)
		}
		var got []string
		for _, r := range rails {
			got = append(got, fmt.Sprint(r.Fault))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", mode, diff)
		}
	}
}

// flooded has dumps that are too large to be kept, as a program of the pod can make them with
// some thousand links that have many alternative names.
type flooded struct{ nlsock.Socket }

func (flooded) Dump(context.Context, nlsock.Request) ([][]byte, error) {
	return nil, nlsock.ErrTooMuch
}

func TestUndoInAPodWithTooManyLinksToList(t *testing.T) {
	t.Parallel()
	s := refusingAbove(t, func(s nlsock.Socket) nlsock.Socket { return flooded{s} })
	s.node.NIC("nic1")
	ops := kerneltest.Attachment(kerneltest.Container(t), nic, "nic1")
	do(t, s.Kernel, ops...)
	s.each(func() error { return s.Undo(t.Context(), ops.Runs()[0]...) }, func(request int, err error) {
		said(t, fmt.Sprint("request ", request), err)
	})
	undo(t, s.Kernel, ops.Teardown())
	if links := s.pod.IP("-o link"); strings.Count(links, "\n") != 1 {
		t.Errorf("want lo to be left, got\n%s", links)
	}
}

// A program of the pod can make many rules that the kernel takes for ours when it deletes one.
func TestAllTwinsOfARuleGo(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	ours := plan.InPod(plan.Rule{From: netip.MustParsePrefix("10.9.0.5/32"), Table: 100, Priority: 32000})
	before := pod.IP("rule")
	for mark := 1; mark <= 9; mark++ {
		pod.IP(fmt.Sprintf("rule add from 10.9.0.5/32 lookup 100 priority 32000 protocol %d fwmark %d", plan.Protocol, mark))
	}
	undo(t, k, ours)
	if now := pod.IP("rule"); now != before {
		t.Errorf("left:\n%s", now)
	}
}

// TestMoreRulesThanUndoDeletesAreSaid has a lost record, too: the links go, and the rules with the pod.
func TestMoreRulesThanUndoDeletesAreSaid(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	ops := kerneltest.Attachment(kerneltest.Container(t), nic, nic)
	do(t, k, ops...)
	pod.Exec("sh", "-ec", "seq 2200 | sed 's/.*/rule add from 10.9.0.5 lookup 100 priority 32000 protocol 82 fwmark &/' | ip -batch -")
	err := k.Undo(t.Context(), plan.Op{Kind: plan.Orphans{Link: "net1", Mark: ops[0].Kind.(plan.Child).Mark}})
	says(t, err, cnierr.IO, `delete rule "from 10.9.0.5/32 priority 32000": rules equal to ours are left`, "ip monitor rule in the pod shows")
	if links := pod.IP("-o link"); !errors.Is(err, kernel.ErrRulesLeft) || !strings.Contains(links, "net1@") || strings.Contains(links, "net1-1") {
		t.Errorf("got %v, want net1 alone to be left:\n%s", err, links)
	}
	if left := pod.IP("rule"); strings.Contains(left, "unreachable") || strings.Contains(left, "10.9.1.5") {
		t.Error("rules that have no twins are left, too")
	}
}

// TestARunSaysWhichOfItsOperationsFailed has the second fail, and a check that finds two damaged.
func TestARunSaysWhichOfItsOperationsFailed(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	links := kerneltest.Attachment(kerneltest.Container(t), nic, nic, nic).Runs()[0]
	refused := slices.Clone(links)
	large := links[1].Kind.(plan.Child)
	large.MTU = 9000
	refused[1] = plan.Op{Kind: large}
	says(t, k.Do(t.Context(), refused...), cnierr.BadParent, `add macvlan "net1-1": on "nic0"`, "")
	do(t, k, links...)
	ups := plan.InPod(plan.Up{Link: "net1"}, plan.Up{Link: "gone0"}, plan.Up{Link: "net1-2"})
	says(t, k.Do(t.Context(), ups...), cnierr.IO, `bring up "gone0"`, "")
	pod.IP("link set net1 down")
	pod.IP("link set net1-2 down")
	pod.IP("link del net1-1")
	var got []string
	for _, err := range cnierr.Each(errors.Join(k.Check(t.Context(), ups...), k.Check(t.Context(), links...))) {
		got = append(got, err.Error())
	}
	want := []string{
		`check state of "net1": want it up, got down`, `check state of "gone0": the pod has no such interface`, `check state of "net1-2": want it up, got down`,
		`check macvlan "net1-1": the pod has no such interface`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestAnUndoThatIsOverSaysSo(t *testing.T) {
	t.Parallel()
	_, _, k := machine(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, run := range steps(t).Runs() {
		do(t, k, run...)
		err := k.Undo(over, run...)
		switch run[0].Kind.(type) {
		case plan.Sysctl, plan.Up, plan.Adopt: // nothing is to be undone
			if err != nil {
				t.Errorf("%T: %v", run[0].Kind, err)
			}
		default:
			wantCode(t, err, cnierr.TryAgain)
		}
		wantCode(t, k.Do(over, run...), cnierr.TryAgain)
		wantCode(t, k.Check(over, run...), cnierr.TryAgain)
	}
}

// Before 6.15 the kernel makes links in the host first, and answers EEXIST.
func TestRunMayHaveNamesOfLinksOfTheHost(t *testing.T) {
	t.Parallel()
	node, _, k := machine(t)
	node.IP("link add net1-1 type bridge")
	run := kerneltest.Attachment(kerneltest.Container(t), nic, nic, nic).Runs()[0]
	do(t, k, run...)
	do(t, k, run...)
	if err := k.Check(t.Context(), run...); err != nil {
		t.Error(err)
	}
}

func TestAsManyRailsAsThereCanBe(t *testing.T) {
	t.Parallel()
	_, pod, k := machine(t)
	before := pod.IP("-o addr")
	ops := kerneltest.Attachment(kerneltest.Container(t), slices.Repeat([]conf.LinkName{nic}, 32)...)
	for range 2 {
		do(t, k, ops...)
		for _, run := range ops.Runs() {
			if err := k.Check(t.Context(), run...); err != nil {
				t.Errorf("%T: %v", run[0].Kind, err)
			}
		}
	}
	undo(t, k, ops)
	undo(t, k, ops)
	if after := pod.IP("-o addr"); after != before || strings.Contains(pod.IP("rule"), fmt.Sprint(plan.Protocol)) {
		t.Errorf("left behind:\n%s%s", after, pod.IP("rule"))
	}
}
