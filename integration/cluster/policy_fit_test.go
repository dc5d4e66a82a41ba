// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// attempt is an object that an agent tries to make, as YAML after apiVersion and kind.
type attempt struct {
	kind, object string
	want         string // a part of the refusal; "" if it is allowed
}

// makes makes an object as a user does, and deletes it. The lines of the object may have
// POOL for the test's pool.
func (g guarded) makes(ctx context.Context, t *testing.T, who *rest.Config, a attempt) error {
	t.Helper()
	o := &unstructured.Unstructured{}
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\n%s", kube.Version(), a.kind, strings.ReplaceAll(a.object, "POOL", g.pool))
	must(t, yaml.UnmarshalStrict([]byte(text), &o.Object))
	all, err := dynamic.NewForConfig(who)
	must(t, err)
	plural := strings.ToLower(a.kind) + "s"
	if _, err := all.Resource(kube.Version().WithResource(plural)).Create(ctx, o, meta.CreateOptions{}); err != nil {
		return err
	}
	admin := kinds(t, g.Cluster, plural)
	_, _ = admin.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), meta.PatchOptions{}) // it may have none
	return admin.Delete(ctx, o.GetName(), meta.DeleteOptions{})
}

func (g guarded) refuses(t *testing.T, attempts []attempt) {
	t.Helper()
	for _, a := range attempts {
		err := g.makes(t.Context(), t, g.a, a)
		if a.want == "" && err != nil || a.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), a.want)) {
			t.Errorf("%s %s: got %v, want %q", a.kind, a.object, err, a.want)
		}
	}
}

// until waits until the policies know the pool, and refuse an attempt for the reason that
// it wants.
func (g guarded) until(t *testing.T, a attempt) {
	t.Helper()
	eventually(t, "the policies know the RailPool", func(ctx context.Context) error {
		if err := g.makes(ctx, t, g.a, a); err == nil || !strings.Contains(err.Error(), a.want) {
			return errors.Join(errors.New("it is not refused"), err)
		}
		return nil
	})
}

const labels = `labels: {roce-cni.io/pool: POOL, roce-cni.io/machine-id: m}`

// TestAnAgentMakesOnlyBlocksThatFit tries what an agent's token was once good for: to
// stop the claims of all nodes, and to keep a RailPool for ever.
func TestAnAgentMakesOnlyBlocksThatFit(t *testing.T) {
	t.Parallel()
	g := guard(t, "fits")
	must(t, write(t, g.Cluster, http.MethodPost, "RailPool", "fits", `spec: {blockSize: 8, nodeSelector: {none: "true"}, template: {count: 2, subnets: [{subnet: "10.{rail}.0.0/22"}, {subnet: "fd00:{rail}::/64"}]}}`))
	block := func(index, size int, metadata string) attempt {
		return attempt{kind: "RailBlock", object: fmt.Sprintf("metadata: {name: POOL-%d, %s}\nspec: {pool: POOL, index: %d, size: %d, nodeName: POOL-a, machineID: m}", index, metadata, index, size)}
	}
	refused := func(a attempt, want string) attempt { a.want = want; return a }
	g.until(t, refused(block(40, 17, labels), "has 8 host indexes"))
	g.refuses(t, []attempt{
		block(0, 8, labels),
		block(127, 8, labels),
		refused(block(128, 8, labels), "has no block 128"),
		refused(block(1000000, 8, labels), "has no block 1000000"),
		refused(block(40, 17, labels), "has 8 host indexes"),
		refused(block(1, 8, labels+", finalizers: [example.org/stay]"), "has no finalizers"),
		refused(block(1, 8, labels+", annotations: {a: "+strings.Repeat("x", 100_000)+"}"), "annotations"),
		refused(block(1, 8, labels+", ownerReferences: [{apiVersion: v1, kind: Node, name: x, uid: u}]"), "owner references"),
		refused(block(1, 8, ""), "has the labels"),
		refused(block(1, 8, "labels: {roce-cni.io/pool: other, roce-cni.io/machine-id: m}"), "has the labels"),
		refused(block(1, 8, "labels: {roce-cni.io/pool: POOL, roce-cni.io/machine-id: of-another}"), "has the labels"),
		refused(block(1, 8, "labels: {roce-cni.io/pool: POOL, roce-cni.io/machine-id: m, example.org/x: z}"), "has the labels"),
		{"RailBlock", "metadata: {name: POOL.r1-1, labels: {roce-cni.io/pool: POOL, roce-cni.io/machine-id: m, roce-cni.io/rack: r1}}\nspec: {pool: POOL, rack: r1, index: 1, size: 8, nodeName: POOL-a, machineID: m}", "has no rack"},
	})
}

