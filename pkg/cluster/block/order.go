// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package block

import (
	"crypto/sha256"
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

// Node is a node that claims blocks.
type Node struct {
	Name      string // of its Node object
	MachineID string // /etc/machine-id
	// Own is the addresses of the node itself on the rails, if it has any. They say
	// where the search begins.
	Own []netip.Addr
}

// Confirm compares the machine-id with the one that the Node object of that name
// reports; "" confirms nothing and is no error. TryAgain: they differ. A reaper would
// then take the node's blocks as those of a replaced machine, so the node must not
// claim.
func (n Node) Confirm(reported string) error {
	if reported == "" || reported == n.MachineID {
		return nil
	}
	return cnierr.New(cnierr.TryAgain, "confirm machine-id of node", n.Name,
		"restart kubelet, which reports the machine-id of its own start; if it still differs, another machine uses this node name: kubectl get node "+n.Name+" -o jsonpath={.status.nodeInfo}",
		"it is %s here, and %s in the Node object", n.MachineID, reported)
}

// Owner returns the node as the owner of an object.
func (n Node) Owner() Owner { return Owner{n.Name, n.MachineID} }

// owns says whether the node owns a block.
func (n Node) owns(b Block) bool { return b.Spec.Owner == n.Owner() }

// order returns the indexes of all blocks, in the order in which a node tries to
// claim them. It begins with the hint. After the hint it uses double hashing: start
// and step are computed from the node. So two nodes that met at one block do not meet
// again at the next one. The order is the same after a restart.
func (s Space) order(node Node) iter.Seq[int] {
	sum := sha256.Sum256([]byte(node.MachineID + "\x00" + node.Name))
	hint, hinted := s.Hint(node.Own)
	return func(yield func(int) bool) {
		if hinted && !yield(s.Index(hint)) {
			return
		}
		for n := range probes(sum[:16], s.Blocks()) {
			if hinted && n == hint {
				continue
			}
			if !yield(s.Index(n)) {
				return
			}
		}
	}
}

// probes returns the numbers below count, each once. It computes start and step from
// a sum of 16 bytes.
func probes(sum []byte, count int) iter.Seq[int] {
	return func(yield func(int) bool) {
		if count == 0 {
			return
		}
		n := uint64(count)
		start, step := binary.BigEndian.Uint64(sum[:8])%n, binary.BigEndian.Uint64(sum[8:])%n
		for gcd(step, n) != 1 { // otherwise some numbers are never reached
			step++
		}
		for i := range n {
			if !yield(int((start + i*step%n) % n)) {
				return
			}
		}
	}
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
