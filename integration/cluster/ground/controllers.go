// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ground

import (
	"context"
	"crypto/tls"
	"net/http"
	"os/exec"
	"path/filepath"
)

// startControllers starts the controllers and the scheduler with all rights.
func (c *Cluster) startControllers(ctx context.Context) error {
	kubeconfig := c.path("controllers.conf")
	if err := c.WriteKubeconfig(kubeconfig, adminToken); err != nil {
		return err
	}
	// Both make their own certificates, which no file has, and listen on the loopback.
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	for _, program := range []struct {
		name, health string
		arguments    []string
	}{
		{"kube-controller-manager", "https://127.0.0.1:10257/healthz", []string{
			"--service-account-private-key-file=" + c.path("accounts.key"),
			"--root-ca-file=" + c.path("tls/apiserver.crt"),
		}},
		{"kube-scheduler", "https://127.0.0.1:10259/healthz", nil},
	} {
		cmd := exec.Command(filepath.Join(c.o.Bin, program.name), append(program.arguments,
			"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
			"--bind-address=127.0.0.1", "--leader-elect=false")...)
		p, err := StartProcess(ctx, c.path(program.name+".log"), cmd, func(ctx context.Context) error {
			return answers(ctx, client, program.health)
		})
		if err != nil {
			return err
		}
		c.controllers = append(c.controllers, p)
	}
	return nil
}
