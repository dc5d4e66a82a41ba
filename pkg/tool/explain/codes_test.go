// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package explain

import (
	"testing"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

func TestEachCodeHasAChineseAnswer(t *testing.T) {
	for _, e := range cnierr.Table() {
		english, chinese := Code(e.Code, "en_US.UTF-8"), Code(e.Code, "zh_CN.UTF-8")
		if english != (Answer{e.Summary, e.Remedy}) {
			t.Errorf("%d in English is %q", e.Code, english)
		}
		if chinese == english || chinese.Cause == "" || chinese.Do == "" {
			t.Errorf("%d in Chinese is %q", e.Code, chinese)
		}
	}
}

func TestEachErrorInAPodHasAChineseAnswer(t *testing.T) {
	for _, message := range []string{`open RDMA device "mlx5_0"`, `check limit of "locked memory"`, `choose GID index for "net1, net2"`} {
		english, ok := InPod(message, "en_US.UTF-8")
		chinese, too := InPod(message, "zh_CN.UTF-8")
		if !ok || !too || english == chinese || chinese.Cause == "" || chinese.Do == "" {
			t.Errorf("%s: %q and %q", message, english, chinese)
		}
	}
	for _, of := range []string{`ask gateway "10.0.0.1"`, `look at "net1": check limit of "locked memory"`} {
		if a, ok := InPod(of, ""); ok {
			t.Errorf("%s has the answer %q", of, a)
		}
	}
}
