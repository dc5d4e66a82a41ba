// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package attach_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func TestAPoolOfTheNameOfARailPoolIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fake.Pod(podPath("c1"))
	w.config = strings.Replace(config, `"type": "roce-ipam",`, `"type": "roce-ipam", "pool": "gpu",`, 1)
	w.own(1, "1-9")
	_, err := w.node().Add(ctx, w.request("c1", "net1", ""))
	if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "RailPool of this name") {
		t.Errorf("ADD: %v", err)
	}
	w.ownNothing()
	w.mustBeEmpty("after the ADD that was refused")
}
