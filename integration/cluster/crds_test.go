// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// kinds reaches our objects as kubectl does: whatever they have.
func kinds(t testing.TB, c *ground.Cluster, plural string) dynamic.ResourceInterface {
	t.Helper()
	all, err := dynamic.NewForConfig(c.Admin())
	must(t, err)
	return all.Resource(kube.Version().WithResource(plural))
}

// object makes one with that spec. No node claims blocks of a pool made here.
func object(t testing.TB, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{Object: map[string]any{}}
	var fields map[string]any
	must(t, yaml.UnmarshalStrict([]byte(spec), &fields))
	if kind == "RailPool" {
		fields["nodeSelector"] = map[string]any{"example.org/none": "true"}
	}
	o.Object["spec"] = fields
	o.SetAPIVersion(kube.Version().String())
	o.SetKind(kind)
	o.SetName(name)
	return o
}

// says compares an answer of the API server with a part of it, "" for none.
func says(t *testing.T, what string, err error, want string) {
	t.Helper()
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}

func TestPoolsThatContradictThemselvesAreRefused(t *testing.T) {
	t.Parallel()
	pools := kinds(t, shared(t), "railpools")
	const (
		rail   = "rails: [{subnets: [{subnet: 10.0.0.0/24}]}]"
		inside = "is not inside the subnet"
	)
	for spec, want := range map[string]string{
		rail: "",
		`{template: {count: 8, subnets: [{subnet: "10.{rail+1}.0.0/16", ranges: ["10.{rail+1}.64.0/18"], gateway: "10.{rail+1}.255.254"}]}}`:                                  "",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.0.1-10.0.0.9, 10.0.0.16/28, 10.0.0.77], exclude: [10.0.0.3]}, {subnet: "fd00::/64", gateway: "fd00::1"}]}]}`: "",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.0.0/25]}]}, {subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.0.128/25]}]}]}`:                                   "",
		`{rackLabel: rack, template: {count: 8, subnets: [{subnet: "10.{rail}.{rack}.0/24"}]}}`:                                                                               "",
		`{rackLabel: rack, racks: [{name: r1, rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}]}`:                                                                                 "",
		`{reservations: [{ranges: [10.0.0.9, 10.0.0.16/28, 10.0.0.1-10.0.0.2], reason: storage}], ` + rail + `}`:                                                              "",

		`{rails: [{subnets: [{subnet: "fd00::/64", gateway: "fe80::1"}, {subnet: 10.0.0.0/24, gateway: 169.254.1.1}]}]}`:                                       "",
		`{template: {count: 2, subnets: [{subnet: "10.{rail}.0.0/24", gateway: 172.31.1.1, onLink: true}, {subnet: "fd00:{rail}::/64", gateway: "fe80::1"}]}}`: "",

		`{rails: [{subnets: [{subnet: 10.0.0.0/24, gateway: "fe80::1"}]}]}`: "the gateway is not an address of the subnet",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, onLink: true}]}]}`:       "onLink has no effect without gateway",
		`{}`: "exactly one of rails, template and racks",
		`{template: {count: 1, subnets: [{subnet: 10.0.0.0/24}]}, ` + rail + `}`: "exactly one of rails, template and racks",
		`{rails: []}`: "should have at least 1 items",
		`{rails: [{subnets: [{subnet: banana}]}]}`:                                                                                                   "as a prefix without host bits",
		`{rails: [{subnets: [{subnet: 10.0.0.1/24}]}]}`:                                                                                              "as a prefix without host bits",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: []}]}]}`:                                                                                  "should have at least 1 items",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [banana]}]}]}`:                                                                            inside,
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.1.7]}]}]}`:                                                                          inside,
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.0.0/23]}]}]}`:                                                                       inside,
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.0.9-10.0.1.9]}]}]}`:                                                                 inside,
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, exclude: [10.0.0.300]}]}]}`:                                                                       inside,
		`{template: {count: 1, subnets: [{subnet: 10.0.0.0/24, exclude: [10.0.1.0/28]}]}}`:                                                           inside,
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.0.9/28]}]}]}`:                                                                       "without host bits",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, exclude: [10.0.0.9/28]}]}]}`:                                                                      "without host bits",
		`{template: {count: 2, subnets: [{subnet: "10.{rail}.0.0/24", ranges: [10.0.0.0/28]}]}}`:                                                     "write {rail} into ranges",
		`{template: {count: 2, subnets: [{subnet: "10.{rail}.0.0/24", exclude: ["10.{rail}.0.3", 10.0.0.3]}]}}`:                                      "write {rail} into ranges",
		`{template: {count: 2, subnets: [{subnet: "10.{rail}.0.0/24", gateway: 10.0.0.1}]}}`:                                                         "write {rail} into ranges",
		`{template: {count: 1, subnets: [{subnet: "10.{rail}.0.0/24", exclude: [10.0.0.3]}]}}`:                                                       "",
		`{template: {count: 2, subnets: [{subnet: "10.0.0.0/24", exclude: [10.0.0.3]}]}}`:                                                            "",
		`{reservations: [{ranges: [10.0.0.9/28], reason: x}], ` + rail + `}`:                                                                         "without host bits",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, gateway: 10.0.1.1}]}]}`:                                                                           "the gateway is not an address of the subnet",
		`{rackLabel: rack, racks: [{name: r1, rails: [{subnets: [{subnet: 10.0.0.0/24, gateway: 10.0.1.1}]}]}]}`:                                     "the gateway is not an address of the subnet",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24}, {subnet: 10.0.0.0/25}]}]}`:                                                                       "two subnets of a rail overlap",
		`{rackLabel: rack, racks: [{name: r1, rails: [{subnets: [{subnet: 10.0.0.0/24}, {subnet: 10.0.0.0/24}]}]}]}`:                                 "two subnets of a rail overlap",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24}]}, {subnets: [{subnet: 10.0.0.0/25}]}]}`:                                                          "subnets of two rails overlap",
		`{rackLabel: rack, ` + rail + `}`:                                                                                                            "rackLabel is required with racks",
		`{rails: [{subnets: [{subnet: "10.0.{rack}.0/24"}]}]}`:                                                                                       "rackLabel is required with racks",
		`{racks: [{name: r1, rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}]}`:                                                                         "rackLabel is required with racks",
		`{rackLabel: rack, racks: [{name: R_1, rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}]}`:                                                       "spec.racks[0].name",
		`{rackLabel: rack, racks: [{name: a, rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}, {name: a, rails: [{subnets: [{subnet: 10.1.0.0/24}]}]}]}`: "Duplicate value",
		`{template: {count: 33, subnets: [{subnet: "10.{rail}.0.0/16"}]}}`:                                                                           "should be less than or equal to 32",
		`{blockSize: 0, ` + rail + `}`:                                                                                                               "greater than or equal to 1",
		`{blockSize: 4097, ` + rail + `}`:                                                                                                            "less than or equal to 4096",
		`{quarantine: 25h, ` + rail + `}`:                                                                                                            "longer than 24h",
		`{quarantine: banana, ` + rail + `}`:                                                                                                         "spec.quarantine",
		`{reservations: [{ranges: [banana], reason: x}], ` + rail + `}`:                                                                              "spec.reservations[0].ranges",
		`{reservations: [{ranges: [10.0.0.9]}], ` + rail + `}`:                                                                                       "spec.reservations[0].reason",
		`{rails: [{subnets: [{subnet: 10.0.0.0/24, mask: 24}]}]}`:                                                                                    "unknown field",
		`{sticky: {ttl: 1h, slots: 64-95}, ` + rail + `}`:                                                                                            "",
		`{sticky: {ttl: 1h}, ` + rail + `}`:                                                                                                          "spec.sticky.slots",
		`{sticky: {slots: 64-95}, ` + rail + `}`:                                                                                                     "spec.sticky.ttl",
		`{sticky: {ttl: 1h, slots: 64-94}, ` + rail + `}`:                                                                                            "sticky.slots must be whole blocks",
		`{sticky: {ttl: 1h, slots: 65-95}, ` + rail + `}`:                                                                                            "sticky.slots must be whole blocks",
		`{sticky: {ttl: 1h, slots: 96-95}, ` + rail + `}`:                                                                                            "sticky.slots must be whole blocks",
		`{blockSize: 1, sticky: {ttl: 1h, slots: 7-7}, ` + rail + `}`:                                                                                "",
		`{sticky: {ttl: 1h, slots: "64"}, ` + rail + `}`:                                                                                             "spec.sticky.slots",
		`{sticky: {ttl: 1h, slots: 064-95}, ` + rail + `}`:                                                                                           "spec.sticky.slots",
		`{sticky: {ttl: 119s, slots: 64-95}, ` + rail + `}`:                                                                                          "sticky.ttl is shorter than quarantine",
		`{quarantine: 10m, sticky: {ttl: 9m59s, slots: 64-95}, ` + rail + `}`:                                                                        "sticky.ttl is shorter than quarantine",
		`{sticky: {ttl: 721h, slots: 64-95}, ` + rail + `}`:                                                                                          "ttl is not in 1s to 720h",
		`{sticky: {ttl: banana, slots: 64-95}, ` + rail + `}`:                                                                                        "spec.sticky.ttl",
	} {
		_, err := pools.Create(t.Context(), object(t, "RailPool", "refused", spec), meta.CreateOptions{DryRun: []string{meta.DryRunAll}, FieldValidation: meta.FieldValidationStrict})
		says(t, spec, err, want)
	}
	for name, want := range map[string]string{strings.Repeat("a", 40): "", strings.Repeat("a", 41): "metadata.name", "a.b": "metadata.name"} {
		_, err := pools.Create(t.Context(), object(t, "RailPool", name, rail), meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		says(t, name, err, want)
	}
}

