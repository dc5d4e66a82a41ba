// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package shell writes commands that operators paste into a shell as root.
//
// A pod or the kernel may have chosen any word of such a command: the name of a link,
// of an RDMA device, of a folder. Every command that we print is made here. It runs no
// command. Everything is in this file.
package shell

import (
	"fmt"
	"reflect"
	"strings"
	"unicode"
)

// Command returns a command. The format is that of fmt.Sprintf. Each argument that is
// a string, or of a type that is one, is a word of the command and is quoted if it
// must be. An argument of another type, such as a number or an address, is not.
func Command(format string, args ...any) string {
	words := make([]any, 0, len(args))
	for _, a := range args {
		if v := reflect.ValueOf(a); v.Kind() == reflect.String {
			a = Word(v.String())
		}
		words = append(words, a)
	}
	return fmt.Sprintf(format, words...)
}

// Word returns a word in a form that is safe to paste. It quotes a word that has other
// characters than letters, digits and _.@-/:,+%. It replaces what cannot be printed by
// ?: such a word names nothing then, but it cannot end the line.
func Word[S ~string](s S) string {
	return Value(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, string(s)))
}

// Value is Word for a line that a shell reads and no person: it keeps every character.
func Value(s string) string {
	special := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_.@-/:,+%", r)
	}
	if s != "" && s[0] != '-' && !strings.ContainsFunc(s, special) {
		return s
	}
	return Quote(s)
}

// Quote quotes a text as it is, for a POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
