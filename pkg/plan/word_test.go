// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plan_test

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plan"
)

func TestWordsOfAPodAreQuoted(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"net1": "net1", "a_b.c@d-e": "a_b.c@d-e", "`id>pwn`": "'`id>pwn`'", "$(id)": "'$(id)'", "a;b": "'a;b'",
		"it's": `'it'\''s'`, "-x": "'-x'", "": "''", "a\x1bb": "'a?b'", "größe": "'größe'",
	} {
		if got := plan.Word(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}
