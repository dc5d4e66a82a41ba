// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/buildversion"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	networking "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/cmd/internal/plugin"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent/grant"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel"
	"github.com/roce-cni/roce-cni/pkg/plugin/nodefile"
)

// agentFlags are the flags of rocectl agent.
type agentFlags struct {
	node, nodeIP, hostRoot, kubeconfig, listen, services string

	rails  time.Duration
	lldp   bool
	unused []string
}

func agentCommand(stateDir func() (string, error)) *cobra.Command {
	f := agentFlags{nodeIP: os.Getenv("NODE_IP")}
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Manage this node's share of the RailPools, until it is stopped",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop, log := service(cmd.Context(), cmd.ErrOrStderr())
			defer stop()
			dir, err := stateDir()
			if err != nil {
				return err
			}
			return f.run(ctx, dir, log)
		},
	}
	cmd.Flags().StringVar(&f.node, "node", os.Getenv("NODE_NAME"), "the `NAME` of this node's Node object (default $NODE_NAME)")
	cmd.Flags().StringVar(&f.hostRoot, "host-root", "/", "the `FOLDER` that contains the node's /etc/machine-id")
	cmd.Flags().StringVar(&f.kubeconfig, "kubeconfig", "", "a kubeconfig `FILE` to reach the API server (default: the service account of the pod)")
	cmd.Flags().StringVar(&f.listen, "listen", ":9482", "the `ADDRESS` for /metrics and /healthz")
	cmd.Flags().StringVar(&f.services, ServiceRange, "", "the `CIDRS` of the cluster's Services, as kube-apiserver has them in its flag of this name (default: its ServiceCIDRs, which Kubernetes has from 1.33 on)")
	cmd.Flags().DurationVar(&f.rails, "rails", time.Minute, "the `TIME` between two looks at the NICs, which are reported when they have changed; 0 reports nothing")
	cmd.Flags().BoolVar(&f.lldp, "lldp", false, "report the switch and the switch port of each NIC, too")
	cmd.Flags().StringSliceVar(&f.unused, "unused", nil, "the `INTERFACES` that no network uses, such as ens9f1,ens10f1: the node has no fault when they are down")
	cmd.Flags().Lookup("node").DefValue = "" // the page about it is the same on all machines
	return cmd
}

// run runs the agent until the context ends, which is no error.
func (f agentFlags) run(ctx context.Context, stateDir string, log *slog.Logger) error {
	node, err := f.identity()
	if err != nil {
		return err
	}
	boot, err := plugin.BootID()
	if err != nil {
		return err
	}
	log = log.With("node", node.Name)
	requests := agent.NewRequests(log)
	api, err := connect(f.kubeconfig, requests.Through)
	if err != nil {
		return err
	}
	for _, dir := range []string{stateDir, filepath.Join(stateDir, "pools")} {
		if err := closeToOthers(dir); err != nil {
			return err
		}
	}
	services, err := f.watchServices(serviceWatcher{api, log})
	if err != nil {
		return err
	}
	files := nodefile.Store{Dir: stateDir, BootID: boot}
	rails := newReporter(node.Name, f.rails, f.unused, api.Publish, log)
	a := agent.New(agent.Config{
		Node: node, Addresses: kernel.HostAddrs, // this process runs in the namespace of the node
		Store: api.Blocks(), Requests: requests, Machine: api.Machine,
		Watch:  watcher{api, node.Name, log}.watch,
		Report: api.Blocks().Report, Tell: api.TellHealed, Stands: api.Stands,
		Services: services, Rails: rails.rails,
		RailLeases: api.Leases(), Ranges: files,
		Leases: plugin.Book(stateDir, boot, log, nil),
		Clock:  Clock(), Log: log,
	})
	stop, err := serve(f.addresses(), a.Handler())
	if err != nil {
		return err
	}
	defer stop()
	socket, err := grant.Listen(files)
	if err != nil {
		return err
	}
	defer socket.Close() //nolint:errcheck // nothing was written to it
	defer f.report(ctx, rails)()
	log.Info("the agent starts", "version", buildversion.BuildVersion, "machine-id", node.MachineID, "state-dir", stateDir, "listen", f.listen)
	err = runBoth(ctx, a, socket)
	if ctx.Err() != nil {
		log.Info("the agent was stopped")
		return nil
	}
	return err
}

