// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// copied is what a Dockerfile copies: where each file of the project goes.
func copied(t *testing.T, file string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for line := range strings.Lines(string(content(t, root+"/"+file))) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "COPY" {
			continue
		}
		words = slices.DeleteFunc(words[1:], func(w string) bool { return strings.HasPrefix(w, "--") })
		to := words[len(words)-1]
		for _, from := range words[:len(words)-1] {
			out[from] = to
			if strings.HasSuffix(to, "/") {
				out[from] = to + path.Base(from)
			}
		}
	}
	return out
}

func TestTheImageHasThePrograms(t *testing.T) {
	t.Parallel()
	want := map[string]string{"LICENSE": "/LICENSE"}
	makefile := string(content(t, root+"/Makefile"))
	for _, list := range []string{"PLUGINS", "PROGRAMS"} {
		for _, program := range strings.Fields(regexp.MustCompile(`(?m)^` + list + ` := (.*)$`).FindStringSubmatch(makefile)[1]) {
			switch {
			case strings.HasPrefix(program, "$"):
			case program == "bin/roce-hwtest": // it can break what runs on a node
			case list == "PLUGINS":
				want[program] = "/plugins/" + path.Base(program)
			case program == "bin/roce-env":
				want[program] = "/pod/roce-env" // for the pods of users
			default:
				want[program] = "/" + path.Base(program)
			}
		}
	}
	if diff := cmp.Diff(want, copied(t, "Dockerfile")); diff != "" {
		t.Errorf("the Dockerfile copies others than make build makes (-want +got)\n%s", diff)
	}
}

func TestTheBuildSeesWhatItCopiesAndNothingElse(t *testing.T) {
	t.Parallel()
	var got []string
	for line := range strings.Lines(string(content(t, root+"/.dockerignore"))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			got = append(got, line)
		}
	}
	want := []string{"*"}
	for _, file := range []string{"Dockerfile", "Dockerfile.tools"} {
		for from := range copied(t, file) {
			want = append(want, "!"+from)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	want = slices.Compact(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf(".dockerignore (-want +got)\n%s", diff)
	}
}
