// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package road pastes the quick start of README.md, as a new user does, into a cluster
// of two virtual machines with Soft-RoCE.
//
// The control plane (with its controllers), a registry and a name server run on this
// machine. kubelet, containerd, Multus and the RDMA device plugin run in the machines.
// testdata/node.sh says what a node has before the first command, and what there is
// in place of hardware. make test-road runs the test, in namespaces of its own. Read
// this file first.
package road

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/integration/vm"
)

const (
	repository = "../.."
	bin        = "../../.cache/cluster/bin"
	kernels    = "../../.cache/vm"
	nodes      = 2
	rails      = 2
)

// service is the API server's address for pods, and the only address of this machine
// that the virtual machines reach: the registry and the name server have it too.
var service = netip.MustParseAddrPort("10.96.0.1:443")

const registry = "10.96.0.1:5000"

// patience is for what machines without a processor of their own do.
const patience = 30 * time.Minute

// road is the cluster, and a copy of the repository to paste commands in.
type road struct {
	*ground.Cluster
	admin      kubernetes.Interface
	dir        string // keys, logs, and the kubeconfig files
	repository string
}

// TestTheQuickStart goes from nodes without RDMA in pods to ib_write_bw between two
// pods. Then it forgets parts of the pod, and expects to be told which.
func TestTheQuickStart(t *testing.T) {
	if os.Getenv("REQUIRE_ROAD") == "" {
		t.Skip("boots a cluster of virtual machines only with REQUIRE_ROAD=1, as make test-road sets it")
	}
	r := begin(t)
	r.images(t)
	r.boot(t)
	began := time.Now()
	r.copy(t)
	commands := quickStart(t)
	wait := len(commands) - 1
	for _, c := range commands[:wait] {
		t.Log(c)
		shell(t, r.repository, commands[0]+"\n"+c)
		if strings.Contains(c, "rails.yaml") && strings.Contains(c, "generate") {
			r.edit(t)
		}
	}
	out := r.result(t, commands[wait])
	t.Logf("the quick start took %v:\n%s", time.Since(began).Round(time.Second), out)
	if got := len(bandwidth.FindAllString(out, -1)); got != rails {
		t.Errorf("the output has the bandwidth of %d rails, want %d", got, rails)
	}
	r.look(t)
	r.forget(t, "without the resource", `/limits: {rdma\/rails: 1}/d; s/^          resources:$//`, "roce-env[103] open RDMA device")
	r.forget(t, "without IPC_LOCK", `s/add: \["IPC_LOCK"\]/drop: ["IPC_LOCK"]/`, `roce-env[4] check limit of "locked memory"`)
}

// bandwidth is a rail in the summary of perftest-rails: alone, and at once with the others.
var bandwidth = regexp.MustCompile(`(?m)^net\d +rxe\d +\d+\.\d+ +\d+\.\d+$`)

// begin starts what runs on this machine.
func begin(t *testing.T) *road {
	t.Helper()
	run(t, "ip", "link", "set", "dev", "lo", "up")
	addresses := []string{service.Addr().String()}
	names := make([]string, nodes)
	for n := range nodes {
		names[n] = fmt.Sprintf("node%d", n)
		addresses = append(addresses, kubelet(n).Addr().String())
	}
	for _, a := range addresses {
		run(t, "ip", "addr", "add", a+"/32", "dev", "lo")
	}
	for n := range nodes { // what comes from an address of the node itself, the node drops
		run(t, "ip", "route", "replace", "local", kubelet(n).Addr().String(), "dev", "lo", "table", "local", "scope", "host", "src", service.Addr().String())
	}
	programs, err := filepath.Abs(bin)
	must(t, err)
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	r := &road{dir: t.TempDir()}
	r.Cluster, err = ground.Start(t.Context(), ground.Options{Bin: programs, Dir: r.dir, Nodes: names, Listen: service, Controllers: true})
	must(t, err)
	t.Cleanup(func() { must(t, r.Stop()) })
	r.admin, err = kubernetes.NewForConfig(r.Admin())
	must(t, err)
	must(t, r.WriteKubeconfig(r.dir+"/admin.conf", r.Admin().BearerToken))
	for _, name := range names {
		must(t, r.WriteKubeconfig(r.dir+"/"+name+".conf", ground.KubeletToken(name)))
	}
	t.Setenv("KUBECONFIG", r.dir+"/admin.conf")
	run(t, "kubectl", "apply", "-f", "../cluster/e2e/testdata/network-attachment-definition.yaml")
	r.answerNames(t)
	return r
}

