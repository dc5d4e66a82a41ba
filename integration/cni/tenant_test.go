// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A tenant who may create networks writes configurations that root executes. Each
// call here sees the whole machine through an overlay, so that a file that it makes,
// changes or removes anywhere is found, but for the folders that the settings name.
//
// HOSTILE_CPU is how much CPU time the calls may take, and HOSTILE_SEED the seed.
func TestConfigurationsOfATenantWriteOnlyWhereThePolicyAllows(t *testing.T) {
	t.Parallel()
	needNamespaces(t)
	if testing.Short() {
		t.Skip("it makes many calls")
	}
	if os.Geteuid() != 0 {
		t.Skip("only root mounts an overlay")
	}
	seed, limit := uint64(1), 3*time.Second
	if s := os.Getenv("HOSTILE_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
	}
	if s := os.Getenv("HOSTILE_CPU"); s != "" {
		var err error
		if limit, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, 1)
	p := w.pod(t)
	tenant := &hostileTenant{rnd: rand.New(rand.NewPCG(seed, 0)), dir: t.TempDir(), pod: p}
	tenant.prepare(t)
	var used time.Duration
	calls, worked := 0, 0
	err := w.node.namespace.Enter(func() error {
		if err := tenant.mount(); err != nil {
			return err
		}
		links := tenant.links(t)
		empty := tenant.written(t)
		control := exec.Command("sh", "-c", "echo >/etc/roce-cni-control")
		control.SysProcAttr = &syscall.SysProcAttr{Chroot: tenant.at("root")}
		if out, err := control.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		before := tenant.written(t)
		if before == empty {
			t.Error("a file that a program has made was not seen")
		}
		for used < limit {
			input := tenant.configuration()
			for _, verb := range []string{"ADD", "CHECK", "STATUS", "GC", "DEL"} {
				cmd := tenant.call(verb, input)
				if cmd.Run() == nil && verb == "ADD" {
					worked++
				}
				used += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
				calls++
			}
			if got := tenant.written(t); got != before {
				t.Errorf("seed %d: %s\nhas written\n%s", seed, input, got)
				return nil
			}
			if got := tenant.links(t); got != links {
				t.Errorf("seed %d: %s\nhas changed the links of the node:\n%s\nbefore:\n%s", seed, input, got, links)
				return nil
			}
		}
		return nil
	})
	must(t, err)
	t.Logf("%d calls in %s of CPU time; %d ADDs succeeded", calls, used.Round(time.Second), worked)
	if worked == 0 && !t.Failed() {
		t.Error("no configuration was obeyed, so nothing was tried")
	}
}

// hostileTenant makes configurations, and calls the plugin with them.
type hostileTenant struct {
	rnd *rand.Rand
	dir string
	pod *pod
}

func (h *hostileTenant) at(name string) string { return filepath.Join(h.dir, name) }

// prepare makes a plugin with the settings of a node, and a volume that the tenant can
// write, with links in it.
func (h *hostileTenant) prepare(t *testing.T) {
	t.Helper()
	for _, name := range []string{"root", "allowed/state", "allowed/log", "allowed/table", "allowed/ipam", "over", "volume", "bin"} {
		must(t, os.MkdirAll(h.at(name), 0o755))
	}
	settings := fmt.Sprintf(`{"version": 1, "stateDir": %q, "log": {"file": %q}, "table": %q, "ipamPaths": [%q]}`,
		h.at("allowed/state"), h.at("allowed/log/roce.log"), h.at("allowed/table/rails.json"), h.at("allowed/ipam"))
	plugins := upstream(t)
	for _, name := range installed() {
		b, err := os.ReadFile(filepath.Join(plugins, name))
		if err == nil {
			err = os.WriteFile(h.at("bin/"+name), b, 0o755)
		}
		must(t, err)
	}
	// A plugin of others, which leases nothing.
	const other = "#!/bin/sh\nprintf '{\"code\": 999, \"msg\": \"no address\"}'; exit 1\n"
	err := errors.Join(
		os.WriteFile(h.at("bin/whereabouts"), []byte(other), 0o755),
		os.WriteFile(h.at("bin/node.json"), []byte(settings), 0o600),
		os.Symlink("/etc", h.at("volume/etc")), os.Symlink("/etc/passwd", h.at("volume/x.json")), os.Chmod(h.at("volume"), 0o777),
		os.WriteFile(h.at("allowed/table/rails.json"), []byte(`{"nodes": {}}`), 0o600),
	)
	must(t, err)
	cmd := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-X main.settingsFile="+h.at("bin/node.json"), "-o", h.at("bin/roce"), "./cmd/roce")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
}

