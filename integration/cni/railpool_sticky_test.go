// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// ownSticky is own for a sticky pool.
func (n *node) ownSticky(t testing.TB, rails int, hosts ...string) {
	t.Helper()
	f := owned(t, rails, hosts...)
	f.Sticky = true
	if err := n.told(t).Write(f); err != nil {
		t.Fatal(err)
	}
}

// named returns the attachment of a pod of this name.
func (a attachment) named(pod string) attachment {
	a.args = slices.DeleteFunc(slices.Clone(a.args), func(p [2]string) bool { return p[0] == "K8S_POD_NAME" })
	return a.arg("K8S_POD_NAME", pod)
}

// keeps is rocectl's agent for pods that keep addresses: until the test ends it
// answers requests, with the host part that is kept for a pod, or with why not.
func (n *node) keeps(t testing.TB, rails int, kept map[string]string, why string) {
	t.Helper()
	files := n.told(t)
	answers := map[string]nodefile.Answer{}
	for pod, host := range kept {
		answers[pod] = nodefile.Answer{Rails: owned(t, rails, host+"-"+host).Rails}
	}
	background(t, func() error {
		keys, err := files.Wanted(railPool)
		for _, k := range keys {
			a, ok := answers[k.Pod]
			if !ok {
				a.None = why
			}
			a.Key = k
			err = errors.Join(err, files.WriteAnswer(railPool, a), files.Unwant(railPool, k))
		}
		return err
	})
}

