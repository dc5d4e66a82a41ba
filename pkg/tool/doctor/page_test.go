// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// TestFaultsPageIsCurrent compares docs/doctor.md with the checks and the faults of the
// tests.
func TestFaultsPageIsCurrent(t *testing.T) {
	t.Parallel()
	const file = "../../../docs/doctor.md"
	got := page()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is old: run make gen (-want +got)\n%s", file, diff)
	}
}

func page() string {
	var b strings.Builder
	b.WriteString(`# What rocectl doctor finds

<!-- made by make gen from pkg/tool/doctor -->

For operators: what each check asks, why it matters, and every fault that it can report. It is a reference: look for
the name that "rocectl doctor" printed. Run it as root on the node. It changes nothing.
"rocectl doctor rdma-mtu gid-table" runs these two checks only. [rocectl.md](rocectl.md#rocectl-doctor) has the flags
and the exit status, and [testing.md](testing.md#the-faults-of-doctor) how each fault and its command are tested.
`)
	for _, c := range Checks() {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", c.Name, lines(fmt.Sprintf("%s%s Why a problem matters: %s.", strings.ToUpper(c.Asks[:1]), c.Asks[1:], c.Why)))
		b.WriteString("| fault | answer | it says | command, or what it needs |\n|---|---|---|---|\n")
		for _, f := range faults() {
			if f.check == c.Name && f.verdict != report.OK {
				fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.name, f.verdict, code(f.says), code(f.advice))
			}
		}
	}
	b.WriteString(`
## Faults between nodes

A node alone cannot see these.

| fault | found by |
|---|---|
`)
	for _, e := range between() {
		fmt.Fprintf(&b, "| %s | %s |\n", e.fault, code(e.finds))
	}
	return b.String()
}

// tried is a fault, and the test that has it in another package.
type tried struct{ fault, finds, file, test string }

// inMachines are faults of which a virtual machine runs the command.
func inMachines() []tried {
	const (
		repairs = "integration/rdma/doctor_test.go"
		left    = "integration/rdma/vlanlink_test.go"
	)
	return []tried{
		{fault: "a module is absent", file: repairs, test: "TestLongSharedDoctorRepairs"},
		{fault: "exclusive until the next boot", file: repairs, test: "TestLongSharedDoctorRepairs"},
		{fault: "shared until the next boot", file: repairs, test: "TestLongSharedDoctorRepairs"},
		{fault: "the kernel makes no file", file: repairs, test: "TestLongSharedDoctorRepairs"},
		{fault: "the neighbour table is nearly full", file: repairs, test: "TestLongSharedDoctorRepairs"},
		{fault: "a VF of the node is not trusted", file: "integration/rdma/sriov_test.go", test: "TestSRIOVSpoofCheckIsReportedBeforeAnAddressIsLeased"},
		{fault: "a VLAN without record", file: left, test: "TestLongSharedDoctorRemovesWhatNoRecordNames"},
	}
}

// between are faults that rocectl verify and kubectl roce rails find.
func between() []tried {
	const (
		verify = "rocectl verify --all"
		four   = "pkg/tool/verify/four_test.go"
		every  = "TestEachFaultOfFourNodesIsNamed"
	)
	return []tried{
		{"the gateway of a rail does not answer", "rocectl verify", "pkg/tool/verify/verify_test.go", "TestEachFaultOfAPodIsNamed"},
		{"a VLAN is not on the port of the switch", verify, four, every},
		{"a switch port with a smaller MTU", verify, four, every},
		{"swapped cables", verify, four, every},
		{"frames are lost in one direction", verify, four, every},
		{"two hosts with one address", verify, four, every},
		{"swapped cables, by LLDP", "kubectl roce rails", "pkg/cluster/fleet/fleet_test.go", "TestWhatDiffersIsNamed"},
		{"a node with another MTU, firmware, PFC, DSCP or ECN, or a NIC less", "kubectl roce rails", "pkg/cluster/fleet/fleet_test.go", "TestWhatDiffersIsNamed"},
	}
}

// TestWhatThePageNamesIsThere looks for the tests of other packages.
func TestWhatThePageNamesIsThere(t *testing.T) {
	t.Parallel()
	for _, e := range slices.Concat(inMachines(), between()) {
		b, err := os.ReadFile("../../../" + e.file)
		if err != nil || !strings.Contains(string(b), "func "+e.test+"(") {
			t.Errorf("%s: %s has no %s: %v", e.fault, e.file, e.test, err)
		}
	}
	for _, name := range named() {
		if !slices.ContainsFunc(faults(), func(f fault) bool { return f.name == name && f.verdict == report.Problem }) {
			t.Errorf("there is no problem %q", name)
		}
	}
}

// named are the problems of which the commands run in a kernel.
func named() []string {
	var out []string
	for _, e := range inMachines() {
		out = append(out, e.fault)
	}
	for _, k := range kernelFaults() {
		out = append(out, k.name)
	}
	return out
}

// lines breaks a paragraph into lines.
func lines(s string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		switch {
		case i == 0:
		case column+1+len(word) > 115:
			b.WriteString("\n")
			column = 0
		default:
			b.WriteString(" ")
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String()
}

// code prints a part of an answer in a table.
func code(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	if s == "" {
		return ""
	}
	return "`" + strings.ReplaceAll(s, "|", "\\|") + "`"
}
