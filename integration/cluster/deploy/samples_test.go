// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"testing"

	apps "k8s.io/api/apps/v1"

	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestTheSamplesAreWhatTheySay(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct {
		rack   string
		blocks int
	}{"railpool": {"", 1024}, "railpool-racks": {"7", 12}, "railpool-sticky": {"", 3584}} {
		pool := of[kube.RailPool](objects(t, samples+"/"+name+".yaml"))[0].Pool()
		if err := pool.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		space, err := pool.Space(want.rack)
		must(t, name, err)
		if space.Blocks() != want.blocks {
			t.Errorf("%s has %d blocks, want %d", name, space.Blocks(), want.blocks)
		}
	}
}

// TestTheChosenSlotIsOneThatPodsKeep looks at the RailLease of the sample.
func TestTheChosenSlotIsOneThatPodsKeep(t *testing.T) {
	t.Parallel()
	all := objects(t, samples+"/railpool-sticky.yaml")
	pool, lease := of[kube.RailPool](all)[0].Pool(), of[kube.RailLease](all)[0]
	slots, err := pool.Slots("")
	must(t, pool.Name, err)
	if at := lease.Spec.Slot; lease.Spec.Pool != pool.Name || !slots.Has(at) || slots.Name(at) != lease.Name || slots.Rails(at)[0][0].Ranges[0].String() != "172.16.16.4" {
		t.Errorf("%s: %+v, of the pool %v", lease.Name, lease.Spec, slots.Has(at))
	}
}

// TestTheSamplesFitTogether follows the test pods to their network, and that to its
// pool.
func TestTheSamplesFitTogether(t *testing.T) {
	t.Parallel()
	all := objects(t, files(t, samples)...)
	net := of[network](all)[0]
	var test *apps.DaemonSet
	for _, d := range of[apps.DaemonSet](all) {
		if _, on := d.Spec.Template.Annotations["k8s.v1.cni.cncf.io/networks"]; on {
			test = d
		}
	}
	if on := test.Spec.Template.Annotations["k8s.v1.cni.cncf.io/networks"]; on != net.Name || test.Namespace != net.Namespace {
		t.Errorf("%s asks for network %q, and there is %q", test.Name, on, net.Name)
	}
	req, err := conf.Parse(conf.Input{ContainerID: "c1", Netns: "/run/netns/pod", IfName: "net1", Stdin: []byte(net.Spec.Config)})
	must(t, net.Name, err)
	if req.Network != net.Name {
		t.Errorf("the network of NetworkAttachmentDefinition %s is called %s", net.Name, req.Network)
	}
	pool := of[kube.RailPool](objects(t, samples+"/railpool.yaml"))[0]
	if req.IPAM.RailPool == nil || req.IPAM.RailPool.Name != pool.Name {
		t.Fatalf("%s has addresses of %+v, and there is RailPool %s", net.Name, req.IPAM.RailPool, pool.Name)
	}
	if rails := len(req.Rails); rails != pool.Spec.Template.Count {
		t.Errorf("%s has %d rails, RailPool %s has %d", net.Name, rails, pool.Name, pool.Spec.Template.Count)
	}
}