func TestAnAgentMakesOnlyBlocksOfRacksThatThereAre(t *testing.T) {
	t.Parallel()
	g := guard(t, "racked")
	must(t, write(t, g.Cluster, http.MethodPost, "RailPool", "racked", `spec: {rackLabel: rack, nodeSelector: {none: "true"}, racks: [{name: r1, rails: [{subnets: [{subnet: 10.8.0.0/24}]}]}, {name: r2, rails: [{subnets: [{subnet: 10.9.0.0/23}]}]}]}`))
	block := func(rack string, index int, want string) attempt {
		name := "POOL." + rack
		extra := ", roce-cni.io/rack: " + rack
		if rack == "" {
			name, extra = "POOL", ""
		}
		return attempt{"RailBlock", fmt.Sprintf("metadata: {name: %s-%d, labels: {roce-cni.io/pool: POOL, roce-cni.io/machine-id: m%s}}\nspec: {pool: POOL, rack: %q, index: %d, size: 16, nodeName: POOL-a, machineID: m}", name, index, extra, rack, index), want}
	}
	g.until(t, block("r3", 0, "has no rack"))
	g.refuses(t, []attempt{
		block("r1", 15, ""), block("r2", 31, ""),
		block("r1", 16, "has no block 16"), block("r2", 32, "has no block 32"),
		block("r3", 0, "has no rack"), block("", 0, "has no rack"),
	})
}

func TestTheNumberOfRacksIsBounded(t *testing.T) {
	t.Parallel()
	g := guard(t, "numbered")
	must(t, write(t, g.Cluster, http.MethodPost, "RailPool", "numbered", `spec: {rackLabel: rack, nodeSelector: {none: "true"}, template: {count: 1, subnets: [{subnet: "10.{rack}.0.0/22"}]}, sticky: {ttl: 24h, slots: 512-767}}`))
	block := func(rack, want string) attempt {
		return attempt{"RailBlock", fmt.Sprintf("metadata: {name: POOL.%[1]s-1, labels: {roce-cni.io/pool: POOL, roce-cni.io/machine-id: m, roce-cni.io/rack: %[1]q}}\nspec: {pool: POOL, rack: %[1]q, index: 1, size: 16, nodeName: POOL-a, machineID: m}", rack), want}
	}
	lease := func(rack, want string) attempt {
		return attempt{"RailLease", fmt.Sprintf("metadata: {name: POOL.%[1]s-s600, annotations: {roce-cni.io/created-by: POOL-a}}\nspec: {pool: POOL, rack: %[1]q, slot: 600, namespace: team-b, pod: db-0, interface: net1, holder: {nodeName: POOL-a, machineID: m}}", rack), want}
	}
	g.until(t, block("x", "has no rack"))
	g.until(t, lease("x", "has no rack"))
	for _, of := range []func(rack, want string) attempt{block, lease} {
		g.refuses(t, []attempt{of("0", ""), of("65535", ""), of("65536", "has no rack"), of("99999999999999999999", "has no rack"), of("07", "has no rack")})
	}
}

