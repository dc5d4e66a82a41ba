// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"

	"github.com/roce-cni/roce-cni/pkg/agent"
	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/kube"
	"github.com/roce-cni/roce-cni/pkg/cnierr"
)

// nodeEvery is how often the labels of the node's own object are read. A watch
// would send all of a large object whenever kubelet writes its status.
const nodeEvery = 5 * time.Minute

// glance is how often it is looked whether the RailPools have been listed.
const glance = 50 * time.Millisecond

// watcher watches the RailPools, and reads the Node object now and then.
type watcher struct {
	api  *kube.API
	node string
	log  *slog.Logger
}

// watch is agent.Config's.
func (v watcher) watch(ctx context.Context, see func(agent.View)) error {
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()

	changed := make(chan struct{}, 1)
	pools := cache.NewSharedInformer(v.api.Pools().Watch(), &kube.RailPool{}, 0)
	says := &once{log: v.log, what: "the RailPools cannot be watched: what was seen last is what counts"}
	faults := make(chan error, 1)
	if err := pools.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		says.note(err)
		select {
		case faults <- err:
		default: // nobody has asked for the last one
		}
	}); err != nil {
		return err
	}
	if _, err := pools.AddEventHandler(handler(func() {
		says.note(nil)
		select {
		case changed <- struct{}{}:
		default: // it is due already
		}
	})); err != nil {
		return err
	}
	all.Go(func() { pools.RunWithContext(ctx) })
	for !pools.HasSynced() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-faults:
			see(agent.View{Fault: kube.Classify("watch RailPools", err)})
		case <-time.After(glance):
		}
	}
	return v.follow(ctx, pools.GetStore(), changed, see)
}

// follow calls see whenever something has changed, and when it is time to look at
// the Node object again.
func (v watcher) follow(ctx context.Context, pools cache.Store, changed <-chan struct{}, see func(agent.View)) error {
	says := &once{log: v.log, what: "the Node object cannot be read: what it said last is what counts"}
	var node kube.Node
	known := false
	for retry := time.Second; ; {
		got, err := v.api.Nodes().Node(ctx, v.node)
		next := spread(nodeEvery)
		says.note(err)
		if err == nil {
			node, known = got, true
		} else {
			next, retry = spread(retry), min(2*retry, nodeEvery)
		}
		switch view := v.of(pools, node); {
		case known:
			see(view)
		case errors.Is(err, block.ErrNotFound):
			view.NoNode = cnierr.New(cnierr.NotAvailable, "read Node object", v.node, "restart kubelet, which makes it; if it is there, --node is not the name that kubectl get nodes shows", "%w", err)
			see(view)
		default:
			see(agent.View{Fault: err})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(next):
		}
	}
}

func (v watcher) of(pools cache.Store, node kube.Node) agent.View {
	out := agent.View{Labels: node.Labels, MachineID: node.MachineID}
	for _, object := range pools.List() {
		if p, ok := object.(*kube.RailPool); ok {
			out.Pools = append(out.Pools, asPool(p))
		}
	}
	return out
}

// handler calls changed when a pool comes, goes, or is meant to be another one. A
// status is for people: it changes often, and every node would look again.
func handler(changed func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
		UpdateFunc: func(before, now any) {
			a, ok := before.(*kube.RailPool)
			b, too := now.(*kube.RailPool)
			if !ok || !too || a.Generation != b.Generation || a.UID != b.UID || !slices.Equal(a.Finalizers, b.Finalizers) {
				changed()
			}
		},
	}
}

// once logs an error that comes again and again when it begins and when it ends.
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
		o.log.Info("mended: " + o.what)
	}
	o.failed = err != nil
}
