// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// pool returns a RailPool as it is now.
func pool(ctx context.Context, t *testing.T, c *ground.Cluster, name string) (kube.RailPool, error) {
	t.Helper()
	all, err := api(t, c.Admin()).Pools(ctx)
	if err != nil {
		return kube.RailPool{}, err
	}
	i := slices.IndexFunc(all, func(p kube.RailPool) bool { return p.Name == name })
	if i < 0 {
		return kube.RailPool{}, errors.New("there is none")
	}
	return all[i], nil
}

// remove deletes a RailPool, and does not wait until it is gone.
func remove(t *testing.T, c *ground.Cluster, name string) {
	t.Helper()
	must(t, client(t, c.Admin()).CoreV1().RESTClient().Delete().AbsPath("/apis/roce-cni.io/v1alpha1/railpools/"+name).Do(t.Context()).Error())
}

// TestADeletedPoolKeepsItsAddressesUntilTheyAreGivenBack deletes a pool while a node
// has a block of it and an address of that, and makes another one of the same
// subnets.
func TestADeletedPoolKeepsItsAddressesUntilTheyAreGivenBack(t *testing.T) {
	t.Parallel()
	need(t, "../../../bin/rocectl")
	c := own(t)
	deploy(t, c)
	m := joins(t, c, "n1")
	runs(t, account(t, c, "roce-cni-gc", "n1"), "gc", "--cluster", "--lull", "1m").logs("this process is elected")
	const spec = "spec: {quarantine: 0s, template: {count: 2, subnets: [{subnet: '10.{rail}.0.0/22'}]}}"
	must(t, write(t, c, http.MethodPost, "RailPool", "compute", spec))
	m.start()
	m.healthy()
	m.lease("compute", 1, 1)

	remove(t, c, "compute")
	must(t, write(t, c, http.MethodPost, "RailPool", "heir", spec))
	eventually(t, "it is said why the deleted pool stays", func(ctx context.Context) error {
		p, err := pool(ctx, t, c, "compute")
		if err == nil && (len(p.Status.Conditions) != 2 || !strings.Contains(p.Status.Conditions[0].Message, "1 are left")) {
			err = fmt.Errorf("%+v", p.Status.Conditions)
		}
		return err
	})
	eventually(t, "the agent claims nothing of its heir", func(ctx context.Context) error {
		code, body, err := m.get(ctx, "/healthz")
		if err == nil && (code != http.StatusServiceUnavailable || !strings.Contains(body, `addresses of RailPool "compute"`)) {
			err = errors.New(body)
		}
		return err
	})
	if p, err := pool(t.Context(), t, c, "heir"); err != nil || slices.Contains(p.Finalizers, kube.InUse) {
		t.Errorf("the heir is in use: %+v, %v", p.ObjectMeta, err)
	}
	if _, err := m.file("compute"); err != nil {
		t.Errorf("the pods of the node get nothing more: %v", err)
	}

	// The node would give its block back by itself two minutes after the pod is gone.
	m.agent.end()
	b := owned(t, c, "n1")[0]
	must(t, api(t, c.Admin()).Blocks().Delete(t.Context(), b.Name, b.UID, b.ResourceVersion))
	began := time.Now()
	eventually(t, "the heir has the addresses", func(ctx context.Context) error {
		if _, err := pool(ctx, t, c, "compute"); err == nil {
			return errors.New("the deleted one is there still")
		}
		p, err := pool(ctx, t, c, "heir")
		if err == nil && !slices.Contains(p.Finalizers, kube.InUse) {
			err = fmt.Errorf("%+v", p.ObjectMeta)
		}
		return err
	})
	if took := time.Since(began); took < 50*time.Second {
		t.Errorf("the pool is gone after %v: a node that had not heard of it may be claiming", took)
	}
}

