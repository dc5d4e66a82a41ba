// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRulesAreForTheOldestKubernetes: before a rule is accepted, the API server estimates
// what it costs. Kubernetes 1.31 knows no bound for two prefixes or addresses with == between
// them, and refuses the definition. It knows one for a list: cidr(a) in [cidr(b)]. And its
// containsCIDR finds no prefix inside but those that begin with the first address.
func TestRulesAreForTheOldestKubernetes(t *testing.T) {
	t.Parallel()
	const value = `\b(?:cidr|ip)\([^()]*\)(?:\.masked\(\)|\.ip\(\))*`
	compared := regexp.MustCompile(value + `\s*[!=]=|[!=]=\s*` + value + `(?:[^.]|$)`)
	if !compared.MatchString("a && cidr(r).masked() == cidr(r)") || !compared.MatchString("b == ip(r)") || compared.MatchString("1 == ip(r).family()") {
		t.Fatal("the test itself is wrong")
	}
	files, err := filepath.Glob(dir + "/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if compared.MatchString(line) {
				t.Errorf("%s:%d: write A in [B], and not A == B:%s", filepath.Base(file), i+1, line)
			}
			if strings.Contains(line, "containsCIDR(") {
				t.Errorf("%s:%d: write A.containsIP(B.ip()), and compare the lengths:%s", filepath.Base(file), i+1, line)
			}
		}
	}
}
