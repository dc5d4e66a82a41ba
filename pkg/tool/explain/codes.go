// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package explain

import (
	_ "embed" // codes.yaml and inpod.yaml
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
)

//go:embed codes.yaml
var codesFile []byte

// Code returns what a code means in the language of a locale, such as "zh_CN.UTF-8", or in
// English.
func Code(c cnierr.Code, locale string) Answer {
	e := cnierr.Explain(c)
	a := Answer{e.Summary, e.Remedy}
	if strings.HasPrefix(locale, "zh") {
		chinese := map[cnierr.Code]Answer{}
		if err := yaml.UnmarshalStrict(codesFile, &chinese); err != nil {
			panic("explain: codes.yaml: " + err.Error()) // it is part of the program, and has a test
		}
		if zh, ok := chinese[c]; ok {
			return zh
		}
	}
	return a
}

//go:embed inpod.yaml
var inPodFile []byte

// InPod returns the answer to an error that roce-env, or rocectl, reports in a pod about its
// manifest. The message is what follows the code. It returns false for any other error: Code has
// its answer.
func InPod(message, locale string) (Answer, bool) {
	var all []struct {
		Begins string `json:"begins"`
		Answer
		ZH Answer `json:"zh"`
	}
	if err := yaml.UnmarshalStrict(inPodFile, &all); err != nil {
		panic("explain: inpod.yaml: " + err.Error()) // it is part of the program, and has a test
	}
	for _, e := range all {
		switch {
		case !strings.HasPrefix(message, e.Begins):
		case strings.HasPrefix(locale, "zh"):
			return e.ZH, true
		default:
			return e.Answer, true
		}
	}
	return Answer{}, false
}
