// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package cluster tests what the project does with Kubernetes on the real etcd
// and kube-apiserver, which it kills, restores and cuts off.
//
// make test-cluster runs it. Tests that break nothing share a control plane;
// the others have one of their own. Read ground/ground.go first for what there is
// to break, then this file.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky"
)

// bin is where build.sh puts the programs.
const bin = "../../.cache/cluster/bin"

// common is the control plane that tests share, which TestMain ends.
var common = struct {
	sync.Mutex
	cluster *ground.Cluster
	dir     string
}{}

func TestMain(m *testing.M) {
	var err error
	if common.dir, err = os.MkdirTemp("", "roce-cni-cluster"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if common.cluster != nil {
		if err := common.cluster.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	if err := os.RemoveAll(common.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// need skips the test if no cluster was requested: beside other tests it would take
// the processors that those are timed on.
func need(t testing.TB, programs ...string) {
	t.Helper()
	if os.Getenv("REQUIRE_CLUSTER") == "" {
		t.Skip("starts a cluster only with REQUIRE_CLUSTER=1, as make test-cluster sets it")
	}
	if missing := ground.Missing(bin, programs...); len(missing) > 0 {
		t.Fatalf("there is no %v: make test-cluster builds them", missing)
	}
}

// shared returns the control plane for tests that break nothing. Objects in it
// have names that no other test uses.
func shared(t testing.TB) *ground.Cluster {
	t.Helper()
	need(t, "etcd", "kube-apiserver")
	common.Lock()
	defer common.Unlock()
	if common.cluster == nil {
		common.cluster = started(t, common.dir)
		withCRDs(t, common.cluster)
	}
	return common.cluster
}

// own returns a control plane to break, with more flags of the API server.
func own(t testing.TB, flags ...string) *ground.Cluster {
	t.Helper()
	need(t, "etcd", "kube-apiserver")
	c := started(t, t.TempDir(), flags...)
	t.Cleanup(func() { must(t, c.Stop()) })
	return c
}

func started(t testing.TB, dir string, flags ...string) *ground.Cluster {
	t.Helper()
	from, err := filepath.Abs(bin)
	must(t, err)
	c, err := ground.Start(context.Background(), ground.Options{Bin: from, Dir: dir, Flags: flags})
	must(t, err)
	return c
}

// withCRDs makes the API server know our objects.
func withCRDs(t testing.TB, c *ground.Cluster) *ground.Cluster {
	t.Helper()
	for _, path := range kustomized(t, deployment+"/crds") {
		applyFile(t, c, path)
	}
	eventually(t, "lists of our objects", func(ctx context.Context) error {
		_, pools := api(t, c.Admin()).Pools(ctx)
		_, blocks := api(t, c.Admin()).Blocks().List(ctx, block.Query{})
		_, leases := api(t, c.Admin()).Leases().List(ctx, sticky.Query{})
		_, nodes := api(t, c.Admin()).RailNodes(ctx)
		return errors.Join(pools, blocks, leases, nodes)
	})
	return c
}

// kubectl runs it with all rights, and returns what it prints.
func kubectl(t testing.TB, c *ground.Cluster, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t, c, "", args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// tryKubectl runs it with a standard input, and returns what it prints.
func tryKubectl(t testing.TB, c *ground.Cluster, input string, args ...string) (string, error) {
	t.Helper()
	need(t, "kubectl")
	as := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, c.WriteKubeconfig(as, c.Admin().BearerToken))
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), append([]string{"--kubeconfig=" + as, "--cache-dir=" + t.TempDir()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func client(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	must(t, err)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