// kubelet is where this machine passes connections on to a node's kubelet: the address
// of the node in the cluster.
func kubelet(node int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(node + 1)}), 10250)
}

// images starts the registry, and pushes the images that do not come from the quick
// start.
func (r *road) images(t *testing.T) {
	t.Helper()
	for name, text := range map[string]string{
		"registry.yml":    "version: 0.1\nstorage: {filesystem: {rootdirectory: " + r.dir + "/registry}}\nhttp: {addr: " + registry + "}\n",
		"registries.conf": "[[registry]]\nlocation = \"" + registry + "\"\ninsecure = true\n",
		"storage.conf":    "[storage]\ndriver = \"vfs\"\nrunroot = \"" + r.dir + "/run\"\ngraphroot = \"" + r.dir + "/storage\"\n",
		"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
	} {
		must(t, os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o600))
	}
	t.Setenv("CONTAINERS_REGISTRIES_CONF", r.dir+"/registries.conf")
	t.Setenv("CONTAINERS_STORAGE_CONF", r.dir+"/storage.conf")
	t.Setenv("IMAGE_TOOL", "buildah") // for the Makefile
	t.Setenv("TOOLS_BASE", registry+"/library/debian:12-slim")
	t.Setenv("BUILDAH_ISOLATION", "chroot")
	p, err := ground.StartProcess(t.Context(), r.dir+"/registry.log", exec.Command("docker-registry", "serve", r.dir+"/registry.yml"),
		func(ctx context.Context) error {
			return exec.CommandContext(ctx, "bash", "-c", "exec 3<>/dev/tcp/"+strings.Replace(registry, ":", "/", 1)).Run()
		})
	must(t, err)
	t.Cleanup(func() { must(t, p.Kill()) })
	t.Logf("%s", run(t, "bash", "testdata/images.sh", registry, bin))
}

// boot boots the nodes, and waits until they are ready.
func (r *road) boot(t *testing.T) {
	t.Helper()
	kernel, err := vm.Fetch(t.Context(), kernels, "7", os.Stderr)
	must(t, err)
	here, err := os.Getwd()
	must(t, err)
	programs, err := filepath.Abs(bin)
	must(t, err)
	wires := []*vm.Wire{new(vm.Wire), new(vm.Wire)}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	outputs := make([]bytes.Buffer, nodes)
	t.Cleanup(func() {
		stop()
		all.Wait()
		for n := range outputs {
			t.Logf("node%d:\n%s", n, &outputs[n])
		}
	})
	for n := range nodes {
		m := vm.Machine{Node: n, Rails: wires, Reach: service.Addr(), Serve: kubelet(n), Memory: 3072, Files: []string{here, filepath.Dir(programs), r.dir}, Dir: here, Output: &outputs[n]}
		all.Go(func() {
			if _, err := kernel.Run(ctx, m, "bash", "testdata/node.sh", r.dir, programs, registry); ctx.Err() == nil {
				t.Errorf("node%d has ended: %v", n, err)
			}
		})
	}
	began := time.Now()
	r.await(t, "the nodes are ready", func() error {
		out, err := exec.CommandContext(t.Context(), "kubectl", "wait", "--for=condition=Ready", "--timeout=10s", "node/node0", "node/node1").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	t.Logf("the nodes are ready after %v", time.Since(began).Round(time.Second))
}

// quickStart returns the commands of README.md, with the registry in the first, which sets
// the image. The last waits for the result and prints it.
func quickStart(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "README.md"))
	must(t, err)
	_, after, found := strings.Cut(string(text), "\n## Quick start\n")
	_, after, _ = strings.Cut(after, "```bash\n")
	block, _, ended := strings.Cut(after, "```")
	commands := strings.Split(strings.TrimSpace(strings.Replace(block, "registry.example.org", registry, 1)), "\n")
	if !found || !ended || len(commands) > 6 || !strings.HasPrefix(commands[0], "export IMAGE=") {
		t.Fatalf("README.md has no quick start of an image and at most five commands:\n%s", block)
	}
	return commands
}

