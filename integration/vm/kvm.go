// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package vm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// kvmTime is many times what a boot with KVM takes: 1 to 3 s.
const kvmTime = 30 * time.Second

// withKVM says whether a guest with the kernel boots with KVM. That /dev/kvm is there does
// not tell: on some hosts QEMU aborts, on others the guest hangs. So one is booted, and
// the answer is kept in the cache until this machine or its kernel is another.
func (k Kernel) withKVM(ctx context.Context, cache string, log io.Writer) (bool, error) {
	const device, yes, no = "/dev/kvm", "a guest boots with KVM", "no guest boots with KVM"
	if _, err := os.Stat(device); err != nil {
		return false, nil //nolint:nilerr // there is none
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return false, err
	}
	answer := filepath.Join(cache, "kvm-"+k.Release)
	known, err := os.ReadFile(answer)
	if rest, ok := bytes.CutPrefix(known, boot); ok && err == nil {
		return string(rest) == yes, nil
	}
	trial, cancel := context.WithTimeout(ctx, kvmTime)
	defer cancel()
	k.KVM = true
	var out bytes.Buffer
	status, err := k.Run(trial, Machine{Rails: []*Wire{new(Wire)}, Dir: "/", Output: &out}, "true")
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	says := yes
	if status != 0 || err != nil {
		says = no
		fmt.Fprintf(log, "kernel %s: %s, so the processor is emulated: status %d, %v\n%s", k.Release, no, status, err, &out)
	}
	return says == yes, os.WriteFile(answer, append(boot, says...), 0o644)
}
