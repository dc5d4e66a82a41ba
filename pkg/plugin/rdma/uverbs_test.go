// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rdma

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/plan"
)

// code returns the code of an error, 0 for none.
func code(err error) cnierr.Code {
	if err == nil {
		return 0
	}
	return cnierr.CodeOf(err)
}

// TestAMoveThatChangesTheFileOfADeviceIsReported has the file uverbs-mlx5_0 after the
// move, and another one before it.
func TestAMoveThatChangesTheFileOfADeviceIsReported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		was        string
		mode       conf.Severity
		add, check cnierr.Code
		warns      bool
	}{
		{"uverbs9", conf.Warn, 0, cnierr.Damaged, true},
		{"uverbs9", conf.Require, cnierr.Damaged, cnierr.Damaged, false},
		{"uverbs9", conf.Off, 0, 0, false},
		{"uverbs-mlx5_0", conf.Require, 0, 0, false},
		{"", conf.Require, 0, 0, false}, // it was not known
	} {
		n, op := movable()
		op.UVerbs, op.UVerbsMode = c.was, c.mode
		var log bytes.Buffer
		s := n.subsystem(t, verbs("mlx5_0", "mlx5_1"), func(conf *Config) { conf.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		err := s.Do(t.Context(), plan.Op{Place: plan.Host, Kind: op})
		if code(err) != c.add || err != nil && !strings.Contains(err.Error(), "from /dev/infiniband/uverbs9 to /dev/infiniband/uverbs-mlx5_0") {
			t.Errorf("%+v: got %v, want code %d", c, err, c.add)
		}
		if err != nil && n.devices[0].in != plan.Host {
			t.Errorf("%+v: the device is in %s after the error", c, n.devices[0].in)
		}
		if warns := strings.Contains(log.String(), "level=WARN"); warns != c.warns {
			t.Errorf("%+v: the log says %q", c, log.String())
		}
		n.devices[0].in = plan.Pod
		if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); code(err) != c.check {
			t.Errorf("%+v: CHECK: got %v, want code %d", c, err, c.check)
		}
		if c.check != 0 { // it is not all that is found
			tos := op
			tos.TOS = octet(26)
			n.withSettings(t, "mlx5_0", "32", "")
			err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: tos})
			if !strings.Contains(fmt.Sprint(err), "changed its file") || !strings.Contains(fmt.Sprint(err), "its RoCE ToS is 32, want 26") {
				t.Errorf("%+v: CHECK with another ToS, too: got %v", c, err)
			}
		}
		s.c.Sys = fstest.MapFS{}
		if err := s.Check(t.Context(), plan.Op{Place: plan.Host, Kind: op}); err != nil {
			t.Errorf("%+v: CHECK without a file: got %v", c, err)
		}
	}
}

func TestFactsHaveTheFileOfADevice(t *testing.T) {
	t.Parallel()
	n, _ := movable()
	s := n.subsystem(t, verbs("mlx5_0", "mlx5_1"))
	if got := s.uverbs("mlx5_1"); got != "uverbs-mlx5_1" {
		t.Errorf("got %q", got)
	}
	sys := merge(verbs("mlx5_1"), verbs("mlx5_1"))
	sys["class/infiniband_verbs/uverbs7/ibdev"] = sys["class/infiniband_verbs/uverbs-mlx5_1/ibdev"]
	if got := n.subsystem(t, sys).uverbs("mlx5_1"); got != "" {
		t.Errorf("two devices have the name: got %q, want none", got)
	}
}
