// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"io"
	"os"
	"strings"
	"testing"
)

func join(t *testing.T, w *Wire) *os.File {
	t.Helper()
	f, err := w.join()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// framed is a frame in QEMU's stream.
func framed(s string) string {
	n := len(s)
	return string([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + s
}

func send(t *testing.T, f *os.File, s string) {
	t.Helper()
	if _, err := f.WriteString(framed(s)); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, f *os.File, want string) {
	t.Helper()
	got := make([]byte, len(framed(want)))
	if _, err := io.ReadFull(f, got); err != nil {
		t.Fatal(err)
	}
	if string(got) != framed(want) {
		t.Errorf("received %q, want %q", got, framed(want))
	}
}

func TestAWireHandsFramesToAllOthers(t *testing.T) {
	t.Parallel()
	var w Wire
	a, b, c := join(t, &w), join(t, &w), join(t, &w)
	send(t, a, "from a")
	receive(t, b, "from a")
	receive(t, c, "from a")
	send(t, b, "from b")
	receive(t, a, "from b") // and not its own before
	receive(t, c, "from b")
}

func TestAMachineThatDoesNotReadStopsNoOther(t *testing.T) {
	t.Parallel()
	var w Wire
	a, b, _ := join(t, &w), join(t, &w), join(t, &w)
	frame := strings.Repeat("x", 9000)
	for range 3 * queueLen { // more than its queue and its socket hold
		send(t, a, frame)
		receive(t, b, frame)
	}
}

func TestAMachineThatIsGoneLeavesTheWire(t *testing.T) {
	t.Parallel()
	var w Wire
	a, b, c := join(t, &w), join(t, &w), join(t, &w)
	c.Close()
	for range 3 {
		send(t, a, "still here")
		receive(t, b, "still here")
	}
}
