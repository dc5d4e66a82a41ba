// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

func TestDelLooksAtNothingButWhatLeadsToTheRecord(t *testing.T) {
	t.Parallel()
	want := conf.Del{Network: "rail1", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/pod"}
	for config, set := range map[string]func(d *conf.Del){
		`{"cniVersion": "1.1.0", "name": "rail1"}`:                                                   func(*conf.Del) {},
		`{"cniVersion": "1.1.0", "name": "rail1", "stateDir": "/x", "log": {"file": "/y"}}`:          func(*conf.Del) {},
		`{"cniVersion": "1.1.0", "name": "rail1", "stateDir": 5, "log": []}`:                         func(*conf.Del) {},
		`{"cniVersion": "1.1.0", "NAME": "rail1", "rails": 1, "prevResult": {}}`:                     func(*conf.Del) {},
		`{"cniVersion": "1.1.0", "name": "a", "name": "rail1", "mtu": -1}`:                           func(*conf.Del) {},
		`{"cniVersion": "9.9.9", "name": "rail1", "routing": {"tabel": "x"}, "ipam": []}`:            func(d *conf.Del) { d.IPAM = conf.PoolType },
		`{"cniVersion": "1.1.0", "name": "rail1", "ipam": {"type": "host-local", "ranges": 1}}`:      func(d *conf.Del) { d.IPAM = "host-local" },
		`{"cniVersion": "1.1.0", "name": "rail1", "ipam": {"type": 5}}`:                              func(d *conf.Del) { d.IPAM = conf.PoolType },
		`{"cniVersion": "1.1.0", "name": "rail1", "ipam": {}}`:                                       func(*conf.Del) {},
		`{"cniVersion": "1.1.0", "name": "rail1", "ipam": null}`:                                     func(*conf.Del) {},
		`{"cniVersion": 1, "name": "rail1", "dns": 1, "log": 1, "sysctl": 1, "master": {"x": [{}]}}`: func(*conf.Del) {},
	} {
		in := call(config)
		in.Args = "FOO=1;MAC"
		want := want
		want.Raw = config
		set(&want)
		got, err := conf.ParseDel(in)
		if err != nil || got != want {
			t.Errorf("%s:\n got %v, %v\nwant %v", config, got, err, want)
		}
	}
}

func TestDelNeedsNoNamespace(t *testing.T) {
	t.Parallel()
	in := input("")
	in.Netns = ""
	if d, err := conf.ParseDel(in); err != nil || d.Netns != "" {
		t.Errorf("got %v, %v", d, err)
	}
}

// An ADD that fails undoes what it did as the DEL that follows would.
func TestTheDELOfAnADDIsThatOfItsInput(t *testing.T) {
	t.Parallel()
	for _, ipam := range []string{`"ipam": {"type": "static"}`, ofPool(one)} {
		in := call(`{"cniVersion": "1.1.0", "name": "rail1", "master": "ens1", ` + ipam + `}`)
		in.Args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u"
		r, err := conf.Parse(in)
		must(t, err)
		want, err := conf.ParseDel(in)
		must(t, err)
		if r.IPAM.Type == conf.PoolType {
			want.Raw = "" // our pools need no configuration
		}
		if d := cmp.Diff(want, conf.DelOf(r)); d != "" || want.Pod != (conf.Pod{Namespace: "ns", Name: "p", UID: "u"}) {
			t.Errorf("%s (-DEL +DelOf):\n%s", ipam, d)
		}
	}
}

func TestNamesOfPoolsAndModes(t *testing.T) {
	t.Parallel()
	p := conf.IPAM{Pool: "own", RailPool: &pool.RailPool{Name: "gpu"}}
	if got := p.LeasePool(); got != "rail:gpu" {
		t.Errorf("of a RailPool: %s", got)
	}
	p.RailPool = nil
	if got := p.LeasePool(); got != "own" {
		t.Errorf("of a pool: %s", got)
	}
	for mode, want := range map[conf.Mode]string{conf.L2: "an ipvlan", conf.Bridge: "a macvlan"} {
		if got := mode.Article(); got != want || !strings.HasSuffix(want, " "+mode.Kind()) {
			t.Errorf("%s: %s, %s", mode, got, mode.Kind())
		}
	}
	for index, want := range map[conf.GIDIndex]string{conf.AnyIndex: "any", conf.EqualIndex: "equal", 7: "7"} {
		if got := index.String(); got != want {
			t.Errorf("GID index %d: %s", index, got)
		}
	}
	for config, want := range map[string]string{`{"type": "macvlan"}`: "macvlan", `{"type": 5}`: "", `{`: "", `{}`: ""} {
		if got := conf.Program(call(config)); got != want {
			t.Errorf("%s: program %q, want %q", config, got, want)
		}
	}
}

func TestWhatIsNoResultOfAPlugin(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{
		`null`: "is null", `[]`: "array", `{`: "unexpected end", `{"cniVersion": "9.9.9"}`: "9.9.9", `{"ips": [null]}`: "ips has null",
		`{"interfaces": [{"name": "a"}, null]}`: "interfaces has null", `{"routes": [null]}`: "routes has null",
	} {
		if r, err := conf.ReadResult([]byte(result), "1.1.0"); err == nil || r != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, %v, want %q", result, r, err, want)
		}
	}
	r, err := conf.ReadResult([]byte(`{"ips": [{"address": "10.0.0.1/24"}]}`), "1.0.0")
	if err != nil || r.CNIVersion != "1.1.0" && r.CNIVersion != "1.0.0" || len(r.IPs) != 1 {
		t.Errorf("got %+v, %v", r, err)
	}
}

