// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"slices"
	"testing"
	"time"
)

// qpOfMLX5 is a dump as mlx5's driver makes it: a header, and a queue pair with the primary
// address path at byte 40 (mlx5_ifc_ads_bits). The rest is what both queue pairs have.
func qpOfMLX5(index byte) []byte {
	b := slices.Repeat([]byte{0x40, 0, 0x11}, 100)
	copy(b[40:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 14 << 3, index, 0, 64, 0, 0, 0, 0})
	copy(b[40+16:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 18, 0, 11})
	return b
}

func TestTheIndexOfTwoQueuePairsIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		dumps [2][]byte
		index [2]int
		want  []int
	}{
		{"mlx5", [2][]byte{qpOfMLX5(3), qpOfMLX5(5)}, [2]int{3, 5}, []int{40 + 16 - beforeGID}},
		{"the first alone", [2][]byte{qpOfMLX5(3), qpOfMLX5(5)}, [2]int{3, 3}, nil},
		{"exchanged", [2][]byte{qpOfMLX5(3), qpOfMLX5(5)}, [2]int{5, 3}, nil},
		{"a short one", [2][]byte{qpOfMLX5(3), qpOfMLX5(5)[:49]}, [2]int{3, 5}, nil},
	} {
		if got := indexAt(c.dumps, c.index); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestSpreadOfTimes(t *testing.T) {
	t.Parallel()
	var took []time.Duration
	for i := range 100 {
		took = append(took, time.Duration(100-i)*time.Microsecond)
	}
	if got, want := spread(took), "50 µs (median), 99 µs (p99), 100 µs (most)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := spread(took[:1]), "1 µs (median), 1 µs (p99), 1 µs (most)"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
