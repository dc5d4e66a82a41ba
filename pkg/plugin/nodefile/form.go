// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/netrange"
	"github.com/roce-cni/roce-cni/pkg/base/strict"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
	"github.com/roce-cni/roce-cni/pkg/plugin/conf/pool"
)

const version = 1

// The form of the file. An element of subnets has the form of an element of
// ipam.subnets.
type (
	fileJSON struct {
		Version    int        `json:"version"`
		BootID     string     `json:"bootID"`
		Pool       string     `json:"pool"`
		Quarantine string     `json:"quarantine"`
		Rails      []railJSON `json:"rails"`
		Sticky     bool       `json:"sticky,omitempty"`
	}
	railJSON struct {
		Subnets []subnetJSON `json:"subnets"`
	}
	subnetJSON struct {
		Subnet  netip.Prefix `json:"subnet"`
		Ranges  []string     `json:"ranges"` // never empty: empty does not mean the whole subnet
		Exclude []string     `json:"exclude,omitempty"`
		Gateway netip.Addr   `json:"gateway,omitzero"`
	}
)

func (f File) form(bootID string) fileJSON {
	out := fileJSON{Version: version, BootID: bootID, Pool: f.Pool, Quarantine: f.Quarantine.String(), Sticky: f.Sticky}
	for _, subnets := range f.Rails {
		var r railJSON
		for _, s := range subnets {
			r.Subnets = append(r.Subnets, subnetJSON{s.Prefix, texts(s.Ranges), texts(s.Exclude), s.Gateway})
		}
		out.Rails = append(out.Rails, r)
	}
	return out
}

func texts(ranges []netrange.Range) []string {
	out := []string{}
	for _, r := range ranges {
		out = append(out, r.String())
	}
	return out
}

// parse reads what form has written. The parser of configurations would need nearly a
// millisecond for eight rails, in every ADD. Only the agent writes this file, so
// parse only has to detect that another program has changed it.
func parse(content []byte) (f File, bootID string, err error) {
	var form fileJSON
	if err := decode(content, &form); err != nil {
		return File{}, "", err
	}
	f, err = form.file()
	return f, form.BootID, err
}

func decode(content []byte, form any) error {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(content, &head); err != nil {
		return err
	}
	if head.Version != version {
		return fmt.Errorf("version: the file has version %d, this program reads version %d", head.Version, version)
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	return d.Decode(form)
}

// file reports every fault, with its path.
func (form fileJSON) file() (File, error) {
	out := File{Pool: form.Pool, Sticky: form.Sticky}
	var faults []error
	bad := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	var err error
	if out.Quarantine, err = time.ParseDuration(form.Quarantine); err != nil || out.Quarantine < 0 {
		bad("quarantine: %q is not a time", form.Quarantine)
	}
	if n := len(form.Rails); n == 0 || n > pool.MaxRails {
		bad("rails: want 1 to %d rails, got %d", pool.MaxRails, n)
	}
	for i, r := range form.Rails {
		if len(r.Subnets) == 0 {
			bad("rails[%d].subnets: no subnet", i)
		}
		var subnets []pool.Subnet
		for j, s := range r.Subnets {
			one, err := s.subnet()
			if err != nil {
				bad("rails[%d].subnets[%d]: %w", i, j, err)
			}
			subnets = append(subnets, one)
		}
		out.Rails = append(out.Rails, subnets)
	}
	if len(faults) > 0 {
		return File{}, errors.Join(faults...)
	}
	return out, nil
}

func (s subnetJSON) subnet() (pool.Subnet, error) {
	out := pool.Subnet{Prefix: s.Subnet, Gateway: s.Gateway}
	if !s.Subnet.IsValid() || s.Subnet != s.Subnet.Masked() {
		return out, fmt.Errorf("subnet: %s is not a prefix", s.Subnet)
	}
	if s.Gateway.IsValid() && s.Gateway.BitLen() != s.Subnet.Addr().BitLen() { // it may be outside
		return out, fmt.Errorf("gateway: %s is not of the family of %s", s.Gateway, s.Subnet)
	}
	if len(s.Ranges) == 0 {
		return out, errors.New("ranges: none")
	}
	var err error
	if out.Ranges, err = within(s.Subnet, s.Ranges); err != nil {
		return out, fmt.Errorf("ranges: %w", err)
	}
	if out.Exclude, err = within(s.Subnet, s.Exclude); err != nil {
		return out, fmt.Errorf("exclude: %w", err)
	}
	return out, nil
}

// within reads ranges of a subnet. They must be ascending and must not overlap.
func within(p netip.Prefix, texts []string) ([]netrange.Range, error) {
	var out []netrange.Range
	for i, s := range texts {
		r, err := netrange.Parse(s)
		switch {
		case err != nil:
			return nil, err
		case !r.Within(netrange.Of(p)):
			return nil, fmt.Errorf("%s is not inside %s", r, p)
		case i > 0 && !out[i-1].Last.Less(r.First):
			return nil, fmt.Errorf("%s does not follow %s", r, out[i-1])
		}
		out = append(out, r)
	}
	return out, nil
}

const writing = "write ranges of pool"

// Write writes the file of a pool in one step: a reader finds the old file or the new
// one. Only one process may write at a time. It returns Bug for a file that Read
// would refuse. Other errors are IO. Write does not sync: if a power failure destroys
// the file, the agent writes it again when it starts.
func (s Store) Write(f File) error {
	content, err := f.content(s.BootID)
	if err != nil {
		return cnierr.New(cnierr.Bug, writing, f.Pool, "", "%w", err)
	}
	return write(writing, f.Pool, s.path(f.Pool), content)
}

func write(op, subject, path string, content []byte) error {
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = errors.Join(trusted.Sweep(path), trusted.Replace(path, append(content, '\n'), 0o600))
	}
	if err != nil {
		return cnierr.New(cnierr.IO, op, subject, "", "%w", err)
	}
	return nil
}

// Remove removes the file of a pool: the node owns nothing of it. It is no error if
// there is no file.
func (s Store) Remove(poolName string) error {
	if err := os.Remove(s.path(poolName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cnierr.New(cnierr.IO, writing, poolName, "", "%w", err)
	}
	return nil
}

// content returns the content of the file. It checks the file as a configuration, and
// then as a reader, which checks less.
func (f File) content(bootID string) ([]byte, error) {
	form := f.form(bootID)
	content, err := json.MarshalIndent(form, "", "  ")
	if err != nil {
		return nil, err
	}
	faults := &strict.Faults{}
	if name, err := json.Marshal(f.Pool); err == nil {
		pool.Name(faults.ValueAt("pool", name), "", faults)
	}
	for i, r := range form.Rails {
		if subnets, err := json.Marshal(r.Subnets); err == nil {
			pool.Subnets(faults.ValueAt(fmt.Sprintf("rails[%d].subnets", i), subnets), i, faults)
		}
	}
	if err := faults.Err("", ""); err != nil {
		return nil, err
	}
	_, _, err = parse(content)
	return content, err
}
