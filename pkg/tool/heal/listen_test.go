// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package heal

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netns"
	"github.com/roce-cni/roce-cni/pkg/base/nlsock"
	"github.com/roce-cni/roce-cni/pkg/base/pace"
	"github.com/roce-cni/roce-cni/pkg/plugin/calls"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf"
	"github.com/roce-cni/roce-cni/pkg/plugin/kernel/kerneltest"
	"github.com/roce-cni/roce-cni/pkg/plugin/record"
)

func TestNextEndsWhenTheListenerIsClosed(t *testing.T) {
	t.Parallel()
	l, err := listenNetwork()
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error)
	go func() {
		_, _, err := l.next()
		waits <- err
	}()
	l.close()
	_, _, after := l.next()
	for _, err := range []error{<-waits, after} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("next: %v, want os.ErrClosed", err)
		}
	}
}

// TestNextTellsThatMessagesWereLost has a socket with place for one message, and a program that
// sends it three.
func TestNextTellsThatMessagesWereLost(t *testing.T) {
	t.Parallel()
	const group = 7
	l, err := listen(unix.NETLINK_USERSOCK, group)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var set error
	err = l.raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) })
	sender, err2 := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err := errors.Join(err, set, err2); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sender)
	for range 3 {
		_ = unix.Sendto(sender, make([]byte, 4<<10), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)}) // ENOBUFS
	}
	end := time.AfterFunc(time.Minute, l.close)
	defer end.Stop()
	for err = nil; err == nil || errors.Is(err, unix.EINVAL); { // no message of the kernel
		_, _, err = l.next()
	}
	if !errors.Is(err, unix.ENOBUFS) {
		t.Errorf("next: %v, want ENOBUFS", err)
	}
}

func TestANamespaceThatIsGoneHasNoNumber(t *testing.T) {
	t.Parallel()
	if n, err := new(Watcher).Number(t.Context(), "/run/netns/gone", netns.ID{Dev: 4, Ino: 1}); !errors.Is(err, netns.ErrGone) {
		t.Errorf("got %d, %v", n, err)
	}
}

// TestAMessageOfTheKernelIsAChange of a link, or of something else, in its namespace.
func TestAMessageOfTheKernelIsAChange(t *testing.T) {
	t.Parallel()
	link := append(make([]byte, unix.SizeofIfInfomsg), nlsock.AppendText(nlsock.AppendNumber(nil, unix.IFLA_MTU, 9000), unix.IFLA_IFNAME, "net1")...)
	for typ, want := range map[uint16]Event{
		unix.RTM_NEWLINK: {NSID: 5, Link: "net1"}, unix.RTM_DELLINK: {NSID: 5, Link: "net1", Gone: true},
		unix.RTM_NEWADDR: {NSID: 5}, unix.RTM_DELADDR: {NSID: 5, Gone: true}, unix.RTM_NEWROUTE: {NSID: 5}, unix.RTM_DELROUTE: {NSID: 5, Gone: true},
		unix.RTM_NEWRULE: {NSID: 5}, unix.RTM_DELRULE: {NSID: 5, Gone: true},
	} {
		if got := changeOf(5, syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ}, Data: link}); got != want {
			t.Errorf("type %d: got %+v, want %+v", typ, got, want)
		}
	}
	if got := changeOf(own, syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.RTM_NEWLINK}}); got != (Event{NSID: own}) {
		t.Errorf("of nothing: got %+v", got)
	}
}

