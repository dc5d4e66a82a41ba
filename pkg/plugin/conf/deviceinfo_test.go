// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package conf_test

import (
	"strings"
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
)

func TestDeviceInfoFileIsAnAbsolutePath(t *testing.T) {
	t.Parallel()
	const file = "/var/run/k8s.cni.cncf.io/devinfo/cni/rail-c1_net1"
	in := func(path string) conf.Input {
		return conf.Input{ContainerID: "c1", Netns: "/run/netns/pod", IfName: "net1", Stdin: []byte(
			`{"cniVersion": "1.1.0", "name": "rail", "type": "roce", "master": "ens1f0", "runtimeConfig": {"CNIDeviceInfoFile": "` + path + `"}}`)}
	}
	for _, path := range []string{"", file} {
		r, err := conf.Parse(in(path))
		if err != nil || r.DeviceInfoFile != path {
			t.Errorf("%q: got %q, %v", path, r.DeviceInfoFile, err)
		}
	}
	for _, path := range []string{"devinfo", "/var/run/../etc/passwd", "/", `/run/a\nb`} {
		_, err := conf.Parse(in(path))
		if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.Contains(err.Error(), "runtimeConfig.CNIDeviceInfoFile") {
			t.Errorf("%q: got %v, want an error of code 7 with the key", path, err)
		}
	}
}
