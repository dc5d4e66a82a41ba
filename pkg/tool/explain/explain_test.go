// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package explain

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// TestWholeTextsAreExplained gives Find what people paste: whole outputs, with lines
// that mean nothing. The first answer must be the cause.
func TestWholeTextsAreExplained(t *testing.T) {
	t.Parallel()
	table := Load()
	for file, want := range map[string]string{
		"device_plugin_issm.txt":   `RDMA device "…" not found`,
		"mr_client.txt":            "Couldn't allocate MR",
		"mr_server.txt":            "ethernet_read_keys: Couldn't read remote address",
		"nccl_segv.txt":            "Call to ibv_reg_mr … failed",
		"nccl_closed.txt":          "socketProgress: Connection closed by remote peer",
		"port_down.txt":            "Port number … state is Down",
		"bond_not_found.txt":       "No IB devices found",
		"other_namespaces.txt":     "Warning: couldn't stat '/sys/class/infiniband/",
		"cpu_frequency.txt":        "Conflicting CPU frequency values",
		"rtr.txt":                  "Failed to modify QP … to RTR",
		"no_devices.txt":           "No IB devices found",
		"reg_mr.txt":               "Couldn't allocate MR",
		"netns_busy.txt":           "set netns…Device or resource busy",
		"gid_full.txt":             "unable to add gid … error=-28",
		"insufficient.txt":         "Insufficient rdma/",
		"no_network.txt":           "cannot find a network-attachment-definition",
		"no_plugin.txt":            `failed to find plugin "roce`,
		"link_layer.txt":           "Link layer: InfiniBand",
		"retry_exceeded.txt":       "Failed status 12",
		"exclusive_mode.txt":       "incorrect RDMA subsystem network namespace",
		"ucx_unreachable.txt":      "no active messages transport",
		"shm.txt":                  "Error while creating shared memory segment",
		"unexpected_admission.txt": "no healthy devices present",
		"image_pull.txt":           "Failed to pull image … dial tcp",
		"registry_http.txt":        "server gave HTTP response to HTTPS client",
		"apt_get.txt":              "Temporary failure resolving",
		"job_wait.txt":             "timed out waiting for the condition on jobs/",
		"no_crds.txt":              `no matches for kind "Rail`,
		"no_module.txt":            "Module ib_umad not found",
		"go_proxy.txt":             "go: … dial tcp … i/o timeout",
		"no_folder.txt":            "No IB devices found",
		"no_folder_zh.txt":         "No IB devices found",
		"ib_mode.txt":              "Link layer: InfiniBand",
		"ib_resources.txt":         "Couldn't create IB resources",
		"segv.txt":                 "Segmentation fault",
		"segv_zh.txt":              "Segmentation fault",
		"roce_mtu.txt":             "Mtu : 1024[B]",
		"reg_mr_zh.txt":            "Couldn't allocate MR",
		"no_program.txt":           "roce-env: command not found",
		"no_program_zh.txt":        "roce-env: command not found",
		"no_ofed.txt":              "ibdev2netdev: command not found",
		"ping_size.txt":            "local error: message too long",
		"ping_route.txt":           "ping: … Network is unreachable",
		"ping_route_zh.txt":        "ping: … Network is unreachable",
		"port_disabled.txt":        "Port number … state is Down",
	} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Error(err)
			continue
		}
		found := table.Find(string(text))
		if len(found) == 0 || found[0].Texts[0] != want {
			t.Errorf("%s: found %v, want %q first", file, texts(found), want)
		}
	}
}