func TestWhatBlocksFollowFromNeverChanges(t *testing.T) {
	t.Parallel()
	pools := kinds(t, shared(t), "railpools")
	const (
		rails    = `{rails: [{subnets: [{subnet: 10.0.0.0/24}]}, {subnets: [{subnet: 10.1.0.0/24}]}]}`
		kept     = `{sticky: {ttl: 1h, slots: 64-95}, rails: [{subnets: [{subnet: 10.0.0.0/24}]}, {subnets: [{subnet: 10.1.0.0/24}]}]}`
		template = `{template: {count: 2, subnets: [{subnet: "10.{rail}.0.0/16"}]}}`
		table    = `{rackLabel: rack, racks: [{name: r1, rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}]}`
	)
	for i, tt := range []struct{ before, after, want string }{
		{rails, `{quarantine: 5m, rails: [{subnets: [{subnet: 10.0.0.0/24, ranges: [10.0.0.64/26], exclude: [10.0.0.70], gateway: 10.0.0.1}]}, {subnets: [{subnet: 10.1.0.0/24}]}]}`, ""},
		{rails, `{reservations: [{ranges: [10.0.0.9], reason: storage}], ` + rails[1:], ""},
		{rails, `{rails: [{subnets: [{subnet: 10.2.0.0/24}]}, {subnets: [{subnet: 10.1.0.0/24}]}]}`, "the subnets of rails cannot be changed"},
		{rails, `{rails: [{subnets: [{subnet: 10.1.0.0/24}]}, {subnets: [{subnet: 10.0.0.0/24}]}]}`, "the subnets of rails cannot be changed"},
		{rails, `{rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}`, "the subnets of rails cannot be changed"},
		{rails, template, "the subnets cannot be changed"},
		{rails, `{blockSize: 8, ` + rails[1:], "blockSize cannot be changed"},
		{rails, `{sticky: {ttl: 1h, slots: 64-95}, ` + rails[1:], "sticky.slots cannot be changed"},
		{kept, rails, "sticky.slots cannot be changed"},
		{kept, strings.Replace(kept, "64-95", "64-79", 1), "sticky.slots cannot be changed"},
		{kept, strings.Replace(kept, "1h", "2h", 1), ""},
		{template, `{template: {count: 2, subnets: [{subnet: "10.{rail}.0.0/16", ranges: ["10.{rail}.1.0/24"]}]}}`, ""},
		{template, `{template: {count: 3, subnets: [{subnet: "10.{rail}.0.0/16"}]}}`, "the rails of a template cannot be changed"},
		{template, `{template: {count: 2, subnets: [{subnet: "10.{rail+1}.0.0/16"}]}}`, "the rails of a template cannot be changed"},
		{table, `{rackLabel: rack, racks: [{name: r1, rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}, {name: r2, rails: [{subnets: [{subnet: 10.1.0.0/24}]}]}]}`, ""},
		{table, `{rackLabel: rack, racks: [{name: r2, rails: [{subnets: [{subnet: 10.1.0.0/24}]}]}, {name: r1, rails: [{subnets: [{subnet: 10.0.0.0/24}]}]}]}`, ""},
		{table, `{rackLabel: rack, racks: [{name: r1, rails: [{subnets: [{subnet: 10.1.0.0/24}]}]}]}`, "the subnets of a rack cannot be changed"},
		{table, `{rackLabel: rack, racks: [{name: r2, rails: [{subnets: [{subnet: 10.1.0.0/24}]}]}]}`, "a rack is never removed"},
		{table, strings.Replace(table, "rackLabel: rack", "rackLabel: other", 1), "rackLabel cannot be changed"},
	} {
		before := object(t, "RailPool", "never-changes-"+string(rune('a'+i)), tt.before)
		made, err := pools.Create(t.Context(), before, meta.CreateOptions{})
		must(t, err)
		t.Cleanup(func() { must(t, pools.Delete(context.Background(), made.GetName(), meta.DeleteOptions{})) })
		after := object(t, "RailPool", made.GetName(), tt.after)
		after.SetResourceVersion(made.GetResourceVersion())
		_, err = pools.Update(t.Context(), after, meta.UpdateOptions{FieldValidation: meta.FieldValidationStrict})
		says(t, tt.before+" to "+tt.after, err, tt.want)
	}
}

