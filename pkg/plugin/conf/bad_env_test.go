// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestFaultsOfTheContainerID(t *testing.T) {
	t.Parallel()
	for id, msg := range map[string]string{
		"": `"" is not`, "-c": `"-c" is not`, ".": `"." is not`, "a/b": `"a/b" is not`, "a\x00": `"a\x00" is not`,
		"a b": `"a b" is not`, "ä": `"ä" is not`, strings.Repeat("a", 201): "201 characters, at most 200",
	} {
		in := input("")
		in.ContainerID = id
		b := bad{id, cnierr.BadEnv, `"CNI_CONTAINERID": ` + msg, ``}
		_, err := conf.Parse(in)
		b.check(t, err)
		_, err = conf.ParseDel(in)
		b.check(t, err)
	}
}

func TestFaultsOfTheInterfaceName(t *testing.T) {
	t.Parallel()
	for name, msg := range map[string]string{
		"": `"" is empty`, ".": `"." is not the name`, "..": `".." is not the name`, "net1/": `has a character`,
		"a:b": `has a character`, "a b": `has a character`, "a\u00a0b": `has a character`, "a\x00": `has a character`,
		"a\x1b[0m": `has a character`, "a\xff": `has a character`, "net-123456789012": `too long`,
		"all": `"all" is reserved: the kernel uses it for the settings of several links`, "default": `"default" is reserved`,
	} {
		in := input("")
		in.IfName = name
		b := bad{name, cnierr.BadEnv, msg, ``}
		_, err := conf.Parse(in)
		b.check(t, err)
		_, err = conf.ParseDel(in)
		b.check(t, err)
	}
}

func TestLoopbackIsNoNameForAnAttachment(t *testing.T) {
	t.Parallel()
	in := input("")
	in.IfName = "lo"
	_, err := conf.Parse(in)
	bad{"lo", cnierr.BadEnv, `"CNI_IFNAME": "lo" is the loopback interface of every pod`, `choose another interface name`}.check(t, err)
	in.Stdin = input(`"hostLink": {"routes": ["10.96.0.0/12"]}, ` + ofPool(one)).Stdin
	_, err = conf.Parse(in)
	bad{"lo with hostLink", cnierr.BadEnv, `"CNI_IFNAME": "lo" is the loopback interface of every pod`, `choose another interface name`}.check(t, err)
	if _, err := conf.ParseDel(in); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// TestNamesThatAShellMisreadsAreRefused holds the names out of the commands
// that we print. DEL takes them, because nothing was added under them.
func TestNamesThatAShellMisreadsAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"n;id", "a$b", "`id`", "-x", "a|b", "a&b", "a'b", "a\"b", "a*", "net%d", "a\\b", "(a)", "é1"} {
		in := input("")
		in.IfName = name
		_, err := conf.Parse(in)
		bad{name, cnierr.BadEnv, `has a character other than letters`, ``}.check(t, err)
		if _, err := conf.ParseDel(in); err != nil {
			t.Errorf("DEL of %q: %v", name, err)
		}
		in = call(`{"cniVersion": "1.1.0", "name": "rail1", "master": ` + strconv.Quote(name) + `}`)
		_, err = conf.Parse(in)
		bad{name, cnierr.BadConfig, `has a character other than letters`, ``}.check(t, err)
	}
}

func TestFaultsOfTheNamespacePath(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"", "net", "./net", "/run/netns/a\x00b", "/run/netns/a\nb"} {
		in := input("")
		in.Netns = path
		_, err := conf.Parse(in)
		bad{path, cnierr.BadEnv, `"CNI_NETNS": `, ``}.check(t, err)
		if _, err := conf.ParseDel(in); err != nil {
			t.Errorf("DEL with namespace %q: %v", path, err)
		}
	}
}

