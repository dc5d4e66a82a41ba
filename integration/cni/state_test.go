// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/integration/cnitest"
)

// settings are the kernel parameters that the plugin sets on its links and
// must not touch on others.
var settings = []string{
	"ipv4/conf/%s/arp_announce", "ipv4/conf/%s/arp_filter", "ipv4/conf/%s/arp_ignore", "ipv4/conf/%s/arp_notify",
	"ipv4/conf/%s/rp_filter", "ipv6/conf/%s/accept_ra", "ipv6/conf/%s/addr_gen_mode", "ipv6/conf/%s/disable_ipv6",
	"ipv6/conf/%s/keep_addr_on_down", "ipv6/conf/%s/ndisc_notify",
}

// snapshot returns everything about the namespace that an attachment could
// change, one thing on a line: links with aliases and addresses, rules, the
// routes of all tables, settings.
func (ns *namespace) snapshot(t testing.TB) string {
	t.Helper()
	var out string
	// The kernel adds the local route of an IPv6 address in its own time
	// (addrconf_dad_work), also without duplicate address detection.
	cnitest.Await(t, "every IPv6 address has its local route", func() bool {
		out = ns.look(t)
		return routed(out)
	})
	return out
}

// routed says whether each IPv6 address of a snapshot has its local route.
func routed(snapshot string) bool {
	for line := range strings.Lines(snapshot) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "inet6" {
			continue
		}
		addr, _, _ := strings.Cut(f[1], "/")
		if !strings.Contains(snapshot, "\nlocal "+addr+" dev ") {
			return false
		}
	}
	return true
}

func (ns *namespace) look(t testing.TB) string {
	t.Helper()
	cmd := exec.Command("ip", "-details", "-batch", "-")
	cmd.Stdin = strings.NewReader("addr show\nrule show\nroute show table all\n")
	out, err := ns.Output(cmd)
	if err != nil {
		t.Fatalf("ip: %v: %s", err, out)
	}
	out += "IPv6 rules\n" + ns.MustRun(t, "ip", "-6", "-details", "rule", "show")
	err = ns.Enter(func() error {
		set, err := readSettings()
		out += set
		return err
	})
	must(t, err)
	return out
}

// readSettings returns the settings of all links of the thread's namespace.
func readSettings() (string, error) {
	entries, err := os.ReadDir("/proc/sys/net/ipv4/conf")
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, e := range entries {
		for _, s := range settings {
			path := fmt.Sprintf(s, e.Name())
			b, err := os.ReadFile("/proc/sys/net/" + path)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&out, "%s=%s\n", path, strings.TrimSpace(string(b)))
		}
	}
	return out.String(), nil
}

// unchanged fails the test if the namespace is not as the snapshot says.
func (ns *namespace) unchanged(t testing.TB, before string) {
	t.Helper()
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(ns.snapshot(t), "\n")); diff != "" {
		t.Errorf("%s is not as it was (-before +after)\n%s", ns.Name, diff)
	}
}

// rules returns the policy rules that are not the kernel's own, IPv4 first.
func (ns *namespace) rules(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(ns.MustRun(t, "ip", family, "rule", "show")) {
			if rule := strings.Join(strings.Fields(line), " "); !slices.Contains(kernelRules, rule) {
				out = append(out, rule)
			}
		}
	}
	return out
}

var kernelRules = []string{"0: from all lookup local", "32766: from all lookup main", "32767: from all lookup default"}

// routes returns the routes of a table, one family after the other.
func (ns *namespace) routes(t testing.TB, table string) []string {
	t.Helper()
	var out []string
	for _, family := range []string{"-4", "-6"} {
		text, err := ns.Run("ip", family, "route", "show", "table", table)
		if err != nil && !strings.Contains(text, "FIB table does not exist") {
			t.Fatalf("routes of table %s: %v: %s", table, err, text)
		}
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
	}
	return out
}

// setting returns a kernel parameter, named by its path below /proc/sys.
func (ns *namespace) setting(t testing.TB, path string) string {
	t.Helper()
	var b []byte
	err := ns.Enter(func() (err error) {
		b, err = os.ReadFile("/proc/sys/" + path)
		return err
	})
	must(t, err)
	return strings.TrimSpace(string(b))
}

// files returns what is in the state folder, folders with a slash behind.
func (n *node) files(t testing.TB) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(n.state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == n.state || strings.HasPrefix(d.Name(), "calls") { // notes, which no call needs
			return err
		}
		name, _ := filepath.Rel(n.state, path)
		if d.IsDir() {
			name += "/"
		}
		out = append(out, name)
		return nil
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return out
}

// noRecords fails the test if the state folder has more than the lease database, locks, an
// empty folder for records, and what services has written.
func (n *node) noRecords(t testing.TB) {
	t.Helper()
	for _, name := range n.files(t) {
		if !slices.Contains([]string{"leases.db", "leases.lock", "shared.lock", "gids.lock", "moves.lock", "attachments/", "pools/", "pools/_services"}, name) {
			t.Errorf("the state folder has %s, want no record", name)
		}
	}
}

// peerIndex is the index of a veth's other end.
var peerIndex = regexp.MustCompile(`@if\d+:`)

// portable returns a snapshot without what the kernel chooses by itself:
// the indexes of links.
func portable(snapshot string) []string {
	lines := strings.Split(snapshot, "\n")
	for i, line := range lines {
		index, rest, ok := strings.Cut(line, ": ")
		if ok && strings.Trim(index, "0123456789") == "" && strings.Contains(rest, " mtu ") {
			lines[i] = peerIndex.ReplaceAllString(rest, "@if:")
		}
	}
	return lines
}

// lease is a row of rocectl pool list.
type lease struct {
	Pool, State, Network, Program, ContainerID, IfName string
	Address                                            netip.Addr
}

// rows returns what rocectl pool list has, in the boot of the node.
func (n *node) rows(t testing.TB) (rows []lease) {
	t.Helper()
	if _, err := os.Stat(n.state); errors.Is(err, fs.ErrNotExist) {
		return nil // the first ADD makes it
	}
	cmd := exec.Command(filepath.Join(programs, "rocectl"), "--state-dir", n.state, "pool", "list", "-o", "json")
	var out []byte
	err := n.enter(func() (err error) { out, err = cmd.Output(); return err })
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	if err != nil {
		t.Fatalf("rocectl pool list: %v: %s", err, out)
	}
	return rows
}

// leases returns the addresses in a state (leased, quarantined, conflict) as "pool
// address".
func (n *node) leases(t testing.TB, state string) (addrs []string) {
	t.Helper()
	for _, r := range n.rows(t) {
		if r.State == state {
			addrs = append(addrs, fmt.Sprint(r.Pool, " ", r.Address))
		}
	}
	return addrs
}

// nothingLeased fails the test if an address is leased.
func (n *node) nothingLeased(t testing.TB) {
	t.Helper()
	if got := n.leases(t, "leased"); len(got) > 0 {
		t.Errorf("leased: %q, want nothing", got)
	}
}

// mustBeClean fails the test if an address is leased, or a record is left.
func (n *node) mustBeClean(t testing.TB) {
	t.Helper()
	n.nothingLeased(t)
	n.noRecords(t)
}
