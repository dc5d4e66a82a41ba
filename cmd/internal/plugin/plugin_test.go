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

	"github.com/containernetworking/cni/pkg/skel"
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
