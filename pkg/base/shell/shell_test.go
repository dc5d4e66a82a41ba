// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package shell

import "testing"

func TestWordsOfAPodAreQuoted(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"net1": "net1", "a_b.c@d-e": "a_b.c@d-e", "`id>pwn`": "'`id>pwn`'", "$(id)": "'$(id)'", "a;b": "'a;b'", "/run/netns/x": "/run/netns/x",
		"it's": `'it'\''s'`, "-x": "'-x'", "": "''", "a\x1bb": "'a?b'", "größe": "'größe'",
		"A9+%,:": "A9+%,:", "a=b": "'a=b'", "a b": "'a b'", "a\nb": "'a?b'", "~": "'~'", "a-": "a-",
	} {
		if got := Word(s); got != want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
}

func TestOnlyTheWordsOfACommandAreQuoted(t *testing.T) {
	t.Parallel()
	type name string
	const want = "ip link set 'a b' mtu 5 alias '$(id)' && true"
	if got := Command("ip link set %s mtu %d alias %s && true", name("a b"), 5, "$(id)"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
