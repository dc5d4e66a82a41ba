// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netconf

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

const definition = `apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: rail0}
spec:
  config: '{"cniVersion": "1.0.0", "name": "rail0", "type": "roce", "master": "ens1"}'
`

func TestReadFindsTheConfigurationsOfRoce(t *testing.T) {
	t.Parallel()
	const rail = "RailPool gpu"
	for _, c := range []struct {
		name, file string
		want       []string // origins, the plugin before, and pools
	}{
		{"a plugin's configuration", `{"cniVersion": "1.0.0", "name": "n", "type": "roce"}`, []string{"-"}},
		{"a list", `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "tuning"}, {"type": "roce", "master": "a"}]}`, []string{"-, plugins[1]"}},
		{"a list in which roce adopts", `{"name": "n", "plugins": [{"type": "sriov"}, {"type": "roce"}]}`, []string{"-, plugins[1] behind sriov"}},
		{"a list with plugins behind roce", `{"name": "n", "plugins": [{"type": "roce", "master": "a"}, {"type": "tuning"}, {"type": "sbr"}]}`, []string{"-, plugins[0] before tuning, sbr"}},
		{"a definition", definition, []string{"network attachment definition rail0"}},
		{
			"definitions, a RailPool and other objects", definition + "---\nkind: Pod\n---\n# nothing\n---\nkind: RailPool\nmetadata: {name: gpu}\n---\n" + definition,
			[]string{"network attachment definition rail0", "network attachment definition rail0", rail},
		},
		{"what kubectl get prints", `{"kind": "List", "items": [{"kind": "RailPool", "metadata": {"name": "gpu"}}, {"type": "roce"}]}`, []string{"-", rail}},
	} {
		nets, pools, err := Read("-", strings.NewReader(c.file))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, n := range nets {
			at := n.Origin
			if n.Before != "" {
				at += " behind " + n.Before
			}
			if n.After != nil {
				at += " before " + strings.Join(n.After, ", ")
			}
			got = append(got, at)
		}
		for _, p := range pools {
			got = append(got, "RailPool "+p.Name)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, diff)
		}
	}
}

func TestReadSaysWhatIsWrongWithAFile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, file string
		code       cnierr.Code
		says       string
	}{
		{"nothing of roce", `{"type": "macvlan"}`, cnierr.BadConfig, "no configuration of the plugin roce"},
		{"no YAML", "kind: [", cnierr.Decode, "document 1"},
		{"plugins is no list", `{"plugins": 3}`, cnierr.Decode, "plugins is not a list"},
		{"config is no text", `{"kind": "NetworkAttachmentDefinition", "metadata": {"name": "x"}, "spec": {"config": {}}}`, cnierr.Decode, "spec.config is not a string"},
	} {
		_, _, err := Read("-", strings.NewReader(c.file))
		if cnierr.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %d %v, want %d %q", c.name, cnierr.CodeOf(err), err, c.code, c.says)
		}
	}
}

func TestListGivesItsNameAndVersion(t *testing.T) {
	t.Parallel()
	nets, _, err := Read("-", strings.NewReader(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "roce", "master": "ens1"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	req, other, err := nets[0].Parse("net1", "/run/netns/pod", "")
	if err != nil {
		t.Fatal(err)
	}
	if req.Network != "n" || req.CNIVersion != "1.0.0" || other != "" {
		t.Errorf("network %q of version %q, want n of 1.0.0", req.Network, req.CNIVersion)
	}
}

// The plugin before roce may get addresses of roce-ipam, which cannot know the NIC there.
func TestTheIPAMOfThePluginBeforeIsValidated(t *testing.T) {
	t.Parallel()
	nets, _, err := Read("-", strings.NewReader(`{"cniVersion": "1.0.0", "name": "n", "plugins": [
		{"type": "sriov", "ipam": {"type": "roce-ipam", "fromMaster": true}}, {"type": "roce"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := nets[0].Parse("net1", "/run/netns/pod", ""); cnierr.CodeOf(err) != cnierr.BadConfig {
		t.Errorf("got %v, want that fromMaster is refused", err)
	}
}
