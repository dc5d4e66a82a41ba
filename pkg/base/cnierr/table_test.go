// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cnierr_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

var update = flag.Bool("update", false, "rewrite docs/errors.md")

func TestTableIsInAscendingOrder(t *testing.T) {
	t.Parallel()
	table := cnierr.Table()
	for i := 1; i < len(table); i++ {
		if table[i].Code <= table[i-1].Code {
			t.Errorf("%d comes after %d", table[i].Code, table[i-1].Code)
		}
	}
}

func TestEveryCodeIsExplained(t *testing.T) {
	t.Parallel()
	codes := []cnierr.Code{
		cnierr.Version, cnierr.Unsupported, cnierr.BadEnv, cnierr.IO, cnierr.Decode, cnierr.BadConfig,
		cnierr.BadNetns, cnierr.TryAgain, cnierr.NotAvailable, cnierr.Limited,
		cnierr.AddressTaken, cnierr.PoolExhausted, cnierr.BadParent, cnierr.NoRDMA, cnierr.RDMAMode,
		cnierr.RouteTaken, cnierr.GatewaySilent, cnierr.Unreadable, cnierr.NoGID, cnierr.RDMAHeld, cnierr.Damaged, cnierr.Bug,
	}
	if got := len(cnierr.Table()); got != len(codes) {
		t.Errorf("the table has %d entries for %d codes", got, len(codes))
	}
	unknown := cnierr.Explain(9999).Summary
	for _, c := range codes {
		e := cnierr.Explain(c)
		if e.Code != c || e.Summary == unknown {
			t.Errorf("%d is not in the table", c)
		}
		for field, s := range map[string]string{"summary": e.Summary, "remedy": e.Remedy} {
			if s == "" || strings.ContainsAny(s, "\n|") || strings.HasSuffix(s, ".") || s != strings.TrimSpace(s) {
				t.Errorf("%d: %s %q, want one line for a table cell, without full stop", c, field, s)
			}
		}
	}
}

func TestCodesOfAnotherPluginAreExplainedAsSuch(t *testing.T) {
	t.Parallel()
	e := cnierr.Explain(120)
	if e.Code != 120 || !strings.Contains(e.Summary, "delegated plugin") || e.Remedy == "" {
		t.Errorf("got %+v", e)
	}
}

// The codes below 100 are the specification's, with libcni's numbers; ours
// stay out of its range.
func TestCodesAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	spec := map[cnierr.Code]uint{
		cnierr.Version:      types.ErrIncompatibleCNIVersion,
		cnierr.Unsupported:  types.ErrUnsupportedField,
		cnierr.BadEnv:       types.ErrInvalidEnvironmentVariables,
		cnierr.IO:           types.ErrIOFailure,
		cnierr.Decode:       types.ErrDecodingFailure,
		cnierr.BadConfig:    types.ErrInvalidNetworkConfig,
		cnierr.BadNetns:     types.ErrInvalidNetNS,
		cnierr.TryAgain:     types.ErrTryAgainLater,
		cnierr.NotAvailable: types.ErrPluginNotAvailable,
		cnierr.Limited:      types.ErrLimitedConnectivity,
	}
	for _, e := range cnierr.Table() {
		want, standard := spec[e.Code]
		if standard && uint(e.Code) != want {
			t.Errorf("code %d, want %d", e.Code, want)
		}
		if !standard && (e.Code < 100 || e.Code > 199) {
			t.Errorf("code %d is neither the specification's nor in 100 to 199", e.Code)
		}
	}
}

func TestErrorsPageIsCurrent(t *testing.T) {
	t.Parallel()
	const page = "../../../docs/errors.md"
	want := render(cnierr.Table())
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/errors.md is not what the table says: run make gen (-want +got)\n%s", diff)
	}
}

// render returns docs/errors.md.
func render(table []cnierr.Entry) string {
	var b strings.Builder
	b.WriteString(`# Error codes

<!-- Made from pkg/base/cnierr/table.go by "make gen". Change it there. -->

A failed CNI call prints an error with a code, a message and details. The
message is ` + "`program[code] operation \"subject\": cause`" + `; the details say what to do.
Runtimes print both in the events of the pod, but not the code: so it stands in the
message. ` + "`rocectl explain CODE`" + ` prints a row of this table.

Codes below 100 mean what the CNI specification says, those from 100 on are
those of roce-cni. A code that is not here is another plugin's.

| code | returned when | what to do |
|---|---|---|
`)
	for _, e := range table {
		fmt.Fprintf(&b, "| %d | %s | %s |\n", e.Code, e.Summary, e.Remedy)
	}
	return b.String()
}
