// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package blocktest_test

import (
	"errors"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/block"
	"github.com/roce-cni/roce-cni/pkg/block/blocktest"
)

func TestMemIsAStore(t *testing.T) {
	t.Parallel()
	blocktest.Suite(t, func(*testing.T) block.Store { return blocktest.NewMem() })
}

func TestMemIsAStoreWhoseListsAreOld(t *testing.T) {
	t.Parallel()
	blocktest.Suite(t, func(*testing.T) block.Store {
		m := blocktest.NewMem()
		m.Lag = 2
		return m
	})
}

func TestFaultsDoWhatTheySay(t *testing.T) {
	t.Parallel()
	var busy *block.BusyError
	for fault, want := range map[blocktest.Fault]struct {
		kept int
		err  func(error) bool
	}{
		blocktest.None:    {1, func(err error) bool { return err == nil }},
		blocktest.Refused: {0, func(err error) bool { return errors.As(err, &busy) && busy.After == blocktest.RetryAfter }},
		blocktest.Lost:    {0, func(err error) bool { return errors.Is(err, block.ErrUnknown) }},
		blocktest.Landed:  {1, func(err error) bool { return errors.Is(err, block.ErrUnknown) }},
	} {
		m := blocktest.NewMem()
		m.Fault = func(blocktest.Op, string) blocktest.Fault { return fault }
		_, err := m.Create(t.Context(), block.Block{Name: "p-0"})
		if kept := len(m.Snapshot()); !want.err(err) || kept != want.kept {
			t.Errorf("%q: %d blocks, error %v", fault, kept, err)
		}
	}
}