func TestFaultsOfTheArguments(t *testing.T) {
	t.Parallel()
	const pair = `KEY=VALUE;KEY=VALUE`
	for _, b := range []bad{
		{`MAC`, cnierr.BadEnv, `"CNI_ARGS": "MAC" is not a pair`, pair},
		{`IgnoreUnknown=1;`, cnierr.BadEnv, `"CNI_ARGS": "" is not a pair`, pair},
		{`K8S_POD_NAME=a=b`, cnierr.BadEnv, `"CNI_ARGS": "K8S_POD_NAME=a=b" is not a pair`, pair},
		{"K8S_POD_NAME=a\x00", cnierr.BadEnv, `"CNI_ARGS": "K8S_POD_NAME=a\x00" is not a pair`, pair},
		{"K8S_POD_NAME=a\nb", cnierr.BadEnv, `"CNI_ARGS": "K8S_POD_NAME=a\nb" is not a pair`, pair},
		{`GATEWAY=10.0.0.1;FOO=1`, cnierr.BadEnv, `"CNI_ARGS": unknown keys ["GATEWAY" "FOO"]`, `IgnoreUnknown=true`},
		{`mac=02:00:00:00:00:01`, cnierr.BadEnv, `"CNI_ARGS": unknown keys ["mac"]`, `IgnoreUnknown=true`},
		{`FOO=1;IgnoreUnknown=false`, cnierr.BadEnv, `"CNI_ARGS": unknown keys ["FOO"]`, `IgnoreUnknown=true`},
		{`IgnoreUnknown=yes`, cnierr.BadEnv, `"CNI_ARGS IgnoreUnknown": "yes" is none of true, false, 1, 0`, ``},
		{`K8S_POD_NAMESPACE=a;K8S_POD_NAMESPACE=b`, cnierr.BadEnv, `"CNI_ARGS K8S_POD_NAMESPACE": it has two values`, `once`},
		{`IP=172.16.11.5;IP=172.16.11.6`, cnierr.BadEnv, `"CNI_ARGS IP": it has two values`, `once`},
		{`MAC=02-`, cnierr.BadEnv, `"CNI_ARGS MAC": address 02-: invalid MAC address`, `unicast`},
		{`IP=10.0.0`, cnierr.BadEnv, `"CNI_ARGS IP": "10.0.0" is not an address`, `write 172.16.11.5`},
		{`IP=172.16.11.5,`, cnierr.BadEnv, `"CNI_ARGS IP": "" is not an address`, `write 172.16.11.5`},
		{`IP=10.0.0.9`, cnierr.BadConfig, `"CNI_ARGS IP": 10.0.0.9 is in none of the pool's subnets`, `ipam.subnets`},
	} {
		in := input(ofPool(one))
		in.Args = b.in
		_, err := conf.Parse(in)
		b.check(t, err)
	}
	in := input(`"mode": "passthru"`)
	in.Args = "MAC=02:00:00:00:00:01"
	_, err := conf.Parse(in)
	bad{in.Args, cnierr.BadConfig, `"CNI_ARGS MAC": in passthru mode the MAC is the master's`, `another mode`}.check(t, err)
}

func TestArgumentsThatUpstreamAcceptsAreAccepted(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]conf.Pod{
		"":                            {},
		"MAC=;IP=":                    {},
		"IgnoreUnknown=True;FOO=bar":  {},
		"FOO=1;IgnoreUnknown=1;FOO=2": {},
		// Multus adds its own to what containerd has given.
		"IgnoreUnknown=1;K8S_POD_NAME=b;IgnoreUnknown=true;K8S_POD_NAME=b":               {Name: "b"},
		"K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=i": {Namespace: "ns", Name: "p", UID: "u"},
	} {
		in := input("")
		in.Args = args
		r, err := conf.Parse(in)
		if err != nil || r.Pod != want {
			t.Errorf("%s: got %v, %v, want %v", args, r.Pod, err, want)
		}
	}
}

func TestMACsOverrideEachOtherAsUpstream(t *testing.T) {
	t.Parallel()
	const inConfig, inRuntime = `"mac": "02:00:00:00:00:01"`, `"runtimeConfig": {"mac": "02-00-00-00-00-03"}`
	for _, c := range []struct{ members, args, want string }{
		{``, ``, `00:00:00:00:00:00`},
		{`"mac": ""`, ``, `00:00:00:00:00:00`},
		{inConfig, ``, `02:00:00:00:00:01`},
		{inConfig, `MAC=02:00:00:00:00:02`, `02:00:00:00:00:02`},
		{inConfig + `, ` + inRuntime, `MAC=02:00:00:00:00:02`, `02:00:00:00:00:03`},
		{`"runtimeConfig": {"mac": ""}`, `MAC=0200.0000.0002`, `02:00:00:00:00:02`},
	} {
		in := input(c.members)
		in.Args = c.args
		r, err := conf.Parse(in)
		if err != nil || r.MAC.String() != c.want {
			t.Errorf("%s, %s: got %v, %v, want %s", c.members, c.args, r.MAC, err, c.want)
		}
	}
}

// What CNI's own validation refuses we refuse too, and of the rest only what
// the tests above name.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"", "c1", "net1", "a/b", "..", "eth0.100", "a\u0085b", "-", "_", "a_b-c.d", "all", "x%d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		in := input("")
		in.ContainerID = s
		_, err := conf.ParseDel(in)
		if upstream := utils.ValidateContainerID(s); (err == nil) != (upstream == nil && len(s) <= 200) {
			t.Errorf("container ID %q: %v, upstream %v", s, err, upstream)
		}
		in = input("")
		in.IfName = s
		if _, err := conf.ParseDel(in); err == nil && utils.ValidateInterfaceName(s) != nil {
			t.Errorf("interface name %q is accepted, upstream: %v", s, utils.ValidateInterfaceName(s))
		}
	})
}
