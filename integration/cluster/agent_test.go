// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	confpool "github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
	"github.com/roce-cni/roce-cni/pkg/plugin/ipam"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// rocectl is what make build has built.
const rocectl = "../../bin/rocectl"

// pooled returns a control plane to break, with all of conf-examples/deploy and a
// pool of 64 blocks.
func pooled(t *testing.T) *ground.Cluster {
	t.Helper()
	need(t, "../../../bin/rocectl")
	c := own(t)
	deploy(t, c)
	must(t, write(t, c, http.MethodPost, "RailPool", "compute", "spec: {template: {count: 2, subnets: [{subnet: '10.{rail}.0.0/22'}]}}"))
	mark(t, c, "compute")
	return c
}

// mark does what the reaper does where none runs: blocks of the pool may be claimed.
func mark(t *testing.T, c *ground.Cluster, pool string) {
	t.Helper()
	all, err := api(t, c.Admin()).Pools(t.Context())
	must(t, err)
	i := slices.IndexFunc(all, func(p kube.RailPool) bool { return p.Name == pool })
	must(t, api(t, c.Admin()).Mark(t.Context(), all[i]))
}

// program is a rocectl that runs.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	log string
}

// runs starts rocectl with the rights of an account of conf-examples/deploy, as a
// pod on a node has them.
func runs(t *testing.T, kubeconfig string, args ...string) *program {
	t.Helper()
	p := &program{t: t, log: filepath.Join(t.TempDir(), "log")}
	out, err := os.Create(p.log)
	must(t, err)
	defer out.Close()
	p.run(out, exec.Command(rocectl, append(args, "--kubeconfig", kubeconfig)...))
	return p
}

// run starts a command that is rocectl, or becomes it.
func (p *program) run(out *os.File, cmd *exec.Cmd) {
	t := p.t
	t.Helper()
	p.cmd = cmd
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	must(t, p.cmd.Start())
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			p.kill()
		}
		if t.Failed() {
			text, _ := os.ReadFile(p.log)
			t.Logf("%s\n%s", strings.Join(cmd.Args, " "), text)
		}
	})
}

