// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/attach"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// foreign is a world in which addresses come from a foreign IPAM
// plugin: a script that has leases as files. It first does what a test tells it, and
// keeps what it was given if the test asks for that.
type foreign struct{ *world }

const foreignPlugin = `#!/bin/sh
cd "${0%/*}" || exit 9
echo $CNI_COMMAND >>calls
if [ -e keep ]; then
	cat >stdin.$CNI_COMMAND
	env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort >environ.$CNI_COMMAND
fi
if [ -e on.$CNI_COMMAND ]; then . ./on.$CNI_COMMAND; fi
case $CNI_COMMAND in
ADD) : >lease-$CNI_CONTAINERID-$CNI_IFNAME; cat result ;;
DEL) rm -f lease-$CNI_CONTAINERID-$CNI_IFNAME ;;
esac
`

const foreignResult = `{"cniVersion": "1.1.0", "ips": [{"address": "172.16.11.5/24", "gateway": "172.16.11.254"}, {"address": "fd00:11::5/64"}],
	"routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16", "table": 77}]}`

// newForeign returns such a world with the pod of c1.
func newForeign(t *testing.T) foreign {
	t.Helper()
	f := foreign{newWorld(t)}
	f.plugins, f.config = t.TempDir(), foreignConfig
	f.pod = f.fake.Pod(podPath("c1"))
	must(t, os.WriteFile(filepath.Join(f.plugins, "foreign"), []byte(foreignPlugin), 0o700))
	f.answer(foreignResult)
	return f
}

// answer sets what the plugin answers to ADD.
func (f foreign) answer(result string) {
	f.t.Helper()
	write(f.t, filepath.Join(f.plugins, "result"), result)
}

// on sets what the plugin does first when it is called with a verb.
func (f foreign) on(verb, script string) {
	f.t.Helper()
	write(f.t, filepath.Join(f.plugins, "on."+verb), script)
}

// keep makes the plugin keep what it is given.
func (f foreign) keep() {
	f.t.Helper()
	write(f.t, filepath.Join(f.plugins, "keep"), "")
}

const foreignConfig = `{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "master": "ens1", "rdma": %q,
	"ipam": {"type": "foreign", "its": "own keys"}%s}`

func (f foreign) input(extra string) conf.Input {
	return conf.Input{ContainerID: "c1", IfName: "net1", Netns: podPath("c1"), Stdin: fmt.Appendf(nil, f.config, f.mode, extra)}
}

// request returns the request of c1's net1; extra is more JSON members.
func (f foreign) request(extra string) conf.Request {
	f.t.Helper()
	return f.world.request("c1", "net1", extra)
}

func (f foreign) del(extra string) conf.Del {
	f.t.Helper()
	d, err := conf.ParseDel(f.input(extra))
	must(f.t, err)
	return d
}

// read returns what the plugin kept in a file, "" if nothing.
func (f foreign) read(name string) string {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.plugins, name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
	return string(b)
}

// calls returns the verbs that the plugin was called with.
func (f foreign) calls() string { return strings.Join(strings.Fields(f.read("calls")), " ") }

// given checks what the plugin was given with its last call of a verb.
func (f foreign) given(verb string, environ []string, stdin string) {
	f.t.Helper()
	if diff := cmp.Diff(environ, strings.Split(strings.TrimSpace(f.read("environ."+verb)), "\n")); diff != "" {
		f.t.Errorf("environment of %s (-want +got):\n%s", verb, diff)
	}
	if diff := cmp.Diff(object(f.t, stdin), object(f.t, f.read("stdin."+verb))); diff != "" {
		f.t.Errorf("standard input of %s (-want +got):\n%s", verb, diff)
	}
}

