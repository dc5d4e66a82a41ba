// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func TestAddThatFailsWhereAnEarlierOneStoodLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	w.pod.IP("link del net1")
	w.fake.Host().IP("link del ens1")
	_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
	if err == nil || cnierr.CodeOf(err) != cnierr.BadParent {
		t.Errorf("got %v, want code %d", err, cnierr.BadParent)
	}
	w.mustBeEmpty("after the second ADD")
}

func TestInterfaceOfAnotherNetworkIsNotTakenForOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	kernel, leases := w.fake.String(), w.leases()
	other := w.request("c1", "net1", "")
	other.Network = "other"
	_, err := w.node().Add(ctx, other)
	if err == nil || cnierr.CodeOf(err) != cnierr.BadEnv || !strings.Contains(err.Error(), `"rail"`) {
		t.Errorf("got %v, want code %d naming the network that has the interface", err, cnierr.BadEnv)
	}
	if diff := cmp.Diff(kernel, w.fake.String()); diff != "" {
		t.Errorf("the pod changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(leases, w.leases()); diff != "" {
		t.Errorf("the leases changed (-before +after):\n%s", diff)
	}
}

func TestIPAMPluginThatIsNotInstalledLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	req := w.request("c1", "net1", "")
	req.IPAM.Type = "none-such"
	_, err := w.node().Add(ctx, req)
	if err == nil || cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "none-such") {
		t.Errorf("got %v, want code %d naming the plugin", err, cnierr.BadConfig)
	}
	w.mustBeEmpty("after ADD")
}
