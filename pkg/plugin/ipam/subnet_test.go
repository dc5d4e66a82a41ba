// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package ipam

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
)

func text(ranges []netrange.Range) string {
	var out []string
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return strings.Join(out, " ")
}

func addrs(t testing.TB, s string) []netip.Addr {
	t.Helper()
	var out []netip.Addr
	for f := range strings.FieldsSeq(s) {
		out = append(out, netip.MustParseAddr(f))
	}
	return out
}

func TestSomeAddressesAreNeverLeasedUnasked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, prefix, ranges, exclude, gateway, reserved, want string }{
		{"network and broadcast", "10.0.0.0/29", "", "", "", "", "10.0.0.1-10.0.0.6"},
		{"not on a /31", "10.0.0.0/31", "", "", "", "", "10.0.0.0-10.0.0.1"},
		{"a /32", "10.0.0.1/32", "", "", "", "", "10.0.0.1"},
		{"subnet-router anycast", "2001:db8::/125", "", "", "", "", "2001:db8::1-2001:db8::7"},
		{"not on a /127", "2001:db8::/127", "", "", "", "", "2001:db8::-2001:db8::1"},
		{"the gateway", "10.0.0.0/29", "", "", "10.0.0.3", "", "10.0.0.1-10.0.0.2 10.0.0.4-10.0.0.6"},
		{"the gateway of a /31", "10.0.0.0/31", "", "", "10.0.0.1", "", "10.0.0.0"},
		{"the host's, with a zone or mapped", "10.0.0.0/29", "", "", "", "10.0.0.1 ::ffff:10.0.0.4 fe80::1%eth0", "10.0.0.2-10.0.0.3 10.0.0.5-10.0.0.6"},
		{"the host's link-local", "fe80::/125", "", "", "", "fe80::2%eth0", "fe80::1 fe80::3-fe80::7"},
		{"exclusions", "10.0.0.0/28", "", "10.0.0.2-10.0.0.5 10.0.0.9", "", "", "10.0.0.1 10.0.0.6-10.0.0.8 10.0.0.10-10.0.0.14"},
		{"outside of the ranges", "10.0.0.0/24", "10.0.0.9-10.0.0.12 10.0.0.250-10.0.1.3", "", "", "", "10.0.0.9-10.0.0.12 10.0.0.250-10.0.0.254"},
		{"0/8", "0.0.0.0/7", "0.255.255.254-1.0.0.2", "", "", "", "1.0.0.0-1.0.0.2"},
		{"loopback", "126.0.0.0/7", "126.255.255.254-127.0.0.9", "", "", "", "126.255.255.254-126.255.255.255"},
		{"multicast and limited broadcast", "128.0.0.0/1", "223.255.255.255-224.0.0.9 240.0.0.0 255.255.255.254-255.255.255.255", "", "", "", "223.255.255.255 240.0.0.0 255.255.255.254"},
		{"IPv6 special ones", "::/0", "::-::9 feff::-ff00::1", "", "", "", "::2-::9 feff::-feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		{"a /64 but one", "2001:db8::/64", "", "", "2001:db8::1", "", "2001:db8::2-2001:db8::ffff:ffff:ffff:ffff"},
		{"nothing is left", "10.0.0.0/30", "10.0.0.1-10.0.0.2", "10.0.0.2", "10.0.0.1", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ask := Ask{Pool: "p", Subnets: []Subnet{{
				Prefix: netip.MustParsePrefix(c.prefix), Ranges: ranges(t, c.ranges), Exclude: ranges(t, c.exclude),
			}}, Reserved: addrs(t, c.reserved)}
			if c.gateway != "" {
				ask.Subnets[0].Gateway = netip.MustParseAddr(c.gateway)
			}
			wants, err := ask.wants()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, text(wants[0].usable)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestARequestedAddressIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	subnet := func(prefix, gateway string) Subnet {
		s := Subnet{Prefix: netip.MustParsePrefix(prefix), Ranges: ranges(t, "10.0.0.100-10.0.0.110"), Exclude: ranges(t, "10.0.0.50-10.0.0.60")}
		if gateway != "" {
			s.Gateway = netip.MustParseAddr(gateway)
		}
		return s
	}
	for _, c := range []struct {
		name, requested string
		subnets         []Subnet
		want            string // of the message; "" for none
	}{
		{"inside", "10.0.0.105", []Subnet{subnet("10.0.0.0/24", "")}, ""},
		{"outside of the ranges", "10.0.0.7", []Subnet{subnet("10.0.0.0/24", "")}, ""},
		{"one of each", "10.0.0.7 2001:db8::7", []Subnet{subnet("10.0.0.0/24", ""), {Prefix: netip.MustParsePrefix("2001:db8::/64")}}, ""},
		{"in no subnet", "10.0.1.7", []Subnet{subnet("10.0.0.0/24", "")}, "it lies in no subnet of the pool"},
		{"of another family", "2001:db8::7", []Subnet{subnet("10.0.0.0/24", "")}, "it lies in no subnet of the pool"},
		{"mapped", "::ffff:10.0.0.7", []Subnet{subnet("10.0.0.0/24", "")}, "it lies in no subnet of the pool"},
		{"in two subnets", "10.0.0.7", []Subnet{subnet("10.0.0.0/24", ""), subnet("10.0.0.0/28", "")}, "it lies in both 10.0.0.0/24 and 10.0.0.0/28"},
		{"two of one", "10.0.0.7 10.0.0.8", []Subnet{subnet("10.0.0.0/24", "")}, "10.0.0.7 of 10.0.0.0/24 is requested too"},
		{"network", "10.0.0.0", []Subnet{subnet("10.0.0.0/24", "")}, "it is the network address of 10.0.0.0/24"},
		{"broadcast", "10.0.0.255", []Subnet{subnet("10.0.0.0/24", "")}, "it is the broadcast address of 10.0.0.0/24"},
		{"anycast", "2001:db8::", []Subnet{{Prefix: netip.MustParsePrefix("2001:db8::/64")}}, "it is the subnet-router anycast address of 2001:db8::/64"},
		{"gateway", "10.0.0.1", []Subnet{subnet("10.0.0.0/24", "10.0.0.1")}, "it is the gateway"},
		{"excluded", "10.0.0.55", []Subnet{subnet("10.0.0.0/24", "")}, "it is excluded by 10.0.0.50-10.0.0.60"},
		{"the host's", "10.0.0.77", []Subnet{subnet("10.0.0.0/24", "")}, "it is an address of this host"},
		{"loopback", "127.0.0.9", []Subnet{subnet("127.0.0.0/8", "")}, "it is a loopback address"},
		{"multicast", "ff02::1", []Subnet{{Prefix: netip.MustParsePrefix("ff02::/64")}}, "it is a multicast address"},
		{"every fault at once", "10.0.0.0 10.0.0.255", []Subnet{subnet("10.0.0.0/24", "")}, "it is the network address of 10.0.0.0/24\nlease requested address \"10.0.0.255\": it is the broadcast address of 10.0.0.0/24"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ask := Ask{Pool: "p", Subnets: c.subnets, Requested: addrs(t, c.requested), Reserved: addrs(t, "10.0.0.66 10.0.0.77")}
			_, err := ask.wants()
			if c.want == "" {
				if err != nil {
					t.Errorf("got %v", err)
				}
				return
			}
			if cnierr.CodeOf(err) != cnierr.BadConfig || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("got %v, want code %d with %q", err, cnierr.BadConfig, c.want)
			}
			var e *cnierr.Error
			if !errors.As(err, &e) || e.Hint == "" || e.Subject == "" {
				t.Errorf("%v has no hint or no subject", err)
			}
		})
	}
}

// A folder may have several names, as /var/run/netns and /run/netns.
func TestAPlaceIsAFolderWhateverItsName(t *testing.T) {
	t.Parallel()
	folder, other := t.TempDir(), t.TempDir()
	if err := os.Symlink(folder, other+"/link"); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{other + "/link/b": true, folder + "/b": true, other + "/b": false, other + "/none/b": false} {
		if samePlace(folder+"/a", path) != want || samePlace(path, folder+"/a") != want {
			t.Errorf("%s is in the place of %s: want %t", path, folder, want)
		}
	}
}

// A process of another procfs may have the number of ours.
func TestProcessesOfTwoProcfsAreInTwoPlaces(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	for path, want := range map[string]bool{
		"/proc/5/ns/net": true, "/proc/5/task/6/ns/net": true, other + "/5/ns/net": false, "/proc/ns": false,
	} {
		if samePlace("/proc/1/ns/net", path) != want {
			t.Errorf("%s is in the place of /proc/1: want %v", path, want)
		}
	}
}
