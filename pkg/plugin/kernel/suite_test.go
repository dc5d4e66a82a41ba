// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package kernel_test

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
)

func TestLinuxObeysTheLaw(t *testing.T) {
	t.Parallel()
	kerneltest.Suite(t, func(t *testing.T) kerneltest.World {
		t.Parallel()
		return kerneltest.NewLinux(t)
	})
}
