// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package netconf

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

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
		{"a list with several plugins before roce", `{"name": "n", "plugins": [{"type": "sriov"}, {"type": "tuning"}, {"type": "roce"}, {"name": "no type"}, {"type": "sbr"}]}`, []string{"-, plugins[2] behind tuning before sbr"}},
		{"a list in which roce makes rails", `{"name": "n", "plugins": [{"type": "sriov"}, {"type": "roce", "rails": {}}]}`, []string{"-, plugins[1]"}},
		{"a list with a result", `{"name": "n", "plugins": [{"type": "sriov"}, {"type": "roce", "prevResult": {}}]}`, []string{"-, plugins[1]"}},
		{"a definition", definition, []string{"network attachment definition rail0"}},
		{
			"definitions, a RailPool and other objects", definition + "---\nkind: Pod\n---\n# nothing\n---\nkind: RailPool\nmetadata: {name: gpu}\n---\n" + definition +
				"---\nkind: RailPool\nmetadata: {name: storage}\n",
			[]string{"network attachment definition rail0", "network attachment definition rail0", rail, "RailPool storage"},
		},
		{"definitions without a configuration", "kind: NetworkAttachmentDefinition\nspec: {}\n---\nkind: NetworkAttachmentDefinition\nspec: {config: ' '}\n---\n" + definition, []string{"network attachment definition rail0"}},
		{"a list of RailPools", `{"kind": "List", "items": [{"type": "roce"}, {"kind": "RailPoolList", "items": [{"kind": "RailPool", "metadata": {"name": "gpu"}}]}]}`, []string{"-", rail}},
		{"an empty list", `{"kind": "List", "items": [{"kind": "List"}, {"type": "roce"}]}`, []string{"-"}},
		{"a configuration as YAML, which no runtime reads", "type: roce\n", []string{"-"}},
		{"a configuration that is no JSON", ` {"type": "roce"`, []string{"-"}},
		{"several configurations that are no JSON", `[{"type": "roce"`, []string{"-"}},
		{"several configurations in one", `[{"type": "roce"}]`, []string{"-"}},
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
		{"RailPools alone", "kind: RailPool\nmetadata: {name: gpu}\n", cnierr.BadConfig, "no configuration of the plugin roce"},
		{"another object", `{"kind": "Pod", "type": "roce", "plugins": [{"type": "roce"}]}`, cnierr.BadConfig, "no configuration of the plugin roce"},
		{"no YAML", "kind: [", cnierr.Decode, "document 1"},
		{"the second document is no YAML", definition + "---\nkind: [", cnierr.Decode, "document 2"},
		{"a plugin is no object", `{"plugins": [{"type": "roce"}, 3]}`, cnierr.Decode, "plugins[1] is not an object"},
		{"items is no list", `{"kind": "List", "items": {}}`, cnierr.Decode, "items is not a list"},
		{"the second item is wrong", `{"kind": "List", "items": [{"type": "roce"}, {"plugins": 3}]}`, cnierr.Decode, "items[1]: plugins is not a list"},
		{"a wrong RailPool", "kind: RailPool\nmetadata: {name: gpu}\nspec: {blockSize: many}", cnierr.Decode, "RailPool gpu: spec: "},
		{"plugins is no list", `{"plugins": 3}`, cnierr.Decode, "plugins is not a list"},
		{"config is no text", `{"kind": "NetworkAttachmentDefinition", "metadata": {"name": "x"}, "spec": {"config": {}}}`, cnierr.Decode, "spec.config is not a string"},
	} {
		_, _, err := Read("-", strings.NewReader(c.file))
		if cnierr.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %d %v, want %d %q", c.name, cnierr.CodeOf(err), err, c.code, c.says)
		}
	}
}

