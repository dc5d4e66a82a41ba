// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package blocktest_test

import (
	"errors"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/block"
	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

func TestMemIsAStore(t *testing.T) {
	t.Parallel()
	blocktest.Suite(t, blocktest.NewMem())
}

func TestMemIsAStoreWithOldLists(t *testing.T) {
	t.Parallel()
	m := blocktest.NewMem()
	m.Lag = 2
	blocktest.Suite(t, m)
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
		blocktest.Late:    {0, 1, unknown},
	} {
		m := blocktest.NewMem()
		m.Fault = func(blocktest.Op, string) blocktest.Fault { return fault }
		_, err := m.Create(t.Context(), block.Block{Name: "p-0"})
		if kept := len(m.Snapshot()); !want.err(err) || kept != want.kept || m.Calls(blocktest.Create) != 1 {
			t.Errorf("%q: %d blocks, error %v", fault, kept, err)
		}
		if landed := m.Land(); landed != (want.later > want.kept) || len(m.Snapshot()) != want.later || m.Land() {
			t.Errorf("%q: landed %t, %d blocks", fault, landed, len(m.Snapshot()))
		}
	}
}

func TestWhatIsLateIsLostWithTheEtcdThatIsRestored(t *testing.T) {
	t.Parallel()
	m := blocktest.NewMem()
	m.Fault = func(blocktest.Op, string) blocktest.Fault { return blocktest.Late }
	_, _ = m.Create(t.Context(), block.Block{Name: "p-0"}) // block.ErrUnknown
	m.Restore(nil)
	if m.Land() || len(m.Snapshot()) != 0 {
		t.Errorf("there is %v", m.Snapshot())
	}
}
