// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cluster

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/cluster/block/blocktest"
)

func TestTheAPIServerIsAStore(t *testing.T) {
	blocktest.Suite(t, api(t, shared(t).Admin()).Blocks())
}
