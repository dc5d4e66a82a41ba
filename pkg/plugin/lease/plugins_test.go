// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package lease_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/lease"
)

// withPlugin returns a node with another IPAM plugin.
func withPlugin(t *testing.T) *node {
	t.Helper()
	return newNode(t, sources()["another IPAM plugin"])
}

// on sets what the plugin does first when it is called with a verb.
func (n *node) on(verb, script string) {
	n.t.Helper()
	n.write(filepath.Join(n.plugins, "on."+verb), script, 0o600)
}

// calls returns what the plugin noted of its calls.
func (n *node) calls() string {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.plugins, "calls"))
	must(n.t, err)
	return string(b)
}

func TestAPluginGetsTheCallAndTheConfiguration(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	n.acquire("pod-0", "")
	const prev = `, "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "net1"}]}`
	in := n.input("pod-0", prev)
	in.Command = "CHECK"
	req, err := conf.Parse(in)
	must(t, err)
	a := n.allocator()
	a.Plugins.Environ = append(a.Plugins.Environ, "OWN=1", "CNI_ARGS=K8S_POD_NAME=called", "CNI_NETNS=/other")
	must(t, a.Check(t.Context(), req, n.record("pod-0")))
	d, err := conf.ParseDel(n.input("pod-0", prev+`, "mtu": 1400`))
	must(t, err)
	d.Netns = ""
	rec := n.record("pod-0")
	rec.Pod = conf.Pod{Namespace: "train", Name: "pod-0", UID: "uid-pod-0"}
	a.Plugins.Environ = append(n.allocator().Plugins.Environ, "OWN=1", "CNI_ARGS=", "CNI_NETNS=/other")
	must(t, a.ReleaseByDEL(t.Context(), rec, d))
	rec.Config = []byte(`{"of":  "ADD"}`) // its text stays
	must(t, a.ReleaseByDEL(t.Context(), rec, n.del("pod-0")))
	rec.Config, rec.Pod = []byte("null"), conf.Pod{}
	must(t, a.ReleaseByDEL(t.Context(), rec, d))
	must(t, a.Release(t.Context(), n.record("pod-1")))
	must(t, a.GC(t.Context(), conf.GC{Network: "rail", IPAM: "foreign", Raw: `{"of": "GC"}`}))
	must(t, a.GC(t.Context(), conf.GC{Network: "rail", IPAM: conf.PoolType, Raw: `{"of": "ours"}`}))
	must(t, n.claim("pod-0", "").Status(t.Context()))

	const pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=train;K8S_POD_NAME=pod-0;K8S_POD_UID=uid-pod-0;K8S_POD_INFRA_CONTAINER_ID=pod-0"
	const config = `{"cniVersion": "1.1.0", "name": "rail", "master": "ens1", "ipam": {"type": "foreign"}`
	want := "ADD id=pod-0 if=net1 netns=/run/netns/pod-0 args=" + pod + " own=\n" + config + "}\n" +
		"CHECK id=pod-0 if=net1 netns=/run/netns/pod-0 args=K8S_POD_NAME=called own=1\n" + config + prev + "}\n" +
		"DEL id=pod-0 if=net1 netns= args=" + pod + " own=1\n" +
		`{"cniVersion":"1.1.0","ipam":{"type":"foreign"},"master":"ens1","name":"rail","prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"net1"}]}}` + "\n" +
		"DEL id=pod-0 if=net1 netns=/run/netns/pod-0 args=" + pod + " own=1\n" + `{"of":  "ADD"}` + "\n" +
		"DEL id=pod-0 if=net1 netns= args= own=1\nnull\n" +
		"DEL id=pod-1 if=net1 netns=/run/netns/pod-1 args= own=1\n" + config + "}\n" +
		"GC id= if= netns=/other args= own=1\n" + `{"of": "GC"}` + "\n" +
		"STATUS id= if= netns= args= own=\n" + config + "}\n"
	if diff := cmp.Diff(want, n.calls()); diff != "" {
		t.Errorf("calls of the plugin (-want +got):\n%s", diff)
	}
}

