// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Usual says that every file of roce-hwtest can have this name as a word of its own, such as
// "ok" and "ports", or as a part of a number or an address. If it were replaced, the file
// could not be replayed.
func Usual(name string) bool { return redact.Usual(name, words()) }

// words are the texts that do not come from the node.
func words() string {
	var b strings.Builder
	for _, s := range slices.Concat(Steps(), Changing(), Disrupting(), Between()) {
		fmt.Fprintln(&b, s.Name, s.Asks, s.Expect)
	}
	for _, r := range table() {
		fmt.Fprintln(&b, r)
	}
	for _, v := range []report.Verdict{report.OK, report.Problem, report.CannotTell} {
		fmt.Fprintln(&b, v)
	}
	// The keys of JSON, also of fields that can be missing.
	rail := 0
	port := nic.Details{
		Rail: &rail, NUMA: &rail, Netdev: "x", PCI: "x", Speed: 1, MTU: 1, Bond: "x", Slaves: []string{"x"}, VendorID: "x", DeviceID: "x",
		Driver: nic.Driver{Name: "x", Version: "x", Firmware: "x"}, GPUs: []nic.GPU{{}},
	}
	finding := report.Answer{Check: "x", Why: "x", Finding: report.Finding{Of: "x", Found: "x", Fix: "x", Missing: "x"}}
	keys, err := json.Marshal(Results{
		Stack: Stack{OFED: "x"}, Stopped: "x", Ports: []nic.Details{port}, Drivers: []LinkDriver{{}},
		Answers: []Answer{{Answer: finding}}, Rows: []Row{{By: []string{"x"}, Needs: "x"}}, Doctor: []report.Answer{finding},
	})
	if err != nil {
		panic("hwtest: results are no JSON: " + err.Error())
	}
	return b.String() + string(keys) + recording.Words()
}
