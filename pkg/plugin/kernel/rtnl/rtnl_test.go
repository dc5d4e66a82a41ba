// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package rtnl

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// dialFresh returns a socket in a namespace of its own, in which the calling
// test is from then on.
func dialFresh(t *testing.T) *Conn {
	t.Helper()
	if testing.Short() {
		t.Skip("makes network namespaces, which -short excludes")
	}
	runtime.LockOSThread() // the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		if os.Getenv("REQUIRE_NETNS") == "1" {
			t.Fatalf("REQUIRE_NETNS=1, but no network namespace can be made: %v", err)
		}
		t.Skipf("no network namespace can be made: %v", err)
	}
	c, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestErrorsCarryErrnoAndTheKernelsWords(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	if _, err := c.LinkByName(t.Context(), "nosuch"); !errors.Is(err, unix.ENODEV) {
		t.Errorf("link that does not exist: %v, want ENODEV", err)
	}
	if _, err := c.LinkByIndex(t.Context(), 99); !errors.Is(err, unix.ENODEV) {
		t.Errorf("index that does not exist: %v, want ENODEV", err)
	}
	if err := c.Do(t.Context(), SetUp("lo", 0)); err != nil {
		t.Fatal(err)
	}
	bad := Route{Table: 100, Dst: netip.MustParsePrefix("10.0.0.0/8"), Via: netip.MustParseAddr("192.0.2.1"), Index: 1, Type: unix.RTN_UNICAST}
	err := c.Do(t.Context(), AddRoute(bad))
	if !errors.Is(err, unix.ENETUNREACH) || err.Error() == unix.ENETUNREACH.Error() {
		t.Errorf("gateway out of reach: %v, want ENETUNREACH and what the kernel says", err)
	}
}

func TestBatchReturnsTheResultOfEach(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	errs := c.Batch(t.Context(), SetAlias("nosuch", "x"), SetUp("lo", 0), SetAlias("lo", "mine"))
	if !errors.Is(errs[0], unix.ENODEV) || errs[1] != nil || errs[2] != nil {
		t.Errorf("got %v, want ENODEV and two successes", errs)
	}
	l, err := c.LinkByName(t.Context(), "lo")
	if err != nil || l.Alias != "mine" || l.Flags&unix.IFF_UP == 0 {
		t.Errorf("got %+v, %v: what follows a failure must be done", l, err)
	}
}

// TestDumpsAreWholeWhileWhatTheyListChanges dumps more addresses than fit in
// one message, while other addresses come and go. Those are link-local: the
// kernel puts them in front (__inet_insert_ifa), so the addresses behind them
// move.
func TestDumpsAreWholeWhileWhatTheyListChanges(t *testing.T) {
	t.Parallel()
	c := dialFresh(t)
	const stable = 600
	lo := int32(1)
	for i := range stable {
		if err := c.Do(t.Context(), AddAddress(lo, addressNumber(10, i))); err != nil {
			t.Fatal(err)
		}
	}
	churn, err := Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer churn.Close()
	for range 100 {
		done := make(chan error)
		go func() {
			var errs []error
			for i := range 20 {
				p := addressNumber(169, i)
				errs = append(errs, churn.Do(t.Context(), AddAddress(lo, p)), churn.Do(t.Context(), DeleteAddress(lo, p)))
			}
			done <- errors.Join(errs...)
		}()
		as, err := c.Addresses(t.Context(), 0)
		if err := errors.Join(err, <-done); err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Prefix]int{}
		for _, a := range as {
			seen[a.Prefix]++
		}
		for i := range stable {
			if n := seen[addressNumber(10, i)]; n != 1 {
				t.Fatalf("address %d was listed %d times", i, n)
			}
		}
	}
}

func addressNumber(net, i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(net), 254, byte(i >> 8), byte(i)}), 32)
}