// runBoth ends when the agent or the socket does, and returns why.
func runBoth(ctx context.Context, a *agent.Agent, socket grant.Socket) error {
	ctx, end := context.WithCancelCause(ctx)
	var all sync.WaitGroup
	all.Go(func() { end(socket.Serve(ctx, a.Ask)) })
	end(a.Run(ctx))
	all.Wait()
	return context.Cause(ctx)
}

// report reports the rails of the node until the returned function is called.
func (f agentFlags) report(ctx context.Context, r *reporter) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	if f.rails > 0 {
		all.Go(func() { r.run(ctx) })
		if f.lldp {
			all.Go(func() { r.listen(ctx) })
		}
	}
	return func() { cancel(); all.Wait() }
}

// identity returns the node that claims.
func (f agentFlags) identity() (block.Node, error) {
	if f.node == "" {
		return block.Node{}, cnierr.New(cnierr.BadConfig, "use flag", "--node", "give the name that kubectl get nodes shows, or set NODE_NAME from spec.nodeName as conf-examples/deploy/agent.yaml does", "the node has no name")
	}
	path := filepath.Join(f.hostRoot, "etc/machine-id")
	id, err := os.ReadFile(path)
	if err != nil {
		return block.Node{}, cnierr.New(cnierr.IO, "read", path, "in a container mount the node's file, and name its root with --host-root; on a node without: systemd-machine-id-setup", "%w", err)
	}
	n := block.Node{Name: f.node, MachineID: strings.TrimSpace(string(id))}
	if !isMachineID(n.MachineID) {
		return block.Node{}, cnierr.New(cnierr.BadConfig, "read", path, "on the node run systemd-machine-id-setup, then restart kubelet, which reports the ID; and empty the file in the image that nodes are made of",
			"%q is no machine-id, which is 32 lower-case hexadecimal digits: two nodes with the same one would count as one", n.MachineID)
	}
	return n, nil
}

// isMachineID says whether s is a machine-id as in machine-id(5). It must not be
// empty, "uninitialized" (an image that was never started), or all zeros.
func isMachineID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == "" && strings.Trim(s, "0") != ""
}

// addresses returns where to listen.
func (f agentFlags) addresses() []string {
	host, port, err := net.SplitHostPort(f.listen)
	if err != nil || host != "" || f.nodeIP == "" { // net.Listen reports an error
		return []string{f.listen}
	}
	return []string{net.JoinHostPort("127.0.0.1", port), net.JoinHostPort(f.nodeIP, port)}
}

// serve answers requests until stop is called. It listens when it returns.
func serve(addresses []string, h http.Handler) (stop func(), err error) {
	g := &guests{}
	s := &http.Server{Handler: h, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, ConnState: g.note}
	s.SetKeepAlivesEnabled(false)
	var all sync.WaitGroup
	stop = func() { _ = s.Close(); all.Wait() }
	for _, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			stop()
			return nil, cnierr.New(cnierr.IO, "listen at", address, "give another address with --listen; ss -ltnp shows who has the port", "%w", err)
		}
		all.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				slog.Error("/metrics and /healthz are no longer served", "address", address, "error", err)
			}
		})
	}
	return stop, nil
}