// kill ends it as a machine's failure does.
func (p *program) kill() {
	p.t.Helper()
	must(p.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // it was killed
}

// end ends it as kubelet does.
func (p *program) end() {
	p.t.Helper()
	must(p.t, p.cmd.Process.Signal(unix.SIGTERM))
	began := time.Now()
	if err := p.cmd.Wait(); err != nil || time.Since(began) > time.Minute {
		p.t.Errorf("it ended after %v: %v", time.Since(began), err)
	}
}

// logs waits until it has logged something.
func (p *program) logs(text string) {
	p.t.Helper()
	eventually(p.t, "log "+text, func(context.Context) error {
		got, err := os.ReadFile(p.log)
		if err == nil && !strings.Contains(string(got), text) {
			err = errors.New("not yet")
		}
		return err
	})
}

// machine is a node with an agent.
type machine struct {
	*ground.Cluster
	t          *testing.T
	name       string
	host       string // its root
	state      string
	kubeconfig string
	address    string
	agent      *program
}

// account returns a kubeconfig of an account's token on a node.
func account(t *testing.T, c *ground.Cluster, name, on string) string {
	t.Helper()
	token, err := ground.AgentToken(t.Context(), client(t, c.Admin()), "roce-cni", name, on)
	must(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, c.WriteKubeconfig(path, token))
	return path
}

// joins makes a node on which no agent runs yet.
func joins(t *testing.T, c *ground.Cluster, name string) *machine {
	t.Helper()
	node(t, client(t, c.Admin()), name)
	m := &machine{Cluster: c, t: t, name: name, host: t.TempDir(), state: t.TempDir(), kubeconfig: account(t, c, "roce-cni-agent", name)}
	must(t, os.MkdirAll(filepath.Join(m.host, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(m.host, "etc/machine-id"), []byte(ground.MachineID(name)+"\n"), 0o644))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	m.address = l.Addr().String()
	must(t, l.Close())
	return m
}

func (m *machine) start() {
	m.t.Helper()
	m.agent = runs(m.t, m.kubeconfig, m.args()...)
}

func (m *machine) args() []string {
	return []string{"agent", "--node", m.name, "--host-root", m.host, "--state-dir", m.state, "--listen", m.address}
}

// get asks the agent over HTTP.
func (m *machine) get(ctx context.Context, path string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.address+path, nil)
	if err != nil {
		return 0, "", err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}

// healthy waits until the agent says that pods get addresses.
func (m *machine) healthy() {
	m.t.Helper()
	eventually(m.t, m.name+" is healthy", func(ctx context.Context) error {
		code, body, err := m.get(ctx, "/healthz")
		if err == nil && code != http.StatusOK {
			err = errors.New(body)
		}
		return err
	})
}

// counts waits until /metrics has a line.
func (m *machine) counts(line string) {
	m.t.Helper()
	eventually(m.t, line, func(ctx context.Context) error {
		_, body, err := m.get(ctx, "/metrics")
		if err == nil && !strings.Contains(body, line+"\n") {
			err = errors.New(body)
		}
		return err
	})
}

func (m *machine) boot() string {
	m.t.Helper()
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	must(m.t, err)
	return strings.TrimSpace(string(id))
}

func (m *machine) files() nodefile.Store { return nodefile.Store{Dir: m.state, BootID: m.boot()} }

func (m *machine) file(pool string) (nodefile.File, error) { return m.files().Read(pool) }

func (m *machine) book() *ipam.Book {
	return ipam.New(ipam.Config{
		Dir: m.state, BootID: m.boot(), Observe: everyNetnsLives,
		Now: func() time.Duration {
			var ts unix.Timespec
			must(m.t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts))
			return time.Duration(ts.Nano())
		},
	})
}

// lease leases addresses to that many containers, as the plugins do.
func (m *machine) lease(pool string, first, last int) {
	m.t.Helper()
	f, err := m.file(pool)
	must(m.t, err)
	for i := first; i <= last; i++ {
		m.leaseOf(f, ipam.Owner{Network: "net", ContainerID: fmt.Sprintf("c%d", i), IfName: "net1"})
	}
}

// leaseOf leases an address of each rail of a file.
func (m *machine) leaseOf(f nodefile.File, owner ipam.Owner) {
	m.t.Helper()
	ask := ipam.Ask{Pool: confpool.OfRailPool(f.Pool), Quarantine: f.Quarantine, Owner: owner}
	for _, subnets := range f.Subnets() {
		for _, s := range subnets {
			ask.Subnets = append(ask.Subnets, ipam.Subnet{Prefix: s.Prefix, Ranges: s.Ranges, Exclude: s.Exclude, Group: 1})
		}
	}
	_, err := m.book().Acquire(m.t.Context(), ask)
	must(m.t, err)
}

// owned returns the blocks that the API server says are a node's.
func owned(t *testing.T, c *ground.Cluster, node string) []block.Block {
	t.Helper()
	all, err := api(t, c.Admin()).Blocks().List(t.Context(), block.Query{})
	must(t, err)
	var out []block.Block
	for _, b := range all {
		if b.Spec.NodeName == node {
			out = append(out, b)
		}
	}
	return out
}

// eventuallyOwns waits until a node has so many blocks, and its file too.
func (m *machine) eventuallyOwns(pool string, blocks int) {
	m.t.Helper()
	eventually(m.t, fmt.Sprintf("%s has %d blocks", m.name, blocks), func(context.Context) error {
		f, err := m.file(pool)
		if err != nil {
			return err
		}
		s := space(m.t, pool, 64)
		if n := len(s.Recorded(block.Node{Name: m.name}, f.Rails)); n != blocks {
			return fmt.Errorf("the file has %d", n)
		}
		if n := len(owned(m.t, m.Cluster, m.name)); n != blocks {
			return fmt.Errorf("the API server knows of %d", n)
		}
		return nil
	})
}

// TestTheAgentOnARealServer is the life of one agent: start, kill -9, a server
// that is away while pods come, a restored etcd, and the end.
func TestTheAgentOnARealServer(t *testing.T) {
	t.Parallel()
	c := pooled(t)
	m := joins(t, c, "n1")
	m.start()
	m.healthy()
	m.eventuallyOwns("compute", 1)
	m.counts(`roce_cni_block_claims_total{pool="compute"} 1`)
	first := owned(t, c, "n1")[0]
	m.counts(`roce_cni_block_size{block="` + first.Name + `",pool="compute"} 16`)

	m.agent.kill()
	m.start()
	m.healthy()
	m.eventuallyOwns("compute", 1)
	m.counts(`roce_cni_block_asserts_total{pool="compute"} 1`)

	backup := filepath.Join(t.TempDir(), "backup")
	must(t, c.Save(t.Context(), backup))
	must(t, c.KillServer())
	m.lease("compute", 1, 14)
	m.counts(`roce_cni_block_used{block="` + first.Name + `",pool="compute"} 14`)
	m.healthy()
	must(t, c.StartServer(t.Context()))
	m.eventuallyOwns("compute", 2)
	eventually(t, "usage is reported", func(ctx context.Context) error {
		not := errors.New("not yet")
		err := api(t, c.Admin()).EachBlock(ctx, block.Query{Pool: "compute", Freshness: block.Latest}, func(b *kube.RailBlock) {
			if b.Name == first.Name && b.Status.Used == 14 {
				not = nil
			}
		})
		return errors.Join(err, not)
	})

	m.agent.kill()
	must(t, c.Restore(t.Context(), backup)) // it knows of one block
	if n := len(owned(t, c, "n1")); n != 1 {
		t.Fatalf("the backup has %d blocks", n)
	}
	m.start()
	m.eventuallyOwns("compute", 2)
	m.healthy()
	m.agent.end()
	if _, err := m.file("compute"); err != nil {
		t.Errorf("the file went with the agent: %v", err)
	}
}

// TestTheReaperOnARealServer is one election, and what it says of pools and of a
// node that is gone.
func TestTheReaperOnARealServer(t *testing.T) {
	t.Parallel()
	c := pooled(t)
	m := joins(t, c, "n1")
	node(t, client(t, c.Admin()), "n2")
	m.start()
	m.eventuallyOwns("compute", 1)

	as := account(t, c, "roce-cni-gc", "n2")
	leader := runs(t, as, "gc", "--cluster", "--interval", "1s")
	leader.logs("this process is elected")
	next := runs(t, as, "gc", "--cluster", "--interval", "1s")
	next.logs("another process is the leader")
	eventually(t, "the pool is summed up", func(ctx context.Context) error {
		pools, err := api(t, c.Admin()).Pools(ctx)
		if err == nil && (pools[0].Status.Claimed != 1 || pools[0].Status.Blocks != 64 || len(pools[0].Status.Conditions) != 2) {
			err = fmt.Errorf("%+v", pools[0].Status)
		}
		return err
	})
	leader.end() // and gives the Lease back
	next.logs("this process is elected")
	next.kill() // and its term must end
	runs(t, as, "gc", "--cluster", "--interval", "1s").logs("this process is elected")

	m.agent.end()
	must(t, client(t, c.Admin()).CoreV1().Nodes().Delete(t.Context(), "n1", meta.DeleteOptions{}))
	out, err := exec.CommandContext(t.Context(), rocectl, "gc", "--cluster", "--once", "--kubeconfig", as).CombinedOutput()
	must(t, err)
	for _, want := range []string{owned(t, c, "n1")[0].Name, "n1", "gone", "no pod is bound to the node"} { // the agent's own is
		if !strings.Contains(string(out), want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
}

// everyNetnsLives is an observation of a node on which no namespace ends.
func everyNetnsLives() func(netns.Ref) (bool, error) {
	return func(netns.Ref) (bool, error) { return true, nil }
}