// TestChangesOfBothFamiliesAreHeard: of links, addresses, routes and rules.
func TestChangesOfBothFamiliesAreHeard(t *testing.T) {
	t.Parallel()
	node := kerneltest.NewNode(t)
	l, err := listenNetwork()
	fatal(t, err)
	node.IP("link add veth7 type veth peer name veth8")
	node.IP("link set veth7 up")
	for family, addrs := range map[string][2]string{"-4": {"192.0.2.1/24", "198.51.100.0/24"}, "-6": {"fd00::1/64", "fd01::/64"}} {
		node.IP(family + " addr add " + addrs[0] + " dev veth7")
		node.IP(family + " route add " + addrs[1] + " dev veth7")
		node.IP(family + " rule add to " + addrs[1] + " lookup 100")
	}
	type change struct{ typ, family int }
	missing := map[change]bool{{unix.RTM_NEWLINK, unix.AF_UNSPEC}: true}
	for _, typ := range []int{unix.RTM_NEWADDR, unix.RTM_NEWROUTE, unix.RTM_NEWRULE} {
		missing[change{typ, unix.AF_INET}], missing[change{typ, unix.AF_INET6}] = true, true
	}
	end := time.AfterFunc(time.Minute, l.close)
	defer end.Stop()
	for err == nil && len(missing) > 0 {
		var msgs []syscall.NetlinkMessage
		_, msgs, err = l.next()
		for _, m := range msgs {
			delete(missing, change{int(m.Header.Type), int(m.Data[0])})
		}
	}
	l.close()
	if len(missing) > 0 {
		t.Errorf("not heard, type and family: %v (%v)", missing, err)
	}
}

// TestOnlyTheFileOfTheCallsIsReadAgain when a file of its folder is written to.
func TestOnlyTheFileOfTheCallsIsReadAgain(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe()
	heard := make(chan error)
	go func() {
		for {
			err := changed(r)
			heard <- err
			if err != nil {
				return
			}
		}
	}()
	for name, is := range map[string]bool{"calls.1\x00": false, "leases.db\x00": false, "calls\x00\x00": true} {
		if _, err := w.Write([]byte("\x01\x00\x00\x00" + name)); err != nil {
			t.Fatal(err)
		}
		if is {
			if err := <-heard; err != nil {
				t.Error(err)
			}
		}
	}
	_ = w.Close()
	if err := <-heard; !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

// TestAWatcherHearsAllNamespaces: the node's own, that of a pod, and the file of the calls.
func TestAWatcherHearsAllNamespaces(t *testing.T) {
	t.Parallel()
	node := kerneltest.NewNode(t)
	pod := node.PodAt(filepath.Join(t.TempDir(), "pod"))
	there, err := netns.At(pod.Path)
	fatal(t, err)
	records := record.Store{Dir: t.TempDir(), BootID: "boot"}
	file := calls.File{Dir: records.Dir}
	w, err := Watch(file)
	fatal(t, err)
	n, err := w.Number(t.Context(), pod.Path, there.ID)
	if err != nil || n < 0 {
		t.Fatalf("got the number %d, %v", n, err)
	}
	h := New(Config{Records: records, Calls: file, Clock: pace.Clock{Now: func() time.Duration { return time.Hour }}, Log: slog.New(slog.DiscardHandler)})
	attached := func(at conf.Attachment, nsid int32, links ...string) {
		h.attachments[at] = &attachment{at: at, nsid: nsid, links: links, state: state{due: never}}
	}
	attached(container(1), n)
	attached(container(2), own, "veth7")
	attached(container(3), own)
	done := make(chan struct{})
	go func() { defer close(done); w.Run(t.Context(), h) }()
	is := func(what string, i int) { // the test ends by its timeout
		t.Helper()
		<-h.wake
		for j := 1; j <= 3; j++ {
			if a := h.get(container(j)); (a.due == time.Hour+quiet) != (j <= i) {
				t.Errorf("%s: number %d is looked at %v", what, j, a.due)
			}
		}
	}
	pod.IP("link add net1 type veth peer name net2")
	is("the pod has a link", 1)
	node.IP("link add veth7 type veth peer name veth8")
	is("the node has a link", 2)
	fatal(t, file.Append(calls.Call{At: time.Now(), Verb: "DEL", Attachment: container(3)}))
	for h.get(container(3)) != nil { // it has no record
		runtime.Gosched()
	}
	w.Close()
	<-done
	if _, err := Watch(calls.File{Dir: filepath.Join(records.Dir, "none")}); cnierr.CodeOf(err) != cnierr.IO || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder: got %v, want code %d", err, cnierr.IO)
	}
}
