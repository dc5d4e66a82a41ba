// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
)

func TestResultOfAnyVersionIsUnderstood(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]string{
		"0.2.0": `{"cniVersion": "0.2.0", "ip4": {"ip": "172.16.11.5/24", "gateway": "172.16.11.254", "routes": [{"dst": "10.1.0.0/16"}]}, "ip6": {"ip": "fd00:11::5/64"}}`,
		"0.3.1": `{"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "172.16.11.5/24", "gateway": "172.16.11.254"},
			{"version": "6", "address": "fd00:11::5/64"}], "routes": [{"dst": "10.1.0.0/16"}]}`,
		"0.4.0": `{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "172.16.11.5/24", "gateway": "172.16.11.254"},
			{"version": "6", "address": "fd00:11::5/64"}], "routes": [{"dst": "10.1.0.0/16"}]}`,
		"1.0.0":    `{"cniVersion": "1.0.0", "ips": [{"address": "172.16.11.5/24", "gateway": "172.16.11.254"}, {"address": "fd00:11::5/64"}], "routes": [{"dst": "10.1.0.0/16"}]}`,
		"not said": `{"ips": [{"address": "172.16.11.5/24", "gateway": "172.16.11.254"}, {"address": "fd00:11::5/64"}], "routes": [{"dst": "10.1.0.0/16"}]}`,
		"said to be empty": `{"cniVersion": "", "ips": [{"address": "172.16.11.5/24", "gateway": "172.16.11.254"}, {"address": "fd00:11::5/64"}],
			"routes": [{"dst": "10.1.0.0/16", "gw": "172.16.11.254"}]}`,
	} {
		f := newForeign(t)
		f.answer(result)
		res, err := f.node().Add(ctx, f.request(""))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(res.IPs) != 2 || res.IPs[0].Gateway.String() != "172.16.11.254" || res.IPs[1].Address.String() != "fd00:11::5/64" {
			t.Errorf("%s: got %v", name, res.IPs)
		}
		if i := len(res.Routes) - 1; res.Routes[i].Dst.String() != "10.1.0.0/16" || res.Routes[i].GW.String() != "172.16.11.254" {
			t.Errorf("%s: got %v", name, res.Routes)
		}
	}
}

func TestRoutesOfAResultAreReadInFull(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.answer(`{"cniVersion": "1.1.0", "ips": [{"address": "172.16.11.5/24", "gateway": "172.16.11.254"}], "routes": [
		{"dst": "10.1.2.3/16", "gw": "172.16.11.253", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 77, "scope": 200},
		{"dst": "10.2.0.0/16", "gw": "0.0.0.0"}, {"dst": "10.3.0.0/16", "table": 0}, {"dst": "10.4.0.0/16", "scope": 0}]}`)
	res := f.mustAdd(f.request(""))
	b, err := json.Marshal(res.Routes[len(res.Routes)-4:])
	must(t, err)
	want := `[{"dst": "10.1.0.0/16", "gw": "172.16.11.253", "mtu": 1400, "advmss": 1360, "priority": 7, "table": 77, "scope": 200},
		{"dst": "10.2.0.0/16", "table": 100, "scope": 253},
		{"dst": "10.3.0.0/16", "gw": "172.16.11.254", "table": 100},
		{"dst": "10.4.0.0/16", "gw": "172.16.11.254", "table": 100}]`
	if diff := cmp.Diff(object(t, want), object(t, string(b))); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
}

