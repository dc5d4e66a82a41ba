// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package nodefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/roce-cni/roce-cni/pkg/base/cnierr"
	"github.com/roce-cni/roce-cni/pkg/base/trusted"
)

// The form of requests and of answers. A request has neither the field rails nor the
// field none. An answer has one of the two.
type (
	keyJSON struct {
		Namespace string `json:"namespace"`
		Pod       string `json:"pod"`
		Interface string `json:"interface"`
	}
	answerJSON struct {
		Version int    `json:"version"`
		BootID  string `json:"bootID"`
		keyJSON
		Rails []railJSON `json:"rails,omitempty"`
		None  string     `json:"none,omitempty"`
	}
)

func (a Answer) form(bootID string) answerJSON {
	return answerJSON{
		Version: version, BootID: bootID, keyJSON: keyJSON(a.Key),
		Rails: File{Rails: a.Rails}.form("").Rails, None: a.None,
	}
}

// answer reports every fault, with its path.
func (form answerJSON) answer() (Answer, error) {
	out := Answer{Key: Key(form.keyJSON), None: form.None}
	if (len(form.Rails) > 0) == (form.None != "") {
		return Answer{}, formError{errors.New("rails: an answer has addresses, or the reason why it has none")}
	}
	if form.None != "" {
		return out, nil
	}
	f, err := fileJSON{Quarantine: "0s", Rails: form.Rails}.file()
	if err != nil {
		return Answer{}, formError{err}
	}
	for i, subnets := range f.Rails {
		for j, s := range subnets {
			if len(s.Ranges) != 1 || s.Ranges[0].First != s.Ranges[0].Last || len(s.Exclude) > 0 {
				return Answer{}, formError{fmt.Errorf("rails[%d].subnets[%d].ranges: not one address", i, j)}
			}
		}
	}
	out.Rails = f.Rails
	return out, nil
}

// formError is an error about the content of a file.
type formError struct{ error }

func (e formError) Unwrap() error { return e.error }

// load reads a request or an answer. A file with another name than that of its key is
// invalid.
func load(path string) (answerJSON, error) {
	b, err := content(path)
	if err != nil {
		return answerJSON{}, fmt.Errorf("%s: %w", path, err)
	}
	var form answerJSON
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	err = d.Decode(&form)
	switch {
	case err != nil:
	case form.Version != version:
		err = fmt.Errorf("version: the file has version %d, this program reads version %d", form.Version, version)
	case filepath.Base(path) != Key(form.keyJSON).String():
		err = fmt.Errorf("it is of %s/%s, interface %q", form.Namespace, form.Pod, form.Interface)
	}
	if err != nil {
		return answerJSON{}, formError{fmt.Errorf("%s: %w", path, err)}
	}
	return form, nil
}

// put writes a file in one step. Several processes may write the same file at the
// same time.
func put(op, poolName, dir, name string, form answerJSON) error {
	err := func() error {
		content, err := json.Marshal(form)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return trusted.Replace(filepath.Join(dir, name), append(content, '\n'), 0o600)
	}()
	return wrap(op, poolName, err)
}

// remove removes a file, if there is one.
func remove(op, poolName, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wrap(op, poolName, err)
	}
	return nil
}

// wrap adds the operation to an error. It distinguishes a fault of the file system
// from a fault in the content of the file. It returns nil for nil.
func wrap(op, poolName string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.As(err, &formError{}):
		return cnierr.New(cnierr.Unreadable, op, poolName, "remove the file: rocectl agent writes answers again, and the plugin writes requests again", "%w", err)
	}
	return cnierr.New(cnierr.IO, op, poolName, "", "%w", err)
}
