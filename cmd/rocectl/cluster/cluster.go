// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package cluster has the commands of rocectl for clusters: the agent of each node,
// the reaper, the installer of the plugins, and what an operator looks at.
//
// It decides nothing about blocks: it reads flags, opens the node and the API server,
// and runs packages agent and reconcile. Read this file first. Each command has its
// own file.
package cluster

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os/signal"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// Commands returns the commands of our pods that need no state folder.
func Commands() []*cobra.Command { return []*cobra.Command{gcCommand(), installCommand()} }

// NodeCommands returns the others. stateDir returns the state folder of the node, and is called
// when a command needs it. mustExist refuses a folder that the user names and that is missing.
func NodeCommands(stateDir func() (string, error), mustExist func(*cobra.Command, []string) error) []*cobra.Command {
	uninstall := uninstallCommand(stateDir)
	uninstall.PreRunE = mustExist
	return []*cobra.Command{agentCommand(stateDir), uninstall}
}

// service returns what a command needs that runs for ever: a context that ends with
// SIGTERM or an interrupt, and a log. The log of client-go goes there too.
func service(ctx context.Context, w io.Writer) (running context.Context, stop context.CancelFunc, log *slog.Logger) {
	log = slog.New(slog.NewTextHandler(w, nil))
	klog.SetSlogLogger(log)
	running, stop = signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	return running, stop, log
}

// Clock is the clock of a program that runs for ever.
func Clock() pace.Clock {
	return pace.Clock{Wait: cli.Wait, Now: plugin.BootTime, Rand: rand.Float64}
}

// spread returns a time around d.
func spread(d time.Duration) time.Duration { return Clock().Spread(d) }

const connecting = "connect to the API server"

// connect reads how to reach the API server: from a kubeconfig, or, if that is "",
// from what Kubernetes puts into a pod. It sends nothing. through is nil, or for all requests.
func connect(kubeconfig string, through func(http.RoundTripper) http.RoundTripper) (*kube.API, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	} else {
		config, err = rest.InClusterConfig()
	}
	if err != nil {
		return nil, cnierr.New(cnierr.BadConfig, connecting, kubeconfig,
			"outside of a pod name a file with --kubeconfig; in a pod mount the ServiceAccount's token", "%w", err)
	}
	if through != nil {
		config.Wrap(through)
	}
	return open(config)
}

// Kubectl is the flags by which a person reaches the API server as with kubectl: without
// them it is found by $KUBECONFIG, by ~/.kube/config, or in a pod by what Kubernetes puts there.
type Kubectl struct{ Kubeconfig, Context string }

// Register adds the flags. when is "", or says in their help when they count.
func (k *Kubectl) Register(cmd *cobra.Command, when string) {
	cmd.Flags().StringVar(&k.Kubeconfig, "kubeconfig", "", when+"a kubeconfig `FILE` (default: that of kubectl)")
	cmd.Flags().StringVar(&k.Context, "context", "", when+"the `CONTEXT` of the kubeconfig (default: the current one)")
}

// read calls fn with the API server, and again for some seconds if the server is busy.
func (k Kubectl) read(ctx context.Context, fn func(*kube.API) error) error {
	api, err := k.connect()
	if err != nil {
		return err
	}
	return explained(settled(ctx, func() error { return fn(api) }))
}

func (k Kubectl) connect() (*kube.API, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = k.Kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: k.Context}).ClientConfig()
	if err != nil {
		return nil, cnierr.New(cnierr.BadConfig, connecting, k.Kubeconfig, "it reads the same files as kubectl: compare with kubectl cluster-info", "%w", err)
	}
	return open(config)
}

// readers are the commands that give a person the rights of the commands that show the cluster.
const readers = "kubectl create clusterrole roce-cni-reader --verb=list --resource=railpools.roce-cni.io,railblocks.roce-cni.io,railnodes.roce-cni.io,nodes" +
	" && kubectl create clusterrolebinding roce-cni-reader --clusterrole=roce-cni-reader --user=NAME"

// explained explains an error of the API server. A person needs other rights than an agent.
func explained(err error) error {
	if refused, is := errors.AsType[*apierrors.StatusError](err); is && apierrors.IsForbidden(refused) {
		return cnierr.New(cnierr.NotAvailable, "read", "cluster", "an administrator gives you the right to read: "+readers, "%w", refused)
	}
	if errors.As(err, new(*block.BusyError)) {
		return cnierr.New(cnierr.TryAgain, "read", "cluster", "try again; if the CustomResourceDefinitions were just applied, first run "+kube.AwaitKinds, "%w", err)
	}
	return block.Explain(err)
}

const (
	// settling is how long a person waits for a server that is busy, such as one that has just
	// got the definition of a kind: it refuses lists with code 429.
	settling = 10 * time.Second
	// settlePoll is the least time between two requests.
	settlePoll = 200 * time.Millisecond
)

// settled repeats read while the server is busy, but not for longer than settling.
func settled(ctx context.Context, read func() error) error {
	ends := time.Now().Add(settling)
	for {
		err := read()
		busy, is := errors.AsType[*block.BusyError](err)
		if !is {
			return err
		}
		wait := max(busy.After, settlePoll)
		if time.Now().Add(wait).After(ends) {
			return err
		}
		if cli.Wait(ctx, wait) != nil {
			return err
		}
	}
}

func open(config *rest.Config) (*kube.API, error) {
	config.UserAgent = "rocectl/" + buildversion.BuildVersion
	config.QPS = -1 // the caller waits between requests
	api, err := kube.Open(config, time.Now)
	if err != nil {
		return nil, cnierr.New(cnierr.BadConfig, connecting, config.Host, "compare the certificates that the kubeconfig names", "%w", err)
	}
	return api, nil
}
