// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// boots gives do the kernels of the series, one after another: two machines
// that boot at the same time have the processors of one.
func boots(t *testing.T, do func(*testing.T, Kernel), series ...string) {
	t.Helper()
	if os.Getenv("REQUIRE_VM") == "" {
		t.Skip("boots machines only with REQUIRE_VM=1, as make test-vm sets it")
	}
	for _, s := range series {
		t.Run("kernel "+s, func(t *testing.T) {
			k, err := Fetch(t.Context(), filepath.Join("..", "..", ".cache", "vm"), s, t.Output())
			if err != nil {
				t.Fatal(err)
			}
			do(t, k)
		})
	}
}

// machine is one with two rails in this folder.
func machine(t *testing.T, output *bytes.Buffer) Machine {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return Machine{Rails: []*Wire{new(Wire), new(Wire)}, Files: []string{dir}, Dir: dir, Output: output}
}

// limited is for all that could hang. It is many times what it takes.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestTheGIDOfAChildInANamespaceIsInTheTableOfItsParent(t *testing.T) {
	boots(t, func(t *testing.T, k Kernel) {
		var out bytes.Buffer
		status, err := k.Run(limited(t), machine(t, &out), "sh", "testdata/child.sh", "two words", "a'quote", "$HOME")
		if err != nil {
			t.Fatalf("%v\n%s", err, &out)
		}
		if status != 3 {
			t.Errorf("status %d, want the command's, 3", status)
		}
		for _, want := range []string{
			k.Release + "\n",
			"<two words><a'quote><$HOME>\n",
			"rxe0 on r0 mtu 9000\nrxe1 on r1 mtu 9000\n",
			" 0000:0000:0000:0000:0000:ffff:ac10:000b net1\n",
		} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the output lacks %q:\n%s", want, &out)
			}
		}
		t.Logf("seconds from the kernel's start to the command: %s", strings.Fields(out.String())[1])
	}, "6.1", "7")
}

func TestMachinesOnOneWireTransferByRDMA(t *testing.T) {
	boots(t, func(t *testing.T, k Kernel) {
		type result struct {
			status int
			err    error
		}
		var out [2]bytes.Buffer
		nodes := [2]Machine{machine(t, &out[0]), machine(t, &out[1])}
		nodes[1].Node, nodes[1].Rails = 1, nodes[0].Rails
		var together sync.WaitGroup
		together.Add(len(nodes))
		nodes[0].Together, nodes[1].Together = &together, &together
		results := make(chan result, len(nodes))
		ctx := limited(t)
		for _, m := range nodes {
			go func() {
				status, err := k.Run(ctx, m, "sh", "testdata/traffic.sh")
				results <- result{status, err}
			}()
		}
		for range nodes {
			if r := <-results; r.status != 0 || r.err != nil {
				t.Errorf("status %d, %v", r.status, r.err)
			}
		}
		for n := range nodes {
			if !strings.Contains(out[n].String(), "\n 65536      20 ") || t.Failed() {
				t.Errorf("node %d has no line of a transfer, or failed:\n%s", n, &out[n])
			}
		}
	}, "6.1", "7")
}

func TestAHangingMachineIsKilledWhenTheContextEnds(t *testing.T) {
	boots(t, func(t *testing.T, k Kernel) {
		ctx, cancel := context.WithCancelCause(limited(t))
		enough := errors.New("that is enough")
		m := machine(t, nil)
		m.Rails = nil
		m.Output = writerFunc(func([]byte) { cancel(enough) })
		status, err := k.Run(ctx, m, "sh", "-c", "echo hanging; trap '' TERM INT; while :; do sleep 1000; done")
		if !errors.Is(err, enough) {
			t.Errorf("status %d, error %v, want it to be the cause of the context's end", status, err)
		}
		// Run has waited for QEMU, so it has no process left of our children.
		left, _ := exec.Command("pgrep", "-P", fmt.Sprint(os.Getpid()), "qemu").Output()
		if len(left) > 0 {
			t.Errorf("QEMU is still there: %s", left)
		}
	}, "7")
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}

func TestAMachineThatEndsBeforeItsCommandIsAnErrorWithTheKernelsLastWords(t *testing.T) {
	boots(t, func(t *testing.T, k Kernel) {
		var out bytes.Buffer
		m := machine(t, &out)
		m.Rails = nil
		_, err := k.Run(limited(t), m, "sh", "-c", "echo c >/proc/sysrq-trigger")
		if err == nil || !strings.Contains(err.Error(), "sysrq triggered crash") {
			t.Errorf("error %v, want one with the panic of the kernel", err)
		}
	}, "6.1")
}

// Guests have nothing of this machine but the folders that they are given.
func TestAFileOfThisMachineIsNotInTheGuest(t *testing.T) {
	boots(t, func(t *testing.T, k Kernel) {
		made := filepath.Join(t.TempDir(), "made")
		if err := os.WriteFile(made, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		m := machine(t, &out)
		m.Rails = nil
		status, err := k.Run(limited(t), m, "sh", "-c", `[ -e vm_test.go ] && [ ! -e "$0" ]`, made)
		if status != 0 || err != nil {
			t.Errorf("status %d, %v: the guest has %s of this machine, or not its own folder\n%s", status, err, made, &out)
		}
	}, "7")
}

func TestWhatACommandWritesToFilesIsItsOwn(t *testing.T) {
	boots(t, func(t *testing.T, k Kernel) {
		var out bytes.Buffer
		m := machine(t, &out)
		m.Rails = nil
		status, err := k.Run(limited(t), m, "sh", "-c", "echo >new && rm vm_test.go && [ -e new ] && [ ! -e vm_test.go ]")
		if status != 0 || err != nil {
			t.Errorf("status %d, %v\n%s", status, err, &out)
		}
		_, gone := os.Stat("vm_test.go")
		_, none := os.Stat("new")
		if gone != nil || none == nil {
			t.Errorf("the guest changed this machine's files: vm_test.go %v, new %v", gone, none)
		}
	}, "7")
}
