// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// guarded is a cluster with all of conf-examples/deploy, and who is who in it: the
// agents of two nodes, their account on no node, and the reaper.
type guarded struct {
	*ground.Cluster
	pool              string
	a, b, nowhere, gc *rest.Config
}

// guard returns the shared cluster. The name is in the names of all that is made
// for the test.
func guard(t *testing.T, name string) guarded {
	t.Helper()
	c := shared(t)
	deploy(t, c)
	admin := client(t, c.Admin())
	as := func(account, on string) *rest.Config {
		token, err := ground.AgentToken(t.Context(), admin, "roce-cni", account, on)
		must(t, err)
		return c.As(token)
	}
	node(t, admin, name+"-a")
	node(t, admin, name+"-b")
	g := guarded{Cluster: c, pool: name, a: as("roce-cni-agent", name+"-a"), b: as("roce-cni-agent", name+"-b"), gc: as("roce-cni-gc", name+"-a")}
	unbound, err := admin.CoreV1().ServiceAccounts("roce-cni").CreateToken(t.Context(), "roce-cni-agent", &authentication.TokenRequest{}, meta.CreateOptions{})
	must(t, err)
	g.nowhere = c.As(unbound.Status.Token)
	return g
}

// impersonated is an administrator who acts in the name of the agents: nothing
// else is known of such a user.
func (g guarded) impersonated() *rest.Config {
	as := g.Admin()
	as.Impersonate.UserName = "system:serviceaccount:roce-cni:roce-cni-agent"
	return as
}

// try makes a block as a given user does, and deletes it.
func (g guarded) try(ctx context.Context, t *testing.T, who *rest.Config, b block.Block) error {
	t.Helper()
	made, err := api(t, who).Blocks().Create(ctx, b)
	if err != nil {
		return err
	}
	return api(t, g.Admin()).Blocks().Delete(ctx, made.Name, made.UID, made.ResourceVersion)
}

// block is one of the pool, of node a or b.
func (g guarded) block(index int, owner string) block.Block {
	return block.Block{Name: fmt.Sprintf("%s-%d", g.pool, index), Spec: block.Spec{
		Pool: g.pool, Index: index, Size: 16, Owner: block.Owner{NodeName: g.pool + "-" + owner, MachineID: "0123456789abcdef0123456789abcdef"},
	}}
}

// act is what a user does to a block.
type act struct {
	name string
	do   func(context.Context, kube.Blocks, block.Block) error
}

func writes() []act {
	return []act{
		{"touch", func(ctx context.Context, s kube.Blocks, b block.Block) error {
			_, err := s.Touch(ctx, b.Name, b.UID)
			return err
		}},
		{"report", func(ctx context.Context, s kube.Blocks, b block.Block) error {
			return s.Report(ctx, b, block.Usage{Size: 16, Free: 16})
		}},
		{"delete", func(ctx context.Context, s kube.Blocks, b block.Block) error {
			now, err := s.Get(ctx, b.Name)
			if err != nil {
				return err
			}
			return s.Delete(ctx, now.Name, now.UID, now.ResourceVersion)
		}},
	}
}

