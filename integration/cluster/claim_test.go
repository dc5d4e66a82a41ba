// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/roce-cni/roce-cni/integration/cluster/ground"
	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
)

// TestClaimsSurviveServersThatAreKilled kills the API server twice and etcd once
// while 64 nodes claim two blocks each.
func TestClaimsSurviveServersThatAreKilled(t *testing.T) {
	t.Parallel()
	c := withCRDs(t, own(t))
	all := newCrowd(t, c.Admin(), "killed", 128, 64, 2)
	breaks := []func(){
		func() { must(t, c.KillServer()); must(t, c.StartServer(t.Context())) },
		func() { must(t, c.KillEtcd()); must(t, c.StartEtcd(t.Context())) },
		func() { must(t, c.Stop()); must(t, c.StartEtcd(t.Context())); must(t, c.StartServer(t.Context())) },
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		all.claim(t)
	}()
	for _, breakIt := range breaks {
		for range 20 {
			<-all.claimed
		}
		breakIt()
	}
	<-finished
	all.tell(t)
	all.eachHasItsOwn(t, c.Admin())
}

// TestAClaimThatTimedOutAndLandedIsNotMadeTwice has the API server do what the
// node asks for, and the node hear nothing.
func TestAClaimThatTimedOutAndLandedIsNotMadeTwice(t *testing.T) {
	t.Parallel()
	c := shared(t)
	var silent atomic.Bool
	silent.Store(true)
	created := make(chan struct{}, 1)
	proxy, err := ground.NewProxy(c.Admin(), func(r *http.Request) bool {
		creates := r.Method == http.MethodPost && silent.Load()
		if creates {
			created <- struct{}{}
		}
		return creates
	})
	must(t, err)
	t.Cleanup(proxy.Close)
	s := space(t, "silent", 64)
	node := claimer(api(t, proxy.Config()), "silent-node")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	claimed := make(chan error, 1)
	go func() {
		_, err := node.Claim(ctx, s, nil)
		claimed <- err
	}()
	<-created
	var landed []block.Block
	eventually(t, "the block has landed", func(ctx context.Context) (err error) {
		landed, err = api(t, c.Admin()).Blocks().List(ctx, block.Query{Pool: "silent", Freshness: block.Latest})
		if err == nil && len(landed) != 1 {
			err = fmt.Errorf("%d blocks, want one", len(landed))
		}
		return err
	})
	cancel()
	if err := <-claimed; cnierr.CodeOf(err) != cnierr.TryAgain {
		t.Fatalf("a claim without an answer: %v", err)
	}
	silent.Store(false)
	got, err := node.Claim(t.Context(), s, nil)
	must(t, err)
	if got.UID != landed[0].UID {
		t.Errorf("%s was claimed, and %s is there", got.Name, landed[0].Name)
	}
	// And so does an agent that was restarted in between, and knows nothing.
	own, err := claimer(api(t, c.Admin()), "silent-node").Own(t.Context(), s)
	must(t, err)
	if len(own) != 1 || own[0].UID != landed[0].UID {
		t.Errorf("after a restart the node has %v", own)
	}
}