// copy makes a copy of the repository.
func (r *road) copy(t *testing.T) {
	t.Helper()
	r.repository = filepath.Join(t.TempDir(), "roce-cni")
	must(t, os.Mkdir(r.repository, 0o755))
	shell(t, repository, "git ls-files -co --exclude-standard -z | tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory "+r.repository)
}

// edits are what a reader of rails.yaml changes here: all NICs of these machines are of one
// type, and the nodes have the first addresses of the subnets.
var edits = []struct{ from, to string }{
	{`"match": \{[^}]*\}`, `"match": {"ifNames": ["r0", "r1"]}`},
	{`"selectors": \{[^}]*\}`, `"selectors": {"ifNames": ["r0", "r1"]}`},
	{`( +)(- )?(subnet: 10\.\{rail\+1\}\.0\.0/16)`, "$1$2$3\n${1}  ranges: [\"10.{rail+1}.64.0/18\"]"},
}

// edit changes what generate has written.
func (r *road) edit(t *testing.T) {
	t.Helper()
	path := filepath.Join(r.repository, "rails.yaml")
	text, err := os.ReadFile(path)
	must(t, err)
	t.Logf("rails.yaml:\n%s", text)
	for _, e := range edits {
		from := regexp.MustCompile(e.from)
		if !from.Match(text) {
			t.Fatalf("rails.yaml has no %s", e.from)
		}
		text = from.ReplaceAll(text, []byte(e.to))
	}
	must(t, os.WriteFile(path, text, 0o600))
}

// result runs a command that waits and prints, and returns what it prints. It is run
// again when the API server gives up on a slow node (TLS handshake timeout).
func (r *road) result(t *testing.T, command string) string {
	t.Helper()
	var out string
	r.await(t, command, func() (err error) {
		if out, err = bash(t, r.repository, command); err != nil {
			return fmt.Errorf("%w\n%s\n%s", err, out, state(t))
		}
		return nil
	})
	return out
}

// look runs rocectl gids on the node of a pod by kubectl alone, as an operator without a
// login on the nodes does. The images are those of images.sh, which have no digest.
func (r *road) look(t *testing.T) {
	t.Helper()
	shell(t, r.repository, `kubectl kustomize conf-examples/deploy/tools | sed 's|pause:3.10@sha256:[0-9a-f]*|pause:road|' | kubectl apply -f -`)
	run(t, "kubectl", "apply", "-f", "testdata/pod.yaml")
	out := r.result(t, `kubectl wait --for=condition=Ready --timeout=10m pod/looked-at pod/neighbour >/dev/null
		kubectl -n roce-cni rollout status daemonset/roce-cni-tools --timeout=10m >/dev/null
		node=$(kubectl get pod looked-at -o jsonpath='{.spec.nodeName}')
		tools=$(kubectl -n roce-cni get pods -l app.kubernetes.io/component=tools --field-selector=spec.nodeName=$node -o name)
		kubectl -n roce-cni exec $tools -- /opt/cni/bin/rocectl gids`)
	for rail := range rails {
		if !regexp.MustCompile(fmt.Sprintf(`(?m) 10\.%d\.\S+ .*default/looked-at`, rail+1)).MatchString(out) {
			t.Errorf("rocectl gids in the pod of the tools does not have rail %d of the pod:\n%s", rail, out)
		}
	}
	t.Logf("rocectl gids in the pod of the tools:\n%s", out)
	r.borrow(t, out)
	run(t, "kubectl", "delete", "--timeout=10m", "-f", "testdata/pod.yaml")
}

