// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// newStickyWorld returns a node that has host parts 32 to 33 of three rails of a
// sticky RailPool.
func newStickyWorld(t *testing.T) *world {
	t.Helper()
	w := newPoolWorld(t)
	w.ownSticky(3, "32-33")
	return w
}

// ownSticky is own for a sticky pool.
func (w *world) ownSticky(rails int, hosts ...string) {
	w.t.Helper()
	w.own(rails, hosts...)
	f, err := w.ranges().Read("gpu")
	if err != nil {
		w.t.Fatal(err)
	}
	f.Sticky = true
	if err := w.ranges().Write(f); err != nil {
		w.t.Fatal(err)
	}
}

func keyOf(pod string) nodefile.Key {
	return nodefile.Key{Namespace: "train", Pod: pod, Interface: "net1"}
}

// slotFor is the answer that grants a host part of so many rails.
func slotFor(pod string, rails, host int) nodefile.Answer {
	a := nodefile.Answer{Key: keyOf(pod)}
	for i := range rails {
		one := netip.AddrFrom4([4]byte{10, byte(i), 0, byte(host)})
		a.Rails = append(a.Rails, []conf.Subnet{{
			Prefix: netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/24", i)), Gateway: netip.MustParseAddr(fmt.Sprintf("10.%d.0.254", i)),
			Ranges: []netrange.Range{{First: one, Last: one}},
		}})
	}
	return a
}

func (w *world) answer(a nodefile.Answer) {
	w.t.Helper()
	if err := w.ranges().WriteAnswer("gpu", a); err != nil {
		w.t.Fatal(err)
	}
}

// wanted returns the pods with a request for addresses.
func (w *world) wanted() (pods []string) {
	w.t.Helper()
	keys, err := w.ranges().Wanted("gpu")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, k := range keys {
		pods = append(pods, k.Pod)
	}
	return pods
}

// ofPod returns the request of a pod's attachment.
func (w *world) ofPod(id, pod, extra string) conf.Request {
	w.t.Helper()
	r := w.request(id, "net1", extra)
	r.Pod = conf.Pod{Namespace: "train", Name: pod}
	return r
}

// addPod adds the attachment of a pod in a new container. It returns the host
// part that the pod got on all rails, 0 if they differ.
func (w *world) addPod(id, pod, extra string) (host int, err error) {
	w.t.Helper()
	w.fake.Pod(podPath(id))
	res, err := w.node().Add(ctx, w.ofPod(id, pod, extra))
	if err != nil {
		return 0, err
	}
	for _, ip := range res.IPs {
		h := int(ip.Address.IP.To4()[3])
		if host != 0 && h != host {
			w.t.Errorf("the rails have %v", told(res))
			return 0, nil
		}
		host = h
	}
	return host, nil
}

// mustGet is addPod for a pod that gets one of the host parts.
func (w *world) mustGet(id, pod string, hosts ...int) {
	w.t.Helper()
	if got, err := w.addPod(id, pod, ""); err != nil || !slices.Contains(hosts, got) {
		w.t.Fatalf("ADD of %s: got %d, error %v, want one of %v", id, got, err, hosts)
	}
}

func (w *world) mustDel(id string) {
	w.t.Helper()
	if err := w.node().Del(ctx, w.del(id, "net1")); err != nil {
		w.t.Errorf("DEL of %s: %v", id, err)
	}
}

// logs returns what the node logs from now on.
func (w *world) logs() *bytes.Buffer {
	b := &bytes.Buffer{}
	w.log = slog.New(slog.NewTextHandler(b, nil))
	return b
}

