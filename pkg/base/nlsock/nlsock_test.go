// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nlsock

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestInterruptedDumpIsSeen(t *testing.T) {
	t.Parallel()
	message := func(typ, flags uint16, data ...byte) syscall.NetlinkMessage {
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ, Flags: flags}, Data: data}
	}
	var r Reply
	for _, m := range []syscall.NetlinkMessage{
		message(unix.NLMSG_MIN_TYPE, unix.NLM_F_MULTI, 1),
		message(unix.NLMSG_MIN_TYPE, unix.NLM_F_MULTI|unix.NLM_F_DUMP_INTR, 2),
	} {
		if r.add(m) {
			t.Fatal("the dump ended early")
		}
	}
	if !r.add(message(unix.NLMSG_DONE, unix.NLM_F_MULTI)) || !r.interrupted || len(r.Rows) != 2 || r.Err != nil {
		t.Errorf("got %+v", r)
	}
	failed := Reply{}
	refusal := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1)
	if !failed.add(message(unix.NLMSG_DONE, unix.NLM_F_MULTI, refusal...)) || !errors.Is(failed.Err, unix.ENOENT) {
		t.Errorf("the end of a dump that failed: %+v, want ENOENT", failed)
	}
}

func TestADumpIsRepeatedUntilItIsWhole(t *testing.T) {
	t.Parallel()
	good, torn, cut := Reply{Rows: [][]byte{{1}}}, Reply{Rows: [][]byte{{2}}, interrupted: true}, Reply{Rows: [][]byte{{3}}, Err: unix.EINTR}
	refused, failed := Reply{Err: unix.EPERM}, errors.New("no socket")
	for name, tt := range map[string]struct {
		replies []Reply // the last one again and again
		err     error
		want    error
		calls   int
	}{
		"whole at once":      {[]Reply{good}, nil, nil, 1},
		"whole at last":      {[]Reply{torn, cut, torn, good}, nil, nil, 4},
		"refused":            {[]Reply{torn, refused}, nil, unix.EPERM, 2},
		"never whole":        {[]Reply{cut, torn}, nil, ErrInterrupted, maxInterrupted},
		"always interrupted": {[]Reply{cut}, nil, ErrInterrupted, maxInterrupted},
		"not asked":          {[]Reply{good}, failed, failed, 1},
	} {
		calls := 0
		rows, err := whole(func() ([]Reply, error) {
			calls++
			return tt.replies[min(calls, len(tt.replies))-1:], tt.err
		})
		if !errors.Is(err, tt.want) || calls != tt.calls || (len(rows) == 1 && rows[0][0] == 1) != (tt.want == nil) {
			t.Errorf("%s: got %v, %v after %d dumps", name, rows, err, calls)
		}
	}
}

// The kernel has the memory, and a process with a memory limit may not have it.
func TestADumpThatIsTooLargeIsReadToItsEndAndNotKept(t *testing.T) {
	t.Parallel()
	message := func(typ uint16, size int) syscall.NetlinkMessage {
		return syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ, Flags: unix.NLM_F_MULTI}, Data: make([]byte, size)}
	}
	for rows, want := range map[int]error{120_000: nil, 200_000: ErrTooMuch} {
		var r Reply
		for range rows {
			if r.add(message(unix.NLMSG_MIN_TYPE, 36)) {
				t.Fatal("the dump ended early")
			}
		}
		if !r.add(message(unix.NLMSG_DONE, 4)) || !errors.Is(r.Err, want) || want != nil && r.Rows != nil || want == nil && len(r.Rows) != rows {
			t.Errorf("%d rows: got %d and %v, want %v", rows, len(r.Rows), r.Err, want)
		}
	}
	refused := message(unix.NLMSG_DONE, 4)
	binary.NativeEndian.PutUint32(refused.Data, ^uint32(unix.ENOENT)+1)
	if r := (Reply{size: maxSize + 1}); !r.add(refused) || !errors.Is(r.Err, unix.ENOENT) {
		t.Errorf("one that fails: %v", r.Err)
	}
}

func TestAttributesEndWhereTheyAreCut(t *testing.T) {
	t.Parallel()
	whole := []byte{5, 0, 1, 0, 'a', 0, 0, 0, 4, 0, 3, 0x40, 8, 0, 2, 0x80, 1, 2, 3, 4}
	for n := range len(whole) + 1 {
		var got []string
		for typ, v := range Attributes(whole[:n]) {
			got = append(got, fmt.Sprint(typ, " ", bytes.Clone(v)))
		}
		want := []string{"1 [97]", "3 []", "2 [1 2 3 4]"}
		switch {
		case n < 5:
			want = nil
		case n < 12:
			want = want[:1]
		case n < len(whole):
			want = want[:2]
		}
		if !slices.Equal(got, want) {
			t.Errorf("first %d bytes: got %q, want %q", n, got, want)
		}
	}
}

