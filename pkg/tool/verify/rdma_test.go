// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/tool/gids"
)

// TestProgramsEndWithTheProcess: kill -9 of a server or a caller leaves no rping that waits
// for a connection. The process that is killed is this test program.
func TestProgramsEndWithTheProcess(t *testing.T) {
	t.Parallel()
	const asked = "ROCE_VERIFY_STARTS"
	if os.Getenv(asked) != "" {
		_, cmd, err := outside().start(t.Context(), "sleep", []string{"60"})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("pid", cmd.Process.Pid)
		_ = cmd.Wait()
		return
	}
	helper := exec.Command("/proc/self/exe", "-test.run=^TestProgramsEndWithTheProcess$")
	helper.Env = append(os.Environ(), asked+"=1")
	out, err := helper.StdoutPipe()
	if err == nil {
		err = helper.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var program int
	for lines := bufio.NewScanner(out); program == 0 && lines.Scan(); {
		if pid, found := strings.CutPrefix(lines.Text(), "pid "); found {
			program, _ = strconv.Atoi(pid)
		}
	}
	fd, err := unix.PidfdOpen(program, 0)
	if err != nil {
		t.Fatalf("process %d: %v", program, err)
	}
	defer unix.Close(fd)
	if err := helper.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = helper.Wait()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
		_ = unix.Kill(program, unix.SIGKILL)
		t.Errorf("the program lives on: %v", err)
	}
}

func TestTheAverageBandwidthIsReadFromTheTable(t *testing.T) {
	t.Parallel()
	const said = ` TX depth        : 128
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 1000.000000 != 3013.932000. CPU Frequency is not max.
 65536      500              94.72              94.71              0.180640
`
	for said, want := range map[string]string{said: "ib_write_bw transfers 94.71 Gb/s", " TX depth        : 128\n": "ib_write_bw transfers"} {
		if got := gigabits(said); got != want {
			t.Errorf("got %q, want %q, from\n%s", got, want, said)
		}
	}
}

// TestBothSidesOfAProgramFit: the words that make it a server and a client of one test.
func TestBothSidesOfAProgramFit(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("172.16.10.1"), netip.MustParseAddr("fd00::1")
	on := gids.Rail{Index: 5}
	on.Port.Device.Name, on.Port.Number = "mlx5_0", 2
	const bw = "-d mlx5_0 -i 2 -x 5 -p 4711 --size=65536 --iters=500 --report_gbits --CPU-freq"
	for _, c := range []struct {
		own    netip.Addr
		subnet string
		peer   netip.Addr
		want   []string // of each program
	}{
		{v4, "172.16.10.0/24", netip.Addr{}, []string{"-s -a 172.16.10.1 -p 4711 -C 3", bw}},
		{v4, "172.16.10.0/24", netip.MustParseAddr("172.16.10.2"), []string{"-c -I 172.16.10.1 -a 172.16.10.2 -p 4711 -C 3", bw + " 172.16.10.2"}},
		{
			v4, "172.16.10.0/24", netip.MustParseAddr("172.16.11.2"),
			[]string{"-c -I 172.16.10.1 -a 172.16.11.2 -p 4711 -C 3", bw + " --bind_source_ip=172.16.10.1 172.16.11.2"},
		},
		{v6, "fd00::/64", netip.Addr{}, []string{"-s -a fd00::1 -p 4711 -C 3", bw + " --ipv6-addr"}},
		{v6, "fd00::/64", netip.MustParseAddr("fd00::2"), []string{"-c -I fd00::1 -a fd00::2 -p 4711 -C 3", bw + " --ipv6-addr fd00::2"}},
	} {
		var got []string
		for _, of := range programs() {
			got = append(got, strings.Join(of.args(Rail{Addr: c.own, Subnet: netip.MustParsePrefix(c.subnet)}, on, 4711, c.peer), " "))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s to %s (-want +got)\n%s", c.own, c.peer, diff)
		}
	}
}

