// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package redact

import (
	"slices"
	"strings"
	"testing"
)

func TestNothingOfTheUserIsLeft(t *testing.T) {
	t.Parallel()
	r := New()
	for _, n := range []string{"trainer-0", "trainer-0-worker", "ml", "gpu-07.example.org", "gpu-07", "İstanbul", ""} {
		r.Name("name", n)
	}
	r.Name("name", "ml") // twice
	for in, want := range map[string]string{
		"ml/trainer-0 and ml/trainer-0-worker":                    "name-4/name-3 and name-4/name-2",
		"html ml1 xml":                                            "html ml1 xml",
		"172.16.11.5/24, 172.16.11.5.":                            "ip-1/24, ip-1.",
		"0000:0000:0000:0000:0000:ffff:ac10:0b05":                 "ip-1",
		"::ffff:172.16.11.5 fd00::5 FD00:0:0::5":                  "ip-1 ip-2 ip-2",
		"listen 172.16.11.5:9483":                                 "listen ip-1:9483",
		"0.0.0.0 127.0.0.1 ::1 ::":                                "0.0.0.0 127.0.0.1 ::1 ::",
		"02:aB:00:00:00:01 02-ab-00-00-00-01":                     "mac-1 mac-1",
		"enx02ab00000001, rocex505400fffe000a01":                  "device-1, device-2",
		"guid 5054:00ff:fe00:0a01":                                "guid guid-1",
		"0000:13:00.0 15:28:33 28.39.1002 v1.2.3":                 "0000:13:00.0 15:28:33 28.39.1002 v1.2.3",
		"8d5b6a4e-1f6e-4f6b-9f56-0d7c4d1f2a33":                    "id-1",
		"roce:" + strings.Repeat("0123456789abcdef", 4) + "/net1": "roce:id-2/net1",
		"GPU-07 TRAINER-0 Trainer-0x":                             "name-5 name-3 Trainer-0x",
		"025490ca2e87 0254.90ca.2e87 02:54:90:CA:2E:87":           "mac-1 mac-1 mac-1",
		"0x021361fffe3dcbd2 021361fffe3dcbd2 0213:61ff:fe3d:cbd2": "guid-1 guid-1 guid-1",
		"0x123456789012":                                          "mac-1",
		"1:2:3:4:5:6:7:8:9":                                       "1:2:3:4:5:6:7:8:9",
		"İ gpu-07 x, at İstanbul.":                                "İ name-5 x, at name-5.",
		"ml":                                                      "name-4",
		"container 0123456789abc, 12345678901234 ns":              "container id-1, 12345678901234 ns",
		"ip-10-1-2-3.ec2.internal i-0123456789abcdef0":            "node-1.ec2.internal i-id-1",
		"aks-pool1-12345678-vmss00000a gke-c-pool-1a2b3c4d-x9yz":  "node-1 node-2",
		"Jo.Doe+x@example.org: eyJhbGciOi.eyJzdWIi.c2ln-_x":       "mail-1: token-1",
		"gpu-07.example.org is gpu-07":                            "name-1 is name-5",
		"gpu-07-nic, nic-gpu-07_0":                                "name-5-nic, nic-name-5_0",
	} {
		// The aliases count up over all texts, so only their shape is compared.
		got := r.Text(in)
		if shape(got) != shape(want) {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	for _, form := range []string{"02-54-90-CA-2E-87", "0254.90ca.2e87", "0x025490CA2E87"} {
		if a, b := r.Text("025490ca2e87"), r.Text(form); a != b {
			t.Errorf("one hardware address has two names: %s and %s", a, b)
		}
	}
	if a, b := r.Text("172.16.11.5"), r.Text("0000:0000:0000:0000:0000:ffff:ac10:0b05"); a != b {
		t.Errorf("one address has two names: %s and %s", a, b)
	}
}

// TestANameThatIsUsualStays: it is a word of the text, or can be a part of a number or an address.
func TestANameThatIsUsualStays(t *testing.T) {
	t.Parallel()
	const text = "the GID table of gpu, net-1\n"
	for name, want := range map[string]bool{
		"table": true, "TABLE": true, "gid": true, "gpu": true, "GPU": true, "net-1": true, "12": true, "10.0": true, "beef": true, "0x1F": true, "1-2_3": true,
		"tab": false, "tables": false, "gpu-07": false, "beefy": false, "abcde": false, "trainer-0": false,
	} {
		if got := Usual(name, text); got != want {
			t.Errorf("%q is usual: %t, want %t", name, got, want)
		}
	}
}

// TestANameKeepsItsFirstKind and its number, whatever the other names are.
func TestANameKeepsItsFirstKind(t *testing.T) {
	t.Parallel()
	r := New()
	for _, n := range [][2]string{{"pod", "a"}, {"pod", "bb"}, {"namespace", "a"}, {"node", "ccc"}, {"pod", ""}} {
		r.Name(n[0], n[1])
	}
	for range 2 {
		if got := r.Text("bb a ccc a"); got != "pod-1 pod-2 node-1 pod-2" {
			t.Errorf("got %q", got)
		}
	}
	if got := r.Left("in a, on CCC"); !slices.Equal(got, []string{"node", "pod"}) {
		t.Errorf("left are %q", got)
	}
}

// shape makes all numbers behind a dash equal.
func shape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		b.WriteByte(s[i])
		if s[i] != '-' {
			continue
		}
		for i+1 < len(s) && s[i+1] >= '0' && s[i+1] <= '9' {
			i++
		}
	}
	return b.String()
}
