// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rival_test

import (
	"encoding/json"
	"testing"

	"github.com/roce-cni/roce-cni/integration/scale/rival"
)

// 145 bytes is what an entry of whereabouts has, with its number.
func TestAnEntryOfAPoolIsAsLongAsAReal(t *testing.T) {
	t.Parallel()
	length := func(taken int) int {
		b, err := rival.Encode(rival.Object{Kind: rival.Pools, Name: "rail-0", Taken: taken})
		if err != nil {
			t.Fatal(err)
		}
		var back rival.Wire
		if err := json.Unmarshal(b, &back); err != nil || back.Object(rival.Pools).Taken != taken {
			t.Errorf("%d are taken, want %d, error %v", back.Object(rival.Pools).Taken, taken, err)
		}
		return len(b)
	}
	if each := (length(2000) - length(1000)) / 1000; each < 115 || each > 150 {
		t.Errorf("%d bytes", each)
	}
}
