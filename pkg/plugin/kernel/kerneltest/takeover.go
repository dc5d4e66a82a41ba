// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kerneltest

import (
	"net/netip"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// changedLink looks at the attachment's link with another alias, also under another name.
func changedLink(t *testing.T, w opened) {
	before := w.Show()
	ops := w.attach(t)
	whole := w.Show()
	w.IP("link set net1 alias foo")
	wantCode(t, w.Check(t.Context(), plan.Op{Kind: w.macvlan()}), cnierr.Damaged)
	w.must(t, plan.Op{Kind: w.macvlan()})
	w.unchanged(t, whole)

	w.IP("link set net1 alias foo")
	w.IP("link set net1 down")
	w.IP("link set net1 name other0")
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)
}

// carried undoes the carriers of an address: a link with another alias and MAC is one,
// also with an alias that looks like a mark. A link that is no macvlan is none.
func carried(t *testing.T, w opened) {
	const address = "10.8.0.7"
	gone := plan.InPod(plan.Carriers{Addresses: []netip.Addr{netip.MustParseAddr(address)}})
	before := w.Show()
	ops := w.attach(t)
	w.IP("addr add " + address + "/24 dev net1")
	w.IP("link set net1 alias foo")
	w.IP("link set net1 address 02:00:00:00:00:77")
	w.undo(t, gone)
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)

	ops = w.attach(t)
	w.IP("addr add " + address + "/24 dev net1")
	w.IP("link set net1 alias roce:other/net1") // any pod can set that
	w.undo(t, gone)
	w.undo(t, ops.Teardown())
	w.unchanged(t, before)

	w.foreign()
	w.IP("addr add " + address + "/32 dev eth0")
	before = w.Show()
	w.undo(t, gone)
	w.unchanged(t, before)
}