func TestWhatAPluginSaysBecomesTheErrorOfTheCall(t *testing.T) {
	t.Parallel()
	const own = "see that plugin's documentation and its configuration in ipam"
	const byHand = "run the plugin by hand: it did not answer as the CNI specification says"
	lease := func(format string, args ...any) string {
		return fmt.Sprintf(`lease addresses from IPAM plugin "foreign": `+format, args...)
	}
	for script, want := range map[string]string{
		`echo '{"code": 11, "msg": "not now", "details": "ask again"}'; exit 1`: "roce[11] " + lease("not now") + "\nask again",
		`echo '{"code": 999, "msg": "no"}'; exit 1`:                             "roce[999] " + lease("no") + "\n" + own,
		`echo '{"code": 998}'; exit 1`:                                          "roce[998] " + lease("") + "\n" + own,
		`echo '{"msg": "no code"}'; exit 1`:                                     "roce[5] " + lease("no code") + "\n" + own,
		`echo '{}'; exit 3`:                                                     "roce[5] " + lease(`exit status 3; it printed "{}"`) + "\n" + byHand,
		`echo out; echo err >&2; exit 1`:                                        "roce[5] " + lease(`exit status 1; it printed "out\nerr"`) + "\n" + byHand,
		`printf %0400d 0; exit 1`:                                               "roce[5] " + lease(`exit status 1; it printed "%0300d"`, 0) + "\n" + byHand,
		`exec yes x`:                                                            "roce[5] " + lease(`it printed more than 1 MiB, and was stopped: "%s"`, strings.Repeat(`x\n`, 149)+"x") + "\n" + byHand,
		`exec yes x >&2`:                                                        "roce[5] " + lease(`it printed more than 1 MiB, and was stopped: "%s"`, strings.Repeat(`x\n`, 149)+"x") + "\n" + byHand,
		`echo '{"ips": []}'; exit 0`:                                            `roce[6] read result of IPAM plugin "foreign": it has no address` + "\n" + own,
		`echo '{"ips": [{"address": "10.9.0.5/24"}, {"address": "172.16.11.3/24"}]}'; exit 0`: "roce[100] " + lease("the node itself has 172.16.11.3") +
			"\nexclude the addresses of the nodes in the configuration of that plugin",
	} {
		n := withPlugin(t)
		n.stderr = io.Discard
		n.on("ADD", script)
		rails, err := n.claim("pod-0", "").Acquire(t.Context())
		e := cnierr.CNI("roce", err)
		if e == nil || rails != nil {
			t.Errorf("%s: got %v, %v", script, rails, err)
			continue
		}
		if diff := cmp.Diff(want, e.Msg+"\n"+e.Details); diff != "" {
			t.Errorf("%s (-want +got):\n%s", script, diff)
		}
	}
}

// whereabouts has no CHECK.
func TestAPluginThatCannotCheckIsOnlyLogged(t *testing.T) {
	t.Parallel()
	for said, can := range map[string]bool{
		`{"code": 4, "msg": "unknown CNI_COMMAND: CHECK"}`:     false,
		`{"code": 999, "msg": "CHECK method not implemented"}`: false,
		`{"code": 999, "msg": "it has no lease"}`:              true,
	} {
		n := withPlugin(t)
		n.on("CHECK", "echo '"+said+"'; exit 1")
		err := n.allocator().Check(t.Context(), n.request("pod-0", ""), n.record("pod-0"))
		if (err != nil) != can || can == strings.Contains(n.log.String(), "cannot check") || can && cnierr.CodeOf(err) != 999 {
			t.Errorf("%s: got %v, log %s", said, err, n.log.String())
		}
	}
	n := withPlugin(t)
	rec := n.record("pod-0")
	n.config = sources()["ranges of the configuration"].config
	if err := n.allocator().Check(t.Context(), n.request("pod-0", ""), rec); cnierr.CodeOf(err) != cnierr.Damaged {
		t.Errorf("the network has another ipam.type now: got %v", err)
	}
}