func TestOnlyTheLastLineOfAProgramIsTold(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 199)
	for said, want := range map[string]string{"": "", "one": "one", "one\n two \n\n": "two", "a\n" + long + "\n": long, long + "yz": long + "y"} {
		if got := last(said); got != want {
			t.Errorf("of %q: got %q, want %q", said, got, want)
		}
	}
	var o output
	for range 3 {
		if n, err := o.Write(make([]byte, largest-1)); n != largest-1 || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
	}
	if n := o.text.Len(); n != 2*(largest-1) {
		t.Errorf("it keeps %d bytes of a program that says too much", n)
	}
}

// installed puts shell scripts in place of the programs.
func installed(t *testing.T, scripts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, script := range scripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

// withGIDs is a pod in which net1 has GIDs of both families.
func withGIDs(err error) Pod {
	p := outside()
	p.RDMA = func(context.Context) ([]gids.Rail, error) {
		v4, v6 := gids.Rail{Link: "net1", Addr: netip.MustParseAddr("127.0.0.1"), Index: 5}, gids.Rail{Link: "net1", Addr: netip.MustParseAddr("::1"), Index: 6}
		return []gids.Rail{{Link: "net0", Addr: v4.Addr, Index: 1}, v6, v4, v6}, err
	}
	return p
}

// loopback is a rail by which a program of this test can be reached.
func loopback() Rail {
	return Rail{Link: "net1", Addr: netip.MustParseAddr("127.0.0.1"), Subnet: netip.MustParsePrefix("127.0.0.0/8")}
}

func TestWhatATestByRDMALacksIsNamed(t *testing.T) {
	t.Parallel()
	without, other := withGIDs(nil), loopback()
	without.RDMA, other.Link = nil, "net7"
	for name, c := range map[string]struct {
		pod  Pod
		r    Rail
		of   program
		want string
	}{
		"nothing":     {withGIDs(nil), loopback(), program{name: "sh"}, ""},
		"the program": {withGIDs(nil), loopback(), program{name: "no-such-program", contained: "perftest"}, "no-such-program of the package perftest in gpu-00"},
		"tests":       {without, loopback(), program{name: "sh"}, "a server with tests by RDMA in gpu-00"},
		"devices":     {withGIDs(errors.New("denied")), loopback(), program{name: "sh"}, "RDMA in gpu-00: denied"},
		"a GID":       {withGIDs(nil), other, program{name: "sh"}, "a GID for 127.0.0.1 of gpu-00: rocectl doctor on its node"},
	} {
		on, missing := c.pod.port(t.Context(), c.r, c.of)
		if missing != c.want || missing == "" && on.Index != 5 || missing != "" && on.Link != "" {
			t.Errorf("%s: got index %d of %s, missing %q, want %q", name, on.Index, on.Link, missing, c.want)
		}
	}
}

// TestAProgramIsStartedForACaller, and the caller is told when it has ended.
func TestAProgramIsStartedForACaller(t *testing.T) {
	// rping lives longer than launch, so that it would be killed by a context that ends with launch.
	installed(t, map[string]string{"rping": `sleep 0.1; echo "$@"`, "ib_write_bw": "exec sleep 60"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, rails := &caller{pod: withGIDs(nil)}, []Rail{{}, loopback(), {Link: "net1", Addr: netip.MustParseAddr("192.0.2.1")}}
	for i, check := range []string{Bandwidth, Handshake} {
		got, err := c.launch(ctx, launching{1, check}, rails)
		if err != nil || got.Port == 0 || got.Launched != i+1 {
			t.Fatalf("%s: got %+v, %v", check, got, err)
		}
		if check == Handshake {
			<-c.programs[i].done
			want := reply{Over: true, Said: fmt.Sprintf("-s -a 127.0.0.1 -p %d -C 3", got.Port)}
			if diff := cmp.Diff(want, c.endedOf(2)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		}
	}
	if diff := cmp.Diff(reply{}, c.endedOf(1)); diff != "" {
		t.Errorf("a program that runs (-want +got)\n%s", diff)
	}
	cancel()
	<-c.programs[0].done // it ends with the connection
	for _, number := range []int{-1, 3} {
		if got := c.endedOf(number); got.Error == "" || got.Over {
			t.Errorf("program %d of 2: %+v", number, got)
		}
	}
	for want, q := range map[string]launching{"there is no such rail": {3, Handshake}, "there is no test reach": {1, Reach}, "assign requested address": {2, Handshake}} {
		if _, err := c.launch(t.Context(), q, rails); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if got, err := c.launch(t.Context(), launching{0, Handshake}, rails); err != nil || !strings.HasPrefix(got.Missing, "a GID for ") || got.Launched != 0 {
		t.Errorf("without a GID: got %+v, %v", got, err)
	}
	if len(c.programs) != 2 {
		t.Errorf("%d programs, want 2", len(c.programs))
	}
}

// TestAClientTriesUntilItsServerListens: the server of the other pod may need a while for that. One
// that has ended, or a pod that is gone, is not waited for.
func TestAClientTriesUntilItsServerListens(t *testing.T) {
	const words = "rping -c -I 127.0.0.1 -a 127.0.0.2 -p 4711 -C 3: "
	for name, tt := range map[string]struct {
		script string
		launch reply // to the first request
		ended  reply // to those after it
		want   string
		tries  int
		over   bool
	}{
		"the third try":    {`test $(wc -l <"$0.log") = 3`, reply{Port: 4711, Launched: 7}, reply{}, "ok: rping connects by rdma_cm and transfers", 3, false},
		"it never listens": {"exit 1", reply{Port: 4711, Launched: 7}, reply{}, "problem: " + words + "its server cannot be reached", transferTries, false},
		"its server ends":  {"echo refused; exit 1", reply{Port: 4711, Launched: 7}, reply{Over: true, Said: "no memory"}, "problem: " + words + "exit status 1: refused; gpu-07 says: no memory", 1, false},
		"its pod is gone":  {"exit 1", reply{Port: 4711, Launched: 7}, reply{Error: "gone"}, "problem: " + words + "exit status 1: ; gpu-07 says:", 1, false},
		"no server":        {"exit 1", reply{Missing: "perftest in gpu-07"}, reply{}, "cannot tell: not tested: perftest in gpu-07", 0, false},
		"no rail":          {"exit 1", reply{Error: "there is no such rail"}, reply{}, "cannot tell: not tested: gpu-07: there is no such rail", 0, false},
		"its time is over": {"exit 0", reply{Port: 4711, Launched: 7}, reply{}, "problem: " + words + "it does not end within 1m0s: ", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := installed(t, map[string]string{"rping": `echo >>"$0.log"` + "\n" + tt.script})
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				defer near.Close()
				asked := make(chan request, 100)
				go func() {
					defer close(asked)
					w := newWire(far)
					for says := tt.launch; ; says = tt.ended {
						var q request
						if w.Decode(&q) != nil {
							return
						}
						asked <- q
						_ = w.Encode(says)
					}
				}()
				c := couple{Pod: withGIDs(nil), r: loopback(), peer: &Peer{Name: "gpu-07", wire: newWire(near)}, to: Rail{Number: 3, Addr: netip.MustParseAddr("127.0.0.2")}}
				ctx, cancel := context.WithCancel(t.Context())
				if tt.over {
					cancel()
				}
				defer cancel()
				a := c.transfer(ctx, programs()[0])
				if got := strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", a.Verdict, a.Found, a.Missing), ": "); got != tt.want || a.Of != c.of() || a.Check != Handshake {
					t.Errorf("%s of %s: got %q, want %q", a.Check, a.Of, got, tt.want)
				}
				_ = near.Close()
				want := []request{{Launch: &launching{Rail: 3, Check: Handshake}}}
				var got []request
				for q := range asked {
					got = append(got, q)
				}
				for len(want) < len(got) {
					want = append(want, request{Ended: 7})
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
			if log, _ := os.ReadFile(filepath.Join(dir, "rping.log")); len(log) != tt.tries {
				t.Errorf("%d tries, want %d", len(log), tt.tries)
			}
		})
	}
}
