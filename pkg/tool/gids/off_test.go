// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package gids

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestAPortThatLostRoCEIsNamed has a pod on three NICs. RoCE is off on the second, and
// the third has gone.
func TestAPortThatLostRoCEIsNamed(t *testing.T) {
	t.Parallel()
	recorded := map[Addr]Recorded{
		{"net1", netip.MustParseAddr("172.16.0.5")}: {Device: "mlx5_0"},
		{"net2", netip.MustParseAddr("172.17.0.5")}: {Device: "mlx5_1"},
		{"net3", netip.MustParseAddr("172.18.0.5")}: {Device: "mlx5_2"},
	}
	off := portOf("mlx5_1", "")
	off.Size = 0
	foreign := portOf("mlx5_9", "")
	foreign.Size = 0
	ports := []Port{portOf("mlx5_0", "", "172.16.0.5"), off, foreign}
	addrs := slices.Concat(on("lo", "127.0.0.1"), on("net9", "fe80::9"), on("eth0", "10.244.0.7"), on("net1", "172.16.0.5"), on("net2", "172.17.0.5", "fd00::5", "fe80::2"), on("net3", "172.18.0.5"))
	notes := func(h Hints) string {
		t.Helper()
		h.Out = "eth0"
		rails, err := Find(ports, addrs, h)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(rails[0].Notes, "\n")
	}
	lines := strings.Split(notes(Hints{Recorded: recorded}), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "net2 172.17.0.5 is left out: RoCE is off on mlx5_1:1: the port has no GID table") ||
		!strings.Contains(lines[0], "enable_roce") || !strings.Contains(lines[1], "net3 172.18.0.5 is left out: it had an entry in mlx5_2") ||
		!strings.Contains(lines[1], "not there now") {
		t.Errorf("on the node it says %q", lines)
	}
	lines = strings.Split(notes(Hints{}), "\n") // in the pod
	const may = " is left out: it has no entry. On mlx5_1:1, mlx5_9:1 RoCE is off"
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "net2 172.17.0.5"+may) || !strings.HasPrefix(lines[1], "net3 172.18.0.5"+may) {
		t.Errorf("in the pod it says %q", lines)
	}

	moved := Hints{Recorded: map[Addr]Recorded{{"net1", netip.MustParseAddr("172.16.0.5")}: {Device: "mlx5_bond_0"}}}
	if got := notes(moved); got != "net1 172.16.0.5: ADD found its entry in mlx5_bond_0, and no device has that name now: rocectl check" {
		t.Errorf("of another device it says %q", got)
	}

	_, err := Find(ports, on("net2", "172.17.0.5"), Hints{Recorded: recorded})
	if err == nil || !strings.Contains(err.Error(), "RoCE is off on mlx5_1:1: it has no GID table") {
		t.Errorf("the only rail is lost: got %v", err)
	}
	_, err = Find(ports, on("net1", "172.16.0.6"), Hints{Recorded: recorded})
	if err == nil || strings.Contains(err.Error(), "RoCE is off") {
		t.Errorf("another address is lost: got %v", err)
	}
}