func object(t *testing.T, text string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// TestPluginGetsWhatTheCallBrought is section 4 of the CNI specification: "the
// same environment variables", "the complete network configuration".
func TestPluginGetsWhatTheCallBrought(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.keep()
	environ := func(verb, netns string) []string {
		return []string{
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=job", "CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=net1",
			"CNI_NETNS=" + netns, "CNI_PATH=/a:/b", "KUBECONFIG=/etc/kube", "PATH=" + os.Getenv("PATH"),
		}
	}
	call := func(verb, netns string) attach.Node { return f.node(environ(verb, netns)[:7]...) }
	config := func(extra string) string { return string(f.input(extra).Stdin) }

	if _, err := call("ADD", podPath("c1")).Add(ctx, f.request(`, "runtimeConfig": {"ips": ["10.0.0.1/24"]}`)); err != nil {
		t.Fatal(err)
	}
	f.given("ADD", environ("ADD", podPath("c1")), config(`, "runtimeConfig": {"ips": ["10.0.0.1/24"]}`))

	const prev = `, "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "net1"}]}`
	in := f.input(prev)
	in.Command = "CHECK"
	req, err := conf.Parse(in)
	must(t, err)
	if err := call("CHECK", podPath("c1")).Check(ctx, req); err != nil {
		t.Error(err)
	}
	f.given("CHECK", environ("CHECK", podPath("c1")), config(prev))

	// The configuration has changed since ADD, and the namespace is gone.
	d := f.del(prev + `, "mtu": 1280`)
	d.Netns, d.IPAM = "", "another"
	if err := call("DEL", "").Del(ctx, d); err != nil {
		t.Error(err)
	}
	f.given("DEL", environ("DEL", ""), config(`, "runtimeConfig": {"ips": ["10.0.0.1/24"]}`+prev))
	f.mustBeEmpty("after DEL")
}

func TestPluginGetsGCAndStatus(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.keep()
	environ := func(verb string) []string {
		return []string{"CNI_COMMAND=" + verb, "CNI_PATH=/a:/b", "PATH=" + os.Getenv("PATH")}
	}
	in := f.input(`, "cni.dev/valid-attachments": [{"containerID": "c9", "ifname": "net1"}]`)
	gc, err := conf.ParseGC(in)
	must(t, err)
	if err := f.node(environ("GC")[:2]...).GC(ctx, gc); err != nil {
		t.Error(err)
	}
	f.given("GC", environ("GC"), string(in.Stdin))

	if err := f.node(environ("STATUS")[:2]...).Status(ctx, f.request("")); err != nil {
		t.Error(err)
	}
	f.given("STATUS", environ("STATUS"), string(f.input("").Stdin))
	if got := f.calls(); got != "GC STATUS" {
		t.Errorf("the plugin was called with %s", got)
	}
}

// whereabouts releases nothing, and says that it did, if CNI_ARGS does not name the pod.
func TestGCReleasesWhatAnAttachmentThatIsNotValidHas(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.keep()
	in := f.input("")
	in.Args = "K8S_POD_NAMESPACE=ml;K8S_POD_NAME=job;K8S_POD_UID=u1"
	req, err := conf.Parse(in)
	must(t, err)
	f.mustAdd(req)
	f.fake.RemovePod(podPath("c1"))
	f.now = time.Second
	gc := conf.GC{Network: "rail", IPAM: "foreign", Raw: `{}`}
	if err := f.node("CNI_COMMAND=GC", "CNI_ARGS=").GC(ctx, gc); err != nil {
		t.Error(err)
	}
	f.given("DEL", []string{
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=ml;K8S_POD_NAME=job;K8S_POD_UID=u1;K8S_POD_INFRA_CONTAINER_ID=c1",
		"CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "CNI_NETNS=" + podPath("c1"), "PATH=" + os.Getenv("PATH"),
	}, string(in.Stdin))
	f.mustBeEmpty("after GC")
}

func TestStatusOfThePluginIsOurs(t *testing.T) {
	t.Parallel()
	for said, want := range map[int]cnierr.Code{
		50: cnierr.NotAvailable,
		51: cnierr.Limited,
		4:  cnierr.NotAvailable, // the plugin does not know STATUS
	} {
		f := newForeign(t)
		f.on("STATUS", fmt.Sprintf(`echo '{"code": %d, "msg": "no server"}'; exit 1`, said))
		err := f.node().Status(ctx, f.request(""))
		if cnierr.CodeOf(err) != want || !strings.Contains(err.Error(), "no server") {
			t.Errorf("code %d of the plugin: got %v, want code %d", said, err, want)
		}
	}
	f := newForeign(t)
	remove(t, filepath.Join(f.plugins, "foreign"))
	if err := f.node().Status(ctx, f.request("")); cnierr.CodeOf(err) != cnierr.NotAvailable {
		t.Errorf("without the plugin: got %v, want code %d", err, cnierr.NotAvailable)
	}
}

func TestCheckAsksThePlugin(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.mustAdd(f.request(""))
	f.on("CHECK", `echo '{"code": 998, "msg": "never heard of it"}'; exit 1`)
	if err := f.node().Check(ctx, f.request("")); cnierr.CodeOf(err) != 998 || !strings.Contains(err.Error(), "never heard of it") {
		t.Errorf("got %v, want what the plugin said", err)
	}
	f.config = config // the network has another IPAM now
	if err := f.node().Check(ctx, f.world.request("c1", "net1", "")); cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("got %v, want code %d", err, cnierr.Damaged)
	}
}

