// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ground

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/client-go/rest"
)

// adminToken is good for the clusters of this package alone: they listen on the
// loopback, for as long as a test runs.
const adminToken = "admin"

// KubeletToken returns the token of the kubelet of a node in Options.Nodes: user
// system:node:NAME in group system:nodes.
func KubeletToken(node string) string { return "kubelet-" + node }

// writeKeys writes the key that signs the tokens of service accounts, and the
// tokens that are good without one. The API server makes its own certificate.
func (c *Cluster) writeKeys() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(c.path("accounts.key"), text, 0o600); err != nil {
		return err
	}
	tokens := adminToken + ",admin,admin,system:masters\n"
	for _, node := range c.o.Nodes {
		tokens += fmt.Sprintf("%s,system:node:%s,%s,system:nodes\n", KubeletToken(node), node, node)
	}
	return os.WriteFile(c.path("tokens.csv"), []byte(tokens), 0o600)
}

func (c *Cluster) etcdURL() string { return fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort) }

func (c *Cluster) etcdCommand() *exec.Cmd {
	peers := fmt.Sprintf("http://127.0.0.1:%d", c.peerPort)
	return exec.Command(filepath.Join(c.o.Bin, "etcd"),
		"--name=ground",
		"--data-dir="+c.path("data"),
		"--listen-client-urls="+c.etcdURL(),
		"--advertise-client-urls="+c.etcdURL(),
		"--listen-peer-urls="+peers,
		"--initial-advertise-peer-urls="+peers,
		"--initial-cluster=ground="+peers,
	)
}

func (c *Cluster) etcdReady(ctx context.Context) error {
	return answers(ctx, http.DefaultClient, c.etcdURL()+"/health")
}

// serverCommand leaves out what needs a controller-manager, if there is none, or a
// network of pods: the admission of service accounts, and the endpoints of the API
// server.
func (c *Cluster) serverCommand() *exec.Cmd {
	without := "ServiceAccount"
	if c.o.Controllers {
		without = ""
	}
	return exec.Command(filepath.Join(c.o.Bin, "kube-apiserver"), append(c.o.Flags,
		"--etcd-servers="+c.etcdURL(),
		"--bind-address="+c.o.Listen.Addr().String(),
		"--advertise-address="+c.o.Listen.Addr().String(), // else that of the default route, if there is one
		fmt.Sprintf("--secure-port=%d", c.o.Listen.Port()),
		"--cert-dir="+c.path("tls"),
		"--token-auth-file="+c.path("tokens.csv"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.path("accounts.key"),
		"--service-account-signing-key-file="+c.path("accounts.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--disable-admission-plugins="+without,
		"--endpoint-reconciler-type=none",
		"--allow-privileged=true",
		"--kubelet-preferred-address-types=InternalIP",
	)...)
}

// serverReady asks for the namespace default as well: a hook makes it, after
// /readyz is good.
func (c *Cluster) serverReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(c.Admin())
	if err != nil {
		return err // the certificate is not there yet
	}
	defer client.CloseIdleConnections()
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default"} {
		if err := answers(ctx, client, c.Admin().Host+path); err != nil {
			return err
		}
	}
	return nil
}

// answers says whether a URL is good.
func answers(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