// One mistake is told once.
func TestAFaultHasNoSecondOne(t *testing.T) {
	t.Parallel()
	for config, want := range map[string]string{
		`{"cniVersion": "1.1.0", "name": 5, "master": "a"}`:                               "name",
		`{"cniVersion": "1.1.0", "name": "n", "rails": 5, "minRails": 2}`:                 "rails",
		`{"cniVersion": "1.1.0", "name": "n", "master": "a", "status": {"pols": "off"}}`:  "status.pols",
		`{"cniVersion": "1.1.0", "name": "n", "master": "a", "sysctl": {"x": 1, "y": 1}}`: "sysctl.x sysctl.y",
	} {
		_, err := conf.Parse(call(config))
		if got := strings.Join(subjects(t, err), " "); got != want {
			t.Errorf("%s: faults of %s, want %s: %v", config, got, want, err)
		}
	}
}

func TestTheSmallestMTUsOfTheFamilies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mtu    int
		subnet string
		ok     bool
	}{{67, "10.0.0.0/24", false}, {68, "10.0.0.0/24", true}, {1279, "10.0.0.0/24", true}, {1279, "fd00::/64", false}, {1280, "fd00::/64", true}} {
		config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "n", "master": "a", "mtu": %d, "ipam": {"type": "roce-ipam", "subnets": [{"subnet": "%s"}]}}`, c.mtu, c.subnet)
		if _, err := conf.Parse(call(config)); (err == nil) != c.ok {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

func TestRailsMayHaveTablesInAnyOrder(t *testing.T) {
	t.Parallel()
	config := `{"cniVersion": "1.1.0", "name": "n", "rails": [{"master": "a", "routing": {"table": 200}}, {"master": "b", "routing": {"table": 100}}], ` + ofPool(byRail) + `}`
	if _, err := conf.Parse(call(config)); err != nil {
		t.Error(err)
	}
}

func TestAnAttachmentHas32Rails(t *testing.T) {
	t.Parallel()
	for n, ok := range map[int]bool{32: true, 33: false} {
		var rails []string
		for i := range n {
			rails = append(rails, fmt.Sprintf(`{"master": "ens%d"}`, i))
		}
		if _, err := conf.Parse(call(`{"cniVersion": "1.1.0", "name": "n", "rails": [` + strings.Join(rails, ", ") + `]}`)); (err == nil) != ok {
			t.Errorf("%d rails: %v", n, err)
		}
	}
}

func TestAPodIsNamedWithItsNamespace(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]conf.Pod{"ns/p": {Namespace: "ns", Name: "p"}, "p": {Name: "p"}, "": {Namespace: "ns"}} {
		if got := p.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestASelectorSaysWhichFunctionsOfANIC(t *testing.T) {
	t.Parallel()
	r, err := conf.Parse(call(`{"cniVersion": "1.1.0", "name": "n", "rails": {"match": {"function": "virtual"}, "count": 2}}`))
	if err != nil || r.Match == nil || r.Match.Parent.Function != "virtual" {
		t.Errorf("got %+v, %v", r.Match, err)
	}
}

func TestFaultsOfDel(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{`{"name": "n",}`, cnierr.Decode, `line 1, column 14: invalid character '}'`, ``},
		{`[]`, cnierr.Decode, `"JSON": want an object, got a list`, ``},
		{`{}`, cnierr.BadConfig, `"name": "" is not the name of a network`, ``},
		{`{"name": "../n"}`, cnierr.BadConfig, `"name": "../n" is not`, ``},
		{`{"name": 5}`, cnierr.BadConfig, `"name": "" is not`, ``},
	} {
		_, err := conf.ParseDel(call(b.in))
		b.check(t, err)
	}
	in := call(`{"name": ""}`)
	in.ContainerID, in.IfName = "", ""
	_, err := conf.ParseDel(in)
	if d := cmp.Diff([]string{"CNI_CONTAINERID", "CNI_IFNAME", "name"}, subjects(t, err)); d != "" {
		t.Errorf("all at once (-want +got):\n%s", d)
	}
}

// sriov is a main plugin's configuration: its keys are not ours, though some
// have our names.
func sriov(ipam string) conf.Input {
	return call(`{"cniVersion": "1.0.0", "name": "rail1", "type": "sriov", "master": 5, "mode": {}, "mtu": "x", "mac": 1, "rdma": true,
		"routing": 1, "probe": 1, "sysctl": 1, "rails": 1, "dns": 1, "prevResult": {}, "deviceID": "0000:0b:00.2", "vlan": 7,
		` + ipam + `, "runtimeConfig": {"mac": 5, "ips": ["172.16.11.9"]}}`)
}

func TestIPAMIgnoresTheKeysOfTheMainPlugin(t *testing.T) {
	t.Parallel()
	in := sriov(ofPool(one))
	in.Args = "IgnoreUnknown=1;MAC=nonsense;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p"
	want := conf.Request{
		CNIVersion: "1.0.0", Network: "rail1", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Netns: "/run/netns/pod",
		Pod: conf.Pod{Namespace: "ns", Name: "p"}, Status: conf.Status{Pool: conf.Require, Rails: conf.AnyRail},
		Rails: []conf.Rail{{IfName: "net1"}}, MinRails: 1,
	}
	ours(&want)
	want.IPAM.Requested = []netip.Addr{addr("172.16.11.9")}
	want.Rails[0].Requested = want.IPAM.Requested
	got, err := conf.ParseIPAM(in)
	must(t, err)
	if d := diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for command, before := range map[string]bool{"ADD": true, "CHECK": false} {
		in := behind(previous, ofPool(one))
		in.Command = command
		got, err := conf.ParseIPAM(in)
		if err != nil || (got.Before != nil) != before || before && len(got.Before.IPs) != 1 {
			t.Errorf("%s behind another plugin: got %v, %v", command, got.Before, err)
		}
	}
}

func TestFaultsOfIPAM(t *testing.T) {
	t.Parallel()
	for _, b := range []bad{
		{`"ipam": {"type": "host-local"}`, cnierr.BadConfig, `"ipam.type": want "roce-ipam", got "host-local"`, `set ipam.type to roce-ipam`},
		{`"ipam": null`, cnierr.BadConfig, `"ipam.type": want "roce-ipam", got ""`, `set ipam.type to roce-ipam`},
		{`"ipam": {"pool": "p"}`, cnierr.BadConfig, `"ipam.type": missing`, `set ipam.type to "roce-ipam"`},
		{ofPool(`"subnets": [{"subnet": "10.0.0.0/24"}]`), cnierr.BadConfig, `"runtimeConfig.ips[0]": 172.16.11.9 is in none`, `ipam.subnets`},
		{ofPool(one) + `, "StateDir": "/x"`, cnierr.BadConfig, `"StateDir": unknown key`, `did you mean "stateDir"?`},
		{ofPool(`"subnet": "10.0.0.0/24", ` + one), cnierr.BadConfig, `"ipam.subnet": unknown key`, `write "subnets"`},
	} {
		_, err := conf.ParseIPAM(sriov(b.in))
		b.check(t, err)
	}
	in := sriov(ofPool(one))
	in.Netns, in.Args = "", "MAC"
	_, err := conf.ParseIPAM(in)
	if cnierr.CodeOf(err) != cnierr.BadEnv || !strings.Contains(err.Error(), "CNI_NETNS") {
		t.Errorf("without namespace: %v", err)
	}
	if _, err := conf.ParseIPAM(call(`{`)); cnierr.CodeOf(err) != cnierr.Decode {
		t.Errorf("half a document: %v", err)
	}
}

func TestGCNeedsAListThatMayBeEmpty(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]conf.Attachment{
		`null`: nil,
		`[]`:   {},
		`[{"containerID": "c1", "ifname": "net1"}, {"containerID": "c2", "ifname": "net2"}]`: {{"c1", "net1"}, {"c2", "net2"}},
	} {
		in := call(`{"cniVersion": "1.1.0", "name": "rail1", "stateDir": "/x", "mtu": "wrong", "ipam": {"type": "static"}, "cni.dev/valid-attachments": ` + list + `}`)
		g, err := conf.ParseGC(in)
		all := conf.GC{Network: "rail1", IPAM: "static", Raw: string(in.Stdin), Valid: want}
		if d := cmp.Diff(all, g); d != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", list, err, d)
		}
	}
	for _, b := range []bad{
		{`{"name": "n"}`, cnierr.BadConfig, `"cni.dev/valid-attachments": is missing`, `empty list`},
		{`{"name": "n", "cni.dev/valid-attachments": "c1"}`, cnierr.Decode, `"cni.dev/valid-attachments": want a list, got a string`, ``},
		{`{"name": "../n", "cni.dev/valid-attachments": []}`, cnierr.BadConfig, `"name": "../n" is not`, ``},
	} {
		_, err := conf.ParseGC(call(b.in))
		b.check(t, err)
	}
}

// TestGCWithAMalformedListFreesNothing: an entry that names no attachment would
// not keep one, and the one that it was meant for would go.
func TestGCWithAMalformedListFreesNothing(t *testing.T) {
	t.Parallel()
	const list, keys = `"cni.dev/valid-attachments[`, `{"containerID": "ID", "ifname": "net1"}`
	for _, b := range []bad{
		{`[null]`, cnierr.BadConfig, list + `0]": is null, want an attachment`, keys},
		{`[{"containerID": "cid-p1"}]`, cnierr.BadConfig, list + `0].ifname": missing or empty`, keys},
		{`[{"ifname": "net1"}]`, cnierr.BadConfig, list + `0].containerID": missing or empty`, keys},
		{`[{"containerID": "c1", "ifname": ""}]`, cnierr.BadConfig, list + `0].ifname": missing or empty`, keys},
		{`[{"container": "c1", "ifname": "net1"}]`, cnierr.BadConfig, list + `0].containerID": missing or empty`, keys},
		{`[{"containerID": "c1", "ifname": "net1"}, {"containerID": null, "ifname": "net1"}]`, cnierr.BadConfig, list + `1].containerID": missing or empty`, keys},
		{`[{"containerID": 7, "ifname": "net1"}]`, cnierr.Decode, list + `0].containerID": want a string, got a number`, keys},
		{`["c1"]`, cnierr.Decode, list + `0]": want an object, got a string`, ``},
	} {
		_, err := conf.ParseGC(call(`{"name": "n", "cni.dev/valid-attachments": ` + b.in + `}`))
		b.check(t, err)
	}
	_, err := conf.ParseGC(call(`{"name": "n", "cni.dev/valid-attachments": [{}]}`))
	if d := cmp.Diff([]string{"cni.dev/valid-attachments[0].containerID", "cni.dev/valid-attachments[0].ifname"}, subjects(t, err)); d != "" {
		t.Errorf("all at once (-want +got):\n%s", d)
	}
	g, err := conf.ParseGC(call(`{"name": "n", "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "net1", "netns": 5}]}`))
	if err != nil || len(g.Valid) != 1 {
		t.Errorf("with a key that is not ours: got %v, %v", g.Valid, err)
	}
}

func TestStatusIsAboutNoAttachment(t *testing.T) {
	t.Parallel()
	r, err := conf.Parse(conf.Input{Command: "STATUS", Stdin: []byte(`{"cniVersion": "1.1.0", "name": "rail1", "master": "ens1f0", "status": {"pool": "off"}}`)})
	if err != nil || r.Status != (conf.Status{Pool: conf.Off, Rails: conf.AnyRail}) || r.ContainerID != "" {
		t.Errorf("got %+v, %v", r, err)
	}
	in := railed(two + `, "hostLink": {"routes": []}, ` + ofPool(byRail))
	in.Command, in.ContainerID, in.IfName, in.Netns = "STATUS", "", "", ""
	if _, err := conf.Parse(in); err != nil {
		t.Errorf("of rails with a link to the node: %v", err)
	}
}