func TestAttributesAreWrittenAsTheyAreRead(t *testing.T) {
	t.Parallel()
	b := AppendText(AppendNumber(AppendText(nil, 2, "rxe0"), 1, 7), 3, "")
	if len(b)%4 != 0 {
		t.Errorf("%d bytes, want a multiple of 4", len(b))
	}
	var got []string
	for typ, v := range Attributes(b) {
		got = append(got, fmt.Sprintf("%d %q %d", typ, Text(v), Number(v)))
	}
	want := []string{fmt.Sprintf("2 %q %d", "rxe0", binary.NativeEndian.Uint32([]byte("rxe0"))), `1 "\a" 7`, `3 "" 0`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// dial connects to rtnetlink until the end of the test.
func dial(t *testing.T) *Conn {
	t.Helper()
	c, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAProtocolThatTheKernelLacksIsRecognisedByItsErrno(t *testing.T) {
	t.Parallel()
	if _, err := Dial(31); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("got %v, want EPROTONOSUPPORT", err)
	}
}

func TestADumpThatFailsIsNotTakenForAnEmptyOne(t *testing.T) {
	t.Parallel()
	c := dial(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx  context.Context
		body int
		want error
	}{
		"all links":           {t.Context(), unix.SizeofIfInfomsg, nil},
		"half a header":       {t.Context(), 4, unix.EINVAL},
		"a call that is over": {over, unix.SizeofIfInfomsg, context.Canceled},
	} {
		rows, err := c.Dump(tt.ctx, Request{Type: unix.RTM_GETLINK, Body: make([]byte, tt.body)})
		if !errors.Is(err, tt.want) || (err == nil) != (len(rows) > 0) {
			t.Errorf("%s: %d rows, %v, want %v", name, len(rows), err, tt.want)
		}
	}
}

// TestEachRequestOfABatchHasItsOwnAnswer has each row of requests that succeed or fail, one
// after the other on one socket.
func TestEachRequestOfABatchHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	c := dial(t)
	const count = 4
	for fails := range 1 << count {
		var reqs []Request
		for i := range count {
			index := int32(1) // lo
			if fails>>i&1 == 1 {
				index = 1 << 30
			}
			body := make([]byte, unix.SizeofIfInfomsg)
			binary.NativeEndian.PutUint32(body[4:], uint32(index))
			reqs = append(reqs, Request{Type: unix.RTM_GETLINK, Body: body})
		}
		replies, err := c.Exchange(t.Context(), reqs...)
		if err != nil || len(replies) != count {
			t.Fatalf("%04b: %d answers, %v", fails, len(replies), err)
		}
		for i, r := range replies {
			if failed := fails>>i&1 == 1; failed != errors.Is(r.Err, unix.ENODEV) || failed == (len(r.Rows) == 1) {
				t.Errorf("%04b: answer %d has %d rows and %v", fails, i, len(r.Rows), r.Err)
			}
		}
	}
}

// What was read stays as it is when more is read.
func TestAnAnswerStays(t *testing.T) {
	t.Parallel()
	c := dial(t)
	links, err := c.Dump(t.Context(), Request{Type: unix.RTM_GETLINK, Body: make([]byte, unix.SizeofIfInfomsg)})
	if err != nil || len(links) == 0 {
		t.Fatal(links, err)
	}
	before := bytes.Clone(links[0])
	if _, err := c.Dump(t.Context(), Request{Type: unix.RTM_GETRULE, Body: make([]byte, unix.SizeofRtMsg)}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(links[0], before) {
		t.Errorf("the link was\n%x\nand is\n%x", before, links[0])
	}
}

var links = Request{Type: unix.RTM_GETLINK, Body: make([]byte, unix.SizeofIfInfomsg)}

func TestARequestWithoutAnswerEndsWithItsCall(t *testing.T) {
	t.Parallel()
	c := dial(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if replies, err := c.Exchange(ctx, Request{Type: unix.NLMSG_NOOP}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, %v", replies, err)
	}
	if replies, err := c.Exchange(t.Context()); replies != nil || err != nil {
		t.Errorf("of no request: %v, %v", replies, err)
	}
	if rows, err := c.Dump(t.Context(), links); err != nil || len(rows) == 0 {
		t.Errorf("the next request: %d rows, %v", len(rows), err)
	}
	c.Close()
	if _, err := c.Dump(t.Context(), links); !errors.Is(err, unix.EBADF) {
		t.Errorf("after Close: %v", err)
	}
	c.fd = -1 // the number may be another file's by now
}

// Another program can send to the socket, also what looks like an answer.
func TestOnlyTheKernelAnswers(t *testing.T) {
	t.Parallel()
	c, other := dial(t), dial(t)
	if _, err := c.Dump(t.Context(), links); err != nil { // from then on the socket has an address
		t.Fatal(err)
	}
	name, err := unix.Getsockname(c.fd)
	if err != nil {
		t.Fatal(err)
	}
	refusal := append(binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EINVAL)+1), make([]byte, unix.NLMSG_HDRLEN)...)
	forged := Request{Type: unix.NLMSG_ERROR, Body: refusal}.append(nil, c.seq+1)
	if err := unix.Sendto(other.fd, forged, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: name.(*unix.SockaddrNetlink).Pid}); err != nil {
		t.Skipf("cannot send to another socket: %v", err)
	}
	if rows, err := c.Dump(t.Context(), links); err != nil || len(rows) == 0 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

// An exchange that was given up may get its answer later.
func TestALateAnswerIsNotThatOfTheNextRequest(t *testing.T) {
	t.Parallel()
	c := dial(t)
	ask := func(index uint32) Request {
		body := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(body[4:], index)
		return Request{Type: unix.RTM_GETLINK, Body: body}
	}
	c.seq = 7
	for _, given := range []uint32{6, 7} {
		if err := unix.Sendto(c.fd, ask(1<<30).append(nil, given), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			t.Fatal(err)
		}
	}
	replies, err := c.Exchange(t.Context(), ask(1), ask(1))
	if err != nil || len(replies) != 2 || replies[0].Err != nil || replies[1].Err != nil || len(replies[0].Rows) != 1 || len(replies[1].Rows) != 1 {
		t.Errorf("got %+v, %v", replies, err)
	}
}

func TestTheFirstAttributeCanBeEnough(t *testing.T) {
	t.Parallel()
	for typ := range Attributes(AppendNumber(AppendNumber(nil, 1, 7), 2, 8)) {
		if typ != 1 {
			t.Errorf("the first has type %d", typ)
		}
		break
	}
}

func TestARefusalHasTheWordsOfTheKernel(t *testing.T) {
	t.Parallel()
	const told = unix.NLM_F_ACK_TLVS | unix.NLM_F_CAPPED
	body := append(binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EINVAL)+1), make([]byte, unix.NLMSG_HDRLEN)...)
	words := AppendText(AppendNumber(nil, unix.NLMSGERR_ATTR_OFFS, 0x41414141), unix.NLMSGERR_ATTR_MSG, "bad MTU")
	for name, tt := range map[string]struct {
		flags uint16
		data  []byte
		want  string
	}{
		"with words":        {told, append(body, words...), "invalid argument: bad MTU"},
		"without words":     {told, body, "invalid argument"},
		"of an old kernel":  {0, append(body, words...), "invalid argument"},
		"with the request":  {unix.NLM_F_ACK_TLVS, append(body, words...), "invalid argument"},
		"an acknowledgment": {told, append(make([]byte, 4+unix.NLMSG_HDRLEN), words...), "<nil>"},
	} {
		var r Reply
		if last := r.add(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: unix.NLMSG_ERROR, Flags: tt.flags}, Data: tt.data}); !last || fmt.Sprint(r.Err) != tt.want {
			t.Errorf("%s: got %v, want %s", name, r.Err, tt.want)
		}
	}
}

