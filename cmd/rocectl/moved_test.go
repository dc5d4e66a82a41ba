// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma"
)

func TestIndexesOfOnePortThatChangedHaveOneLine(t *testing.T) {
	t.Parallel()
	moved := func(port, addr string, was, is int) error {
		e := &rdma.MovedError{Port: port, Addr: netip.MustParseAddr(addr), Was: was, Is: is}
		return fmt.Errorf("rail 0: %w", cnierr.New(cnierr.Damaged, "check GID of", addr, "the hint", "%w", e))
	}
	all := []finding{problemOf("train/a net1", cnierr.New(cnierr.Damaged, "look at", "net1", "the hint", "it is odd"))}
	for _, f := range []struct {
		label string
		err   error
	}{
		{"train/a net1", moved("mlx5_bond_0/1", "172.16.0.10", 3, 5)},
		{"train/a net1", moved("mlx5_bond_0/1", "fd00::10", 5, 7)},
		{"train/b net1", moved("mlx5_bond_0/1", "172.16.0.11", 7, 3)},
		{"train/c net2", moved("mlx5_2/1", "172.16.1.10", 3, 5)},
	} {
		all = append(all, problemOf(f.label, f.err))
	}
	var out strings.Builder
	if err := writeFindings(&out, all); err != nil {
		t.Fatal(err)
	}
	want := `train/a net1: look at "net1": it is odd; the hint
train/c net2: rail 0: check GID of "172.16.1.10": its index changed from 3 to 5; the hint
mlx5_bond_0/1: GID indexes of 2 attachments changed, as after a failover of a bond or a reset of the NIC: ` +
		`train/a net1: 172.16.0.10 from 3 to 5, train/a net1: fd00::10 from 5 to 7, train/b net1: 172.16.0.11 from 7 to 3; ` +
		rdma.NewIndex + "\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}