func TestResultThatIsNoneIsRefusedAndReleased(t *testing.T) {
	t.Parallel()
	const ip = `"ips": [{"address": "172.16.11.5/24"}]`
	for result, want := range map[string]string{
		``:                                       `printed ""`,
		`null`:                                   `printed "null"`,
		`[]`:                                     `printed "[]"`,
		`Segmentation fault`:                     `printed "Segmentation fault"`,
		`{"cniVersion": "9.0.0"}`:                `"9.0.0"`,
		`{"cniVersion": "1.1.0"}`:                `no address`,
		`{"ips": []}`:                            `no address`,
		`{"ips": [null]}`:                        `ips has null`,
		`{"cniVersion": "0.4.0", "ips": [null]}`: `ips has null`,
		`{"cniVersion": "0.3.1", "IPs": [null]}`: `ips has null`,
		`{"cniVersion": "0.4.0", "interfaces": [null], ` + ip + `}`:                          `interfaces has null`,
		`{"ips": [{"address": "x"}]}`:                                                        `x`,
		`{"ips": [{}]}`:                                                                      `not a prefix`,
		`{"ips": [{"address": "172.16.11.5/24", "gateway": "fd00::1"}]}`:                     `fd00::1 cannot be the gateway of 172.16.11.5`,
		`{"ips": [{"address": "172.16.11.5/24", "gateway": "224.0.0.1"}]}`:                   `224.0.0.1 cannot be the gateway`,
		`{"ips": [{"address": "172.16.11.5/24", "gateway": "172.16.11.5"}]}`:                 `its own gateway`,
		`{"ips": [{"address": "127.0.0.5/8"}]}`:                                              `127.0.0.5/8 is a loopback address`,
		`{"ips": [{"address": "0.0.0.0/0"}]}`:                                                `0.0.0.0/0 is`,
		`{"ips": [{"address": "ff02::5/64"}]}`:                                               `ff02::5/64 is a multicast address`,
		`{` + ip + `, "routes": [null]}`:                                                     `routes has null`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "gw": "fd00::1"}]}`:                   `route to 10.0.0.0/8: fd00::1 cannot be the gateway`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "mtu": -1}]}`:                         `mtu -1 is not in`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "advmss": -1}]}`:                      `advmss -1 is not in`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "priority": 4294967296}]}`:            `priority 4294967296 is not in`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "table": -7}]}`:                       `table -7 is not in`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "table": 255}]}`:                      `table 255 is the kernel's`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "scope": 255}]}`:                      `scope 255 is not in`,
		`{` + ip + `, "routes": [{"dst": "10.0.0.0/8", "gw": "172.16.11.1", "scope": 253}]}`: `cannot have scope 253`,
	} {
		f := newForeign(t)
		f.answer(result)
		_, err := f.node().Add(ctx, f.request(""))
		e := cnierr.CNI("roce", err)
		if e == nil || e.Code != uint(cnierr.Decode) || !strings.Contains(e.Msg, want) || !strings.Contains(e.Msg, `"foreign"`) || e.Details == "" {
			t.Errorf("%s: got %v, want code %d, the plugin and %q", result, e, cnierr.Decode, want)
		}
		f.mustBeEmpty("after " + result)
		if got := f.calls(); got != "ADD DEL" {
			t.Errorf("%s: the plugin was called with %s", result, got)
		}
	}
}

func TestTheErrorOfAPluginIsPreserved(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]struct {
		code      cnierr.Code
		msg, hint string
	}{
		`echo '{"code": 11, "msg": "not now", "details": "ask again"}'; exit 1`: {11, `roce[11] lease addresses from IPAM plugin "foreign": not now`, "ask again"},
		`echo '{"code": 999, "msg": "two\\nlines"}'; exit 1`:                    {999, `roce[999] lease addresses from IPAM plugin "foreign": two; lines`, "that plugin's documentation"},
		`echo '{"msg": "no code"}'; exit 1`:                                     {cnierr.IO, `no code`, "that plugin's documentation"},
		`echo '{}'; exit 3`:                                                     {cnierr.IO, `exit status 3; it printed "{}"`, "run the plugin by hand"},
		`echo out; echo err >&2; exit 1`:                                        {cnierr.IO, `exit status 1; it printed "out\nerr"`, "run the plugin by hand"},
		`kill -9 $$`:                                                            {cnierr.IO, `signal: killed`, "run the plugin by hand"},
	} {
		f := newForeign(t)
		f.on("ADD", script)
		_, err := f.node().Add(ctx, f.request(""))
		e := cnierr.CNI("roce", err)
		if e == nil || cnierr.Code(e.Code) != want.code || !strings.Contains(e.Msg, want.msg) || !strings.Contains(e.Details, want.hint) {
			t.Errorf("%s: got %+v, want %+v", script, e, want)
		}
		f.mustBeEmpty("after " + script)
		if got := f.calls(); got != "ADD DEL" {
			t.Errorf("%s: the plugin was called with %s", script, got)
		}
	}
}

func TestWhatAPluginSaysOnStandardErrorIsPassedOn(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.on("ADD", `echo careful >&2`)
	f.mustAdd(f.request(""))
	if got := f.stderr.String(); got != "careful\n" {
		t.Errorf("got %q", got)
	}
}

func TestPluginThatCannotBeRunLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spoil func(t *testing.T, path string)
		code  cnierr.Code
		says  string
	}{
		"missing":        {remove, cnierr.BadConfig, `"/nowhere"`},
		"a folder":       {func(t *testing.T, path string) { t.Helper(); remove(t, path); mkdir(t, path) }, cnierr.BadConfig, `"/nowhere"`},
		"not executable": {func(t *testing.T, path string) { t.Helper(); chmod(t, path, 0o600) }, cnierr.IO, "permission denied"},
		"no program":     {func(t *testing.T, path string) { t.Helper(); write(t, path, "") }, cnierr.IO, "exec format error"},
	} {
		f := newForeign(t)
		tc.spoil(t, filepath.Join(f.plugins, "foreign"))
		_, err := f.node().Add(ctx, f.request(""))
		if cnierr.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), `"foreign"`) {
			t.Errorf("%s: got %v, want code %d that says %s", name, err, tc.code, tc.says)
		}
		f.mustBeEmpty("with the plugin " + name)
		if n := f.fake.Calls(); tc.code == cnierr.BadConfig && n > 1 {
			t.Errorf("%s: %d kernel calls before that was known, want none but to open the namespace", name, n)
		}
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	must(t, os.Mkdir(path, 0o700))
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	must(t, os.Chmod(path, mode))
}

// TestNameOfAPluginIsNoPath puts a program where a name with slashes leads.
func TestNameOfAPluginIsNoPath(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.answer(foreignResult)
	in := filepath.Join(f.plugins, "in")
	mkdir(t, in)
	n := f.node()
	n.Addresses.Plugins.Path = []string{in}
	for _, name := range []string{"../foreign", "..", ".", "x/../../foreign", filepath.Join(f.plugins, "foreign")} {
		req := f.request("")
		req.IPAM.Type = name
		if _, err := n.Add(ctx, req); cnierr.CodeOf(err) != cnierr.BadConfig {
			t.Errorf("ADD with %q: got %v, want code %d", name, err, cnierr.BadConfig)
		}
		d := f.del("")
		d.IPAM = name
		if err := n.Del(ctx, d); err != nil {
			t.Errorf("DEL with %q: %v", name, err)
		}
	}
	if got := f.calls(); got != "" {
		t.Errorf("the program was called with %s", got)
	}
	f.mustBeEmpty("in the end")
}

// TestPluginThatHangsEndsWithTheCall: so do its children, which would keep its
// output open otherwise, for longer than any test may take.
func TestPluginThatHangsEndsWithTheCall(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.on("ADD", `: >lease-$CNI_CONTAINERID-$CNI_IFNAME; sleep 10000 & echo $! >child; : >hangs; wait`)
	ctx, cancel := f.untilItHangs()
	defer cancel()
	_, err := f.node().Add(ctx, f.request(""))
	if cnierr.CodeOf(err) != cnierr.TryAgain || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	f.mustBeEmpty("after ADD")
	child, err := strconv.Atoi(strings.TrimSpace(f.read("child")))
	must(t, err)
	// It was killed, and a process dies in its own time.
	for deadline := time.Now().Add(time.Minute); alive(child); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the child %d is still there", child)
		}
	}
}

// TestPluginThatPrintsWithoutEndIsStopped: what it prints is kept in memory.
func TestPluginThatPrintsWithoutEndIsStopped(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"", ">&2"} {
		f := newForeign(t)
		f.on("ADD", `exec yes flood `+to)
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_, err := f.node().Add(ctx, f.request(""))
		if cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, lease.ErrFlood) || !strings.Contains(err.Error(), "flood") {
			t.Errorf("yes %s: got %.500v, want code %d and what it printed", to, err, cnierr.IO)
		}
		f.mustBeEmpty("after ADD")
	}
}

// TestPluginThatAnswersNothingLeavesTheAddTimeToUndo lets ADD and DEL of the plugin hang,
// as those of whereabouts do while no API server answers.
func TestPluginThatAnswersNothingLeavesTheAddTimeToUndo(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	for _, verb := range []string{"ADD", "DEL"} {
		f.on(verb, `: >lease-$CNI_CONTAINERID-$CNI_IFNAME; echo no route to the server >&2; exec sleep 10000`)
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err := f.node().Add(ctx, f.request(""))
	e := cnierr.CNI("roce", err)
	for _, want := range []string{`IPAM plugin "foreign": its ADD did not end in `, `IPAM plugin "foreign": its DEL did not end in `, "no route to the server"} {
		if e == nil || e.Code != uint(cnierr.TryAgain) || !strings.Contains(e.Msg, want) || !strings.Contains(e.Details, "API server") {
			t.Errorf("got %v, want code %d, %q, and what to look at", e, cnierr.TryAgain, want)
		}
	}
	f.mustBeUndone("after ADD")
	if len(f.held()) != 1 {
		t.Errorf("the plugin has %q", f.held())
	}
	remove(t, filepath.Join(f.plugins, "on.DEL"))
	f.mustLeave("c1")
	f.mustBeEmpty("after DEL")
}

// TestWhatRoceMadeIsGoneBeforeThePluginThatGaveNothingIsAskedAgain stops the DEL of the
// plugin.
func TestWhatRoceMadeIsGoneBeforeThePluginThatGaveNothingIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.on("ADD", `echo '{"code": 11, "msg": "not now"}'; exit 1`)
	f.on("DEL", `: >asked; read go <go`)
	for _, name := range []string{"asked", "go"} {
		must(t, unix.Mkfifo(filepath.Join(f.plugins, name), 0o600))
	}
	seen := make(chan string)
	go func() {
		_, _ = os.ReadFile(filepath.Join(f.plugins, "asked"))
		pod := f.pod.String()
		_ = os.WriteFile(filepath.Join(f.plugins, "go"), []byte("\n"), 0)
		seen <- pod
	}()
	if _, err := f.node().Add(ctx, f.request("")); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want what the plugin said", err)
	}
	if pod := <-seen; strings.Contains(pod, "net1") {
		t.Errorf("when the plugin was asked for DEL, the pod had:\n%s", pod)
	}
	f.mustBeEmpty("after ADD")
}

// untilItHangs returns a context that ends when the plugin has written to the
// file hangs.
func (f foreign) untilItHangs() (context.Context, context.CancelFunc) {
	f.t.Helper()
	fifo := filepath.Join(f.plugins, "hangs")
	must(f.t, unix.Mkfifo(fifo, 0o600))
	ctx, cancel := context.WithCancel(f.t.Context())
	go func() {
		defer cancel()
		_, _ = os.ReadFile(fifo) // waits until the plugin opens it too
	}()
	return ctx, cancel
}

// alive says whether a process runs. A process that has ended but was not waited for
// does not run.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ") && !errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// mustHaveOnlyTheLink checks that the pod has net1, through which dhcp can still
// give its lease back, and nothing on it that the lease is for.
func (f foreign) mustHaveOnlyTheLink() {
	f.t.Helper()
	s := f.pod.String()
	if !strings.Contains(s, "link net1 ") || strings.Contains(s, "172.16.11.5") || strings.Contains(s, "fd00:11::5") {
		f.t.Errorf("want the link without the leased addresses, the kernel has:\n%s", s)
	}
}

func TestPluginThatHangsInDELKeepsTheLink(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.mustAdd(f.request(""))
	f.on("DEL", `: >hangs; exec sleep 100`)
	ctx, cancel := f.untilItHangs()
	defer cancel()
	if err := f.node().Del(ctx, f.del("")); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	f.mustHaveOnlyTheLink()
	remove(t, filepath.Join(f.plugins, "on.DEL"))
	f.mustLeave("c1")
	f.mustBeEmpty("after the second DEL")
}

func TestPluginThatLeavesAChildBehindIsDone(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.on("ADD", `sleep 10000 & echo $! >child`)
	f.mustAdd(f.request(""))
	child, err := strconv.Atoi(strings.TrimSpace(f.read("child")))
	must(t, err)
	if !alive(child) {
		t.Errorf("the child %d was killed", child)
	}
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	f.mustLeave("c1") // which waits for the child
	f.mustBeEmpty("after DEL")
}

func TestLeaseThatCouldNotBeReleasedIsReleasedByDEL(t *testing.T) {
	t.Parallel()
	const refuse = `echo '{"code": 7, "msg": "no store"}'; exit 1`
	f := newForeign(t)
	f.on("DEL", refuse)
	f.wire.silent = true
	_, err := f.node().Add(ctx, f.request(""))
	if cnierr.CodeOf(err) != cnierr.GatewaySilent || !strings.Contains(err.Error(), "no store") {
		t.Errorf("got %v, want that the gateway is silent, and what the plugin said", err)
	}
	f.mustHaveOnlyTheLink()
	if len(f.held()) != 1 || len(f.files()) == 0 {
		t.Errorf("the plugin has %q, files are %q: want the lease, and the record for DEL", f.held(), f.files())
	}
	if err := f.node().Del(ctx, f.del("")); cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "no store") {
		t.Errorf("DEL: got %v, want what the plugin said", err)
	}
	f.on("DEL", "")
	f.mustLeave("c1")
	f.mustBeEmpty("after the second DEL")
}

func TestDelReportsWhatThePluginSaysAndKeepsTheLink(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	f.mustAdd(f.request(""))
	f.on("DEL", `echo '{"code": 11, "msg": "no server"}'; exit 1`)
	if err := f.node().Del(ctx, f.del("")); cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Errorf("got %v, want code %d", err, cnierr.TryAgain)
	}
	f.mustHaveOnlyTheLink()
	remove(t, filepath.Join(f.plugins, "on.DEL"))
	f.mustLeave("c1")
	f.mustBeEmpty("after the second DEL")
	f.mustLeave("c1")
}

// TestDelReleasesOnlyWhatIsOffTheLink lets each kernel call of DEL fail.
func TestDelReleasesOnlyWhatIsOffTheLink(t *testing.T) {
	t.Parallel()
	for i := 1; ; i++ {
		f := newForeign(t)
		f.mustAdd(f.request(""))
		before := f.fake.Calls()
		f.fake.FailFrom(i, errFault)
		err := f.node().Del(ctx, f.del(""))
		f.fake.Heal()
		if err == nil {
			if f.fake.Calls()-before < 5 {
				t.Fatalf("a DEL has only %d kernel calls", f.fake.Calls()-before)
			}
			return
		}
		onLink := strings.Contains(f.pod.String(), "172.16.11.5/24")
		if onLink && len(f.held()) == 0 {
			t.Errorf("failing from call %d: the address was given back and is on the link", i)
		}
		f.mustLeave("c1")
		f.mustBeEmpty(fmt.Sprintf("after failing from call %d and DEL", i))
	}
}