func TestFilesAreReadByTheirNames(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "net.conf")
	const text = `{"cniVersion": "1.0.0", "name": "n", "type": "roce"}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	nets, _, err := Read(file, strings.NewReader("it is not read"))
	if err != nil || len(nets) != 1 || nets[0].Origin != file || string(nets[0].JSON) != text {
		t.Errorf("%+v, error %v", nets, err)
	}
	none := file + ".none"
	if _, _, err := Read(none, nil); cnierr.CodeOf(err) != cnierr.IO || err.Error() != `read configuration "`+none+`": no such file or directory` {
		t.Errorf("without a file: %v", err)
	}
	if _, _, err := Read("-", iotest.ErrReader(io.ErrUnexpectedEOF)); cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("without standard input: %v", err)
	}
}

func TestAConfigurationIsParsedAsAnADDWould(t *testing.T) {
	t.Parallel()
	list := func(plugins string) string {
		return `{"cniVersion": "1.0.0", "name": "n", "plugins": [` + plugins + `]}`
	}
	const roce = `{"type": "roce"}`
	for name, c := range map[string]struct {
		file, says string
		code       cnierr.Code
	}{
		"behind a plugin":                      {list(`{"type": "sriov"}, ` + roce), "", 0},
		"behind one with addresses of another": {list(`{"type": "sriov", "ipam": {"type": "host-local", "fromMaster": true}}, ` + roce), "", 0},
		"no JSON":                              {`{"type": "roce"`, "-: ", cnierr.Decode},
		"YAML":                                 {"type: roce\n", "-: ", cnierr.Decode},
		"in a list":                            {list(`{"type": "roce", "master": "ens1", "mtu": -5}`), "-, plugins[0]: ", cnierr.BadConfig},
		"with another IPAM plugin":             {list(`{"type": "roce", "master": "ens1", "mtu": -5, "ipam": {"type": "dhcp"}}`), "-, plugins[0]: ", cnierr.BadConfig},
		"the plugin before it":                 {list(`{"type": "sriov", "ipam": {"type": "roce-ipam", "fromMaster": true}}, ` + roce), "-, plugins[1], the plugin before it: ", cnierr.BadConfig},
	} {
		nets, _, err := Read("-", strings.NewReader(c.file))
		if err != nil || len(nets) != 1 {
			t.Fatalf("%s: %+v, error %v", name, nets, err)
		}
		req, other, err := nets[0].Parse("net7", "/run/netns/pod", "IgnoreUnknown=1;K8S_POD_NAMESPACE=ml;K8S_POD_NAME=p1")
		switch {
		case c.says == "":
			if err != nil || other != "" || req.Pod.String() != "ml/p1" || req.IfName != "net7" || req.Netns != "/run/netns/pod" {
				t.Errorf("%s: %+v, IPAM of %q, error %v", name, req, other, err)
			}
		case cnierr.CodeOf(err) != c.code || other != "" || !strings.HasPrefix(err.Error(), c.says):
			t.Errorf("%s: IPAM of %q, error %v, want %s", name, other, err, c.says)
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
	if want := `{"cniVersion":"1.0.0","master":"ens1","name":"n","type":"roce"}`; string(nets[0].JSON) != want {
		t.Errorf("the configuration is %s, want %s", nets[0].JSON, want)
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

// TestAddressesOfAnotherIPAMPluginAreThoseOfDocumentation, and its name is told.
func TestAddressesOfAnotherIPAMPluginAreThoseOfDocumentation(t *testing.T) {
	t.Parallel()
	for ipam, want := range map[string][2]string{
		`{"type": "dhcp"}`: {"dhcp", "192.0.2.0/24"},
		`{"type": "roce-ipam", "subnets": [{"subnet": "10.1.0.0/24"}]}`: {"", "10.1.0.0/24"},
	} {
		nets, _, err := Read("-", strings.NewReader(`{"cniVersion": "1.0.0", "name": "n", "type": "roce", "master": "ens1", "ipam": `+ipam+`}`))
		if err != nil {
			t.Fatal(err)
		}
		req, other, err := nets[0].Parse("net1", "/run/netns/pod", "")
		if err != nil || other != want[0] || len(req.Rails) != 1 || len(req.Rails[0].Subnets) != 1 || req.Rails[0].Subnets[0].Prefix.String() != want[1] {
			t.Errorf("%s: got the plugin %q, %+v, %v, want %q", ipam, other, req.Rails, err, want)
		}
	}
}

func TestObjectsAreValidatedAsTheyWillBeUsed(t *testing.T) {
	t.Parallel()
	object := func(kind string, spec map[string]any) map[string]any {
		return map[string]any{"kind": kind, "metadata": map[string]any{"name": "gpu"}, "spec": spec}
	}
	network := func(plugins string) map[string]any {
		return object("NetworkAttachmentDefinition", map[string]any{"config": `{"cniVersion": "1.0.0", "name": "n", "plugins": [` + plugins + `]}`})
	}
	const good = `{"type": "roce", "master": "ens1"}`
	for want, o := range map[string]map[string]any{
		"":                              network(good + `, {"type": "tuning"}`),
		"roce stands in the list twice": network(good + `, {"type": "tuning"}, ` + good),
		"mtu":                           network(`{"type": "roce", "master": "ens1", "mtu": -5}`),
		`RailPool "gpu"`:                object("RailPool", map[string]any{"rails": []any{map[string]any{"subnets": []any{map[string]any{"subnet": "10.0.0.0/33"}}}}}),
		"RailPool gpu: spec: json":      object("RailPool", map[string]any{"rails": 3}),
		"spec.config is not a string":   object("NetworkAttachmentDefinition", map[string]any{"config": 3}),
	} {
		if err := Validate(o); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", o, err, want)
		}
	}
	if err := Validate(object("ConfigMap", map[string]any{"plugins": 3})); err != nil {
		t.Errorf("another object: %v", err)
	}
}
