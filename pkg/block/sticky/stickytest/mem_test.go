// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package stickytest_test

import (
	"errors"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/blocktest"
	"github.com/roce-cni/roce-cni/pkg/block/sticky"
	"github.com/roce-cni/roce-cni/pkg/block/sticky/stickytest"
)

func TestMemIsAStore(t *testing.T) {
	t.Parallel()
	stickytest.Suite(t, func(*testing.T) sticky.Store { return stickytest.NewMem() })
}

func TestFaultsDoWhatTheySay(t *testing.T) {
	t.Parallel()
	var busy *block.BusyError
	unknown := func(err error) bool { return errors.Is(err, block.ErrUnknown) }
	for fault, want := range map[blocktest.Fault]struct {
		kept, later int
		err         func(error) bool
	}{
		blocktest.None:    {1, 1, func(err error) bool { return err == nil }},
		blocktest.Refused: {0, 0, func(err error) bool { return errors.As(err, &busy) && busy.After == blocktest.RetryAfter }},
		blocktest.Lost:    {0, 0, unknown},
		blocktest.Landed:  {1, 1, unknown},
		stickytest.Late:   {0, 1, unknown},
	} {
		m := stickytest.NewMem()
		m.Fault = func(blocktest.Op, string) blocktest.Fault { return fault }
		_, err := m.Create(t.Context(), sticky.Lease{Name: "p-s0"})
		if kept := len(m.Snapshot()); !want.err(err) || kept != want.kept {
			t.Errorf("%q: %d leases, error %v", fault, kept, err)
		}
		if landed := m.Land(); landed != (want.later > want.kept) || len(m.Snapshot()) != want.later || m.Land() {
			t.Errorf("%q: landed %t, %d leases", fault, landed, len(m.Snapshot()))
		}
	}
}
