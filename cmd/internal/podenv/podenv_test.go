// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package podenv

import (
	"bytes"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/discover"
	"github.com/roce-cni/roce-cni/pkg/plugin/rdma/nldev"
	"github.com/roce-cni/roce-cni/pkg/tool/advice"
	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

func port(device string) gids.Port {
	return gids.Port{Match: discover.Match{Device: nldev.Device{Name: device}, Port: nldev.Port{Number: 1}}}
}

// TestNamesCannotGiveAShellCommands evaluates what is printed for names that
// the kernel allows: interfaces may have any but blanks and slashes.
func TestNamesCannotGiveAShellCommands(t *testing.T) {
	t.Parallel()
	on := port("mlx5_0\necho bad")
	rails := []gids.Rail{{Link: "$(echo;bad)", Addr: netip.MustParseAddr("172.16.0.5"), Port: on, Index: 3}}
	a, err := advice.Tell(gids.Namespace{Rails: rails, Out: "'`echo`"})
	if err != nil {
		t.Fatal(err)
	}
	var script bytes.Buffer
	if err := Write(&script, rails, a, nil); err != nil {
		t.Fatal(err)
	}
	script.WriteString(`printf '<%s>' "$NCCL_IB_HCA" "$NCCL_SOCKET_IFNAME" "$NCCL_IB_GID_INDEX"`)
	out, err := exec.Command("sh", "-ec", script.String()).CombinedOutput()
	if want := "<=mlx5_0\necho bad:1><='`echo`><3>"; err != nil || string(out) != want {
		t.Errorf("got %q (%v), want %q of\n%s", out, err, want, &script)
	}
}

// TestAShellHearsThatThereIsNoSetting evaluates what is printed when no index is
// right for all rails: eval "$(rocectl env)" does not see the exit status.
func TestAShellHearsThatThereIsNoSetting(t *testing.T) {
	t.Parallel()
	var script bytes.Buffer
	if err := Write(&script, nil, advice.Settings{Set: []advice.Variable{{Name: "NCCL_IB_HCA", Value: "=mlx5_0:1"}}}, errors.New("they differ")); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("sh", "-c", `eval "$1" || echo "failed with $NCCL_IB_HCA"`, "sh", script.String()).CombinedOutput()
	if err != nil || string(out) != "failed with =mlx5_0:1\n" {
		t.Errorf("got %q (%v) of\n%s", out, err, &script)
	}
}

// TestScriptsFindThePerftestLines runs the expression of the examples and of
// docs/testing-rdma.md.
func TestScriptsFindThePerftestLines(t *testing.T) {
	t.Parallel()
	rails := []gids.Rail{
		{Link: "net1", Addr: netip.MustParseAddr("10.1.64.17"), Port: port("mlx5_0"), Index: 3},
		{Link: "net2", Addr: netip.MustParseAddr("10.2.64.17"), Port: port("mlx5_1"), Index: 3},
	}
	a, err := advice.Tell(gids.Namespace{Rails: rails, Out: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	var script bytes.Buffer
	if err := Write(&script, rails, a, nil); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../../conf-examples/deploy/rdma/perftest-rails")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sed", "-n", regexp.MustCompile(`sed -n '(.*)'`).FindStringSubmatch(string(text))[1])
	cmd.Stdin = &script
	out, err := cmd.Output()
	if want := "net1 " + a.Perftest[0] + "\nnet2 " + a.Perftest[1] + "\n"; err != nil || string(out) != want {
		t.Errorf("got %q (%v), want %q", out, err, want)
	}
}

// TestAUserReadsWhatEachLineIsFor compares the whole text.
func TestAUserReadsWhatEachLineIsFor(t *testing.T) {
	t.Parallel()
	rails := []gids.Rail{
		{Link: "net1", Addr: netip.MustParseAddr("10.1.64.17"), Port: port("mlx5_0"), Index: 3},
		{Link: "net\u202e", Addr: netip.MustParseAddr("10.2.64.17"), Port: port("mlx5_1"), Index: 5},
	}
	s := advice.Settings{Set: []advice.Variable{{Name: "A", Value: "x y"}, {Name: "B", Value: "1"}}, Why: []string{"a\nb", "c"}, Perftest: []string{"-x 3", "-x 5"}}
	var out bytes.Buffer
	if err := Write(&out, rails, s, nil); err != nil {
		t.Fatal(err)
	}
	const want = `# net1 10.1.64.17: mlx5_0 port 1, GID index 3
# net? 10.2.64.17: mlx5_1 port 1, GID index 5
# why: a?b
# why: c
export A='x y'
export B=1
# net1: -x 3
# net?: -x 5
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	r, w := io.Pipe()
	if err := errors.Join(r.Close(), Write(w, rails, s, nil)); cnierr.CodeOf(err) != cnierr.IO {
		t.Errorf("to a reader that has ended: %v", err)
	}
}