// TestPastedTextsAreExplained gives Find each text of testdata/pasted.txtar. There "␛" is
// the escape character.
func TestPastedTextsAreExplained(t *testing.T) {
	t.Parallel()
	archive, err := txtar.ParseFile(filepath.Join("testdata", "pasted.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	table := Load()
	for _, f := range archive.Files {
		first, text, _ := strings.Cut(strings.ReplaceAll(string(f.Data), "␛", "\x1b"), "\n")
		want := strings.TrimPrefix(first, "want: ")
		got := "nothing"
		if found := table.Find(Plain(text)); len(found) > 0 {
			got = found[0].Text
		}
		if got != want {
			t.Errorf("%s: found %q first, want %q", f.Name, got, want)
		}
	}
}

func texts(all []Found) []string {
	var out []string
	for _, e := range all {
		out = append(out, e.Text)
	}
	return out
}

// TestEntriesAreWhole finds mistakes in errors.yaml: a field without a word, a first text that
// another entry has too (the rows of docs/zh are found by it), blanks that an editor does not
// show, and an entry without a source.
func TestEntriesAreWhole(t *testing.T) {
	t.Parallel()
	first := map[string]bool{}
	for _, e := range Load() {
		words := slices.Concat([]string{e.From, e.Cause, e.Do}, e.Texts)
		if e.ZH != nil {
			words = append(words, e.ZH.Cause, e.ZH.Do)
		}
		for _, word := range words {
			if word == "" || strings.Join(strings.Fields(word), " ") != word {
				t.Errorf("the entry of %s with %q: %q is empty, or has lines or blanks too many", e.From, e.Texts, word)
			}
		}
		if first[e.Texts[0]] {
			t.Errorf("two entries begin with the text %q", e.Texts[0])
		}
		first[e.Texts[0]] = true
		if !strings.HasPrefix(e.Source, "https://") || strings.Contains(e.Source, " ") {
			t.Errorf("the entry of %s with %q has the source %q, want a public page", e.From, e.Texts, e.Source)
		}
	}
}

func TestEachTextFindsItsEntry(t *testing.T) {
	t.Parallel()
	table := Load()
	for _, e := range table {
		for _, text := range e.Texts {
			found := table.Find("before\n" + strings.NewReplacer("…", "x y", " && ", "\n").Replace(text) + "\nafter")
			if !slices.ContainsFunc(found, func(f Found) bool { return f.Cause == e.Cause }) {
				t.Errorf("%q finds %v", text, texts(found))
			}
		}
	}
}

// TestGeneralAnswersGiveWay gives Find texts for which a general answer would be noise.
func TestGeneralAnswersGiveWay(t *testing.T) {
	t.Parallel()
	const (
		general  = "x:1:2 [0] NCCL WARN a step that no entry knows"
		problem  = "NCCL WARN Bootstrap : no socket interface found"
		harmless = "NCCL INFO NET/Plugin : No plugin found (libnccl-net.so)."
	)
	table := Load()
	for _, c := range []struct {
		text, first string
		found       int
	}{
		{general, "NCCL WARN", 1},
		{problem + "\n" + general, "Bootstrap : no socket interface found", 1},
		{general + "\n" + harmless, "NCCL WARN", 2},                      // what is harmless explains only its line
		{"NCCL WARN " + harmless, "No plugin found (libnccl-net.so)", 1}, // which has no other answer
		{harmless + " " + harmless, "No plugin found (libnccl-net.so)", 1},
		{harmless + " NCCL WARN more", "No plugin found (libnccl-net.so)", 1},
		{harmless + " NCCL WARN more\nend", "No plugin found (libnccl-net.so)", 1},
	} {
		if found := table.Find(c.text); len(found) != c.found || found[0].Text != c.first {
			t.Errorf("%q finds %v, want %q and %d in all", c.text, texts(found), c.first, c.found)
		}
	}
}

// TestWordsAreExplainedOnce gives Find texts of which a less specific entry has a part.
func TestWordsAreExplainedOnce(t *testing.T) {
	t.Parallel()
	table := Load()
	for _, c := range []struct {
		text string
		want []string
	}{
		{"Couldn't allocate MR\nfailed to create mr, GPU buffer", []string{"Couldn't allocate MR && GPU buffer"}},
		{"NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address", []string{"Call to ibv_reg_mr_iova2 … Bad address"}},
		{"Failed to modify QP 298 to RTR: Connection timed out", []string{"Failed to modify QP…to RTR…Connection timed out"}},
		{"rdma_bind_addr: Address already in use", []string{"rdma_bind_addr: Address already in use"}},
		{"ibv_open_device: Operation not permitted", []string{"ibv_open_device … Operation not permitted"}},
		{"Failed status 130", nil},
		{"xFailed to modify QP 1; Failed to modify QP 2 to RTR", []string{"Failed to modify QP … to RTR"}},
		{"transport(rail0) Failed to register mr", []string{") Failed to register mr"}},
		// What is left of a line may report another problem.
		{"rail 0: rdma_bind_addr: Address already in use; rail 1: ibv_open_device: Operation not permitted", []string{"rdma_bind_addr: Address already in use", "ibv_open_device … Operation not permitted"}},
	} {
		if got := texts(table.Find(c.text)); !slices.Equal(got, c.want) {
			t.Errorf("%q finds %q, want %q", c.text, got, c.want)
		}
	}
}

func TestLinesAreMeasuredAsATerminalDoes(t *testing.T) {
	t.Parallel()
	if got := unwrapped("ééé\nabcd\nx"); got != "ééé\nabcdx" {
		t.Errorf("got %q", got)
	}
}

func TestAnAnswerIsInTheLanguageOfTheLocale(t *testing.T) {
	t.Parallel()
	translated := Entry{Answer: Answer{"cause", "do"}, ZH: &Answer{"原因", "做"}}
	for locale, want := range map[string]Answer{"zh_CN.UTF-8": *translated.ZH, "zh": *translated.ZH, "en_US.UTF-8": translated.Answer, "": translated.Answer} {
		if got := translated.In(locale); got != want {
			t.Errorf("%s: got %q", locale, got)
		}
	}
	if got := (Entry{Answer: translated.Answer}).In("zh_CN.UTF-8"); got != translated.Answer {
		t.Errorf("without a translation: %q", got)
	}
}

func TestWhatIsUnknownIsNotGuessed(t *testing.T) {
	t.Parallel()
	table := Load()
	for _, text := range []string{
		"", "x", "everything is fine", "Error 500", "  MTU : 4096[B]",
		// What programs say that succeed.
		"node-a:93:93 [0] NCCL INFO ncclCommInitRank comm 0x9 rank 0 nranks 8 cudaDev 0 - Init COMPLETE",
		"node-a:93:99 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1",
		"cma_event type RDMA_CM_EVENT_ESTABLISHED cma_id 0x607ff0 (parent)",
		"link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0np0",
		"rdma_rxe: loaded", "infiniband rxe0: added eth0", "wc status IBV_WC_SUCCESS",
		"mlx5_core 0000:3b:00.0: firmware version: 28.43.1014",
		"mlx5_core 0000:3b:00.0 ens1f0np0: Link up",
		"Normal  AddedInterface  2s  multus  Add net1 [172.16.11.7/24] from ml/rail0",
		"ok rdma 12 passed, 0 failed", "PASS: ibv_rc_pingpong, 0 errors",
		// What has a word of ours by chance.
		"E: Failed to fetch bionic-updates: update failed", "wifi_scan failed", "bash: completion error",
		"make: *** [all] Error 2", "SyntaxError: invalid syntax", "profile could not be read: failed",
		"product_id check failed", "git@example.com: Permission denied (publickey).", "tar: x: Cannot open: Invalid argument",
		"cat: x: No such file or directory", "mkdir: cannot create directory: Permission denied", "HTTP 404 Not Found",
		// What other programs say in words that ours use too.
		"stty: 'standard input': Inappropriate ioctl for device", "umount: error: Device or resource busy",
		"libusb: Failed to open device", "smartctl: Unable to open device /dev/sda", "curl: (28) connect() timed out!",
		"ERROR: out of shared memory, raise max_locks_per_transaction", "Couldn't connect to server",
		"There is insufficient memory for the Java Runtime Environment to continue.", "e2fsck: message truncated",
		"route ip+net: no such network interface", "Failed: Assertion error in test_foo",
		"failed to set up container networking: Bind for 0.0.0.0:80 failed: port is already allocated",
		// A text of ours that begins in the middle of another word.
		"vfio-pci: device 0000:3b:00.0 failed to reset", "10 HCAs found", "this membership is already in use by the crawler",
		"xrdma: command not found",
		// Names of files, variables and functions are no errors.
		"Wrote subnet file to /run/flannel/subnet.env", "rdma_bind_addr successful", "VLLM_NIXL_SIDE_CHANNEL_PORT=5600",
		`"readinessindicatorfile":"/etc/cni/net.d/10-calico.conflist"`, "nvcc -c csrc/kernels/internode_ll.cu csrc/deep_ep.cpp",
		// The modules that a kernel has loaded are not its fault.
		"Oops: 0000 [#1] SMP\nRIP: 0010:bo_move+0x10/0x200 [nouveau]\nModules linked in: mlx5_ib rdma_cm ib_core",
	} {
		if found := table.Find(text); len(found) > 0 {
			t.Errorf("%q finds %v", text, texts(found))
		}
	}
}
