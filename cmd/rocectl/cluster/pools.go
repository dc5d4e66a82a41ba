// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/cmd/internal/cli"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/agent"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/kube"
)

// nodeEvery is how often the labels of the node's own object are read. A watch
// would send all of a large object whenever kubelet writes its status.
const nodeEvery = 5 * time.Minute

const (
	// nodeSoon is the delay before that read when the pools have changed, because all
	// nodes do it then.
	nodeSoon = 5 * time.Second
	// firstLongest is the longest wait for the first answer.
	firstLongest = 15 * time.Second
	// listedEvery is the time between two checks whether the RailPools have been listed.
	listedEvery = 50 * time.Millisecond
)

// watcher watches the RailPools, and reads the Node object now and then.
type watcher struct {
	api  *kube.API
	node string
	log  *slog.Logger
}

// watch is agent.Config's. Informers log nothing while the API server does not
// answer. So watch reads the Node object first, and reports why it cannot be read.
func (v watcher) watch(ctx context.Context, see func(agent.View)) error {
	first, err := v.first(ctx, see)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()

	changed := make(chan struct{}, 1)
	says := &once{log: v.log, what: "the RailPools cannot be watched: the last known state is used"}
	faults := make(chan error, 1)
	pools, err := informer(v.api.WatchPools(), &kube.RailPool{}, func(err error) {
		says.note(err)
		offer(faults, err)
	}, handler(func() { says.note(nil) }, func() { offer(changed, struct{}{}) }))
	if err != nil {
		return err
	}
	all.Go(func() { pools.RunWithContext(ctx) })
	for !pools.HasSynced() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-faults:
			see(agent.View{Fault: kube.Classify("watch RailPools", err)})
		case <-time.After(listedEvery):
		}
	}
	return v.follow(ctx, first, pools.GetStore(), changed, see)
}

// informer returns an informer, which must be run. It calls fault with each error of its watch.
func informer(watch *cache.ListWatch, object runtime.Object, fault func(error), events cache.ResourceEventHandler) (cache.SharedInformer, error) {
	out := cache.NewSharedInformer(watch, object, 0)
	err := out.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) { fault(err) })
	if err == nil {
		_, err = out.AddEventHandler(events)
	}
	return out, err
}

// offer sends, unless what was sent before is not taken yet.
func offer[T any](to chan<- T, what T) {
	select {
	case to <- what:
	default:
	}
}

// nodeRead is the answer to a read of the Node object.
type nodeRead struct {
	kube.Node
	err error // nil, or that there is none
}

// first reads the Node object until there is an answer.
func (v watcher) first(ctx context.Context, see func(agent.View)) (nodeRead, error) {
	says := &once{log: v.log, what: "the API server does not answer, or refuses"}
	for wait := time.Second; ; wait = min(2*wait, firstLongest) {
		got, err := v.api.Node(ctx, v.node)
		if err == nil || errors.Is(err, block.ErrNotFound) {
			says.note(nil)
			return nodeRead{got, err}, nil
		}
		says.note(block.Explain(err))
		see(agent.View{Fault: err})
		if err := cli.Wait(ctx, spread(wait)); err != nil {
			return nodeRead{}, err
		}
	}
}

// follow calls see whenever the pools have changed, which no read without answer delays, and
// after each read of the Node object.
func (v watcher) follow(ctx context.Context, node nodeRead, pools cache.Store, changed <-chan struct{}, see func(agent.View)) error {
	read, soon := make(chan nodeRead), make(chan struct{}, 1)
	go v.reread(ctx, node.err, soon, read)
	for {
		view := v.of(pools, node.Node)
		if node.err != nil {
			view.NoNode = cnierr.New(cnierr.NotAvailable, "read Node object", v.node, "restart kubelet, which creates it; if it exists, --node differs from the name that kubectl get nodes shows", "%w", node.err)
		}
		see(view)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			offer(soon, struct{}{})
		case node = <-read:
		}
	}
}

// reread reads the Node object from time to time, and sooner after an error and when the pools
// have changed, because an operator who makes a pool also labels nodes. It sends what it reads.
func (v watcher) reread(ctx context.Context, err error, soon <-chan struct{}, to chan<- nodeRead) {
	says := &once{log: v.log, what: "the Node object cannot be read: the last known state is used"}
	for retry := time.Second; ; {
		says.note(err)
		wait := nodeEvery
		if err != nil {
			wait, retry = retry, min(2*retry, nodeEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(spread(wait)):
		case <-soon:
			if cli.Wait(ctx, spread(nodeSoon)) != nil {
				return
			}
		}
		var got kube.Node
		if got, err = v.api.Node(ctx, v.node); err != nil {
			continue
		}
		retry = time.Second
		select {
		case <-ctx.Done():
		case to <- nodeRead{Node: got}:
		}
	}
}

func (v watcher) of(pools cache.Store, node kube.Node) agent.View {
	out := agent.View{Labels: node.Labels, MachineID: node.MachineID}
	for _, object := range pools.List() {
		if p, ok := object.(*kube.RailPool); ok {
			out.Pools = append(out.Pools, p.Pool())
		}
	}
	slices.SortFunc(out.Pools, func(a, b block.Pool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// handler calls heard for each event, of which a new list has one for each pool, and changed if
// it is more than a new status, which is for people and changes often.
func handler(heard, changed func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { heard(); changed() },
		DeleteFunc: func(any) { heard(); changed() },
		UpdateFunc: func(before, now any) {
			heard()
			a, ok := before.(*kube.RailPool)
			b, too := now.(*kube.RailPool)
			if !ok || !too || a.Generation != b.Generation || a.UID != b.UID || !slices.Equal(a.Finalizers, b.Finalizers) {
				changed()
			}
		},
	}
}

// once logs a repeated error only when it begins and when it ends.
type once struct {
	log  *slog.Logger
	what string

	mu     sync.Mutex
	failed bool
}

func (o *once) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil && !o.failed:
		o.log.Warn(o.what, "error", err)
	case err == nil && o.failed:
		o.log.Info("solved: " + o.what)
	}
	o.failed = err != nil
}