// whereabouts has no CHECK, as others.
func TestCheckWithAPluginThatCannotCheckIsAboutWhatRoceMade(t *testing.T) {
	t.Parallel()
	for _, said := range []string{
		`{"code": 999, "msg": "CNI CHECK method is not implemented"}`,
		`{"code": 4, "msg": "unknown CNI_COMMAND: CHECK"}`,
	} {
		f := newForeign(t)
		var log bytes.Buffer
		f.log = slog.New(slog.NewTextHandler(&log, nil))
		f.mustAdd(f.request(""))
		f.on("CHECK", `echo '`+said+`'; exit 1`)
		if err := f.node().Check(ctx, f.request("")); err != nil {
			t.Errorf("%s: CHECK of a healthy pod: %v", said, err)
		}
		if got := log.String(); !strings.Contains(got, "cannot check") || !strings.Contains(got, "foreign") {
			t.Errorf("%s: the log has %q, want a note with the name of the plugin", said, got)
		}
		f.pod.IP("addr del 172.16.11.5/24 dev net1")
		if err := f.node().Check(ctx, f.request("")); cnierr.CodeOf(err) != cnierr.Damaged || !strings.Contains(err.Error(), "172.16.11.5") {
			t.Errorf("%s: CHECK of a pod without its address: got %v, want code %d", said, err, cnierr.Damaged)
		}
	}
}

func TestDelWithoutRecordReleasesWhatTheConfigurationNames(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.mustAdd(f.request(`, "routing": "none"`))
	remove(t, f.file("c1", "net1.json"))
	f.mustLeave("c1")
	f.mustBeEmpty("after DEL")
	f.mustLeave("c1")
	if got := f.calls(); got != "ADD DEL DEL" {
		t.Errorf("the plugin was called with %s", got)
	}
}

func TestNodesOwnAddressIsRefused(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.fake.Host().IP("addr add 172.16.11.5/24 dev ens1")
	_, err := f.node().Add(ctx, f.request(""))
	if cnierr.CodeOf(err) != cnierr.AddressTaken || !strings.Contains(err.Error(), "172.16.11.5") {
		t.Errorf("got %v, want code %d naming the address", err, cnierr.AddressTaken)
	}
	f.mustBeEmpty("after ADD")
	for _, mode := range []string{"off", "warn"} {
		if _, err := f.node().Add(ctx, f.request(`, "probe": {"conflict": "`+mode+`"}`)); err != nil {
			t.Errorf("with the probe %s: %v", mode, err)
		}
		f.mustLeave("c1")
	}
}

// The plugin has released its lease, so nothing but the record says that there is a link.
func TestTheRecordStaysWhileTheLinkOfAFailedADDIsLeft(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.wire.refuse = 1
	f.before = func(op plan.Op, undo bool) error {
		if _, link := op.Kind.(plan.Child); link && undo {
			return errFault
		}
		return nil
	}
	if _, err := f.node().Add(ctx, f.request("")); !errors.Is(err, errFault) || len(f.files()) == 0 || f.calls() != "ADD DEL" {
		t.Errorf("got %v, records %v after %s", err, f.files(), f.calls())
	}
	f.before = nil
	f.mustLeave("c1")
	f.mustBeEmpty("after DEL")
}

func TestConflictOfADelegatedAddressHasNoSubstitute(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.wire.refuse = 1
	_, err := f.node().Add(ctx, f.request(""))
	e := cnierr.CNI("roce", err)
	if e.Code != uint(cnierr.AddressTaken) || len(f.wire.asked) != 1 || !strings.Contains(e.Details, "configuration of that plugin") {
		t.Errorf("got %v after asking for %v, want code %d after one", e, f.wire.asked, cnierr.AddressTaken)
	}
	f.mustBeEmpty("after the conflict")
	if got := f.calls(); got != "ADD DEL" {
		t.Errorf("the plugin was called with %s", got)
	}
}

// TestAPromisedNumberThatMovesIsNotLeasedAgain has a plugin that refuses a second ADD, as
// host-local does. So ADD ends, and says why.
func TestAPromisedNumberThatMovesIsNotLeasedAgain(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.on("ADD", `if [ -e lease-$CNI_CONTAINERID-$CNI_IFNAME ]; then echo '{"code": 100, "msg": "duplicate allocation is not allowed"}'; exit 1; fi`)
	f.hca.tables = newGIDTables(64, 1, 1)
	in := f.input("")
	in.Stdin = []byte(strings.Replace(string(in.Stdin), `"rdma": "off"`, `"rdma": {"mode": "shared", "gidIndex": 21}`, 1))
	req, err := conf.Parse(in)
	must(t, err)
	f.before = func(op plan.Op, _ bool) error {
		for g := range plan.All[plan.GID](plan.Ops{op}) {
			table := f.hca.tables.of(g.Device)
			at := table.index(g.Targets[0].Addr)
			table.entries[at], table.entries[40] = table.entries[40], table.entries[at]
		}
		return nil
	}
	if _, err := f.node().Add(ctx, req); cnierr.CodeOf(err) != cnierr.NoGID || strings.Contains(err.Error(), "duplicate") {
		t.Errorf("got %v, want code %d", err, cnierr.NoGID)
	}
	f.mustBeEmpty("after ADD")
}