func TestABlockIsWhatItsNameSays(t *testing.T) {
	t.Parallel()
	c := shared(t)
	blocks := kinds(t, c, "railblocks")
	const owner = "size: 16, nodeName: a, machineID: b"
	for _, tt := range []struct{ name, spec, want string }{
		{"says-7", "{pool: says, index: 7, " + owner + "}", ""},
		{"says.r1-7", "{pool: says, rack: r1, index: 7, " + owner + "}", ""},
		{"says-0", "{pool: says, index: 0, " + owner + "}", ""},
		{"says-8", "{pool: says, index: 7, " + owner + "}", "the name of a RailBlock must be its pool"},
		{"says-07", "{pool: says, index: 7, " + owner + "}", "metadata.name"},
		{"says-3-7", "{pool: says, index: 7, " + owner + "}", "the name of a RailBlock must be its pool"},
		{"says-more-7", "{pool: says, index: 7, " + owner + "}", "the name of a RailBlock must be its pool"},
		{"says.r1-7", "{pool: says, index: 7, " + owner + "}", "the name of a RailBlock must be its pool"},
		{"says-7", "{pool: says, rack: r1, index: 7, " + owner + "}", "the name of a RailBlock must be its pool"},
		{"says-1048576", "{pool: says, index: 1048576, " + owner + "}", "spec.index"},
		{"says-7", "{pool: says, index: 7, size: 16, nodeName: a}", "spec.machineID"},
	} {
		_, err := blocks.Create(t.Context(), object(t, "RailBlock", tt.name, tt.spec), meta.CreateOptions{DryRun: []string{meta.DryRunAll}})
		says(t, tt.name+" "+tt.spec, err, tt.want)
	}

	made, err := blocks.Create(t.Context(), object(t, "RailBlock", "says-9", "{pool: says, index: 9, "+owner+"}"), meta.CreateOptions{})
	must(t, err)
	must(t, unstructured.SetNestedField(made.Object, "another", "spec", "nodeName"))
	_, err = blocks.Update(t.Context(), made, meta.UpdateOptions{})
	says(t, "another owner", err, "the spec of a RailBlock cannot be changed")
}

