// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package e2e

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
)

// startDaemon starts the daemon of Multus on the node of a network namespace, as the
// DaemonSet of Multus has it, and returns what the daemon writes for the runtime. The
// daemon of this namespace runs until the node ends.
//
// As in a pod, plugins run in a mount namespace that gets the mounts of the node, and gives
// it none, with the folder of the node as their root.
//
// With another multusConfigFile than auto, the daemon of 4.2.4 ends when it is ready: it
// waits for nothing but the watch of the configuration. The shim then waits for it in vain.
func (n *node) startDaemon(t *testing.T, name, netns, etc string, config, cluster map[string]any) map[string]any {
	t.Helper()
	linkPlugins(t) // the daemon does not read the CNI_PATH of its shim
	n.writeAccount(t)
	home := filepath.Join("/var/lib/multus", name)
	root, written := filepath.Join(home, "hostroot"), filepath.Join(home, "net.d")
	for _, folder := range []string{root, written} {
		must(t, os.MkdirAll(folder, 0o755))
	}
	config["chrootDir"], config["multusConfigFile"] = root, "auto"
	config["cniConfigDir"], config["multusAutoconfigDir"] = written, written
	config["socketDir"] = filepath.Join("/run/multus", name)
	config["daemonSocketDir"] = config["socketDir"]
	for file, content := range map[string]any{filepath.Join(home, "daemon.json"): config, filepath.Join(written, "10-cluster.conf"): cluster} {
		text, err := json.Marshal(content)
		must(t, err)
		must(t, os.WriteFile(file, text, 0o600))
	}
	from, err := filepath.Abs(bin)
	must(t, err)
	shim := filepath.Join(plugins, "multus-shim")
	if _, err := os.Lstat(shim); os.IsNotExist(err) {
		must(t, os.Symlink(filepath.Join(from, "multus-shim"), shim))
	}
	cmd := exec.Command("nsenter", "--net="+netns, "unshare", "--mount", "--propagation=slave", "sh", "-c", `mkdir -p /etc/roce && mount --bind "$1" /etc/roce && shift && mount --rbind / "$0" && exec "$@"`, root,
		etc, filepath.Join(from, "multus-daemon"), "-config="+filepath.Join(home, "daemon.json"))
	host, port, err := net.SplitHostPort(service.String())
	must(t, err)
	cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	result := filepath.Join(written, "00-multus.conf")
	must(t, os.RemoveAll(result)) // of an earlier node of this name
	p, err := ground.StartProcess(t.Context(), filepath.Join("/var/log", "multus-"+name+".log"), cmd, func(context.Context) error {
		_, err := os.Stat(result) // it comes when the daemon answers
		return err
	})
	must(t, err)
	if netns != ownNetns {
		t.Cleanup(func() { must(t, p.Kill()) })
	}
	text, err := os.ReadFile(result)
	must(t, err)
	var out map[string]any
	must(t, json.Unmarshal(text, &out))
	return out
}

// writeAccount writes what the pod of the daemon would have of its service account.
func (n *node) writeAccount(t *testing.T) {
	t.Helper()
	const folder = "/var/run/secrets/kubernetes.io/serviceaccount"
	config, err := clientcmd.BuildConfigFromFlags("", n.kubeconfig)
	must(t, err)
	authority, err := os.ReadFile(config.CAFile)
	must(t, err)
	must(t, os.MkdirAll(folder, 0o755))
	must(t, os.WriteFile(folder+"/ca.crt", authority, 0o600))
	must(t, os.WriteFile(folder+"/token", []byte(config.BearerToken), 0o600))
}
