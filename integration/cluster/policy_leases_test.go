// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// holder is node a or b, "" for none.
func (g guarded) holder(name string) block.Owner {
	if name == "" {
		return block.Owner{}
	}
	return block.Owner{NodeName: g.pool + "-" + name, MachineID: ground.MachineID(g.pool + "-" + name)}
}

// lease is that of a slot, which a node holds.
func (g guarded) lease(slot int, holder string) sticky.Lease {
	return sticky.Lease{Name: fmt.Sprintf("%s-s%d", g.pool, slot), Spec: sticky.Spec{
		Pool: g.pool, Slot: slot, Namespace: "default", Pod: fmt.Sprintf("db-%d", slot), Interface: "net1",
		Holder: g.holder(holder), Written: time.Now().UTC().Truncate(time.Microsecond),
	}}
}

// pass writes the holder of a lease, as a given user does.
func (g guarded) pass(ctx context.Context, t *testing.T, who *rest.Config, name, to string) error {
	t.Helper()
	l, err := api(t, g.Admin()).Leases().Get(ctx, name)
	if err != nil {
		return err
	}
	l.Spec.Holder, l.Spec.Written = g.holder(to), time.Now()
	_, err = api(t, who).Leases().Update(ctx, l)
	return err
}

func TestAnAgentTakesLeasesForItsNodeAlone(t *testing.T) {
	t.Parallel()
	g := guard(t, "passes")
	ctx := t.Context()
	admin := api(t, g.Admin()).Leases()
	for i, tt := range []struct {
		who      *rest.Config
		from, to string
		allowed  bool
	}{
		{g.a, "", "a", true},
		{g.a, "a", "a", true},
		{g.a, "a", "", true},
		{g.a, "", "b", false},
		{g.a, "b", "", false},
		{g.a, "b", "a", false},
		{g.a, "a", "b", false},
		{g.b, "a", "b", false},
		{g.nowhere, "", "a", false},
		{g.nowhere, "", "", false},
		{g.nowhere, "a", "", false},
		{g.impersonated(), "", "a", false},
		{g.gc, "b", "", true},
		{g.Admin(), "a", "b", true},
	} {
		l, err := admin.Create(ctx, g.lease(i+1, tt.from))
		must(t, err)
		err = g.pass(ctx, t, tt.who, l.Name, tt.to)
		if tt.allowed && err != nil || !tt.allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%d: from %q to %q: %v", i, tt.from, tt.to, err)
		}
	}
	for i, who := range []*rest.Config{g.nowhere, g.impersonated(), g.b} {
		if _, err := api(t, who).Leases().Create(ctx, g.lease(100+i, "a")); !apierrors.IsForbidden(err) {
			t.Errorf("%d makes a lease: %v", i, err)
		}
	}
	if _, err := api(t, g.gc).Leases().Create(ctx, g.lease(100, "")); !apierrors.IsForbidden(err) {
		t.Errorf("the reaper makes a lease: %v", err)
	}
}

func TestOnlyOperatorsKeepASlotForEver(t *testing.T) {
	t.Parallel()
	g := guard(t, "for-ever")
	ctx := t.Context()
	kept := g.lease(1, "")
	kept.Spec.Keep = true
	made, err := api(t, g.Admin()).Leases().Create(ctx, kept)
	must(t, err)
	must(t, g.pass(ctx, t, g.a, made.Name, "a"))
	now, err := api(t, g.Admin()).Leases().Get(ctx, made.Name)
	must(t, err)
	if !now.Spec.Keep || now.Spec.Holder != g.holder("a") {
		t.Errorf("it is %+v", now)
	}
	if err := api(t, g.a).Leases().Delete(ctx, now.Name, now.UID, now.ResourceVersion); !apierrors.IsForbidden(err) {
		t.Errorf("an agent deletes a lease: %v", err)
	}
	must(t, api(t, g.gc).Leases().Delete(ctx, now.Name, now.UID, now.ResourceVersion))
}

// TestTheDeployedRightsAreEnoughForLeases does all that agents and the reaper do,
// as they.
func TestTheDeployedRightsAreEnoughForLeases(t *testing.T) {
	t.Parallel()
	g := guard(t, "enough")
	ctx, s := t.Context(), stickySlots(t, "enough")
	as := func(who *rest.Config, node string) sticky.Claimer {
		d := stickyClaimer(t, g.Cluster, g.pool+"-"+node)
		d.Store = api(t, who).Leases()
		return d
	}
	a, b := as(g.a, "a"), as(g.b, "b")
	db := g.lease(0, "").Spec.Key()
	l, err := a.Take(ctx, s, db)
	must(t, err)
	l, err = a.Affirm(ctx, l)
	must(t, err)
	if _, err := b.Affirm(ctx, l); !errors.As(err, new(*block.HeldError)) {
		t.Errorf("node b: %v", err)
	}
	must(t, a.Release(ctx, l))
	stale := l
	l, err = b.Take(ctx, s, db)
	must(t, err)
	if _, err := a.Store.Update(ctx, stale); !errors.Is(err, block.ErrConflict) {
		t.Errorf("node a writes what it had: %v", err)
	}
	must(t, a.Release(ctx, stale))
	gc, admin := api(t, g.gc), client(t, g.Admin()).CoreV1()
	must(t, admin.Nodes().Delete(ctx, g.pool+"-b", meta.DeleteOptions{}))
	if freed, err := sticky.Reap(ctx, gc.Leases(), gc, time.Now(), l); err != nil || freed { // the agent's pod is bound there
		t.Errorf("freed %t, error %v", freed, err)
	}
	now := int64(0)
	must(t, admin.Pods("roce-cni").DeleteCollection(ctx, meta.DeleteOptions{GracePeriodSeconds: &now}, meta.ListOptions{FieldSelector: "spec.nodeName=" + g.pool + "-b"}))
	freed, err := sticky.Reap(ctx, gc.Leases(), gc, time.Now(), l)
	must(t, err)
	idle, err := gc.Leases().Get(ctx, l.Name)
	must(t, err)
	if !freed || idle.Spec.Holder != (block.Owner{}) {
		t.Errorf("freed %t: %+v", freed, idle)
	}
	if deleted, err := sticky.Reap(ctx, gc.Leases(), gc, time.Now(), idle); err != nil || !deleted {
		t.Errorf("deleted %t, error %v", deleted, err)
	}
}