func TestUsageIsReportedWithoutTouchingAnythingElse(t *testing.T) {
	t.Parallel()
	a := api(t, shared(t).Admin())
	made, err := a.Blocks().Create(t.Context(), block.Block{Name: "usage-1", Spec: block.Spec{Pool: "usage", Index: 1, Size: 16, Owner: block.Owner{NodeName: "n", MachineID: "m"}}})
	must(t, err)
	usage := block.Usage{Size: 15, Used: 4, Quarantined: 2, Free: 9}
	must(t, a.Blocks().Report(t.Context(), made, usage))
	reported, err := a.Blocks().Get(t.Context(), made.Name)
	must(t, err)
	touched, err := a.Blocks().Touch(t.Context(), made.Name, made.UID)
	must(t, err)
	if reported.ResourceVersion == made.ResourceVersion || touched.ResourceVersion == reported.ResourceVersion || touched.Spec != made.Spec || touched.UID != made.UID {
		t.Errorf("made %+v, reported %+v, touched %+v", made, reported, touched)
	}
	var there []*kube.RailBlock
	must(t, a.EachBlock(t.Context(), block.Query{Pool: "usage", Freshness: block.Latest}, func(b *kube.RailBlock) { there = append(there, b) }))
	if len(there) != 1 || there[0].Status.Usage != usage || time.Since(there[0].Status.Asserted.Time).Abs() > time.Minute {
		t.Errorf("there is %+v", there)
	}
	another := made
	another.UID = "00000000-0000-0000-0000-000000000000"
	says(t, "another block", a.Blocks().Report(t.Context(), another, block.Usage{}), block.ErrConflict.Error())
	if again, err := a.Blocks().Get(t.Context(), made.Name); err != nil || again != touched {
		t.Errorf("error %v; (-touched +there)\n%s", err, cmp.Diff(touched, again))
	}
}

