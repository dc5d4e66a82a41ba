// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package redact

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
)

func TestAnAlikeTextHasTheSameForm(t *testing.T) {
	t.Parallel()
	r := NewAlike()
	r.Name("node", "gpu-07")
	r.Keep("218.0.219.1/pkg 24.10-1.1.4.0.")
	for _, c := range []struct{ in, want string }{
		{"gpu-07 172.16.11.5/24", "node-1 240.0.1.1/24"},
		{"172.16.11.9 172.16.12.5 172.16.11.5", "240.0.1.2 240.0.2.1 240.0.1.1"},
		{"0000:0000:0000:0000:0000:ffff:ac10:0b05", "0000:0000:0000:0000:0000:ffff:f000:0101"},
		{"0000:0000:0000:0000:0000:0000:0000:0000", "0000:0000:0000:0000:0000:0000:0000:0000"},
		{"52:54:00:aa:bb:cc", "02:52:4f:00:00:01"},
		{"enx525400aabbcc", "enx02524f000001"},
		{"rocex525400fffeaabbcc 5254:00ff:feaa:bbcc", "rocex02524f00ff000001 0252:4f00:ff00:0001"},
		{"fe80:0000:0000:0000:5054:00ff:feaa:bbcc", "fe80:0000:0000:0000:0052:4fff:fe00:0001"},
		{"fd00:1::5054:ff:feaa:bbcc", "2001:db8:524f:1:52:4fff:fe00:1"},
		{"fd00:1::77/64 fd00:2::77", "2001:db8:524f:1::1/64 2001:db8:524f:2::1"},
		{"5054:00ff:feaa:bbcc 0000:0000:0000:0000", "0252:4f00:ff00:0002 0000:0000:0000:0000"},
		{"00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 198.18.0.1 2001:2::1 127.0.0.1", "00:00:00:00:00:00 ff:ff:ff:ff:ff:ff 198.18.0.1 2001:2::1 127.0.0.1"},
		{"fd00:1::200:ff:1234:5678 fd00:1::200:12:fe34:5678 ", "2001:db8:524f:1::2 2001:db8:524f:1::3 "},
		{"f000::1 0123456789abc 025490ca2e87", "2001:db8:524f:3::4 0123456789abc 025490ca2e87"},
		{"firmware 218.0.219.1/pkg, MLNX_OFED 24.10-1.1.4.0", "firmware 218.0.219.1/pkg, MLNX_OFED 24.10-1.1.4.0"},
		{"0000:0b:00.2 pci0000:00/0000:00:03.0 28.39.1002", "0000:0b:00.2 pci0000:00/0000:00:03.0 28.39.1002"},
	} {
		got := r.Text(c.in)
		if got != c.want {
			t.Errorf("%q: got %q, want %q", c.in, got, c.want)
		}
		if again := r.Text(got); again != got {
			t.Errorf("%q is replaced again: %q", got, again)
		}
	}
	if got := r.MAC([]byte{0x52, 0x54, 0, 0xaa, 0xbb, 0xcc}); !bytes.Equal(got, []byte("\x02RO\x00\x00\x01")) {
		t.Errorf("in binary: % x", got)
	}
	for _, a := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.5", "::", "::1", "ff02::1", "198.18.0.1", "2001:2::1"} {
		if got := r.Addr(netip.MustParseAddr(a)).String(); got != a {
			t.Errorf("%s, which every machine has, becomes %s", a, got)
		}
	}
	if got := r.Addr(netip.MustParseAddr("fe80::1234")).String(); got != "fe80::5" {
		t.Errorf("a link-local address becomes %s", got)
	}
	if got := r.MAC([]byte{0, 0, 0, 2, 0xc9, 1, 2, 3}); !bytes.Equal(got, make([]byte, 8)) {
		t.Errorf("a hardware address of another size: % x", got)
	}
	if got := r.Addr(netip.MustParseAddr("::ffff:172.16.11.5")).String(); got != "240.0.1.1" {
		t.Errorf("in binary: %s", got)
	}
}

func TestWhatIsLeftIsFound(t *testing.T) {
	t.Parallel()
	r := NewAlike()
	r.Name("node", "gpu-07")
	r.Name("node", "gpu-08")
	r.Text("172.16.11.5 52:54:00:aa:bb:cc 52:54:00:aa:bb:dd fd00:1::77 fe80::1234 5054:00ff:feaa:bbcd")
	for text, want := range map[string]string{
		`"172.16.11.5"`:     "host4-ac100b",
		`"525400AABBCC"`:    "mac",
		"52:54:00:aa:bb:cc": "mac",
		"fd00:1::77":        "ip6",
		"fd00:0001:0000:0000:0000:0000:0000:0077": "ip6",
		"cdbbaafeff005450":                        "guid",
		"nothing 172.16.1.5":                      "",
		"172.16.11.55":                            "",
		"on gpu-07.":                              "node",
		"fe80::1234":                              "",
		"gpu-08 gpu-07 52:54:00:aa:bb:cc fd00:1::77 52:54:00:aa:bb:dd": "ip6 mac node",
	} {
		if got := strings.Join(r.Left(text), " "); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
