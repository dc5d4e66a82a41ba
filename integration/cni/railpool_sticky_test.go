// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile/nodefiletest"
)

// ownSticky is own for a sticky pool.
func (n *node) ownSticky(t testing.TB, rails int, hosts ...string) {
	t.Helper()
	f := owned(t, rails, hosts...)
	f.Sticky = true
	must(t, n.told(t).Write(f))
}

// named returns the attachment of a pod of this name.
func (a attachment) named(pod string) attachment {
	a.args = slices.DeleteFunc(slices.Clone(a.args), func(p [2]string) bool { return p[0] == "K8S_POD_NAME" })
	return a.arg("K8S_POD_NAME", pod)
}

// keeps is rocectl's agent for pods that keep addresses: until the test ends or it is
// stopped, it answers requests, with the host part that is kept for a pod, or with why
// not.
func (n *node) keeps(t *testing.T, rails int, kept map[string]string, why string) (stop func()) {
	t.Helper()
	return nodefiletest.Answer(t, n.told(t), func(_ string, k nodefile.Key) nodefile.Answer {
		host, there := kept[k.Pod]
		if !there {
			return nodefile.Answer{None: why}
		}
		return nodefile.Answer{Rails: owned(t, rails, host+"-"+host).Rails, Until: nodefiletest.Now(t) + time.Minute}
	})
}

func TestAPodThatComesBackUnderItsNameKeepsItsAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rails)
	w.ownSticky(t, rails, "32-47")
	w.keeps(t, rails, map[string]string{"job-0": "77"}, "node n7 still holds it")
	c := w.matched(cnitest.Subnet4).Pooled(railPool)
	p := w.pod(t)
	before := p.snapshot(t)
	a := w.attach(c, p, "net1").named("job-0")
	res := a.mustAdd(t)
	all := each(t, a, res, 1)
	for _, one := range all {
		within(t, one.addrs, 77, 77)
		w.leaf.MustRun(t, "ping", "-n", "-q", "-c", "1", "-w", "10", one.addrs[0].String())
	}
	if diff := cmp.Diff(res, a.mustAdd(t)); diff != "" {
		t.Errorf("result of the second ADD (-first +second)\n%s", diff)
	}
	a.mustCheck(t)

	// The next sandbox of the pod comes before the former one has gone.
	next := w.attach(c, w.pod(t), "net1").named("job-0")
	if err := next.mustFail(t, 11); !strings.Contains(err.Msg, a.id) || !strings.Contains(err.Msg, `sticky addresses of "train/job-0"`) {
		t.Errorf("beside the former sandbox: got %v, want it to name %s and the pod", err, a.id)
	}
	a.mustDel(t)
	p.unchanged(t, before)
	within(t, addrs(next.mustAdd(t)), 77, 77) // within the quarantine

	// Another pod is refused, and those without a number do not ask.
	refused := w.attach(c, w.pod(t), "net1").named("job-1")
	within(t, addrs(refused.mustAdd(t)), 32, 47)
	if log := refused.stderr.String(); !strings.Contains(log, "node n7 still holds it") {
		t.Errorf("the log has %q", log)
	}
	other := w.attach(c, w.pod(t), "net1").named("web-6d4cf56db6-x7k2p")
	within(t, addrs(other.mustAdd(t)), 32, 47)
	for _, one := range []attachment{next, refused, other} {
		one.mustDel(t)
	}
	w.nothingLeased(t)
}