func TestTheCodesOfAPluginsSTATUSAreKept(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]string{
		`{"code": 50, "msg": "full"}`:  `roce[50] ask status of IPAM plugin "foreign": full`,
		`{"code": 51, "msg": "half"}`:  `roce[51] ask status of IPAM plugin "foreign": half`,
		`{"code": 4, "msg": "STATUS"}`: `roce[50] serve "ADD": ask status of IPAM plugin "foreign": STATUS`,
	} {
		n := withPlugin(t)
		n.on("STATUS", "echo '"+said+"'; exit 1")
		if got := cnierr.CNI("roce", n.claim("pod-0", "").Status(t.Context())); got == nil || got.Msg != want {
			t.Errorf("%s: got %v, want %s", said, got, want)
		}
	}
}

func TestAPluginMayGiveTheNodesAddressIfNoConflictEndsTheADD(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	n.on("ADD", `echo '{"ips": [{"address": "172.16.11.3/24"}]}'; exit 0`)
	if got := n.acquire("pod-0", `, "probe": {"conflict": "warn"}`); len(got) != 1 || got[0] != netip.MustParseAddr("172.16.11.3") {
		t.Errorf("got %v", got)
	}
}

// A program of the name is in no folder, or where the kernel would not look for it.
func TestAPluginIsAFileOfAFolderOfTheRuntime(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	folder := filepath.Join(n.plugins, "sub")
	must(t, os.MkdirAll(filepath.Join(folder, "foreign"), 0o700))
	n.write(filepath.Join(n.plugins, conf.PluginType), foreign, 0o700)
	for _, c := range []struct {
		name string
		path []string
		want bool
	}{
		{"foreign", []string{"", "/nowhere", folder, n.plugins}, true},
		{"foreign", []string{folder}, false},
		{"foreign", []string{""}, false},
		{"../foreign", []string{folder}, false},
		{conf.PluginType, []string{n.plugins}, false},
		{conf.PoolType, nil, true},
		{"", nil, true},
	} {
		err := lease.Plugins{Path: c.path}.Installed(c.name)
		if (err == nil) != c.want || err != nil && (cnierr.CodeOf(err) != cnierr.BadConfig || !errors.Is(err, lease.ErrNotInstalled)) {
			t.Errorf("%s in %q: got %v", c.name, c.path, err)
		}
	}
}

func TestAResultMayHaveOneMebibyte(t *testing.T) {
	t.Parallel()
	const result = `{"ips": [{"address": "10.9.0.5/24"}]}`
	for _, size := range []int{1 << 20, 1<<20 + 1} {
		n := withPlugin(t)
		n.on("ADD", fmt.Sprintf(`echo careful >&2; printf '%s'; head -c %d /dev/zero | tr '\0' ' '; exit 0`, result, size-len(result)))
		var told bytes.Buffer
		n.stderr = &told
		_, err := n.claim("pod-0", "").Acquire(t.Context())
		if (err == nil) != (size == 1<<20) || err != nil && !errors.Is(err, lease.ErrFlood) || told.String() != "careful\n" {
			t.Errorf("%d bytes: got %v, standard error %q", size, err, told.String())
		}
	}
}

