// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/roce-cni/roce-cni/pkg/cluster/fleet"
	"github.com/roce-cni/roce-cni/pkg/tool/generate"
)

// TestPlansOfWhatIsGenerated plans what rocectl generate has made of other network
// stacks and of a node. The rules, the tables and their gateways are those that pods of
// those stacks have.
func TestPlansOfWhatIsGenerated(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../pkg/tool/generate/testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(err, files)
	}
	for _, f := range files {
		name := filepath.Base(f)
		if strings.Contains(name, ".in.") || name == "device-plugin.out.yaml" { // it has no network
			continue
		}
		golden := filepath.Join("testdata", "generated", strings.TrimSuffix(name, ".yaml")+".txt")
		equalsFile(t, golden, call("plan", "--offline", f))
	}
}

func TestGenerateAndRailsSayWhatTheyCannotRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"generate --from nosuch.yaml", `read objects "nosuch.yaml"`},
		{"generate --from main.go", "document 1"},
		{"generate --from testdata/nothing.yaml", "there is no object in it"},
		{"generate --from - --subnet x", "if any flags in the group"},
		{"generate --from - --gateway x", "if any flags in the group"},
		{"generate --from - --cluster", "if any flags in the group"},
		{"generate --nodes gpu-0", "hint: add --cluster"},
		{"generate --kubeconfig nosuch.yaml", "hint: add --cluster"},
		{"rails --differences", "hint: add --cluster"},
		{"rails --context here", "hint: add --cluster"},
		{"rails --lldp --lldp-wait 1ms --state-dir none", "look for state folder"},
		{"generate --cluster --kubeconfig nosuch.yaml", "nosuch.yaml"},
	} {
		if got := call(strings.Fields(c.args)...); !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %q", c.args, got, c.want)
		}
	}
}

// TestOneObjectThatCannotBeConvertedHidesNoOther, on the standard input.
func TestOneObjectThatCannotBeConvertedHidesNoOther(t *testing.T) {
	t.Parallel()
	var in strings.Builder
	for _, name := range []string{"good", "bad", "last"} {
		config := map[string]string{"bad": "x"}[name]
		if config == "" {
			config = `{"cniVersion": "1.0.0", "name": "n", "type": "macvlan", "master": "ens1"}`
		}
		fmt.Fprintf(&in, "kind: NetworkAttachmentDefinition\nmetadata: {name: %s}\nspec: {config: '%s'}\n---\n", name, config)
	}
	cmd := generateCommand(false)
	cmd.SetIn(strings.NewReader(in.String()))
	got := answerOf(cmd, "--from", "-")
	for _, want := range []string{"name: good-roce\n", "Definition bad: NOT converted", "name: last-roce\n", "\ngenerate[6] convert objects \"-\": NetworkAttachmentDefinition bad: "} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

// TestObjectsOfTheClusterSayWhichNodesTheyAreAbout has a node with a rail, and one that has not
// reported.
func TestObjectsOfTheClusterSayWhichNodesTheyAreAbout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"", "# Cannot tell: these nodes have no report: gpu-1\n"},
		{"--nodes gpu-0", "# It is for these nodes alone."},
		{"--nodes gpu-1", `generate "objects": node "gpu-1" has no report`},
		{"--gateway 172.{rail+16}.255.254 --name gpus --namespace ml --image reg/x:1 --plugin-namespace rdma", "gateway: 172.{rail+16}.255.254\n…" +
			"kind: DaemonSet\nmetadata:\n  name: gpus-test\n  namespace: ml\n…image: reg/x:1\n…name: rdma-shared-device-plugin\n  namespace: rdma\n"},
	} {
		var f generateFlags
		cmd := &cobra.Command{}
		f.register(cmd, true)
		if err := cmd.ParseFlags(append(strings.Fields(c.args), "--subnet", "172.{rail+16}.0.0/16")); err != nil {
			t.Fatal(err)
		}
		reported := fleet.Node{Name: "gpu-0", Report: fleet.Report{Rails: []fleet.Rail{{Netdev: "ens1", Vendor: "15b3", DeviceID: "1021", GIDs: 256}}}}
		docs, err := f.ofCluster([]fleet.Node{reported}, []string{"gpu-1"})
		got, unwritten := generate.Text(docs)
		if err != nil {
			got = err.Error()
		}
		for want := range strings.SplitSeq(c.want, "…") {
			if !strings.Contains(got, want) || unwritten != nil {
				t.Errorf("%s: want %q in\n%s", c.args, want, got)
			}
		}
	}
}
