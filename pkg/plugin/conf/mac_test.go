// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"encoding/json"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestMACsSurviveJSON(t *testing.T) {
	t.Parallel()
	for in, want := range map[conf.MAC]string{
		{}:                             `""`,
		{0x02, 0, 0, 0xab, 0xcd, 0xef}: `"02:00:00:ab:cd:ef"`,
	} {
		b, err := json.Marshal(in)
		if err != nil || string(b) != want {
			t.Errorf("%v: got %s, %v, want %s", in, b, err, want)
		}
		out := conf.MAC{1}
		if err := json.Unmarshal(b, &out); err != nil || out != in {
			t.Errorf("%s: got %v, %v", b, out, err)
		}
	}
	var m conf.MAC
	if err := json.Unmarshal([]byte(`"ff:ff:ff:ff:ff:ff"`), &m); err == nil {
		t.Errorf("the broadcast address is accepted as %v", m)
	}
}

func TestPodsAreNamedWithTheirNamespace(t *testing.T) {
	t.Parallel()
	if got := (conf.Pod{Namespace: "ns", Name: "p"}).String(); got != "ns/p" {
		t.Errorf("got %s", got)
	}
	if got := (conf.Pod{Namespace: "ns"}).String(); got != "" {
		t.Errorf("without a name got %s", got)
	}
}
