// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxCommands is what a reader pastes until the first byte: the name of the image, and
// five commands.
const maxCommands = 6

// TestTheQuickStartCanBePasted reads the commands of README's quick start: they are
// few, and name files, make targets and an image that exist.
func TestTheQuickStartCanBePasted(t *testing.T) {
	t.Parallel()
	_, text, _ := strings.Cut(string(content(t, root+"/README.md")), "\n## Quick start\n")
	_, text, _ = strings.Cut(text, "```bash\n")
	text, _, _ = strings.Cut(text, "```")
	commands := strings.Split(strings.TrimSpace(text), "\n")
	if len(commands) > maxCommands || len(commands) < 2 {
		t.Errorf("%d commands, want at most %d:\n%s", len(commands), maxCommands, text)
	}
	for _, file := range regexp.MustCompile(`conf-examples/[\w/.-]+`).FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join(root, file)); err != nil {
			t.Error(err)
		}
	}
	makefile := string(content(t, root+"/Makefile"))
	targets := strings.Fields(regexp.MustCompile(`(?m)^make (.+)$`).FindStringSubmatch(text)[1])
	for _, target := range targets {
		if !strings.Contains(makefile, "\n"+target+": ") {
			t.Errorf("the Makefile has no target %s", target)
		}
	}
	if !slices.Contains(targets, "push-tools") {
		t.Errorf("%q does not push the image of the test pods", targets)
	}
	image := regexp.MustCompile(`s\|([^|]+)\|\$IMAGE\|`).FindStringSubmatch(text)
	for name, pod := range userPods(t) {
		for _, c := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
			if strings.Contains(c.Image, "roce-cni") && (len(image) == 0 || strings.TrimSuffix(c.Image, "-tools") != image[1]) {
				t.Errorf("%s has the image %s, and the quick start replaces %q", name, c.Image, image)
			}
		}
	}
	if !strings.Contains(makefile, "EXAMPLE_IMAGE := "+image[1]+"\n") {
		t.Errorf("make deploy replaces another image than %s", image[1])
	}
	jobs := regexp.MustCompile(`job/([\w-]+)`).FindAllStringSubmatch(text, -1)
	if len(jobs) == 0 {
		t.Error("no job is awaited")
	}
	for _, m := range jobs {
		if _, ok := userPods(t)[m[1]]; !ok {
			t.Errorf("there is no job %s", m[1])
		}
	}
}

// TestTheNetworkOfTheREADMEIsTheSample compares the two: a reader takes either.
func TestTheNetworkOfTheREADMEIsTheSample(t *testing.T) {
	t.Parallel()
	sample := string(content(t, samples+"/network.yaml"))
	lines := strings.Split(sample, "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#") })
	if want := "```yaml\n" + strings.Join(lines, "\n") + "```"; !strings.Contains(string(content(t, root+"/README.md")), want) {
		t.Errorf("README.md lacks this network:\n%s", want)
	}
}
