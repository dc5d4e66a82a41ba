// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/pkg/block/sticky"
)

// lease is one of the pool, held by node a or b, or by nobody.
func (g guarded) lease(slot int, holder string) sticky.Lease {
	l := sticky.Lease{Name: fmt.Sprintf("%s-s%d", g.pool, slot), Spec: sticky.Spec{
		Pool: g.pool, Slot: slot, Namespace: "default", Pod: "db-0", Interface: "net1", Written: time.Now().UTC(),
	}}
	if holder != "" {
		l.Spec.Holder = sticky.Holder{NodeName: g.pool + "-" + holder, MachineID: "machine-of-" + g.pool + "-" + holder}
	}
	return l
}

// pass writes the holder of a lease, as it is now, in somebody's name.
func (g guarded) pass(ctx context.Context, t *testing.T, who *rest.Config, slot int, holder string) error {
	t.Helper()
	want := g.lease(slot, holder)
	now, err := api(t, g.Admin()).Leases().Get(ctx, want.Name)
	must(t, err)
	now.Spec.Holder, now.Spec.Written = want.Spec.Holder, want.Spec.Written
	_, err = api(t, who).Leases().Update(ctx, now)
	return err
}

// patchLease writes a part of a lease that the programs leave alone.
func (g guarded) patchLease(ctx context.Context, t *testing.T, who *rest.Config, slot int, spec map[string]any) error {
	t.Helper()
	body, err := json.Marshal(map[string]any{"spec": spec})
	must(t, err)
	return client(t, who).CoreV1().RESTClient().Patch(types.MergePatchType).
		AbsPath("/apis/roce-cni.io/v1alpha1/railleases", g.lease(slot, "").Name).Body(body).Do(ctx).Error()
}

func TestAnAgentPassesLeasesToNobodyElse(t *testing.T) {
	t.Parallel()
	g := guard(t, "leases")
	ctx := t.Context()
	create := func(who *rest.Config, slot int, holder string) error {
		_, err := api(t, who).Leases().Create(ctx, g.lease(slot, holder))
		return err
	}
	eventually(t, "the policy of leases is in force", func(context.Context) error {
		if err := create(g.a, 0, "b"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("an agent makes a lease of another node: %w", err)
		}
		return nil
	})
	must(t, create(g.a, 1, "a"))
	must(t, create(g.a, 2, ""))
	must(t, create(g.b, 3, "b"))

	for _, foe := range []struct {
		name   string
		config *rest.Config
	}{{"an agent on no node", g.nowhere}, {"somebody in the name of the agents", g.impersonated()}} {
		if err := create(foe.config, 4, ""); !apierrors.IsForbidden(err) {
			t.Errorf("%s makes a lease: %v", foe.name, err)
		}
		if err := g.pass(ctx, t, foe.config, 1, ""); !apierrors.IsForbidden(err) {
			t.Errorf("%s takes a lease away: %v", foe.name, err)
		}
	}
	for _, tt := range []struct {
		what   string
		slot   int
		holder string
		may    bool
	}{
		{"takes what another node holds", 3, "a", false},
		{"takes away what another node holds", 3, "", false},
		{"writes what another node holds", 3, "b", false},
		{"gives what it holds to another node", 1, "b", false},
		{"gives what nobody holds to another node", 2, "b", false},
		{"writes what it holds", 1, "a", true},
		{"takes what nobody holds", 2, "a", true},
		{"lets go of what it holds", 2, "", true},
	} {
		if err := g.pass(ctx, t, g.a, tt.slot, tt.holder); (err == nil) != tt.may || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("an agent %s: %v", tt.what, err)
		}
	}
	must(t, g.pass(ctx, t, g.gc, 3, "")) // the reaper, when the node is gone
}

func TestOperatorsKeepSlotsAndAgentsDoNot(t *testing.T) {
	t.Parallel()
	g := guard(t, "keeps")
	ctx := t.Context()
	l := g.lease(1, "")
	l.Spec.Keep = true
	eventually(t, "the policy of leases is in force", func(ctx context.Context) error {
		if _, err := api(t, g.a).Leases().Create(ctx, l); !apierrors.IsForbidden(err) {
			return fmt.Errorf("an agent keeps a slot for ever: %w", err)
		}
		return nil
	})
	_, err := api(t, g.Admin()).Leases().Create(ctx, l)
	must(t, err)
	must(t, g.pass(ctx, t, g.a, 1, "a"))
	if err := g.patchLease(ctx, t, g.a, 1, map[string]any{"keep": false}); !apierrors.IsForbidden(err) {
		t.Errorf("an agent ends what an operator keeps: %v", err)
	}
	must(t, g.patchLease(ctx, t, g.Admin(), 1, map[string]any{"keep": false}))
	if err := g.patchLease(ctx, t, g.a, 1, map[string]any{"keep": true}); !apierrors.IsForbidden(err) {
		t.Errorf("an agent keeps its slot for ever: %v", err)
	}
}
