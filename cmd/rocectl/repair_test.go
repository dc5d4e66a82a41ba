// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
	"github.com/roce-cni/roce-cni/pkg/tool/repair"
)

// TestACommandThatEndsAtItsDeadlineSaysWhatTheUserDoes: a runtime repeats its calls, but
// nothing repeats rocectl repair.
func TestACommandThatEndsAtItsDeadlineSaysWhatTheUserDoes(t *testing.T) {
	t.Parallel()
	records := record.Store{Dir: t.TempDir(), BootID: "b"}
	release, err := records.Lock(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, locked := records.Lock(ctx, "c1")
	for name, err := range map[string]error{
		"another call holds the lock": locked,
		"without a hint of its own":   cnierr.New(cnierr.TryAgain, "send probes", "", "", "%w", ctx.Err()),
	} {
		var out strings.Builder
		cli.PrintError(&out, root(&out, &out), err)
		if !strings.Contains(out.String(), "hint: wait, and try again (a runtime does so by itself); if the error stays, ") {
			t.Errorf("%s: %s", name, out.String())
		}
	}
}

// TestRepairGoesOnAfterAFailure has a pod that has lost something, of which a part could not be
// restored, an intact one, one that was deleted meanwhile, and one that a reboot has ended.
func TestRepairGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "netns")
	if err := errors.Join(os.Mkdir(folder, 0o700), os.Symlink("/proc/self/ns/net", filepath.Join(folder, "own"))); err != nil { // the namespaces are visible
		t.Fatal(err)
	}
	records := record.Store{Dir: t.TempDir(), BootID: "b"}
	up := plan.InPod(plan.Up{Link: "net1"})
	var keys []conf.Attachment
	for _, id := range []conf.ContainerID{"lost", "intact", "deleted", "ended"} {
		rec := record.Record{Attachment: conf.Attachment{ContainerID: id, IfName: "net1"}, Pod: conf.Pod{Namespace: "ml", Name: string(id)}, Netns: filepath.Join(folder, string(id)), Plan: plan.Plan{Ops: up}}
		of := records
		if id == "ended" {
			of.BootID = "older"
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(records.Dir, "attachments", string(id)), 0o700), of.Save(rec)); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, rec.Attachment)
	}
	var out strings.Builder
	err := repairAttachments(t.Context(), &out, records, keys, "restored", func(_ context.Context, k conf.Attachment) (plan.Ops, error) {
		switch k.ContainerID {
		case "lost":
			return up, errors.Join(errors.New("first"), errors.New("second"))
		case "deleted":
			return nil, record.ErrNotExist
		}
		return nil, nil
	})
	want := "# ml/lost net1: restored\nnsenter --net=" + filepath.Join(folder, "lost") + " ip link set dev net1 up\n# ml/intact net1: intact\n# ml/ended net1: ended by a reboot\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err == nil || err.Error() != "ml/lost net1: first\nml/lost net1: second" {
		t.Errorf("got the error %v", err)
	}
}

// TestWhatIsRebuiltIsListed has an owner with an address on each of two rails, and addresses of
// namespaces.
func TestWhatIsRebuiltIsListed(t *testing.T) {
	t.Parallel()
	place := func(pool, addr string) ledger.Place {
		return ledger.Place{Spot: ledger.Spot{Pool: pool, Addr: netip.MustParseAddr(addr)}}
	}
	r := repair.Rebuilt{
		Leased: []ledger.Holding{
			{Owner: ledger.Owner{ContainerID: "c1", IfName: "net1", PodNamespace: "ml", PodName: "job"}, Places: []ledger.Place{place("rail0", "10.1.0.2"), place("rail1", "fd01::2")}},
			{Owner: ledger.Owner{ContainerID: "c2", IfName: "eth1"}, Places: []ledger.Place{place("rail0", "10.1.0.3")}},
		},
		Aside: []ledger.Aside{
			{Addr: netip.MustParseAddr("10.1.0.9"), Owner: ledger.Owner{IfName: "net7", Netns: netns.Ref{Path: "/run/netns/x"}}},
			{Addr: netip.MustParseAddr("10.1.0.8")},
		},
	}
	var out strings.Builder
	if err := writeRebuilt(&out, r); err != nil {
		t.Fatal(err)
	}
	const want = `# POOL   ADDRESS   STATE      OF                      INTERFACE  KNOWN FROM
# rail0  10.1.0.2  leased     pod ml/job              net1       its record
# rail1  fd01::2   leased     pod ml/job              net1       its record
# rail0  10.1.0.3  leased     container c2            eth1       its record
# -      10.1.0.9  set-aside  namespace /run/netns/x  net7       its namespace
# -      10.1.0.8  set-aside  several namespaces      -          its namespace
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