// mount gives the thread an overlay of the machine, in which the allowed folders and
// what the kernel offers are the real ones. The thread ends with the test.
func (h *hostileTenant) mount() error {
	runtime.LockOSThread()
	root := h.at("root")
	bind := func(path string) error {
		if err := os.MkdirAll(root+path, 0o755); err != nil {
			return err
		}
		return unix.Mount(path, root+path, "", unix.MS_BIND|unix.MS_REC, "")
	}
	steps := []func() error{
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount("tmpfs", h.at("over"), "tmpfs", 0, "") },
		func() error {
			return errors.Join(os.Mkdir(h.at("over/upper"), 0o755), os.Mkdir(h.at("over/work"), 0o755))
		},
		func() error {
			return unix.Mount("overlay", root, "overlay", 0, "lowerdir=/,upperdir="+h.at("over/upper")+",workdir="+h.at("over/work"))
		},
		func() error { return bind("/proc") },
		func() error { return bind("/sys") },
		func() error { return bind("/dev") },
		func() error { return bind("/run/netns") },
		func() error { return bind(h.at("allowed")) },
		func() error { return bind(h.at("bin")) },
		func() error { return bind(h.at("volume")) },
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("step %d of the overlay: %w", i, err)
		}
	}
	return nil
}

// installed are the plugins beside roce that a tenant may name as IPAM plugin. Those that
// lease no addresses would change links of the node.
func installed() []string {
	return []string{"host-local", "static", "dhcp", "macvlan", "host-device", "tuning", "sbr", "bandwidth"}
}

// links lists the links of the node by index and name. Their states settle by themselves.
func (h *hostileTenant) links(t *testing.T) string {
	t.Helper()
	all, err := net.Interfaces()
	must(t, err)
	var names []string
	for _, l := range all {
		names = append(names, fmt.Sprintf("%d: %s", l.Index, l.Name))
	}
	return strings.Join(names, "\n")
}

// written lists what there is above the machine, and in the volume of the tenant.
func (h *hostileTenant) written(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range []string{h.at("over/upper"), h.at("volume")} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if path == h.at("over/upper/var/lib/cni") { // host-local without dataDir: no configuration names it
				return fs.SkipDir
			}
			info, err := e.Info()
			size := int64(0)
			if err == nil && !e.IsDir() {
				size = info.Size()
			}
			fmt.Fprintln(&b, path, e.Type(), size)
			return err
		})
		must(t, err)
	}
	return b.String()
}

// call returns a call of the plugin, in the overlay.
func (h *hostileTenant) call(verb, input string) *exec.Cmd {
	cmd := exec.Command(h.at("bin/roce"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: h.at("root")}
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(input)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=c1", "CNI_IFNAME=net1", "CNI_NETNS=" + h.pod.Path,
		"CNI_PATH=" + h.at("bin"), "CNI_ARGS=K8S_POD_NAMESPACE=team;K8S_POD_NAME=p",
	}
	if verb == "STATUS" || verb == "GC" {
		cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_PATH=" + h.at("bin")}
	}
	return cmd
}

