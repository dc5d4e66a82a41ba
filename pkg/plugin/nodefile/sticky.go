// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

// Answer is the agent's answer to an ADD that requests the sticky addresses of a pod.
// Exactly one of Rails, None and Wait is set.
type Answer struct {
	// Rails has one address of each subnet, as File.Rails. The node holds them until
	// Until of CLOCK_BOOTTIME, and as long as they are leased. The agent reads the
	// leases after Until, and releases the addresses for other nodes if they are not
	// leased. So an ADD that has leased them before Until has them, and another one
	// must release them.
	Rails [][]pool.Subnet
	Until time.Duration
	// None is why the pod gets ordinary addresses instead.
	None string
	// Wait is why the ADD must be tried again.
	Wait string
}

// Granted says whether the answer has addresses.
func (a Answer) Granted() bool { return len(a.Rails) > 0 }

// Only returns the file with only the addresses of an answer.
func (f File) Only(a Answer) File {
	f.Rails = a.Rails
	return f
}

// The forms of a request and of an answer.
type (
	requestJSON struct {
		Version   int    `json:"version"`
		Pool      string `json:"pool"`
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
		Interface string `json:"interface"`
	}
	answerJSON struct {
		Version int           `json:"version"`
		Rails   []railJSON    `json:"rails,omitempty"`
		Until   time.Duration `json:"until,omitempty"` // in nanoseconds
		None    string        `json:"none,omitempty"`
		Wait    string        `json:"wait,omitempty"`
	}
)

const (
	// AskTime is how long an ADD waits for the agent.
	AskTime = 2 * time.Second
	// maxRequest and maxAnswer are sizes in bytes.
	maxRequest, maxAnswer = 4 << 10, 64 << 10
)

// Socket returns the path of the socket at which the agent answers. No RailPool has
// this name.
func (s Store) Socket() string { return filepath.Join(s.pools(), "_agent") }

// Ask requests the addresses of a key from the agent. It takes AskTime at most. An
// answer in another form counts as no answer. The error says why there is no answer.
func (s Store) Ask(poolName string, k Key) (Answer, error) {
	conn, err := dial(s.Socket())
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return Answer{}, fmt.Errorf("rocectl agent does not run on this node: %w", err)
	}
	if err != nil {
		return Answer{}, fmt.Errorf("connect to rocectl agent: %w", err)
	}
	defer conn.Close() //nolint:errcheck // the answer was read
	if err := conn.SetDeadline(time.Now().Add(AskTime)); err != nil {
		return Answer{}, err
	}
	if err := json.NewEncoder(conn).Encode(requestJSON{version, poolName, k.Namespace, k.Pod, k.Interface}); err != nil {
		return Answer{}, fmt.Errorf("send a request to rocectl agent: %w", err)
	}
	var form answerJSON
	a := Answer{}
	if err = receive(conn, maxAnswer, &form); err == nil {
		a, err = form.answer()
	}
	if err != nil {
		return Answer{}, fmt.Errorf("read the answer of rocectl agent: %w", err)
	}
	return a, nil
}

// dial connects to a socket of any path, and follows no link in the place of it.
func dial(path string) (*net.UnixConn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written to it
	// The name of the file has room in an address; the path may have 108 bytes and more.
	return net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d", fd)})
}

// ReadRequest reads a request, which names a RailPool and a key.
func ReadRequest(r io.Reader) (poolName string, k Key, err error) {
	var form requestJSON
	err = receive(r, maxRequest, &form)
	if err == nil && form.Version != version {
		err = otherVersion(form.Version)
	}
	return form.Pool, Key{form.Namespace, form.Pod, form.Interface}, err
}

// WriteAnswer writes an answer.
func WriteAnswer(w io.Writer, a Answer) error {
	return json.NewEncoder(w).Encode(answerJSON{version, File{Rails: a.Rails}.form("").Rails, a.Until, a.None, a.Wait})
}

func receive(r io.Reader, limit int64, into any) error {
	d := json.NewDecoder(io.LimitReader(r, limit))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

func otherVersion(v int) error {
	return fmt.Errorf("version: it has version %d, and this program has version %d: install the same release of both", v, version)
}

// answer reports every fault, with its path.
func (form answerJSON) answer() (Answer, error) {
	out := Answer{Until: form.Until, None: form.None, Wait: form.Wait}
	set := 0
	for _, is := range []bool{len(form.Rails) > 0, form.None != "", form.Wait != ""} {
		if is {
			set++
		}
	}
	switch {
	case form.Version != version:
		return Answer{}, otherVersion(form.Version)
	case set != 1:
		return Answer{}, errors.New("rails: an answer has addresses, or the reason why it has none")
	case len(form.Rails) == 0:
		return out, nil
	}
	f, err := fileJSON{Quarantine: "0s", Rails: form.Rails}.file()
	if err != nil {
		return Answer{}, err
	}
	for i, subnets := range f.Rails {
		for j, s := range subnets {
			if len(s.Ranges) != 1 || s.Ranges[0].First != s.Ranges[0].Last || len(s.Exclude) > 0 {
				return Answer{}, fmt.Errorf("rails[%d].subnets[%d].ranges: not one address", i, j)
			}
		}
	}
	out.Rails = f.Rails
	return out, nil
}

// Key is the owner of sticky addresses: an interface of a pod that comes back under
// its name.
type Key struct {
	Namespace, Pod, Interface string // Interface is CNI_IFNAME
}

// Sticky returns the key of a pod's interface, and whether the pod comes back under
// its name. Such a name ends in the number of a StatefulSet's replica. The number has
// at most four digits. So the five random characters in the pod names of other
// controllers never count as a number.
func Sticky(namespace, pod, ifName string) (Key, bool) {
	k := Key{namespace, pod, ifName}
	i := strings.LastIndexByte(pod, '-')
	if i < 1 || namespace == "" || ifName == "" {
		return k, false
	}
	number := pod[i+1:]
	digits := number != "" && strings.Trim(number, "0123456789") == ""
	return k, digits && len(number) <= 4 && (number == "0" || number[0] != '0')
}

// String returns a hash of the key. The order in which an agent tries the sticky
// addresses of a pool for the key follows from it.
func (k Key) String() string {
	sum := sha256.Sum256([]byte(k.Namespace + "/" + k.Pod + "/" + k.Interface))
	return hex.EncodeToString(sum[:16])
}
