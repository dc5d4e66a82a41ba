// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// gidChange is IBV_EVENT_GID_CHANGE.
const gidChange = 18

// watchEvents counts how often programs that have a device open are told that its GID table
// changes, from now on. count waits until there are enough. It opens the device as
// libibverbs does, which has no driver for fake_roce.
func watchEvents(t *testing.T, device string) (count func(what string, enough int) int) {
	t.Helper()
	events := asyncEvents(t, device)
	var told atomic.Int64
	go func() {
		event := make([]byte, 16) // struct ib_uverbs_async_event_desc
		for {
			n, err := events.Read(event)
			if err != nil {
				return // the test is over
			}
			if n == len(event) && binary.NativeEndian.Uint32(event[8:]) == gidChange {
				told.Add(1)
			}
		}
	}()
	return func(what string, enough int) int {
		t.Helper()
		cnitest.Await(t, what+" has made its events", func() bool { return int(told.Load()) >= enough })
		return int(told.Load())
	}
}

// verbsFile returns the file by which programs open a device, "" if there is none.
func verbsFile(device string) string {
	for _, name := range entries("/sys/class/infiniband_verbs") {
		if of, _ := os.ReadFile(filepath.Join("/sys/class/infiniband_verbs", name, "ibdev")); strings.TrimSpace(string(of)) == device {
			return "/dev/infiniband/" + name
		}
	}
	return ""
}

// asyncEvents opens a device, and returns the file that has its events until the test is over.
func asyncEvents(t *testing.T, device string) *os.File {
	t.Helper()
	file := verbsFile(device)
	opened, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("%s: %v", device, err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	answer := new(struct{ asyncFD, vectors uint32 }) // struct ib_uverbs_get_context_resp
	var pinned runtime.Pinner
	pinned.Pin(answer) // the kernel writes to it
	defer pinned.Unpin()
	call := struct {
		command           uint32 // IB_USER_VERBS_CMD_GET_CONTEXT
		inWords, outWords uint16
		response          uintptr
	}{0, 4, 2, uintptr(unsafe.Pointer(answer))}
	if _, err := opened.Write(unsafe.Slice((*byte)(unsafe.Pointer(&call)), unsafe.Sizeof(call))); err != nil {
		t.Fatalf("open %s of %s: %v", file, device, err)
	}
	fd := int(answer.asyncFD)
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	events := os.NewFile(uintptr(fd), "events of "+device)
	t.Cleanup(func() { _ = events.Close() })
	return events
}