func TestAPodGetsItsStickyAddresses(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.meanwhile = func() { t.Error("an ADD waited, although the answer was there") }
	w.answer(slotFor("job-0", 3, 64))
	w.fake.Pod(podPath("c1"))
	res, err := w.node().Add(ctx, w.ofPod("c1", "job-0", ""))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"net1 10.0.0.64/24 via 10.0.0.254", "net1-1 10.1.0.64/24 via 10.1.0.254", "net1-2 10.2.0.64/24 via 10.2.0.254"}
	if diff := cmp.Diff(want, told(res)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := w.wanted(); len(got) > 0 {
		t.Errorf("an ADD that found an answer asked for %v", got)
	}
	if err := w.node().Check(ctx, w.ofPod("c1", "job-0", "")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	w.mustGet("c2", "job-x7k2p", 32, 33) // another pod gets ordinary ones
	for _, id := range []string{"c1", "c2"} {
		w.mustDel(id)
	}
	w.mustBeEmpty("after DEL")
}

func TestAnADDRequestsItsStickyAddressAndWaits(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	waits := 0
	w.meanwhile = func() {
		if waits++; waits < 7 {
			return
		}
		if got := w.wanted(); !slices.Equal(got, []string{"job-12"}) {
			t.Errorf("asked for %v, want the pod's", got)
		}
		w.answer(slotFor("job-12", 3, 64))
	}
	w.mustGet("c1", "job-12", 64)
	if w.now != 70*time.Millisecond {
		t.Errorf("the ADD waited %v, want 7 times 10 ms", w.now)
	}
}

func TestAnADDWithoutAnswerIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	try := func() {
		t.Helper()
		start := w.now
		_, err := w.addPod("c1", "job-0", "")
		if cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), `"train/job-0"`) || !strings.Contains(err.Error(), "not answered yet") {
			t.Fatalf("got %v, want code %d", err, cnierr.TryAgain)
		}
		hint := cnierr.CNI("roce", err).Details
		for _, what := range []string{"log of rocectl agent", "/healthz", "kubectl get railleases --field-selector spec.pod=job-0 "} {
			if !strings.Contains(hint, what) {
				t.Errorf("the hint has no %q: %q", what, hint)
			}
		}
		if got := w.now - start; got != 2*time.Second {
			t.Errorf("the ADD waited %v, want 2 s", got)
		}
		w.mustBeEmpty("after an ADD without answer")
		if got := w.wanted(); !slices.Equal(got, []string{"job-0"}) {
			t.Errorf("asked for %v, want the pod's", got)
		}
	}
	try()
	w.fake.RemovePod(podPath("c1"))
	try()
	w.fake.RemovePod(podPath("c1"))
	w.answer(slotFor("job-0", 3, 64)) // the agent finds the request later
	w.mustGet("c1", "job-0", 64)
}

func TestAnADDWaitsNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.fake.Pod(podPath("c1"))
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	waits := 0
	w.meanwhile = func() {
		if waits++; waits == 3 {
			cancel()
		}
	}
	_, err := w.node().Add(short, w.ofPod("c1", "job-0", ""))
	if cnierr.CodeOf(err) != cnierr.TryAgain || waits != 3 {
		t.Errorf("got %v after %d waits, want code %d after 3", err, waits, cnierr.TryAgain)
	}
	w.mustBeEmpty("after an ADD that was cancelled")
}

func TestAPodThatIsRefusedGetsOrdinaryAddresses(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	logs := w.logs()
	w.answer(nodefile.Answer{Key: keyOf("job-0"), None: "node n7 still holds it"})
	w.mustGet("c1", "job-0", 32, 33)
	for _, want := range []string{"level=WARN", "node n7 still holds it", "pod=train/job-0"} {
		if !strings.Contains(logs.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, logs)
		}
	}
	w.mustDel("c1")
	w.mustBeEmpty("after DEL")
}

func TestOnlyPodsOfAStickyPoolThatComeBackAreWaitedFor(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.asked = silent{w.ranges(), t}
	w.meanwhile = func() { t.Error("an ADD waited") }
	for i, pod := range []string{"", "web-6d4cf56db6-x7k2p", "web-6d4cf56db6-24579", "ds-b52rq", "job"} {
		id := fmt.Sprint("c", i)
		w.mustGet(id, pod, 32, 33)
		w.mustDel(id)
	}
	w.own(3, "32-33") // not sticky
	w.mustGet("c9", "job-0", 32, 33)
	if err := w.node().Status(ctx, w.request("c9", "net1", "")); err != nil {
		t.Errorf("STATUS: %v", err)
	}
}

// silent is an agent that must not be asked.
type silent struct {
	nodefile.Store
	t *testing.T
}

func (s silent) Want(string, nodefile.Key) error {
	s.t.Error("an ADD asked for addresses")
	return nil
}

func (s silent) Answer(string, nodefile.Key) (nodefile.Answer, bool, error) {
	s.t.Error("an ADD looked for an answer")
	return nodefile.Answer{}, false, nil
}

