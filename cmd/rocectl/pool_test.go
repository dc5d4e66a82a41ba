// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam/ledger"
)

// TestAddressOfALivingPodIsReleasedOnlyByForce takes this process's namespace
// for the pod's.
func TestAddressOfALivingPodIsReleasedOnlyByForce(t *testing.T) {
	t.Parallel()
	node := &nodeFlags{stateDir: t.TempDir()}
	in, err := node.folder()
	if err != nil {
		t.Fatal(err)
	}
	here, err := netns.At("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	leases, err := in.book.Acquire(context.Background(), ipam.Ask{
		Pool:    "rail",
		Subnets: []ipam.Subnet{{Prefix: netip.MustParsePrefix("10.77.0.0/24")}},
		Owner:   ipam.Owner{ContainerID: "c1", IfName: "net1", Netns: here},
	})
	if err != nil {
		t.Fatal(err)
	}
	release := func(args ...string) error {
		cmd := root(&bytes.Buffer{}, &bytes.Buffer{})
		cmd.SetArgs(append([]string{"--state-dir", node.stateDir, "pool", "release", "rail", leases[0].Prefix.Addr().String()}, args...))
		return cmd.Execute()
	}
	if err := release(); err == nil || cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	hidden := ipam.Entry{Owner: ipam.Owner{Netns: netns.Ref{Path: filepath.Join(node.stateDir, "77/ns/net")}}} // of a process of the node
	if err := mustBeDead(hidden); cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, cli.StatusError(2)) {
		t.Errorf("of a namespace that is hidden: %v", err)
	}
	if err := release("--force"); err != nil {
		t.Error(err)
	}
	entries, err := in.book.List(context.Background(), "rail")
	if err != nil || len(entries) != 1 || entries[0].State != ledger.Released {
		t.Errorf("after --force: %v, %v", entries, err)
	}
}

// TestALeaseIsPrintedWithAllThatIsKnownOfIt compares whole rows.
func TestALeaseIsPrintedWithAllThatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	a := netip.MustParseAddr("10.77.0.9")
	got := leaseRows([]ipam.Entry{{Pool: "rail", Addr: a, State: ledger.Leased, Early: true, Age: 90 * time.Second, Owner: ipam.Owner{
		ContainerID: "c1", IfName: "net1", Network: "n", Program: "sriov", PodNamespace: "ml", PodName: "job", PodUID: "u",
	}}})
	want := []leaseRow{{
		Pool: "rail", Address: a, State: "leased", Seconds: 90, Early: true, Network: "n", Program: "sriov", Pod: conf.Pod{Namespace: "ml", Name: "job", UID: "u"}, ContainerID: "c1", IfName: "net1",
	}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]any{"rail", a, "leased", 90 * time.Second, "ml/job", "net1", "n", "c1"}, got[0].cells(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("cells (-want +got)\n%s", diff)
	}
}

// No ADD removes the entries of a pool that is gone, not even its conflicts.
func TestWhatHasRestedLongEnoughIsNotListed(t *testing.T) {
	t.Parallel()
	entry := func(pool string, s ipam.State, age time.Duration) ipam.Entry {
		return ipam.Entry{Pool: pool, State: s, Age: age}
	}
	entries := []ipam.Entry{
		entry("compute", ledger.Leased, 48*time.Hour), entry("compute", ledger.Released, 29*time.Second), entry("compute", ledger.Released, 30*time.Second),
		entry("compute", ledger.Conflicted, 59*time.Second), entry("compute", ledger.Conflicted, time.Minute),
		entry("gone", ledger.Released, 23*time.Hour), entry("gone", ledger.Conflicted, 24*time.Hour), entry("gone", ledger.Leased, 24*time.Hour),
	}
	want := []ipam.Entry{entries[0], entries[1], entries[3], entries[5], entries[7]}
	got := notFree(slices.Clone(entries), map[string]time.Duration{"compute": 30 * time.Second})
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