func TestAnAgentWritesBlocksOfItsNodeAlone(t *testing.T) {
	t.Parallel()
	g := guard(t, "policy")
	ctx := t.Context()
	ofA, err := api(t, g.a).Blocks().Create(ctx, g.block(1, "a"))
	must(t, err)
	ofB, err := api(t, g.b).Blocks().Create(ctx, g.block(2, "b"))
	must(t, err)
	for _, foe := range []struct {
		name   string
		config *rest.Config
		block  block.Block
	}{
		{"the agent of another node", g.a, ofB},
		{"an agent on no node", g.nowhere, ofA},
		{"another user in the name of the agents", g.impersonated(), ofA},
	} {
		if err := g.try(ctx, t, foe.config, g.block(3, foe.block.Spec.NodeName[len(g.pool)+1:])); !apierrors.IsForbidden(err) {
			t.Errorf("%s makes a block: %v", foe.name, err)
		}
		for _, w := range writes() {
			if err := w.do(ctx, api(t, foe.config).Blocks(), foe.block); !apierrors.IsForbidden(err) {
				t.Errorf("%s may %s: %v", foe.name, w.name, err)
			}
		}
		now, err := api(t, g.Admin()).Blocks().Get(ctx, foe.block.Name)
		must(t, err)
		if now.ResourceVersion != foe.block.ResourceVersion {
			t.Errorf("%s has written %s", foe.name, now.Name)
		}
	}
	for _, w := range writes() {
		if err := w.do(ctx, api(t, g.a).Blocks(), ofA); err != nil {
			t.Errorf("the owner may not %s: %v", w.name, err)
		}
		if err := w.do(ctx, api(t, g.Admin()).Blocks(), ofB); err != nil {
			t.Errorf("an administrator may not %s: %v", w.name, err)
		}
	}
}

// place is what an account may have rights to.
type place struct{ group, resource, namespace, name string }

func (p place) allows(t *testing.T, who *rest.Config, verb string) bool {
	t.Helper()
	resource, sub, _ := strings.Cut(p.resource, "/")
	review := &authorization.SelfSubjectAccessReview{Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
		Verb: verb, Group: p.group, Resource: resource, Subresource: sub, Namespace: p.namespace, Name: p.name,
	}}}
	got, err := client(t, who).AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, meta.CreateOptions{})
	must(t, err)
	return got.Status.Allowed
}

// TestAccountsHaveTheRightsThatTheyNeedAndNoMore asks for each verb in each place. What is not
// named for an account is refused.
func TestAccountsHaveTheRightsThatTheyNeedAndNoMore(t *testing.T) {
	t.Parallel()
	g := guard(t, "rights")
	const ours, leases = "roce-cni.io", "coordination.k8s.io"
	for _, tt := range []struct {
		place
		agent, gc string
	}{
		{place{ours, "railpools", "", ""}, "get list watch", "list patch"},
		{place{ours, "railpools/status", "", ""}, "", "patch"},
		{place{ours, "railblocks", "", ""}, "get list create delete", "list delete"},
		{place{ours, "railblocks/status", "", ""}, "patch", ""},
		{place{ours, "railleases", "", ""}, "get list create patch", "get list patch delete"},
		{place{ours, "railnodes", "", ""}, "create patch", "list"},
		{place{"", "nodes", "", ""}, "get", "get list"},
		{place{"", "nodes/status", "", ""}, "", "patch"},
		{place{"", "pods", "", ""}, "", "list"},
		{place{"", "pods", "roce-cni", ""}, "", "list"},
		{place{"", "secrets", "", ""}, "", ""},
		{place{"", "secrets", "roce-cni", ""}, "", ""},
		{place{"", "configmaps", "roce-cni", ""}, "", ""},
		{place{"", "serviceaccounts/token", "roce-cni", ""}, "", ""},
		{place{leases, "leases", "roce-cni", "roce-cni-gc"}, "", "create get update"},
		{place{leases, "leases", "roce-cni", "another"}, "", "create"},
		{place{leases, "leases", "kube-system", "roce-cni-gc"}, "", ""},
		{place{"rbac.authorization.k8s.io", "clusterroles", "", ""}, "", ""},
		{place{"admissionregistration.k8s.io", "validatingadmissionpolicies", "", ""}, "", ""},
		{place{"apiextensions.k8s.io", "customresourcedefinitions", "", ""}, "", ""},
	} {
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
			for _, account := range []struct {
				name   string
				config *rest.Config
				may    string
			}{{"agent", g.a, tt.agent}, {"gc", g.gc, tt.gc}} {
				want := slices.Contains(strings.Fields(account.may), verb)
				if got := tt.allows(t, account.config, verb); got != want {
					t.Errorf("%s: %s of %+v is %t, want %t", account.name, verb, tt.place, got, want)
				}
			}
		}
	}
}
