// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package agent_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

// busy is a server that refuses some calls, and wants not to be asked for a while.
type busy struct {
	now   func() time.Duration
	op    blocktest.Op // that is refused; "": all
	left  int          // how many of them are
	until time.Duration
	early []string // calls before that
}

const quiet = 20 * time.Second

func (b *busy) fault(op blocktest.Op, _ string) blocktest.Fault {
	if now := b.now(); now < b.until {
		b.early = append(b.early, fmt.Sprintf("%s %v before", op, b.until-now))
	}
	if b.left == 0 || b.op != "" && b.op != op {
		return blocktest.None
	}
	b.left--
	b.until = b.now() + quiet
	return blocktest.Refused
}

// refuses has a store of a node refuse calls.
func (n *node) refuses(s *blocktest.Faulty, op blocktest.Op, calls int) *busy {
	b := &busy{now: n.now, op: op, left: calls}
	s.Alone(func() { s.Fault, s.After = b.fault, quiet })
	return b
}

// done fails the test unless all were refused that should have been, and nothing was
// asked too early.
func (b *busy) done(t *testing.T) {
	t.Helper()
	if b.left > 0 || len(b.early) > 0 {
		t.Errorf("%d refusals are left; it asks too early: %v", b.left, b.early)
	}
}

func TestAClaimWaitsForAsLongAsTheServerSays(t *testing.T) {
	for _, op := range []blocktest.Op{blocktest.List, blocktest.Create, ""} {
		t.Run(string(op), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newCluster(compute(t)).node(t, "n1")
				b := n.refuses(&n.store.Faulty, op, 3)
				n.run()
				pass(4 * time.Minute)
				b.done(t)
				n.holds("compute", 1)
				n.healthy()
			})
		})
	}
}

func TestAStartWaitsForAsLongAsTheServerSays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		n := newCluster(compute(t)).node(t, "n1")
		n.run()
		n.stop()
		b := n.refuses(&n.store.Faulty, blocktest.Touch, 3)
		n.run()
		pass(4 * time.Minute)
		b.done(t)
		n.holds("compute", 1)
		n.healthy()
	})
}

// A pod that waits for what is kept for it gets other addresses before that, and the
// server is left alone all the same.
func TestGrantsWaitForAsLongAsTheServerSays(t *testing.T) {
	for name, tt := range map[string]struct {
		op    blocktest.Op
		calls int
	}{"taking": {blocktest.Create, 2}, "giving back": {stickytest.Update, 3}, "anything": {"", 3}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				n := newCluster(keeping(t)).node(t, "n1")
				config := n.config()
				config.Rand = func() float64 { return 0 } // as early as can be
				n.runWith(config)
				n.mustAdd("db-0", "c0")
				n.mustAdd("db-1", "c1")
				b := n.refuses(&n.kept.Faulty, tt.op, tt.calls)
				n.release("c0")
				n.release("c1")
				for i := range 4 { // ADDs of a pod that is new
					if _, err := n.add("db-2", "c2"); err == nil {
						break
					}
					pass(time.Duration(i) * 7 * time.Second)
				}
				n.idle(10 * time.Minute)
				b.done(t)
				n.healthy()
				n.heldBy(t, "db-0", "")
				n.heldBy(t, "db-1", "")
			})
		})
	}
}
