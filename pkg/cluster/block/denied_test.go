// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

// denying is a store, and a cluster, that deny one of the calls, for which no waiting helps.
type denying struct {
	*blocktest.Mem
	machines map[string]string // by node
	calls    int
	nth      int // the one that is denied; from 0
	denied   string
}

func (d *denying) deny(what string) error {
	d.calls++
	if d.calls != d.nth+1 {
		return nil
	}
	d.denied = what
	return cnierr.New(cnierr.NotAvailable, what, "railblocks", "give the ServiceAccount the rights", "forbidden")
}

func (d *denying) List(ctx context.Context, q block.Query) ([]block.Block, error) {
	if err := d.deny("list " + string(q.Freshness)); err != nil {
		return nil, err
	}
	return d.Mem.List(ctx, q)
}

func (d *denying) Peek(ctx context.Context, name string) (block.Block, error) {
	if err := d.deny("peek"); err != nil {
		return block.Block{}, err
	}
	return d.Mem.Peek(ctx, name)
}

func (d *denying) Get(ctx context.Context, name string) (block.Block, error) {
	if err := d.deny("get"); err != nil {
		return block.Block{}, err
	}
	return d.Mem.Get(ctx, name)
}

func (d *denying) Create(ctx context.Context, b block.Block) (block.Block, error) {
	if err := d.deny("create"); err != nil {
		return block.Block{}, err
	}
	return d.Mem.Create(ctx, b)
}

func (d *denying) Touch(ctx context.Context, name, uid string) (block.Block, error) {
	if err := d.deny("touch"); err != nil {
		return block.Block{}, err
	}
	return d.Mem.Touch(ctx, name, uid)
}

func (d *denying) machine(_ context.Context, node string) (string, error) {
	if err := d.deny("machine"); err != nil {
		return "", err
	}
	return d.machines[node], nil
}

// TestAClaimEndsWithTheFirstAnswerThatIsFinal denies each call of a claim, one by one. The pool has
// blocks of other nodes, some with our machine-id, where the node begins. The next claim of the
// same process is denied at its first call, and the one after it gets one block. No other is left.
func TestAClaimEndsWithTheFirstAnswerThatIsFinal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		blocks, lag int
		own         bool   // the node has a block that it does not know
		calls       string // all of which are denied once
	}{
		"a small pool":               {16, 0, false, "create list cached machine"},
		"a stale list":               {16, 100, false, "create get list cached machine"},
		"a large pool":               {2048, 0, false, "create get list cached machine peek"},
		"a block of the node":        {16, 0, true, "list cached machine touch"},
		"a block that is met":        {2048, 100, true, "create get list cached machine peek touch"},
		"a full pool":                {4, 0, false, "list cached list latest machine"},
		"a full pool, to a new list": {4, 100, false, "create get list cached list latest machine"},
	} {
		all := map[string]bool{}
		for nth := 0; ; nth++ {
			s := sized(t, c.blocks)
			var order []block.Block // of the node, in an empty pool
			for empty := claimer(blocktest.NewMem(), 1); len(order) < min(c.blocks, 6); {
				order = append(order, mustClaim(t, empty, s, order...))
			}
			d := &denying{Mem: blocktest.NewMem(), machines: map[string]string{}, nth: nth}
			for i, b := range order {
				if c.blocks > 4 && i > 3 {
					break
				}
				b.Spec.NodeName = fmt.Sprint("other-", i)
				if d.machines[b.Spec.NodeName] = b.Spec.MachineID; i == 0 {
					b.Spec.MachineID = "another"
				}
				if _, err := d.Mem.Create(t.Context(), b); err != nil {
					t.Fatal(err)
				}
			}
			if c.own {
				if _, err := d.Mem.Create(t.Context(), order[4]); err != nil {
					t.Fatal(err)
				}
			}
			d.Lag = c.lag
			w := claimer(d, 1)
			w.Machine = d.machine
			w.Node.Own = []netip.Addr{{}}
			_, err := w.Claim(t.Context(), s, nil)
			if d.denied == "" {
				if full := c.blocks == 4; full != (cnierr.CodeOf(err) == cnierr.PoolExhausted) || !full && err != nil {
					t.Errorf("%s: at last %v", name, err)
				}
				break
			}
			all[d.denied] = true
			if cnierr.CodeOf(err) != cnierr.NotAvailable || !strings.HasPrefix(err.Error(), "node node-1: "+d.denied+` "railblocks": `) {
				t.Errorf("%s: call %d, %s, is denied: %v", name, nth, d.denied, err)
			}
			if c.blocks == 4 {
				continue
			}
			d.nth = d.calls // and once more: it repeats the name without an answer, and tries no other
			if _, err := w.Claim(t.Context(), s, nil); cnierr.CodeOf(err) != cnierr.NotAvailable {
				t.Errorf("%s: after call %d, %s, the next is denied: %v", name, nth, d.denied, err)
			}
			got := mustClaim(t, w, s)
			owned := 0
			for _, b := range d.Snapshot() {
				if b.Spec.NodeName == "node-1" {
					owned++
				}
			}
			if owned != 1 || c.own && got.Name != order[4].Name {
				t.Errorf("%s: after call %d, %s, was denied, the node gets %s, and has %d blocks", name, nth, d.denied, got.Name, owned)
			}
		}
		for _, call := range []string{"create", "get", "list cached", "list latest", "machine", "peek", "touch"} {
			if all[call] != strings.Contains(c.calls, call) {
				t.Errorf("%s: %s is among the calls: %v, want %s", name, call, all[call], c.calls)
			}
		}
	}
}

// TestTheBlocksOfANodeAreNotKnownWithoutAnAnswer denies each call of Own.
func TestTheBlocksOfANodeAreNotKnownWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for nth, want := range []string{"list cached", "machine"} {
		s, d := sized(t, 16), &denying{Mem: blocktest.NewMem(), machines: map[string]string{}, nth: nth}
		clone := claimer(d.Mem, 1)
		clone.Node.Name = "clone"
		mustClaim(t, clone, s)
		c := claimer(d, 1)
		c.Machine = d.machine
		if own, err := c.Own(t.Context(), s); own != nil || cnierr.CodeOf(err) != cnierr.NotAvailable || d.denied != want {
			t.Errorf("%s is denied: %v, error %v", d.denied, names(own), err)
		}
	}
}
