// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/flock/flocktest"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

// gc returns a GC of a network a second after all that has been done.
func (w *world) gc(network string, valid ...conf.Attachment) conf.GC {
	w.now += time.Second
	return conf.GC{Network: network, IPAM: conf.PoolType, Valid: valid}
}

func TestGCRemovesInvalidAttachmentsAndNothingElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, id := range []string{"c1", "c2", "c3"} {
		w.mustCome(id)
	}
	w.fake.RemovePod(podPath("c3"))
	if err := w.node().GC(ctx, w.gc("another")); err != nil || len(w.leases()) != 6 {
		t.Errorf("GC of another network: %v, leased %v", err, w.leases())
	}
	w.mustGC("rail", c1)
	w.mustBeWhole("c1")
	if l, f := w.leases(), w.files(); len(l) != 2 || len(f) != 3 {
		t.Errorf("leased %v, files %v; want those of c1", l, f)
	}
	w.mustGC("rail")
	w.mustBeEmpty("after a GC to which nothing is valid")
}

func TestGCRemovesTheInterfaceThatIsInvalidInALivingContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	before := w.files()
	w.mustAdd(w.request("c1", "net2", ""))
	w.mustGC("rail", c1)
	w.mustBeWhole("c1")
	if diff := cmp.Diff(before, w.files()); diff != "" {
		t.Errorf("what is left (-want +got)\n%s", diff)
	}
}

func TestGCGoesOnAfterAnErrorAndReportsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, id := range []string{"c1", "c2"} {
		w.mustCome(id)
	}
	write(t, w.file("c1", "net1.json"), "{")
	err := w.node().GC(ctx, w.gc("rail"))
	if err == nil || cnierr.CodeOf(err) != cnierr.Unreadable || !strings.Contains(err.Error(), "c1") {
		t.Errorf("got %v, want code %d naming the record of c1", err, cnierr.Unreadable)
	}
	if err := w.node().Check(ctx, w.request("c2", "net1", "")); err == nil {
		t.Error("c2 is still attached")
	}
}

// TestGCLeavesWhatIsMadeWhileItRuns gives the record of an ADD a later time
// than the beginning of GC, which its list cannot know.
func TestGCLeavesWhatIsMadeWhileItRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.now = time.Hour
	w.mustAdd(w.request("c1", "net1", ""))
	w.now = time.Minute
	w.mustGC("rail")
	w.now = time.Hour
	w.mustBeWhole("c1")
}

// TestGCLeavesWhatIsSavedWhileItWaits has an ADD that still holds the lock of its container when
// GC comes to it, and that saves its record then.
func TestGCLeavesWhatIsSavedWhileItWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	w.now = time.Minute
	records := w.node().Records
	unlock, err := records.Lock(ctx, "c1")
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- w.node().GC(ctx, w.gc("rail")) }()
	flocktest.UntilBlocked(t, w.file("c1", "lock"), ended)
	rec, err := records.Load(c1)
	must(t, err)
	rec.Saved = 2 * time.Minute
	must(t, records.Save(rec))
	unlock()
	must(t, <-ended)
	w.mustBeWhole("c1")
}

func TestGCDoesNotWaitForCallsOfOtherNetworks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	unlock, err := w.node().Records.Lock(ctx, "c1") // a call for c1 is running
	must(t, err)
	defer unlock()
	ended, cancel := context.WithCancel(ctx)
	cancel() // a wait for the lock ends at once, with an error
	before := w.fake.String()
	if err := w.node().GC(ended, w.gc("another")); err != nil {
		t.Errorf("GC of another network: %v", err)
	}
	_, added := w.node().Add(ended, w.request("c1", "net1", ""))
	for verb, err := range map[string]error{
		"GC": w.node().GC(ended, w.gc("rail")), "DEL": w.node().Del(ended, w.del("c1", "net1")), "ADD": added, "CHECK": w.node().Check(ended, w.request("c1", "net1", "")),
	} {
		if cnierr.CodeOf(err) != cnierr.TryAgain {
			t.Errorf("%s of the container: got %v, want code %d", verb, err, cnierr.TryAgain)
		}
	}
	if diff := cmp.Diff(before, w.fake.String()); diff != "" {
		t.Errorf("without the lock, the kernel (-before +after):\n%s", diff)
	}
}

func TestGCReportsLeasesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, os.MkdirAll(filepath.Join(w.dir, "leases.lock"), 0o700))
	if err := w.node().GC(ctx, w.gc("rail")); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want code %d", err, cnierr.IO)
	}
}

func TestARecordThatCannotBeDeletedIsAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	n := w.node()
	rec, err := n.Records.Load(c1)
	must(t, err)
	file := w.file("c1", "net1.json")
	unlock, err := n.Records.Lock(ctx, "c1")
	must(t, err)
	defer unlock()
	err = n.Remove(ctx, rec, "", func(context.Context, record.Record) error {
		return errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "full"), 0o700))
	})
	if cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("got %v, want code %d", err, cnierr.IO)
	}
}

// TestWhatAReapedPodLeftIsForgotten has a pod with things on the host, and calls of ForgetReaped
// that must change nothing before the one that removes them.
func TestWhatAReapedPodLeftIsForgotten(t *testing.T) {
	t.Parallel()
	w := newLinkedWorld(t)
	w.mustCome("c1")
	rec, err := w.node().Records.Load(c1)
	must(t, err)
	w.fake.RemovePod(podPath("c1"))
	host, files := w.fake.Host().String(), w.files()
	var log strings.Builder
	n := w.node()
	n.Log = slog.New(slog.NewTextHandler(&log, nil))
	stays := func(why string) {
		t.Helper()
		if log.Len() > 0 || w.fake.Host().String() != host || !slices.Equal(w.files(), files) {
			t.Errorf("%s: logged %q, files %v, the host has\n%s", why, log.String(), w.files(), w.fake.Host())
		}
	}
	n.ForgetReaped(ctx, c1, netns.ID{Dev: 4, Ino: 7})
	stays("a record of another namespace")
	n.ForgetReaped(ctx, conf.Attachment{ContainerID: "c9", IfName: "net1"}, rec.NetnsID)
	stays("no record")
	unlock, err := n.Records.Lock(ctx, "c1")
	must(t, err)
	n.ForgetReaped(ctx, c1, rec.NetnsID)
	stays("a call works on the container")
	unlock()
	for _, fail := range []func(){func() { w.fake.FailAt(1, errFault) }, func() { w.before = func(plan.Op, bool) error { return errFault } }} {
		fail()
		log.Reset()
		n.ForgetReaped(ctx, c1, rec.NetnsID)
		if !strings.Contains(log.String(), errFault.Error()) || !slices.Equal(w.files(), files) {
			t.Errorf("the log of a failure says %q, files %v", log.String(), w.files())
		}
		w.fake.Heal()
	}
	w.before = nil
	n.ForgetReaped(ctx, c1, rec.NetnsID)
	w.mustBeEmpty("after ForgetReaped")
	if unlock, err = n.Records.Lock(ctx, "c1"); err == nil {
		unlock()
	}
	must(t, err)
}

func TestGCAfterACrashAtEveryOpLeavesNothing(t *testing.T) {
	inEachWorld(t, func(t *testing.T, fresh func(*testing.T) *world) {
		crashes(t, fresh, func(w *world, at int) {
			if err := w.node().GC(ctx, w.gc("rail")); err != nil {
				t.Errorf("GC after a crash before operation %d: %v", at, err)
			}
			w.mustBeEmpty(fmt.Sprintf("after a crash before operation %d and GC", at))
		})
	})
}