func TestAnAgentMakesOnlyLeasesThatFit(t *testing.T) {
	t.Parallel()
	g := guard(t, "sits")
	must(t, write(t, g.Cluster, http.MethodPost, "RailPool", "sits", `spec: {nodeSelector: {none: "true"}, template: {count: 1, subnets: [{subnet: "10.7.0.0/22"}]}, sticky: {ttl: 24h, slots: 512-767}}`))
	lease := func(slot int, metadata, written, want string) attempt {
		if !strings.Contains(metadata, "annotations") {
			metadata += ", annotations: {roce-cni.io/created-by: POOL-a}"
		}
		return attempt{"RailLease", fmt.Sprintf("metadata: {name: POOL-s%d%s}\nspec: {pool: POOL, slot: %d, namespace: team-b, pod: db-0, interface: net1, holder: {nodeName: POOL-a, machineID: m}, written: %q}", slot, metadata, slot, written), want}
	}
	now := time.Now().UTC().Format(time.RFC3339)
	g.until(t, lease(511, "", now, "is not one of spec.sticky.slots"))
	g.refuses(t, []attempt{
		lease(512, "", now, ""), lease(767, "", now, ""),
		lease(511, "", now, "is not one of spec.sticky.slots"), lease(768, "", now, "is not one of spec.sticky.slots"),
		lease(600, "", "9999-01-01T00:00:00Z", "in the future"),
		lease(600, "", time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339), "in the future"),
		lease(600, ", finalizers: [example.org/stay]", now, "without labels"),
		lease(600, ", labels: {a: b}", now, "without labels"),
		lease(600, ", annotations: {a: b}", now, "created-by"),
		lease(600, ", annotations: {roce-cni.io/created-by: POOL-b}", now, "created-by"),
		lease(600, ", annotations: {}", now, "created-by"),
		{"RailLease", "metadata: {name: POOL-s600, annotations: {roce-cni.io/created-by: POOL-a}}\nspec: {pool: POOL, slot: 600, namespace: team-b, pod: db-0, interface: net1}", "with that node as spec.holder"},
		{"RailLease", "metadata: {name: POOL.r1-s600, annotations: {roce-cni.io/created-by: POOL-a}}\nspec: {pool: POOL, rack: r1, slot: 600, namespace: team-b, pod: db-0, interface: net1, holder: {nodeName: POOL-a, machineID: m}}", "has no rack"},
		lease(600, ", ownerReferences: [{apiVersion: v1, kind: Node, name: x, uid: u}]", now, "without labels"),
	})
}

// TestAnAgentDoesNotChangeTheMetadataOfALease has a lease of an operator, which an owner
// reference would let the garbage collector delete.
func TestAnAgentDoesNotChangeTheMetadataOfALease(t *testing.T) {
	t.Parallel()
	g := guard(t, "operators")
	must(t, write(t, g.Cluster, http.MethodPost, "RailLease", "operators-s1", `spec: {pool: operators, slot: 1, namespace: default, pod: db-0, interface: net1, keep: true}`))
	all, err := dynamic.NewForConfig(g.a)
	must(t, err)
	patch := func(ctx context.Context, metadata string) error {
		_, err := all.Resource(kube.Version().WithResource("railleases")).Patch(ctx, "operators-s1", types.MergePatchType, []byte(`{"metadata": `+metadata+`}`), meta.PatchOptions{})
		return err
	}
	for _, metadata := range []string{
		`{"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "y"}]}`, `{"finalizers": ["example.org/stay"]}`, `{"labels": {"a": "b"}}`,
		`{"annotations": {"a": "` + strings.Repeat("x", 200_000) + `"}}`,
	} {
		eventually(t, "the refusal of "+metadata[:20], func(ctx context.Context) error {
			if err := patch(ctx, metadata); !apierrors.IsForbidden(err) {
				return errors.Join(errors.New("it is not refused"), err)
			}
			return nil
		})
	}
}

// TestRequestsOfAgentsHaveAQueueOfTheirOwn asks the API server to which FlowSchema it
// has assigned a request.
func TestRequestsOfAgentsHaveAQueueOfTheirOwn(t *testing.T) {
	t.Parallel()
	g := guard(t, "flows")
	schema, err := client(t, g.Admin()).FlowcontrolV1().FlowSchemas().Get(t.Context(), "roce-cni-agents", meta.GetOptions{})
	must(t, err)
	assigned := func(ctx context.Context, who *rest.Config, path string) (string, error) {
		seen := make(chan string, 1)
		with := rest.CopyConfig(who)
		with.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				answer, err := next.RoundTrip(r)
				if err == nil {
					seen <- answer.Header.Get("X-Kubernetes-PF-FlowSchema-UID")
				}
				return answer, err
			})
		})
		if err := client(t, with).CoreV1().RESTClient().Get().AbsPath(path).Do(ctx).Error(); err != nil {
			return "", err
		}
		return <-seen, nil
	}
	for _, path := range []string{"/apis/roce-cni.io/v1alpha1/railpools", "/apis/roce-cni.io/v1alpha1/railblocks", "/api/v1/nodes/flows-a"} {
		eventually(t, path, func(ctx context.Context) error {
			uid, err := assigned(ctx, g.a, path)
			if err == nil && uid != string(schema.UID) {
				err = fmt.Errorf("it is assigned to %q", uid)
			}
			return err
		})
		if uid, err := assigned(t.Context(), g.Admin(), path); err != nil || uid == string(schema.UID) {
			t.Errorf("%s of an administrator: %q, %v", path, uid, err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
