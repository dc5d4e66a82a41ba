// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"fmt"
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

func TestASecondRoceOfAListIsRefused(t *testing.T) {
	t.Parallel()
	const other = `, "mtu": 1400`
	before := func(name, sandbox string) string {
		return fmt.Sprintf(`, "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": %q, "sandbox": %q}]}`, name, sandbox)
	}
	for extra, want := range map[string]cnierr.Code{
		"":                           0,
		other:                        0, // the network has changed
		before("eth0", "/x"):         0,
		before("net1", ""):           0, // on the host
		before("eth0", "/x") + other: cnierr.BadConfig,
		before("net1", "/x"):         cnierr.BadConfig,
		before("net1", "/x") + other: cnierr.BadConfig,
	} {
		w := newWorld(t)
		w.mustCome("c1")
		was := w.fake.String()
		_, err := w.node().Add(ctx, w.request("c1", "net1", extra))
		if (err == nil) != (want == 0) || err != nil && cnierr.CodeOf(err) != want || err != nil && w.fake.String() != was {
			t.Errorf("second ADD with %q: got %v, want code %d, and the pod has\n%s", extra, err, want, w.fake)
		}
	}
}

func TestAddBesideAnUnreadableRecordOfItsOwnIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.mustCome("c1")
	write(t, w.file("c1", "net1.json"), "{")
	was := w.fake.String()
	if _, err := w.node().Add(ctx, w.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.Unreadable || w.fake.String() != was {
		t.Errorf("got %v, want code %d, and the pod has\n%s", err, cnierr.Unreadable, w.fake)
	}
	w.mustLeave("c1")
	w.mustBeEmpty("after DEL")
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