// path returns a path that a tenant would like root to use. One in three is allowed.
func (h *hostileTenant) path(allowed string) string {
	parts := []string{
		"etc", "cron.d", "..", ".", "x", "passwd", "proc", "self", "root", "run", "roce", "var", "log", "pools", "attachments", "leases.db", "c1",
		"net1.json", "tmp", "opt", "cni", "bin", "`id`", "$(id)", "a b", "ü", "\x00", strings.Repeat("y", 300), "",
	}
	start := []string{"/", "", h.dir + "/volume/", h.dir + "/volume/etc/", allowed + "/", allowed + "/", allowed + "/../", allowed + "x/", "/proc/self/root" + allowed + "/", "/proc/self/fd/0"}
	if h.rnd.IntN(3) == 0 {
		return allowed + []string{"", "/a", "/a/b"}[h.rnd.IntN(3)]
	}
	path := start[h.rnd.IntN(len(start))]
	for range h.rnd.IntN(5) {
		path += parts[h.rnd.IntN(len(parts))] + "/"
	}
	if h.rnd.IntN(2) == 0 {
		path = strings.TrimSuffix(path, "/")
	}
	return path
}

// another makes a configuration lease from another plugin, with the paths that such
// plugins use.
func (h *hostileTenant) another(c, ipam map[string]any) {
	ipam["type"] = append(installed(), "whereabouts", "sh", "../bin/roce", "host-local\x00", "")[h.rnd.IntN(len(installed())+5)]
	ipam["ranges"] = []any{[]any{map[string]any{"subnet": "172.16.10.0/24"}}}
	ipam["addresses"] = []any{map[string]any{"address": "172.16.10.77/24"}}
	c["mode"], c["device"], c["pciBusID"] = "bridge", "rail0", "0000:00:1f.0"
	if h.rnd.IntN(2) == 0 {
		delete(c, "device")
		delete(c, "pciBusID")
	}
	for _, key := range []string{"dataDir", "DATADIR", "resolvConf", "daemonSocketPath", "log_file", "configuration_path", "anything"} {
		if h.rnd.IntN(8) == 0 {
			ipam[key] = h.path(h.at("allowed/ipam"))
		}
	}
	if h.rnd.IntN(8) == 0 {
		ipam["kubernetes"] = map[string]any{"kubeconfig": h.path(h.at("allowed/ipam"))}
	}
	if h.rnd.IntN(4) == 0 {
		delete(ipam, "subnets")
	}
}

// configuration returns a configuration that is correct but for what it asks for.
func (h *hostileTenant) configuration() string {
	name := func(usual string) string {
		if h.rnd.IntN(4) > 0 {
			return usual
		}
		return []string{"..", "../../x", "a/b", "", ".", "*", "rail:x", strings.Repeat("n", 70000), "$(id)", "x\x00y", "leases"}[h.rnd.IntN(11)]
	}
	ipam := map[string]any{"type": name("roce-ipam"), "subnets": []any{map[string]any{"subnet": "172.16.10.0/24"}}}
	c := map[string]any{
		"cniVersion": "1.1.0", "name": name("tenant"), "type": "roce", "master": "rail0", "rdma": "off", "ipam": ipam,
		"cni.dev/valid-attachments": []any{},
		"probe":                     map[string]any{"conflict": "off", "gateway": "off"},
	}
	changes := map[string]func(){
		"stateDir": func() { c["stateDir"] = h.path(h.at("allowed/state")) },
		"log":      func() { c["log"] = map[string]any{"file": h.path(h.at("allowed/log")), "level": "debug"} },
		"table": func() {
			delete(ipam, "subnets")
			ipam["table"] = []any{true, h.path(h.at("allowed/table"))}[h.rnd.IntN(2)]
		},
		"device": func() {
			c["runtimeConfig"] = map[string]any{"CNIDeviceInfoFile": h.path("/run/k8s.cni.cncf.io/devinfo/x")}
		},
		"pool":     func() { ipam["pool"] = name("tenant") },
		"railPool": func() { delete(ipam, "subnets"); ipam["railPool"] = name("compute") },
		"another":  func() { h.another(c, ipam) },
		"big":      func() { c["note"] = strings.Repeat("z", h.rnd.IntN(300_000)) },
	}
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		if h.rnd.IntN(6) == 0 {
			changes[key]()
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return string(b)
}