func TestTheErrorOfAPluginEndsEveryCall(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		n.on(verb, `echo '{"code": 998, "msg": "no"}'; exit 1`)
	}
	a, rec := n.allocator(), n.record("pod-0")
	errs := map[string]error{
		"Release": a.Release(t.Context(), rec), "ReleaseByDEL": a.ReleaseByDEL(t.Context(), rec, n.del("pod-0")),
		"ReleaseUnfinished": a.ReleaseUnfinished(t.Context(), rec), "Check": a.Check(t.Context(), n.request("pod-0", ""), rec),
		"GC": a.GC(t.Context(), conf.GC{Network: "rail", IPAM: "foreign", Raw: "{}"}),
	}
	a.Plugins.Guard = func(conf.ContainerID) (*os.File, error) { return nil, cnierr.New(998, "guard", "", "", "no") }
	errs["Guard"] = a.Release(t.Context(), rec)
	for what, err := range errs {
		if cnierr.CodeOf(err) != 998 {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if strings.Count(n.calls(), "DEL") != 3 {
		t.Errorf("a plugin was called without guard: %s", n.calls())
	}
}

// The next call for the container then waits for the plugin, also if this process is killed.
func TestAPluginInheritsTheGuardOfItsContainer(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	n.on("ADD", `readlink /proc/$$/fd/3 >guard`)
	n.acquire("pod-0", "")
	b, err := os.ReadFile(filepath.Join(n.plugins, "guard"))
	if want := filepath.Join(n.dir, "attachments", "pod-0", "lock"); err != nil || strings.TrimSpace(string(b)) != want {
		t.Errorf("file 3 of the plugin is %s, %v, want %s", b, err, want)
	}
}

// Who writes it may have been killed.
func TestAPluginThatIsInstalledForEverIsAnError(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	f, err := os.OpenFile(filepath.Join(n.plugins, "foreign"), os.O_WRONLY, 0)
	must(t, err)
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := n.claim("pod-0", "").Acquire(ctx); cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, unix.ETXTBSY) {
		t.Errorf("got %v", err)
	}
}

func TestAPluginThatCannotStartIsNotSaidToHavePrinted(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	must(t, os.Chmod(filepath.Join(n.plugins, "foreign"), 0o600))
	_, err := n.claim("pod-0", "").Acquire(t.Context())
	if cnierr.CodeOf(err) != cnierr.IO || !strings.HasSuffix(err.Error(), "permission denied") {
		t.Errorf("got %v", err)
	}
}

// child returns the process that the plugin left behind, and whether it runs.
func (n *node) child() (pid int, runs bool) {
	n.t.Helper()
	b, err := os.ReadFile(filepath.Join(n.plugins, "child"))
	must(n.t, err)
	pid, err = strconv.Atoi(strings.TrimSpace(string(b)))
	must(n.t, err)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return pid, err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestAPluginThatLeavesAChildBehindHasAnswered(t *testing.T) {
	t.Parallel()
	n := withPlugin(t)
	n.on("ADD", `sleep 10000 & echo $! >child`)
	n.acquire("pod-0", "")
	pid, runs := n.child()
	if !runs {
		t.Errorf("the child %d was killed", pid)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

// onWrite calls itself when something is written.
type onWrite func()

func (f onWrite) Write(b []byte) (int, error) {
	f()
	return len(b), nil
}

func TestAPluginThatHangsEndsWithTheCallAndSoDoItsChildren(t *testing.T) {
	t.Parallel()
	for _, why := range []error{context.Canceled, context.DeadlineExceeded} {
		n := withPlugin(t)
		n.on("ADD", `sleep 10000 & echo $! >child; echo no route to the server >&2; wait`)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if n.stderr = io.Discard; errors.Is(why, context.Canceled) {
			n.stderr = onWrite(cancel)
		}
		_, err := n.claim("pod-0", "").Acquire(ctx)
		if cnierr.CodeOf(err) != cnierr.TryAgain || !errors.Is(err, why) || !strings.HasSuffix(err.Error(), `; the last that it printed is "no route to the server"`) {
			t.Errorf("%v: got %v", why, err)
		}
		if errors.Is(why, context.DeadlineExceeded) && ctx.Err() != nil {
			t.Error("no time is left to undo what the call did")
		}
		// It was killed, and a process dies in its own time.
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			pid, runs := n.child()
			if !runs {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the child %d is still there", pid)
			}
		}
	}
}