// borrow has the other pod of the node use its own GID, and that of the first pod, by the
// indexes in the list of rocectl gids. The healer's container counts the queue pairs, and
// tells of the foreign GID.
func (r *road) borrow(t *testing.T, gids string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var programs sync.WaitGroup
	defer programs.Wait()
	defer stop()
	for i, of := range []string{"neighbour", "looked-at"} {
		line := regexp.MustCompile(`(?m)^(\S+) +1 +(\d+) +\S+ +10\.1\.\S+ .*default/` + of).FindStringSubmatch(gids)
		if line == nil {
			t.Fatalf("no index of %s in\n%s", of, gids)
		}
		use := fmt.Sprintf("/usr/bin/ib_write_bw.real -d %s -x %s -p %d -D 600", line[1], line[2], 7001+i)
		programs.Go(func() {
			out, _ := exec.CommandContext(ctx, "kubectl", "exec", "neighbour", "--", "sh", "-c", use+" & sleep 5; "+use+" 127.0.0.1").CombinedOutput()
			t.Logf("the program with the GID of %s:\n%s", of, out)
		})
	}
	for what, command := range map[string]string{
		"an Event":   `kubectl get events --field-selector reason=ForeignGID,involvedObject.name=neighbour | grep default/looked-at`,
		"the counts": `kubectl -n roce-cni exec $(kubectl -n roce-cni get pods -l app.kubernetes.io/component=tools --field-selector=spec.nodeName=$(kubectl get pod neighbour -o jsonpath='{.spec.nodeName}') -o name) -- /bin/sh -c 'read -r line </run/roce/counts; echo "$line"' | grep '"pod":"neighbour","queuePairs":{"RC":'`,
	} {
		t.Logf("%s: %s", what, r.result(t, command))
	}
}

// forget runs the client of the test again with its file changed, and looks for what
// it is told.
func (r *road) forget(t *testing.T, what, edit, want string) {
	t.Helper()
	const file = "conf-examples/deploy/rdma/perftest.yaml"
	image := strings.TrimPrefix(quickStart(t)[0], "export IMAGE=")
	shell(t, r.repository, "kubectl delete --wait --timeout=10m -f "+file)
	shell(t, r.repository, fmt.Sprintf("sed 's|registry.example.org/roce-cni:devel|%s|; %s' %s | kubectl apply -f -", image, strings.ReplaceAll(edit, "'", `'\''`), file))
	out := r.result(t, "kubectl wait --for=condition=failed --timeout=15m job/perftest-client && kubectl logs job/perftest-client")
	if !strings.Contains(out, want) {
		t.Errorf("%s: want %q in\n%s\n%s", what, want, out, state(t))
		return
	}
	t.Logf("%s:\n%s", what, out)
}

// state is what an operator would look at.
func state(t *testing.T) string {
	t.Helper()
	out, _ := bash(t, ".", `kubectl get pods,ds,jobs -A -o wide; kubectl get nodes -o yaml | grep -A12 allocatable; kubectl get railpools,railblocks
		kubectl get events -A --sort-by=.lastTimestamp | tail -n 60
		kubectl -n roce-cni logs ds/roce-cni-agent --tail=20; kubectl -n roce-cni logs ds/rdma-shared-device-plugin --tail=20
		kubectl logs job/perftest-server --all-containers; kubectl logs job/perftest-client --all-containers`)
	return out
}

func (r *road) await(t *testing.T, what string, do func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := do()
		if err == nil {
			return
		}
		if ctx.Err() != nil || t.Failed() {
			t.Fatalf("%s: %v", what, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// bash runs commands in a folder, until one fails, and returns what they print.
func bash(t *testing.T, dir, commands string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func shell(t *testing.T, dir, commands string) {
	t.Helper()
	if out, err := bash(t, dir, commands); err != nil {
		t.Fatalf("%s: %v\n%s", commands, err, out)
	}
}

// run runs a command and returns what it prints.
func run(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
	}
	return string(out)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
