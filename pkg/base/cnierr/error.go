// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package cnierr gives errors a CNI code, an operation, a subject, a cause and a hint
// that says what to do.
//
// Every error that can reach a runtime is an *Error or wraps one. The package never
// prints and never decides what is an error. It stands at the bottom of the import
// map. Read table.go first: it lists every code with its meaning and remedy.
package cnierr

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// Error is a failure in the words of the operator who has to act on it.
type Error struct {
	// Code is the CNI error code that the runtime sees.
	Code Code
	// Op is what was being done, such as "add macvlan" or "lease address".
	Op string
	// Subject is the object it was done to; it is quoted in the message.
	Subject string
	// Hint is an imperative sentence: what to do now. Empty means that the
	// table's remedy for the code is the best advice there is.
	Hint string
	// Err is the cause. It must not be nil.
	Err error
}

// New returns an Error with the formatted text as its cause.
func New(code Code, op, subject, hint, format string, args ...any) *Error {
	return &Error{Code: code, Op: op, Subject: subject, Hint: hint, Err: fmt.Errorf(format, args...)}
}

// Error returns "op "subject": cause" on one line, without code and hint.
func (e *Error) Error() string {
	switch {
	case e.Op == "" && e.Subject == "":
		return e.Err.Error()
	case e.Subject == "":
		return fmt.Sprintf("%s: %v", e.Op, e.Err)
	case e.Op == "":
		return fmt.Sprintf("%q: %v", e.Subject, e.Err)
	}
	return fmt.Sprintf("%s %q: %v", e.Op, e.Subject, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Each returns the errors that are joined in err, however deep; err itself if none is; nothing
// of nil.
func Each(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var out []error
	for _, e := range joined.Unwrap() {
		out = append(out, Each(e)...)
	}
	return out
}

// maxNames is how many names Some joins.
const maxNames = 12

// Some joins the first of the names, and says how many more there are: an error ends in an
// event of the pod, which has little room.
func Some(names []string) string {
	if more := len(names) - maxNames; more > 0 {
		names = append(names[:maxNames:maxNames], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// In says of an error, and of each that is joined in it, to which object it
// happened. Codes and hints stay. Nil stays nil.
func In(op, subject string, err error) error {
	if err == nil {
		return nil
	}
	var errs []error
	for _, e := range Each(err) {
		errs = append(errs, &Error{Code: CodeOf(e), Op: op, Subject: subject, Err: e})
	}
	return errors.Join(errs...)
}

// Unavailable gives a failure the code of STATUS and keeps its hint.
func Unavailable(err error) error {
	if err == nil {
		return nil
	}
	code := NotAvailable
	if CodeOf(err) == BadParent {
		code = Limited
	}
	hint := ""
	var e *Error
	if errors.As(err, &e) {
		hint = e.Hint
	}
	return &Error{Code: code, Op: "serve", Subject: "ADD", Hint: hint, Err: err}
}

// CodeOf returns the code of the outermost *Error in err's tree, Bug if there
// is none: an error without a code is a bug of roce-cni.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Bug
}

// CNI converts err to the error that the CNI protocol prints: the message is
// "program[code] err" and the details are the hints, else the table's remedy.
// It returns nil for nil. It is called once, in main.
func CNI(program string, err error) *types.Error {
	if err == nil {
		return nil
	}
	code, hint := CodeOf(err), strings.Join(hints(err), "; ")
	if hint == "" {
		hint = remedy(code, err, os.Geteuid() == 0)
	}
	return types.NewError(uint(code), fmt.Sprintf("%s[%d] %s", program, code, oneLine(err.Error())), hint)
}

// remedy returns what to do about an error without a hint. root says whether root got it.
func remedy(code Code, err error, root bool) string {
	if code == IO && !root && errors.Is(err, fs.ErrPermission) {
		return "run it as root"
	}
	return Explain(code).Remedy
}

// hints returns the hint of each error that is joined in err, without repeats.
// The outermost hint of a chain counts: who wrapped an error knew more.
func hints(err error) []string {
	var out []string
	for _, e := range Each(err) {
		found := []string(nil)
		if one, ok := e.(*Error); ok && one.Hint != "" { //nolint:errorlint // one step of the chain at a time
			found = []string{one.Hint}
		} else if e = errors.Unwrap(e); e != nil {
			found = hints(e)
		}
		for _, h := range found {
			if !slices.Contains(out, h) {
				out = append(out, h)
			}
		}
	}
	return out
}

// oneLine joins the lines that errors.Join makes with "; ", because runtimes
// print an error in one line of a pod event.
func oneLine(s string) string {
	out := make([]byte, 0, len(s))
	for i := range len(s) {
		switch {
		case s[i] == '\n':
			out = append(out, "; "...)
		case s[i] < ' ':
			out = append(out, ' ')
		default:
			out = append(out, s[i])
		}
	}
	return string(out)
}
