// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// hangs is set for the process of the test that hangs, and serves for that of the others: to the
// verb, and to what it does.
const hangs, serves = "ROCE_TEST_HANGS", "ROCE_TEST_SERVES"

func TestMain(m *testing.M) {
	if os.Getenv(serves) != "" {
		os.Exit(Main("roce", Verbs{Add: echo("add"), Del: echo("del"), Check: echo("check"), GC: echo("gc"), Status: echo("status")}))
	}
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

// TestEachVerbIsServed as the runtime calls it, in a process of its own.
func TestEachVerbIsServed(t *testing.T) {
	t.Parallel()
	for verb, want := range map[string]string{
		"ADD": "add c1 /x net1 A=1", "DEL": "del c1 /x net1 A=1", "CHECK": "check c1 /x net1 A=1", "GC": "gc c1 /x net1 A=1", "STATUS": "status c1 /x net1 A=1",
		"ADD fails": `"code": 7`, "ADD panics": `"code": 199`, "REMOVE": `"code": 4`,
	} {
		name, does, _ := strings.Cut(verb, " ")
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), serves+"="+name+does, "CNI_COMMAND="+name, "CNI_CONTAINERID=c1", "CNI_NETNS=/x", "CNI_IFNAME=net1", "CNI_ARGS=A=1", "CNI_PATH=/y")
		cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "cni.dev/attachments": []}`)
		var out, errOut strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errOut
		fails := strings.HasPrefix(want, `"`)
		if err := cmd.Run(); fails != (err != nil) || fails && cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s: %v", verb, err)
		}
		if got := out.String(); !fails && strings.TrimSpace(got) != want || !strings.Contains(got, want) || fails && !strings.Contains(got, `"msg": "roce[`) {
			t.Errorf("%s prints\n%s, want\n%s", verb, got, want)
		}
		if told := strings.Contains(errOut.String(), "roce: panic: at once\ngoroutine "); told != (does == "panics") {
			t.Errorf("%s: the standard error is\n%s", verb, errOut.String())
		}
	}
}

// echo is a verb that prints its input, with a deadline.
func echo(verb string) Verb {
	return func(ctx context.Context, args *skel.CmdArgs) error {
		if at, limited := ctx.Deadline(); !limited || time.Until(at) > time.Hour {
			return errors.New("a verb has no deadline")
		}
		switch os.Getenv(serves) {
		case "ADDfails":
			return cnierr.New(cnierr.BadConfig, "serve", "this", "", "no")
		case "ADDpanics":
			panic("at once")
		}
		in := Input(strings.ToUpper(verb), args)
		if in.Command != os.Getenv(serves) || !strings.Contains(string(in.Stdin), `"name": "rail"`) {
			return errors.New("another call")
		}
		_, err := fmt.Println(strings.Join(strings.Fields(strings.Join([]string{verb, in.ContainerID, in.Netns, in.IfName, in.Args}, " ")), " "))
		return err
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
		{"ADD", types.NewError(7, "roce-ipam is wrong", "see y"), "roce[7] roce-ipam is wrong", "see y; " + cnierr.Explain(7).Remedy},
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
	file := filepath.Join(t.TempDir(), "node.json")
	other := t.TempDir()
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"version": 1, "stateDir": %q}`, other), 0o600); err != nil {
		t.Fatal(err)
	}
	Note(Input("CHECK", &skel.CmdArgs{ContainerID: "c3"})).End(file, nil)
	if noted, _, err := (calls.File{Dir: other}).After(""); err != nil || len(noted) != 1 || noted[0].Verb != "CHECK" || noted[0].Error != "" || noted[0].Code != 0 {
		t.Errorf("a call that has not read the settings is noted as %+v, %v", noted, err)
	}
	n.End(file, cnierr.New(cnierr.TryAgain, "wait for", "lock", "", "no"))
	Note(Input("ADD", &skel.CmdArgs{ContainerID: "c2"})).End("/no/such/file", nil) // it is not known where to
	noted, _, err := calls.File{Dir: dir}.After("")
	if err != nil || len(noted) != 1 {
		t.Fatal(noted, err)
	}
	got := noted[0]
	if time.Since(got.At) > time.Hour || !got.At.After(n.began) || got.Took <= 0 {
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