// background does something again and again until the test ends or it fails.
func background(t testing.TB, do func() error) {
	t.Helper()
	running, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for running.Err() == nil {
			if err := do(); err != nil {
				t.Errorf("rocectl's agent: %v", err)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	t.Cleanup(func() { stop(); done.Wait() })
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
	if err := a.check(t); err != nil {
		t.Errorf("CHECK: %v", err)
	}

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

func TestWithoutAnswerAnADDIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.ownSticky(t, 1, "32-47")
	p := w.pod(t)
	before := p.snapshot(t)
	a := w.attach(w.rail(0).Pooled(railPool), p, "net1").named("job-0")
	start := time.Now()
	if err := a.mustFail(t, 11); !strings.Contains(err.Msg, "not answered yet") || !strings.Contains(err.Details, "log of rocectl agent") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took < 2*time.Second {
		t.Errorf("the ADD waited %v, want 2 s", took)
	}
	p.unchanged(t, before)
	w.nothingLeased(t)
	keys, err := w.told(t).Wanted(railPool)
	if want := []nodefile.Key{{Namespace: "train", Pod: "job-0", Interface: "net1"}}; err != nil || !slices.Equal(keys, want) {
		t.Errorf("asked for %v, error %v, want %v", keys, err, want)
	}
	w.keeps(t, 1, map[string]string{"job-0": "77"}, "")
	within(t, addrs(a.addAtLast(t)), 77, 77)
	if err := os.RemoveAll(filepath.Join(w.state, "pools")); err != nil { // only an ADD needs it
		t.Fatal(err)
	}
	a.mustDel(t)
	p.unchanged(t, before)
}

// runs calls a verb of roce-ipam.
func (a attachment) runs(t testing.TB, verb string) (string, uint, string) {
	t.Helper()
	out, err := a.raw(t, "roce-ipam", verb, a.text(t))
	if err == nil {
		return string(out), 0, ""
	}
	return string(out), err.Code, err.Msg
}

func TestIPAMPluginLeasesStickyAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.ownSticky(t, 3, "32-32")
	w.keeps(t, 3, map[string]string{"job-0": "77"}, "all slots are kept for other pods")
	c := w.delegate().Pooled(railPool).With("ipam.rail", 2)
	first := w.attach(c, w.pod(t), "net1").named("job-0")
	second := w.attach(c, w.pod(t), "net1").named("job-0")
	refused := w.attach(c, w.pod(t), "net1").named("job-1")
	if out, code, msg := first.runs(t, "ADD"); code != 0 || !strings.Contains(out, `"172.16.12.77/24"`) {
		t.Errorf("got %s, error %d %s", out, code, msg)
	}
	if _, code, msg := second.runs(t, "ADD"); code != 11 || !strings.Contains(msg, first.id) || strings.Contains(msg, "requested") {
		t.Errorf("beside the former sandbox: got error %d %s, want 11", code, msg)
	}
	if out, code, msg := refused.runs(t, "ADD"); code != 0 || !strings.Contains(out, `"172.16.12.32/24"`) {
		t.Errorf("refused: got %s, error %d %s", out, code, msg)
	}
	if !strings.Contains(refused.stderr.String(), "all slots are kept for other pods") {
		t.Errorf("the log has %q", refused.stderr)
	}
	for _, a := range []attachment{first, refused} {
		if _, code, msg := a.runs(t, "DEL"); code != 0 {
			t.Errorf("DEL: error %d %s", code, msg)
		}
	}
	if out, code, msg := second.runs(t, "ADD"); code != 0 || !strings.Contains(out, `"172.16.12.77/24"`) {
		t.Errorf("after DEL: got %s, error %d %s", out, code, msg)
	}
	if _, code, msg := second.runs(t, "DEL"); code != 0 {
		t.Errorf("DEL: error %d %s", code, msg)
	}
	w.nothingLeased(t)
}

// An ADD that has read that it may have addresses waits for its turn to lease them,
// while the agent takes them back: it sees that no pod has leased them.
func TestAddressesThatAreGivenBackMeanwhileAreNotUsed(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"roce", "roce-ipam"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.ownSticky(t, 1, "32-47")
			c := w.rail(0).Pooled(railPool)
			if program == "roce-ipam" {
				c = w.delegate().Pooled(railPool)
			}
			other := w.attach(w.rail(0).Pooled(railPool), w.pod(t), "net1").named("web-6d4cf56db6-x7k2p")
			other.mustAdd(t)
			leased := w.leases(t, "leased")
			key := nodefile.Key{Namespace: "train", Pod: "job-0", Interface: "net1"}
			if err := w.told(t).WriteAnswer(railPool, nodefile.Answer{Key: key, Rails: owned(t, 1, "77-77").Rails}); err != nil {
				t.Fatal(err)
			}
			p := w.pod(t)
			before := p.snapshot(t)
			a := w.attach(c, p, "net1").named(key.Pod)

			mayLease := w.holdLeases(t)
			add := a.startProgram(t, program, "ADD")
			cnitest.Await(t, "the ADD waits for the leases", func() bool { return w.leasesAreWaitedFor(t) })
			if err := w.told(t).RemoveAnswer(railPool, key); err != nil {
				t.Fatal(err)
			}
			mayLease()
			if err := add.Wait(); err == nil {
				t.Errorf("ADD succeeded: %s", add.Stdout)
			}
			var fault types.Error
			if err := json.Unmarshal(add.Stdout.(*bytes.Buffer).Bytes(), &fault); err != nil || fault.Code != 11 || !strings.Contains(fault.Msg, "released them") {
				t.Errorf("got %s, want error 11", add.Stdout)
			}
			p.unchanged(t, before)
			if diff := cmp.Diff(leased, w.leases(t, "leased")); diff != "" {
				t.Errorf("leased (-before +after)\n%s", diff)
			}

			// The runtime tries again.
			w.keeps(t, 1, map[string]string{"job-0": "77"}, "")
			if out, err := a.raw(t, program, "ADD", a.text(t)); err != nil || !strings.Contains(string(out), `"172.16.10.77/24"`) {
				t.Errorf("got %s, %v", out, err)
			}
		})
	}
}

// holdLeases prevents all leases until the function that it returns is called.
func (n *node) holdLeases(t *testing.T) (release func()) {
	t.Helper()
	f, err := os.Open(filepath.Join(n.state, "leases.lock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = f.Close() }
}

// leasesAreWaitedFor says whether a process waits for holdLeases.
func (n *node) leasesAreWaitedFor(t *testing.T) bool {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(n.state, "leases.lock"), &st); err != nil {
		t.Fatal(err)
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Skip(err)
	}
	return regexp.MustCompile(fmt.Sprintf(`-> FLOCK .*:%d `, st.Ino)).Match(locks)
}