// TestADeletionByMistakeIsRepaired does what the docs say, while another pool waits
// for the addresses: it gets none, neither between the two steps nor later.
func TestADeletionByMistakeIsRepaired(t *testing.T) {
	t.Parallel()
	need(t, "../../../bin/rocectl")
	c := own(t)
	deploy(t, c)
	const spec = "spec: {template: {count: 2, subnets: [{subnet: '10.{rail}.0.0/22'}]}}"
	must(t, write(t, c, http.MethodPost, "RailPool", "compute", spec))
	mark(t, c, "compute")
	_, err := api(t, c.Admin()).Blocks().Create(t.Context(), block.Block{Name: "compute-1", Spec: block.Spec{
		Pool: "compute", Index: 1, Size: 16, Owner: block.Owner{NodeName: "n1", MachineID: ground.MachineID("n1")},
	}})
	must(t, err)
	node(t, client(t, c.Admin()), "n1")
	remove(t, c, "compute")
	must(t, write(t, c, http.MethodPost, "RailPool", "heir", spec))
	runs(t, account(t, c, "roce-cni-gc", "n1"), "gc", "--cluster").logs("this process is elected")

	waits := func(why string) {
		t.Helper()
		eventually(t, why, func(ctx context.Context) error {
			p, err := pool(ctx, t, c, "heir")
			if err == nil && (len(p.Status.Conditions) != 2 || !strings.Contains(p.Status.Conditions[0].Message, why)) {
				err = fmt.Errorf("%+v", p.Status.Conditions)
			}
			if slices.Contains(p.Finalizers, kube.InUse) {
				t.Fatal("the heir is in use")
			}
			return err
		})
	}
	waits(`addresses of RailPool "compute"`)
	must(t, client(t, c.Admin()).CoreV1().RESTClient().Patch("application/merge-patch+json").AbsPath("/apis/roce-cni.io/v1alpha1/railpools/compute").
		Body([]byte(`{"metadata": {"finalizers": null}}`)).Do(t.Context()).Error())
	waits("there are blocks of RailPool compute, which is gone")
	must(t, write(t, c, http.MethodPost, "RailPool", "compute", spec))
	waits(`addresses of RailPool "compute"`)
	if p, err := pool(t.Context(), t, c, "compute"); err != nil || !slices.Contains(p.Finalizers, kube.InUse) {
		t.Errorf("the pool that nodes use is not in use: %+v, %v", p.ObjectMeta, err)
	}
}

// TestTheReaperMarksPoolsAndWritesNothingElseOfThem goes past the policy in each way
// that a client with its token still has.
func TestTheReaperMarksPoolsAndWritesNothingElseOfThem(t *testing.T) {
	t.Parallel()
	g := guard(t, "marks")
	must(t, write(t, g.Cluster, http.MethodPost, "RailPool", "marks", `spec: {nodeSelector: {no: node}, rails: [{subnets: [{subnet: 10.99.0.0/24}]}]}`))
	patch := func(who *rest.Config, body string) error {
		return client(t, who).CoreV1().RESTClient().Patch("application/merge-patch+json").AbsPath("/apis/roce-cni.io/v1alpha1/railpools/marks").
			Body([]byte(body)).Do(t.Context()).Error()
	}
	p, err := pool(t.Context(), t, g.Cluster, "marks")
	must(t, err)
	must(t, api(t, g.gc).Mark(t.Context(), p))
	if err := api(t, g.gc).Mark(t.Context(), p); err == nil {
		t.Error("it marks a pool that is not as it was read")
	}
	for _, body := range []string{
		`{"spec": {"quarantine": "1s"}}`,
		`{"spec": {"nodeSelector": {"no": "other"}}}`,
		`{"metadata": {"finalizers": ["roce-cni.io/in-use", "example.org/other"]}}`,
		`{"metadata": {"labels": {"a": "b"}}}`,
		`{"metadata": {"annotations": {"a": "b"}}}`,
		`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "marks-a", "uid": "x"}]}}`,
	} {
		if err := patch(g.gc, body); !apierrors.IsForbidden(err) {
			t.Errorf("the reaper writes %s: %v", body, err)
		}
	}
	if err := patch(g.a, `{"metadata": {"finalizers": []}}`); !apierrors.IsForbidden(err) {
		t.Errorf("an agent unmarks a pool: %v", err)
	}
	remove(t, g.Cluster, "marks")
	p, err = pool(t.Context(), t, g.Cluster, "marks")
	must(t, err)
	if p.DeletionTimestamp == nil {
		t.Fatalf("it is not being deleted: %+v", p.ObjectMeta)
	}
	must(t, api(t, g.gc).Mark(t.Context(), p))
	if p, err := pool(t.Context(), t, g.Cluster, "marks"); err == nil {
		t.Errorf("it is there still: %+v", p.ObjectMeta)
	}
}
