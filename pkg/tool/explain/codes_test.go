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
