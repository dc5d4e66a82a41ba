// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package hwtest

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/hwtest/recording"
	"github.com/roce-cni/roce-cni/pkg/tool/nic"
	"github.com/roce-cni/roce-cni/pkg/tool/redact"
	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// Results are what a run has found out.
type Results struct {
	Version string          `json:"version"` // of roce-hwtest
	Date    string          `json:"date"`    // the day, as 2006-01-02
	Stack   Stack           `json:"stack"`
	Changed bool            `json:"mutate"`            // whether the steps that make and move things ran
	Peer    bool            `json:"peer"`              // whether those with another node did
	Stopped string          `json:"stopped,omitempty"` // why the run ended before the last step
	Ports   []nic.Details   `json:"ports"`
	Drivers []LinkDriver    `json:"drivers,omitempty"` // of all interfaces that a step asked about
	Answers []Answer        `json:"answers"`
	Rows    []Row           `json:"rows,omitempty"`
	Doctor  []report.Answer `json:"doctor,omitempty"`
}

// LinkDriver is what the driver of an interface told.
type LinkDriver struct {
	Netdev string     `json:"netdev"`
	Driver nic.Driver `json:"driver"`
}

const (
	resultsFile = "results.json"
	folder      = "roce-hwtest/"
)

// Write writes results and recording as one file (tar, gzip), without what identifies
// the user. It looks once more for everything that was replaced. Errors: Bug if
// something of it is left, and then nothing is written; those of w.
func Write(w io.Writer, r Results, rec recording.Recording, with *redact.Redactor) error {
	keepVersions(r, rec, with)
	files, err := rec.Redact(with).Files()
	if err != nil {
		return err
	}
	if files[resultsFile], err = redacted(r, with); err != nil {
		return err
	}
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if left := with.Left(string(files[name])); len(left) > 0 {
			return cnierr.New(cnierr.Bug, "write", name, "do not send anything; report this message", "it still contains values of these kinds: %s", strings.Join(left, ", "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := t.WriteHeader(&tar.Header{Name: folder + name, Mode: 0o600, Size: int64(len(files[name]))}); err != nil {
			return err
		}
		if _, err := t.Write(files[name]); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// keepVersions keeps versions that look like addresses: they are what the file is for.
func keepVersions(r Results, rec recording.Recording, with *redact.Redactor) {
	for _, p := range r.Ports {
		with.Keep(p.Version)
		with.Keep(p.Firmware)
	}
	for _, l := range r.Drivers {
		with.Keep(l.Driver.Version)
		with.Keep(l.Driver.Firmware)
	}
	with.Keep(r.Stack.Kernel)
	with.Keep(r.Stack.OFED)
	for name, text := range rec.Sys.Files {
		if path.Base(name) == "fw_ver" || strings.HasPrefix(name, "module/") {
			with.Keep(text)
		}
	}
}

// redacted returns results as JSON. It replaces values alone, never keys.
func redacted(r Results, with *redact.Redactor) ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	return recording.Marshal(replaced(v, with))
}

func replaced(v any, with *redact.Redactor) any {
	switch v := v.(type) {
	case string:
		return with.Text(v)
	case []any:
		for i := range v {
			v[i] = replaced(v[i], with)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			v[k] = replaced(v[k], with)
		}
	}
	return v
}

// largest is how many bytes a file of an archive may have. The archive can be a thousand
// times smaller.
const largest = 16 << 20

// Unpack writes the files of an archive into an empty folder. It takes only files that
// Write makes, each once.
func Unpack(r io.Reader, dir string) (err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	wanted, err := recording.Recording{}.Files()
	if err != nil {
		return err
	}
	wanted[resultsFile] = nil
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(h.Name, folder)
		if _, ok := wanted[name]; !ok || folder+name != h.Name || h.Typeflag != tar.TypeReg {
			return fmt.Errorf("%q is no file of roce-hwtest, or is there twice", h.Name)
		}
		delete(wanted, name)
		if h.Size > largest {
			return fmt.Errorf("%s has more than %d bytes", name, int64(largest))
		}
		b, err := io.ReadAll(t)
		if err != nil {
			return err
		}
		if err := root.WriteFile(name, b, 0o600); err != nil {
			return err
		}
	}
}

// Open returns the node of an archive that was unpacked into a folder, and the results
// of its run. The tree of the recording is written into scratch, an empty folder. The
// caller must call end.
func Open(dir, scratch string) (n Node, r Results, end func(), err error) {
	b, err := os.ReadFile(path.Join(dir, resultsFile))
	if err != nil {
		return n, r, nil, err
	}
	if err := recording.Decode(b, &r); err != nil {
		return n, r, nil, err
	}
	rec, err := recording.Read(os.DirFS(dir))
	if err != nil {
		return n, r, nil, err
	}
	if err := rec.Sys.Unpack(scratch); err != nil {
		return n, r, nil, err
	}
	root, err := os.OpenRoot(scratch) // links of a stranger lead nowhere else
	if err != nil {
		return n, r, nil, err
	}
	return Play(&rec, root.FS(), r), r, func() { _ = root.Close() }, nil
}