func TestAPoolHasAStatusThatPeopleCanRead(t *testing.T) {
	t.Parallel()
	c := shared(t)
	pools := kinds(t, c, "railpools")
	_, err := pools.Create(t.Context(), object(t, "RailPool", "reported", "rails: [{subnets: [{subnet: 10.0.0.0/24}]}]"), meta.CreateOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, pools.Delete(context.Background(), "reported", meta.DeleteOptions{})) })
	want := kube.PoolStatus{
		Blocks: 16, Claimed: 3, Usage: block.Usage{Size: 254, Used: 40, Quarantined: 5, Free: 209},
		Conditions: []meta.Condition{{Type: kube.ValidCondition, Status: meta.ConditionTrue, Reason: "Valid", LastTransitionTime: meta.NewTime(time.Unix(1e9, 0))}},
	}
	a := api(t, c.Admin())
	must(t, a.Report(t.Context(), "reported", want))
	all, err := a.Pools(t.Context())
	must(t, err)
	for _, p := range all {
		if p.Name == "reported" {
			if diff := cmp.Diff(want, p.Status); diff != "" || p.Spec.BlockSize != block.DefaultSize {
				t.Errorf("spec %+v (-reported +there)\n%s", p.Spec, diff)
			}
		}
	}
	table := kubectl(t, c, "get", "railpool", "reported")
	for _, word := range []string{"SIZE", "BLOCKS", "CLAIMED", "USED", "FREE", "VALID", "AGE", "254", "16", "209", "True"} {
		if !strings.Contains(table, word) {
			t.Errorf("kubectl get has no %s:\n%s", word, table)
		}
	}
	for path, words := range map[string]string{
		"railpool.spec.template":          "{rail+1}.0.0/16 makes",
		"railpool.spec.rails.subnets":     "An attachment gets one address of each",
		"railblock":                       "The node that created the object owns the block",
		"railblock.spec.machineID":        "/etc/machine-id",
		"railpool.spec.reservations":      "each with the reason",
		"railpool.status.conditions.type": "Name of the condition",
	} {
		if told := strings.Join(strings.Fields(kubectl(t, c, "explain", path)), " "); !strings.Contains(told, words) {
			t.Errorf("kubectl explain %s does not say %q:\n%s", path, words, told)
		}
	}
}