// closeToOthers makes a state folder unreadable for other users if kubelet has made it, as a
// hostPath of 0755: it is ours and empty. One that is not empty, such as /run, keeps its mode,
// and one that is missing is made with 0700 by the first write.
func closeToOthers(dir string) error {
	var s unix.Stat_t
	err := unix.Stat(dir, &s)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (s.Uid != uint32(os.Geteuid()) || s.Mode&0o077 == 0) {
		return nil
	}
	var inside []os.DirEntry
	if err == nil {
		inside, err = os.ReadDir(dir)
	}
	if err == nil && len(inside) == 0 {
		err = os.Chmod(dir, 0o700) //nolint:gosec // a folder
	}
	if err != nil {
		return cnierr.New(cnierr.IO, "prepare state folder", dir, "", "%w", err)
	}
	return nil
}

// ServiceRange is the flag of kube-apiserver with the CIDRs of the cluster's Services, and
// our flag of the same name for clusters without ServiceCIDRs.
const ServiceRange = "service-cluster-ip-range"

// ServiceCIDRs reads the value of the flag. The error is BadConfig.
func ServiceCIDRs(value string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for text := range strings.SplitSeq(value, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || !conf.Service(p) {
			return nil, cnierr.New(cnierr.BadConfig, "read flag", "--"+ServiceRange, "give it the value of this flag of kube-apiserver, such as 10.96.0.0/12,fd00:96::/108", "%q is no CIDR of Services", text)
		}
		out = append(out, p)
	}
	return out, nil
}

// watchServices returns agent.Config's Services. CIDRs that are given by hand never change.
func (f agentFlags) watchServices(w serviceWatcher) (watch func(context.Context, func([]netip.Prefix, error)), err error) {
	if f.services == "" {
		return w.watch, nil
	}
	cidrs, err := ServiceCIDRs(f.services)
	return func(_ context.Context, see func([]netip.Prefix, error)) { see(cidrs, nil) }, err
}

// serviceWatcher watches the ServiceCIDRs.
type serviceWatcher struct {
	api *kube.API
	log *slog.Logger
}

// watch is agent.Config's Services. Once the CIDRs are known, an error of the watch is
// logged, and the CIDRs stay.
func (w serviceWatcher) watch(ctx context.Context, see func([]netip.Prefix, error)) {
	if w.served(ctx, see) != nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	changed := make(chan struct{}, 1)
	notify := func() { offer(changed, struct{}{}) }
	says := &once{log: w.log, what: "the ServiceCIDRs cannot be watched: the last known state is used"}
	objects, err := informer(w.api.WatchServices(), &networking.ServiceCIDR{}, func(err error) { says.note(kube.ServiceFault(err)) }, cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { notify() }, UpdateFunc: func(_, _ any) { notify() }, DeleteFunc: func(any) { notify() },
	})
	if err != nil { // the informer runs already, which it does not
		see(nil, err)
		return
	}
	all.Go(func() { objects.RunWithContext(ctx) })
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		if !cache.WaitForCacheSync(ctx.Done(), objects.HasSynced) {
			return
		}
		says.note(nil)
		see(w.cidrs(objects.GetStore()), nil)
	}
}

// served waits until the API server lists ServiceCIDRs. It asks an API server that has
// none, or refuses, as seldom as for the Node object: all nodes do it.
func (w serviceWatcher) served(ctx context.Context, see func([]netip.Prefix, error)) error {
	for wait := time.Second; ; wait = min(2*wait, firstLongest) {
		err := w.api.ServesCIDRs(ctx)
		if err == nil {
			return nil
		}
		see(nil, err)
		if cnierr.CodeOf(err) == cnierr.NotAvailable {
			wait = nodeEvery
		}
		if err := cli.Wait(ctx, spread(wait)); err != nil {
			return err
		}
	}
}

// cidrs returns the CIDRs of all objects, in any order, and some perhaps twice.
func (w serviceWatcher) cidrs(objects cache.Store) []netip.Prefix {
	var out []netip.Prefix
	for _, object := range objects.List() {
		cidrs, err := kube.ServiceCIDRs(object)
		if err != nil {
			w.log.Warn("a CIDR of Services is left out", "error", err)
		}
		out = append(out, cidrs...)
	}
	return out
}
