// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package stickytest_test

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/sticky/stickytest"
)

func TestMemIsAStore(t *testing.T) {
	t.Parallel()
	stickytest.Suite(t, stickytest.NewMem())
}
