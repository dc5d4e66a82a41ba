// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lldp

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// spaces are a node with the NICs nic0 and nic1 and a switch with the ports swp0 and swp1.
func spaces(t *testing.T) (node, sw *cnitest.Netns) {
	t.Helper()
	if testing.Short() {
		t.Skip("makes network namespaces, which -short excludes")
	}
	if os.Geteuid() != 0 && os.Getenv("REQUIRE_NETNS") != "1" {
		t.Skip("needs network namespaces, so root")
	}
	node, sw = cnitest.NewNetns(t, cnitest.UniqueName("lldpn")), cnitest.NewNetns(t, cnitest.UniqueName("lldps"))
	node.IP(t, `
link add nic0 type veth peer name swp0 netns `+sw.Name+`
link add nic1 type veth peer name swp1 netns `+sw.Name+`
link set nic0 up
link set nic1 up`)
	sw.IP(t, "link set swp0 up\nlink set swp1 up")
	node.AwaitCarrier(t)
	sw.AwaitCarrier(t)
	return node, sw
}

// sends sends frames on a port until the test of Listen is over.
func sends(ctx context.Context, t *testing.T, sw *cnitest.Netns, port string, frames ...[]byte) {
	t.Helper()
	cnitest.SendFrames(ctx, t, sw.Enter, port, etherType, frames...)
}

// listens runs Listen in the namespace of the node.
func listens(ctx context.Context, node *cnitest.Netns, links ...string) (heard map[string]Neighbour, err error) {
	err = node.Enter(func() (err error) {
		heard, err = Listen(ctx, links)
		return err
	})
	return heard, err
}

// TestEachNICHearsItsSwitch has a pod on each NIC, because the frames must pass by the pods'
// interfaces.
func TestEachNICHearsItsSwitch(t *testing.T) {
	t.Parallel()
	node, sw := spaces(t)
	node.IP(t, `
link add pod0 link nic0 type macvlan mode bridge
link add pod1 link nic1 type macvlan mode passthru
link set pod0 up
link set pod1 up`)
	ctx, stop := context.WithTimeout(t.Context(), cnitest.Patience)
	defer stop()
	all := switches()
	sends(ctx, t, sw, "swp0", all["Arista EOS"].frame)
	sends(ctx, t, sw, "swp1", all["Juniper Junos"].frame)
	got, err := listens(ctx, node, "nic0", "nic1")
	stop()
	want := map[string]Neighbour{"nic0": all["Arista EOS"].want, "nic1": all["Juniper Junos"].want}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
}

// TestOnlyFramesOfTheNearestSwitchCount sends frames to another group and frames that are cut
// before the one that counts, and what the node itself sends does not come back.
func TestOnlyFramesOfTheNearestSwitchCount(t *testing.T) {
	t.Parallel()
	node, sw := spaces(t)
	ctx, stop := context.WithTimeout(t.Context(), cnitest.Patience)
	defer stop()
	all := switches()
	good := all["Cisco NX-OS"]
	far := slices.Clone(all["Arista EOS"].frame)
	far[5] = 0x00
	direct := slices.Clone(all["Arista EOS"].frame)
	copy(direct, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	sends(ctx, t, node, "nic0", all["Huawei VRP"].frame)
	sends(ctx, t, sw, "swp0", far, direct, good.frame[:40], frame(chassis, words(portTLV, "x", 5), tlv(lifeTLV, 0, 0)), good.frame)
	got, err := listens(ctx, node, "nic0")
	stop()
	if diff := cmp.Diff(map[string]Neighbour{"nic0": good.want}, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got)\n%s", err, diff)
	}
}

// TestListeningEnds when the context does, without an error: no switch sends, or the link is
// down. A link that is not there is an error, and the others are heard all the same.
func TestListeningEnds(t *testing.T) {
	t.Parallel()
	node, sw := spaces(t)
	node.IP(t, "link set nic1 down")
	ended, end := context.WithCancel(t.Context())
	end()
	if got, err := listens(ended, node, "nic0", "nic1"); len(got) != 0 || err != nil {
		t.Errorf("got %v, error %v", got, err)
	}
	ctx, stop := context.WithTimeout(t.Context(), cnitest.Patience)
	defer stop()
	sends(ctx, t, sw, "swp0", recorded(t))
	got, err := listens(ctx, node, "nosuch", "nic0", "nic1")
	stop()
	if len(got) != 1 || got["nic0"].Port != "swp12" || cnierr.CodeOf(err) != cnierr.IO || len(cnierr.Each(err)) != 1 || !strings.Contains(err.Error(), `"nosuch"`) {
		t.Errorf("got %v, error %v", got, err)
	}
	if left, err := node.Run("cat", "/proc/net/packet"); err != nil || strings.Contains(left, "88cc") {
		t.Errorf("error %v, sockets are left:\n%s", err, left)
	}
}