func TestAPodThatComesBackWithinTheQuarantineGetsItsAddressesBack(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	for i, pod := range []string{"job-0", "job-0", "job-1"} { // job-1: the slot is another pod's now
		w.answer(slotFor(pod, 3, 64))
		id := fmt.Sprint("c", i)
		if got, err := w.addPod(id, pod, `, "probe": {"conflict": {"mode": "off"}}`); err != nil || got != 64 {
			t.Fatalf("%s of %s: got %d, error %v", id, pod, got, err)
		}
		entries, err := w.book().List(ctx, "rail:gpu")
		if err != nil || len(entries) != 3 {
			t.Fatalf("%v, error %v", entries, err)
		}
		other := pod == "job-1"
		if entries[0].Early != other || len(w.wire.asked) > 0 != other {
			t.Errorf("%s of %s: early %v, asked the wire %v, want both for another pod alone", id, pod, entries[0].Early, w.wire.asked)
		}
		w.mustDel(id)
		w.now += time.Second
	}
}

func TestAFormerSandboxThatHasTheAddressesIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.answer(slotFor("job-0", 3, 64))
	w.mustGet("c1", "job-0", 64)
	before := w.leases()
	_, err := w.addPod("c2", "job-0", "")
	if cnierr.CodeOf(err) != cnierr.TryAgain || !strings.Contains(err.Error(), "container c1") {
		t.Fatalf("got %v, want code %d, and who has it", err, cnierr.TryAgain)
	}
	if !strings.Contains(err.Error(), `sticky addresses of "train/job-0"`) || strings.Contains(err.Error(), "requested") {
		t.Errorf("got %v, want no word of a request", err)
	}
	if hint := cnierr.CNI("roce", err).Details; strings.Contains(hint, "another address") || !strings.Contains(hint, "former sandbox") {
		t.Errorf("the hint is %q", hint)
	}
	if diff := cmp.Diff(before, w.leases()); diff != "" {
		t.Errorf("leases (-before +after)\n%s", diff)
	}
	w.mustDel("c1")
	w.fake.RemovePod(podPath("c2"))
	w.mustGet("c2", "job-0", 64)
}

func TestAddressesThatAnotherHostHasAreGivenUp(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	logs := w.logs()
	w.answer(slotFor("job-0", 3, 64))
	w.wire.refuse = 2 // that which is kept, and the first ordinary one
	w.mustGet("c1", "job-0", 32, 33)
	if !strings.Contains(logs.String(), "the pod gets ordinary addresses") {
		t.Errorf("the log has\n%s", logs)
	}
	if l := w.leases(); len(l) != 3 {
		t.Errorf("leased %v, want an address on each rail", l)
	}
	w.wire.refuse = 0
	w.mustDel("c1")
	w.mustGet("c2", "job-0", 64)
	w.mustDel("c2")
	w.mustBeEmpty("after DEL")
}

func TestARequestedAddressHasPrecedenceOverAStickyOne(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.asked = silent{w.ranges(), t}
	ask := func(addr string) string { return `, "runtimeConfig": {"ips": ["` + addr + `"]}` }
	if got, err := w.addPod("c1", "job-0", ask("10.1.0.33")); err != nil || got != 33 {
		t.Errorf("got %d, error %v, want what was asked for", got, err)
	}
	_, err := w.addPod("c2", "job-1", ask("10.1.0.64"))
	if cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Fatalf("got %v, want code %d", err, cnierr.BadConfig)
	}
	if hint := cnierr.CNI("roce", err).Details; !strings.Contains(hint, "a RailLease with keep: true") {
		t.Errorf("the hint is %q", hint)
	}
}

func TestOneInterfaceGetsTheStickyAddressOfItsRail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.config = poolOfOne
	w.ownSticky(3, "32-33")
	w.fake.Host().IP("addr add 10.1.0.7/24 dev ens2")
	w.answer(slotFor("job-0", 3, 64))
	w.mustGet("c1", "job-0", 64)
	if l := w.leases(); !slices.Equal(l, []string{"10.1.0.64 c1/net1"}) {
		t.Errorf("leased %v", l)
	}
}

func TestASkippedRailLeavesItsStickyAddress(t *testing.T) {
	t.Parallel()
	w := newStickyWorld(t)
	w.config = strings.Replace(poolOfRails, `"stateDir"`, `"minRails": 2, "stateDir"`, 1)
	w.answer(slotFor("job-0", 3, 64))
	w.fake.Host().IP("link set ens2 down")
	w.mustGet("c1", "job-0", 64)
	if l := w.leases(); !slices.Equal(l, []string{"10.0.0.64 c1/net1", "10.2.0.64 c1/net1"}) {
		t.Errorf("leased %v", l)
	}
}
