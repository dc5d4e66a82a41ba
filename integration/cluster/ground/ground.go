// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package ground is a cluster for destructive tests: a real etcd and a real
// kube-apiserver as children of this process, with a proxy in front that loses
// answers.
//
// It has no nodes, and unless it is told otherwise no scheduler and no controllers:
// tests create Node and Pod objects.
// It never touches another cluster, listens on the loopback unless it is told
// otherwise, and its processes end with this one. integration/cluster and
// integration/scale use it; build.sh there builds its programs. Read this file first,
// then proxy.go.
package ground

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

// Options say what to start and where.
type Options struct {
	// Bin has the programs etcd and kube-apiserver.
	Bin string
	// Dir is an empty folder for keys, data and logs. It is the caller's to
	// remove.
	Dir string
	// Nodes are the names of the nodes with a kubelet that gets a token. There may be
	// more nodes without a kubelet.
	Nodes []string
	// Listen is where the API server listens; the zero value is a free port of
	// 127.0.0.1.
	Listen netip.AddrPort
	// Controllers starts kube-controller-manager and kube-scheduler too, so that Jobs,
	// DaemonSets and service accounts work. Bin has these programs as well, and both
	// listen on their usual ports: only one such cluster runs in a network namespace.
	Controllers bool
	// Flags are more flags of the API server.
	Flags []string
}

// Missing returns the programs that are not in a folder.
func Missing(bin string, programs ...string) []string {
	var out []string
	for _, p := range programs {
		if _, err := exec.LookPath(filepath.Join(bin, p)); err != nil {
			out = append(out, p)
		}
	}
	return out
}

// startTime is how long etcd and the API server may take to be ready.
const startTime = 90 * time.Second

// Cluster is the control plane. Its methods are for one goroutine.
type Cluster struct {
	o            Options
	etcdPort     uint16
	peerPort     uint16
	etcd, server *Process
	controllers  []*Process
}

// Start starts etcd and the API server, and waits until they are ready. The
// context is for the start alone: Stop ends them.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{o: o}
	for _, port := range []*uint16{&c.etcdPort, &c.peerPort} {
		var err error
		if *port, err = freePort(); err != nil {
			return nil, err
		}
	}
	if !o.Listen.IsValid() {
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		c.o.Listen = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	if err := c.writeKeys(); err != nil {
		return nil, err
	}
	err := c.StartEtcd(ctx)
	if err == nil {
		err = c.StartServer(ctx)
	}
	if err == nil && o.Controllers {
		err = c.startControllers(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

// Stop ends everything at once.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range c.controllers {
		errs = append(errs, p.Kill())
	}
	return errors.Join(append(errs, c.KillServer(), c.KillEtcd())...)
}

// KillServer ends the API server with SIGKILL, as a machine's failure does.
func (c *Cluster) KillServer() error { return c.server.Kill() }

// KillEtcd ends etcd with SIGKILL.
func (c *Cluster) KillEtcd() error { return c.etcd.Kill() }

// StartEtcd starts etcd with the data that it had.
func (c *Cluster) StartEtcd(ctx context.Context) (err error) {
	c.etcd, err = StartProcess(ctx, c.path("etcd.log"), c.etcdCommand(), c.etcdReady)
	return err
}

// StartServer starts the API server at the address that it had.
func (c *Cluster) StartServer(ctx context.Context) (err error) {
	c.server, err = StartProcess(ctx, c.path("kube-apiserver.log"), c.serverCommand(), c.serverReady)
	return err
}

// Save writes a backup of etcd's data to a new folder. etcd is stopped for the
// while: the API server stays, and what it is asked for in between fails.
func (c *Cluster) Save(ctx context.Context, to string) error {
	if err := c.KillEtcd(); err != nil {
		return err
	}
	return errors.Join(os.CopyFS(to, os.DirFS(c.path("data"))), c.StartEtcd(ctx))
}

// Restore brings back a backup as an operator does: nothing runs in between.
// Objects get resource versions once more that others have had.
func (c *Cluster) Restore(ctx context.Context, from string) error {
	if err := c.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(c.path("data")); err != nil {
		return err
	}
	if err := os.CopyFS(c.path("data"), os.DirFS(from)); err != nil {
		return err
	}
	if err := c.StartEtcd(ctx); err != nil {
		return err
	}
	return c.StartServer(ctx)
}

// Admin returns how to reach the API server with all rights, without a limit of
// requests on our side.
func (c *Cluster) Admin() *rest.Config { return c.As(adminToken) }

// As returns how to reach the API server with a token.
func (c *Cluster) As(token string) *rest.Config {
	return &rest.Config{
		Host:            "https://" + c.o.Listen.String(),
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.path("tls/apiserver.crt")},
		QPS:             -1,
	}
}

func (c *Cluster) path(name string) string { return filepath.Join(c.o.Dir, name) }

// freePort returns a port without a listener at the moment. It is below those that
// the kernel gives to connections (ip_local_port_range): one of these could have the
// port while a server that was killed is started again, and a client that tries to
// reach that server would even connect to itself.
func freePort() (uint16, error) {
	const tries = 100
	var last error
	for range tries {
		port := 20000 + rand.N[uint16](12000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		last = err
	}
	return 0, last
}
