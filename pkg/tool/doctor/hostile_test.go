// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package doctor

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// rename gives NICs and RDMA devices names as a pod can choose them: a NIC or a device
// that was in a pod comes back to the node under the name that the pod gave it.
func (w *world) rename() {
	names := strings.NewReplacer("ens1f0np0", "n;`pwn`\x1b[0m1", "ens2f0np0", "n$(pwn)\x1b[0m2", "mlx5_0", "m'`pwn`\x1b[2J\n0", "mlx5_1", "m&$(pwn)\n1")
	for name, file := range w.files {
		delete(w.files, name)
		w.files[names.Replace(name)] = file
	}
	for link, target := range w.targets {
		delete(w.targets, link)
		w.targets[names.Replace(link)] = names.Replace(target)
	}
	for i := range w.denied {
		w.denied[i] = names.Replace(w.denied[i])
	}
	for i := range w.links {
		w.links[i].Name = names.Replace(w.links[i].Name)
	}
	for i := range w.rdma.Devices {
		d := &w.rdma.Devices[i]
		d.Name = names.Replace(d.Name)
		for j := range d.Ports {
			d.Ports[j].Netdev = names.Replace(d.Ports[j].Netdev)
		}
	}
	renameKeys(w.chars, names)
	renameKeys(w.addrs, names)
	renameKeys(w.drivers, names)
	renameKeys(w.qos, names)
}

func renameKeys[V any](m map[string]V, names *strings.Replacer) {
	for key, value := range m {
		delete(m, key)
		m[names.Replace(key)] = value
	}
}

// quotedWord is what a shell takes as it is.
var quotedWord = regexp.MustCompile(`'[^']*'|\\'|(?m:#.*$)`)

// TestTheWordsOfOthersAreQuotedOrNotPrinted has each fault on a node with such names.
func TestTheWordsOfOthersAreQuotedOrNotPrinted(t *testing.T) {
	t.Parallel()
	quoted := map[string]bool{}
	for _, f := range faults() {
		w := healthy(t)
		f.change(w)
		w.rename()
		for a := range Run(t.Context(), w.node(), Checks()) {
			if strings.Contains(quotedWord.ReplaceAllString(a.Fix, ""), "pwn") {
				t.Errorf("%s, %s: not quoted:\n%s", f.name, a.Check, a.Fix)
			} else if strings.Contains(a.Fix, "pwn") {
				quoted[a.Check] = true
			}
			var out strings.Builder
			if err := report.WriteText(&out, a); err != nil {
				t.Fatal(err)
			}
			if strings.ContainsFunc(out.String(), func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
				t.Errorf("%s, %s: it prints %q", f.name, a.Check, out.String())
			}
			for i, line := range strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n") {
				if i > 0 && !strings.HasPrefix(line, "             ") {
					t.Errorf("%s, %s: a line looks like an answer: %q", f.name, a.Check, line)
				}
			}
		}
	}
	for _, check := range []string{"rdma-mtu", "vf-trust", "host-arp", "network-managers", "rdma-ports", "left-behind"} {
		if !quoted[check] {
			t.Errorf("no command of %s has such a name, so nothing was tested", check)
		}
	}
}

// TestTheNameOfATestIsPrintable: rocectl verify prints answers of other pods.
func TestTheNameOfATestIsPrintable(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := report.WriteText(&out, report.Answer{Check: "reach\x1b[2J\nok", Finding: report.Finding{Verdict: report.Problem, Found: "x", Fix: "# do"}}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "\x1b") || strings.Count(got, "\n") != 2 {
		t.Errorf("it controls the terminal: %q", got)
	}
}

// TestAProcessOfAPodIsNoRuntime: any process can call itself containerd, and Docker in a pod
// does. It is in a PID namespace of its own.
func TestAProcessOfAPodIsNoRuntime(t *testing.T) {
	t.Parallel()
	w := healthy(t)
	before := w.answers()
	for pid := 4000; pid < 4100; pid++ {
		process := fmt.Sprintf("proc/%d/", pid)
		w.write(process+"comm", "containerd\n")
		w.write(process+"status", fmt.Sprintf("Name:\tcontainerd\nNSpid:\t%d\t17\nNSsid:\t%d\t17\n", pid, pid))
		w.write(process+"limits", "Max locked memory         8388608              8388608              bytes     \n")
	}
	if diff := cmp.Diff(before, w.answers()); diff != "" {
		t.Errorf("(-without +with processes of pods)\n%s", diff)
	}
	w.write("proc/5000/comm", "containerd\n")
	w.write("proc/5000/status", "Name:\tcontainerd\nNSpid:\t5000\n")
	w.write("proc/5000/limits", "Max locked memory         8388608              8388608              bytes     \n")
	if after := w.answers(); len(after) != len(before)+1 {
		t.Errorf("a runtime of the node gives %d answers more, want 1", len(after)-len(before))
	}
}