// TestGCRemovesARecordThatWasHalfWritten has an ADD that was killed while it
// wrote its record: the addresses are leased, and there is nothing else.
func TestGCRemovesARecordThatWasHalfWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.crash = 1
	w.run(func(n attach.Node) { _, _ = n.Add(ctx, w.request("c1", "net1", "")) })
	w.crash = 0
	path := w.file("c1", "net1.json")
	must(t, os.Rename(path, path+".new-0123456789abcdef"))
	w.mustGC("rail")
	w.mustBeEmpty("after GC")
}

func TestStatusSaysWhyADDWouldFail(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		extra string
		spoil func(*testing.T, *world)
		want  cnierr.Code // 0: fine
	}{
		"fine":                               {spoil: func(*testing.T, *world) {}},
		"master gone":                        {spoil: func(_ *testing.T, w *world) { w.fake.Host().IP("link del ens1") }, want: cnierr.Limited},
		"state folder a file":                {spoil: func(t *testing.T, w *world) { write(t, w.dir, "") }, want: cnierr.NotAvailable},
		"pool exhausted":                     {spoil: exhaust, want: cnierr.NotAvailable},
		"pool exhausted, which is not asked": {extra: `, "status": {"pool": "off"}`, spoil: exhaust},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tc.spoil(t, w)
			err := w.node().Status(ctx, w.request("c9", "net1", tc.extra))
			if (err == nil) != (tc.want == 0) || (err != nil && cnierr.CodeOf(err) != tc.want) {
				t.Errorf("got %v, want code %d", err, tc.want)
			}
		})
	}
}

// exhaust leases all addresses of the IPv4 subnet: of eight, the network, the
// broadcast and the gateway's are never leased.
func exhaust(t *testing.T, w *world) {
	t.Helper()
	for i := range 5 {
		id := fmt.Sprintf("c%d", i)
		w.fake.Pod(podPath(id))
		w.run(func(n attach.Node) {
			if _, err := n.Add(ctx, w.request(id, "net1", "")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGCRemovesWhatAnADDLeftBeforeItsRecord has an ADD that was killed with the
// container's lock held and nothing done.
func TestGCRemovesWhatAnADDLeftBeforeItsRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := filepath.Join(w.dir, "attachments", "c1")
	must(t, os.MkdirAll(folder, 0o700))
	must(t, os.WriteFile(filepath.Join(folder, "lock"), nil, 0o600))
	w.mustGC("rail")
	w.mustBeEmpty("after GC")
}

func TestARecordWithoutNamespaceUndoesNothingElsewhere(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"DEL", "GC"} {
		w := newWorld(t)
		w.mustCome("c1")
		records := w.node().Records
		rec, err := records.Load(c1)
		must(t, err)
		rec.ContainerID, rec.NetnsID = "c2", netns.ID{} // it names the namespace of c1
		victim := filepath.Join(t.TempDir(), "c1-net1-device.json")
		info := plan.DeviceInfo{File: victim, PCI: "0000:0b:00.2"}
		must(t, os.WriteFile(victim, []byte(info.Text()), 0o600))
		rec.Plan.Ops = append(rec.Plan.Ops, plan.OnHost(info)...) // and a file of c1
		unlock, err := records.Lock(ctx, "c2")
		if err == nil {
			err = records.Save(rec)
		}
		must(t, err)
		unlock()
		before := w.fake.String()
		if verb == "DEL" {
			d := w.del("c2", "net1")
			d.Netns = "" // the runtime says it again without
			err = w.node().Del(ctx, d)
		} else {
			err = w.node().GC(ctx, w.gc("rail", c1))
		}
		if diff := cmp.Diff(before, w.fake.String()); err != nil || diff != "" {
			t.Errorf("%s: %v, kernel (-before +after):\n%s", verb, err, diff)
		}
		if _, err := os.Stat(victim); err != nil {
			t.Errorf("%s: the file of another pod: %v", verb, err)
		}
	}
}
