// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

// hangs is set for the process of the test that hangs.
const hangs = "ROCE_TEST_HANGS"

func TestMain(m *testing.M) {
	if os.Getenv(hangs) == "" {
		os.Exit(m.Run())
	}
	forEver := func(context.Context, *skel.CmdArgs) error { select {} }
	os.Exit(call{name: "roce", patience: 1}.main(Verbs{Add: forEver}))
}

func TestACallEndsWhenAnythingHangs(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), hangs+"=1", "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_NETNS=/x", "CNI_IFNAME=net1", "CNI_PATH=/x")
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "rail", "type": "roce"}`)
	out, err := cmd.Output()
	var status *exec.ExitError
	if !errors.As(err, &status) || status.ExitCode() != 1 || !strings.Contains(string(out), `"code": 11`) {
		t.Errorf("%v: %s", err, out)
	}
}

func TestErrorsOfSkelHaveOurForm(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		verb       string
		given      *types.Error
		msg, hints string
	}{
		{"ADD", types.NewError(7, "roce[7] as it is", "x"), "roce[7] as it is", "x"},
		{"ADD", types.NewError(7, "[x] wrong", "see y"), "roce[7] [x] wrong", "see y; " + cnierr.Explain(7).Remedy},
		{"ADD", types.NewError(4, "no CNI_IFNAME", ""), "roce[4] no CNI_IFNAME", cnierr.Explain(4).Remedy},
		{"CHECK", types.NewError(types.ErrIncompatibleCNIVersion, "old", ""), "roce[1] old", "set cniVersion to 0.4.0, 1.0.0 or 1.1.0: older versions have no CHECK"},
		{"GC", types.NewError(types.ErrIncompatibleCNIVersion, "old", ""), "roce[1] old", "set cniVersion to 1.1.0: older versions have no GC"},
	} {
		if got := complete("roce", tt.verb, tt.given); got.Code != tt.given.Code || got.Msg != tt.msg || got.Details != tt.hints {
			t.Errorf("%s, %v: got %+v", tt.verb, tt.given, got)
		}
	}
}

// TestACallIsNotedWithAllThatIsKnownOfIt compares the whole note.
func TestACallIsNotedWithAllThatIsKnownOfIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := Note(Input("DEL", &skel.CmdArgs{ContainerID: "c1", IfName: "net1", Netns: "/x", Args: "A=1", StdinData: []byte("{}")}))
	n.StateDir, n.Network, n.Pod = dir, "rail", conf.Pod{Namespace: "train", Name: "p1"}
	n.Took("lease", 2)
	n.Took("links", 3)
	n.Took("lease", 4)
	held := []calls.Held{{Device: "mlx5_0", Port: 1, Index: 3}, {Device: "mlx5_1", Port: 1, Index: 4}}
	for _, h := range held {
		n.Held(h)
	}
	n.End("/no/such/file", cnierr.New(cnierr.TryAgain, "wait for", "lock", "", "no"))
	Note(Input("ADD", &skel.CmdArgs{ContainerID: "c2"})).End("/no/such/file", nil) // it is not known where to
	noted, _, err := calls.File{Dir: dir}.After("")
	if err != nil || len(noted) != 1 {
		t.Fatal(noted, err)
	}
	got := noted[0]
	if time.Since(got.At) > time.Hour || got.Took <= 0 {
		t.Errorf("at %s, for %s", got.At, got.Took)
	}
	got.At, got.Took = time.Time{}, 0
	want := calls.Call{
		Verb: "DEL", Network: "rail", Attachment: conf.Attachment{ContainerID: "c1", IfName: "net1"}, Pod: "train/p1", Trace: Trace(),
		Steps: []calls.Step{{Name: "lease", Took: 6}, {Name: "links", Took: 3}}, Code: cnierr.TryAgain, Error: `wait for "lock": no`, Held: held,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
