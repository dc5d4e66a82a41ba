// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

func TestTheAPIServerIsAStoreOfLeases(t *testing.T) {
	stickytest.Suite(t, api(t, shared(t).Admin()).Leases())
}

// stickySlots is those of a pool of two rails, which no node knows of.
func stickySlots(t *testing.T, name string) block.Slots {
	t.Helper()
	p := block.Pool{Name: name, Spec: block.PoolSpec{
		Template: &block.Template{Count: 2, Subnets: []block.Subnet{{Subnet: "10.{rail}.0.0/20"}}},
		Sticky:   &block.Sticky{TTL: "24h", Slots: "1024-1039"},
	}}
	must(t, p.Validate())
	s, err := p.Slots("")
	must(t, err)
	return s
}

func stickyClaimer(t *testing.T, c *ground.Cluster, node string) sticky.Claimer {
	t.Helper()
	return sticky.Claimer{Store: api(t, c.Admin()).Leases(), Node: block.Node{Name: node, MachineID: ground.MachineID(node)}, Now: time.Now}
}

func TestAnOperatorGivesAPodTheAddressOfHisChoice(t *testing.T) {
	t.Parallel()
	c := shared(t)
	out, err := tryKubectl(t, c, `{"apiVersion": "roce-cni.io/v1alpha1", "kind": "RailLease", "metadata": {"name": "chosen-s1030"},
		"spec": {"pool": "chosen", "slot": 1030, "namespace": "default", "pod": "db-7", "interface": "net1", "keep": true}}`, "create", "-f", "-")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	d, db := stickyClaimer(t, c, "chosen-a"), nodefile.Key{Namespace: "default", Pod: "db-7", Interface: "net1"}
	got, err := d.Take(t.Context(), stickySlots(t, "chosen"), db)
	must(t, err)
	if got.Name != "chosen-s1030" || !got.Spec.Keep {
		t.Errorf("took %+v", got)
	}
	table := kubectl(t, c, "get", "railleases", "--field-selector", "spec.pod=db-7,spec.holder.nodeName=chosen-a")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	if len(lines) != 2 || !cmp.Equal(strings.Fields(lines[0]), []string{"NAME", "POOL", "SLOT", "NAMESPACE", "POD", "INTERFACE", "NODE", "AGE"}) ||
		!cmp.Equal(strings.Fields(lines[1])[:7], []string{"chosen-s1030", "chosen", "1030", "default", "db-7", "net1", "chosen-a"}) {
		t.Errorf("kubectl prints\n%s", table)
	}
	must(t, d.Release(t.Context(), got))
	kubectl(t, c, "explain", "railleases.spec.keep")
}

func TestLeasesThatContradictThemselvesAreRefused(t *testing.T) {
	t.Parallel()
	all := kinds(t, shared(t), "railleases")
	const who = "namespace: default, pod: db-0, interface: net1"
	for _, tt := range []struct{ name, spec, want string }{
		{"p-s0", `{pool: p, slot: 0, ` + who + `}`, ""},
		{"p.r1-s1100", `{pool: p, rack: r1, slot: 1100, keep: true, ` + who + `}`, ""},
		{"p-s4294967295", `{pool: p, slot: 4294967295, ` + who + `, holder: {nodeName: a, machineID: b}, written: "2026-01-02T03:04:05.000006Z"}`, ""},
		{"p-s1", `{pool: p, slot: 0, ` + who + `}`, "the name of a RailLease must be"},
		{"p-s0", `{pool: q, slot: 0, ` + who + `}`, "the name of a RailLease must be"},
		{"p-s0", `{pool: p, rack: r1, slot: 0, ` + who + `}`, "the name of a RailLease must be"},
		{"p-more-s0", `{pool: p, slot: 0, ` + who + `}`, "the name of a RailLease must be"},
		{"p-0", `{pool: p, slot: 0, ` + who + `}`, "metadata.name"},
		{"p-s01", `{pool: p, slot: 1, ` + who + `}`, "metadata.name"},
		{"p-s7-s1100", `{pool: p, slot: 1100, ` + who + `}`, "the name of a RailLease must be"},
		{"p-sticky-s1100", `{pool: p, slot: 1100, ` + who + `}`, "the name of a RailLease must be"},
		{"p.r1-s7-s1100", `{pool: p, rack: r1, slot: 1100, ` + who + `}`, "the name of a RailLease must be"},
		{"p-s-s1100", `{pool: p, slot: 1100, ` + who + `}`, "the name of a RailLease must be"},
		{"p-s0", `{pool: p, slot: -1, ` + who + `}`, "greater than or equal to 0"},
		{"p-s0", `{pool: p, slot: 0, pod: db-0, interface: net1}`, "spec.namespace"},
		{"p-s0", `{pool: p, slot: 0, namespace: default, pod: "", interface: net1}`, "spec.pod"},
		{"p-s0", `{pool: p, slot: 0, ` + who + `, holder: {nodeName: a}}`, "spec.holder.machineID"},
		{"p-s0", `{pool: p, slot: 0, ` + who + `, holder: {}}`, "spec.holder"},
		{"p-s0", `{pool: p, slot: 0, ` + who + `, written: yesterday}`, "spec.written"},
		{"p-s0", `{pool: p, slot: 0, ` + who + `, node: a}`, "unknown field"},
	} {
		_, err := all.Create(t.Context(), object(t, "RailLease", tt.name, tt.spec), meta.CreateOptions{DryRun: []string{meta.DryRunAll}, FieldValidation: meta.FieldValidationStrict})
		says(t, tt.name+" "+tt.spec, err, tt.want)
	}
}

func TestALeaseIsForOneSlotAndOnePod(t *testing.T) {
	t.Parallel()
	all := kinds(t, shared(t), "railleases")
	made, err := all.Create(t.Context(), object(t, "RailLease", "fixed-s7", `{pool: fixed, slot: 7, namespace: default, pod: db-0, interface: net1}`), meta.CreateOptions{})
	must(t, err)
	for field, value := range map[string]any{
		"pool": "other", "rack": "r1", "slot": int64(8), "namespace": "other", "pod": "db-1", "interface": "net2",
		"keep": true, "holder": map[string]any{"nodeName": "a", "machineID": "b"}, "written": "2026-01-02T03:04:05Z",
	} {
		changed := made.DeepCopy()
		changed.Object["spec"].(map[string]any)[field] = value
		want := "the pod of a RailLease cannot be changed"
		switch field {
		case "pool", "rack", "slot":
			want = "the name of a RailLease must be"
		case "keep", "holder", "written":
			want = ""
		}
		_, err := all.Update(t.Context(), changed, meta.UpdateOptions{DryRun: []string{meta.DryRunAll}})
		says(t, field, err, want)
	}
	must(t, all.Delete(t.Context(), made.GetName(), meta.DeleteOptions{}))
}