// The options of the socket are what makes the kernel say why.
func TestTheKernelIsAskedForItsWords(t *testing.T) {
	t.Parallel()
	replies, err := dial(t).Exchange(t.Context(), Request{Type: unix.RTM_GETNSID, Body: make([]byte, 4)}) // of no namespace
	if err != nil || len(replies) != 1 || !errors.Is(replies[0].Err, unix.EINVAL) || replies[0].Err.Error() == unix.EINVAL.Error() {
		t.Errorf("got %+v, %v, want EINVAL with words", replies, err)
	}
}

// FuzzAttributes: no bytes panic, also as attributes in attributes, as an error of the
// kernel, and as text or number. No attribute has more bytes than the message.
func FuzzAttributes(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 0, 1, 0})                        // shorter than its head
	f.Add([]byte{255, 255, 1, 0, 1})                 // longer than the message
	f.Add([]byte{5, 0, 1, 0x80, 'a'})                // without padding
	f.Add([]byte{12, 0, 1, 0x80, 8, 0, 2, 0, 1, 2})  // cut in the inner one
	f.Add([]byte{254, 255, 255, 255, 0, 0, 0, 0, 9}) // an errno, and half a header
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		for _, v := range Attributes(b) {
			total += unix.SizeofRtAttr + len(v)
			for _, inner := range Attributes(v) {
				_, _ = Text(inner), Number(inner)
			}
		}
		if total > len(b) {
			t.Errorf("%x: attributes of %d bytes", b, total)
		}
		for _, typ := range []uint16{unix.NLMSG_ERROR, unix.NLMSG_DONE, unix.NLMSG_MIN_TYPE} {
			var r Reply
			r.add(syscall.NetlinkMessage{Header: syscall.NlMsghdr{Type: typ, Flags: unix.NLM_F_ACK_TLVS | unix.NLM_F_CAPPED}, Data: b})
		}
	})
}
