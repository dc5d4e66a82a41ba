// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

// Package explain explains the errors of other programs that people meet when they give
// pods RDMA: ibverbs, perftest, NCCL, UCX, the RDMA device plugin, kubelet, Multus and the
// kernel.
//
// The file errors.yaml is the source of "rocectl explain TEXT", and says how to change it. It
// has no errors of roce-cni: those are in pkg/base/cnierr.
package explain

import (
	_ "embed" // errors.yaml
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

//go:embed errors.yaml
var errorsFile []byte

// Entry is a problem, the texts by which programs report it, and its remedy. errors.yaml
// says what each field has.
type Entry struct {
	From   string  `json:"from"`
	Texts  lines   `json:"texts"`
	Answer         // in English
	ZH     *Answer `json:"zh"` // nil: not translated
	Source string  `json:"source"`
	Often  bool    `json:"often"`

	General bool `json:"general"` // of a kind of text, not of one problem

	patterns [][]pattern // for each of Texts; a log must match all of one
}

// Answer is what is wrong and what to do.
type Answer struct {
	Cause string `json:"cause"`
	Do    string `json:"do"`
}

// In returns the answer in the language of a locale, such as "zh_CN.UTF-8", or in English.
func (e Entry) In(locale string) Answer {
	if e.ZH != nil && strings.HasPrefix(locale, "zh") {
		return *e.ZH
	}
	return e.Answer
}

// lines are written as one text.
type lines []string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *lines) UnmarshalText(text []byte) error {
	*l = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	return nil
}

// Table has all entries, those with the more probable cause first.
type Table []Entry

// Load returns the entries of errors.yaml.
func Load() Table {
	var all Table
	if err := yaml.UnmarshalStrict(errorsFile, &all); err != nil {
		panic("explain: errors.yaml: " + err.Error()) // it is part of the program, and has a test
	}
	for i, e := range all {
		for _, text := range e.Texts {
			var parts []pattern
			for part := range strings.SplitSeq(text, " && ") {
				parts = append(parts, newPattern(part))
			}
			all[i].patterns = append(all[i].patterns, parts)
		}
	}
	return all
}

// Found is a problem that a text reports, and which of its texts is in there.
type Found struct {
	Entry
	Text string // one of Texts
}

// Find returns the problems that a text reports, in the order of the table. The text may be
// a whole log, as Plain returns it. Words that one entry explains are not explained again by
// one below it. A general answer is among them only if no entry before
// it fits, and for lines that no entry explains.
func (t Table) Find(text string) []Found {
	logs := []string{strings.ToLower(alike(text)), strings.ToLower(alike(unwrapped(text)))}
	if logs[0] == logs[1] {
		logs = logs[:1]
	}
	at := map[int]string{} // which of its texts each entry found
	rest := slices.Clone(logs)
	for i, e := range t {
		if text, ok := e.in(rest); ok && !e.General {
			at[i] = text
			for j := range logs {
				logs[j], rest[j] = e.without(logs[j]), e.cut(rest[j])
			}
		}
	}
	var out []Found
	for i, e := range t {
		text, ok := at[i]
		if e.General && len(out) == 0 {
			text, ok = e.in(logs)
		}
		if ok {
			out = append(out, Found{e, text})
		}
	}
	return out
}

// in returns the first of the texts of an entry that a log has.
func (e Entry) in(logs []string) (string, bool) {
	for i, parts := range e.patterns {
		if slices.ContainsFunc(logs, func(log string) bool { return matchAll(parts, log) }) {
			return e.Texts[i], true
		}
	}
	return "", false
}

// without returns a log without the lines that have a text of an entry.
func (e Entry) without(log string) string {
	for _, p := range slices.Concat(e.patterns...) {
		log = p.replace(log, "", func(begin, end int) (int, int) {
			begin = strings.LastIndexByte(log[:begin], '\n') + 1
			if i := strings.IndexByte(log[end:], '\n'); i >= 0 {
				return begin, end + i
			}
			return begin, len(log)
		})
	}
	return log
}

// cut returns a log without the texts of an entry. What is left of a line is no longer beside
// what was, so that the less specific entries below this one do not find the same again.
func (e Entry) cut(log string) string {
	out := log
	for _, parts := range e.patterns {
		if matchAll(parts, log) {
			for _, p := range parts {
				out = p.replace(out, "\x00\n\x00", func(begin, end int) (int, int) { return begin, end })
			}
		}
	}
	return out
}

func matchAll(parts []pattern, log string) bool {
	for _, p := range parts {
		if !p.in(log) {
			return false
		}
	}
	return true
}

// pattern is one of Texts, or a part of it. Most logs have few of them, so an expression is
// compiled when a log has the characters that it begins with.
type pattern struct {
	begin string
	expr  func() *regexp.Regexp
}

func (p pattern) in(log string) bool {
	begin, _ := p.next(log, 0)
	return begin >= 0
}

// next returns the begin and the end of the first place of a log, at from or behind it, that
// has the pattern, or -1. If the pattern begins with a letter or a digit, it is found only where a
// word begins, and behind an underscore: "ice 0000" is not in "device 0000".
func (p pattern) next(log string, from int) (begin, end int) {
	for strings.Contains(log[from:], p.begin) {
		at := p.expr().FindStringIndex(log[from:]) // in a time that grows with the log, not with its square
		if at == nil {
			break
		}
		begin, end = from+at[0], from+at[1]
		if begin == 0 || !isWord(p.begin[0]) || !isWord(log[begin-1]) {
			return begin, end
		}
		from = begin + 1
	}
	return -1, -1
}

// replace replaces what around returns for each place of a log that has the pattern.
func (p pattern) replace(log, by string, around func(begin, end int) (int, int)) string {
	var b strings.Builder
	rest := 0
	for {
		begin, end := p.next(log, rest)
		if begin < 0 {
			break
		}
		begin, end = around(begin, end)
		b.WriteString(log[min(rest, begin):begin])
		b.WriteString(by)
		rest = end
	}
	return b.String() + log[rest:]
}

func isWord(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
}

// newPattern makes an expression that has no (?i), which makes regexp a hundred times slower
// in a long log: text and log are in lower case. A blank may be the end of a line, because
// mail and kubectl describe wrap. A number at the end is a whole one: errno 12 is not in
// errno 121.
func newPattern(text string) pattern {
	text = strings.ToLower(alike(text))
	begin, _, _ := strings.Cut(text, "…")
	begin, _, _ = strings.Cut(begin, " ")
	expr := regexp.QuoteMeta(text)
	expr = strings.NewReplacer(
		" … ", `[:,;.)"'\]]*[ \n](?:[^\n]*?[ \n])?`,
		"…", `[^\n]*?`,
		" ", `[ \n]`,
	).Replace(expr)
	if last := expr[len(expr)-1]; '0' <= last && last <= '9' {
		expr += `\b`
	}
	return pattern{begin, sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })}
}

// Plain returns a text without the colours of terminals, and with the quotation marks
// and line ends that JSON, kubelet and syslog have escaped.
func Plain(text string) string {
	// The escape character, as it is and as JSON, Go, syslog and pagers write it; and colours without it.
	text = regexp.MustCompile(`(?:\x1b|\^\[|\\u001[bB]|\\x1[bB]|\\033|#033)\[[0-9;?]*[A-Za-z]|\[(?:0|[39][0-7]|[0-9]{1,2}(?:;[0-9]{1,3})+)m`).ReplaceAllString(text, "")
	text = strings.NewReplacer(`\u0027`, "'", `\u0022`, `"`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(text)
	text = regexp.MustCompile(`\\+(["'])`).ReplaceAllString(text, "$1")
	return regexp.MustCompile(`\\+(?:[nrt]|u000[aAdD]|x0[aAdD]|01[125])|#01[125]`).ReplaceAllString(text, "\n")
}

// english has what libc, the shell and ls print in a Chinese locale, and the English.
func english() *strings.Replacer {
	return strings.NewReplacer(
		"无法分配内存", "Cannot allocate memory",
		"设备或资源忙", "Device or resource busy",
		"设备上没有空间", "No space left on device",
		"没有那个文件或目录", "No such file or directory",
		"网络不可达", "Network is unreachable",
		"未找到命令", "command not found",
		"无法访问", "cannot access",
		"段错误", "Segmentation fault",
		"：", ": ",
	)
}

// alike makes equal what terminals, logs, documents, languages and versions of a program
// write in different ways: quotation marks, blanks, and the blank before a colon.
func alike(text string) string {
	text = english().Replace(text)
	text = strings.NewReplacer("’", "'", "‘", "'", "“", `"`, "”", `"`, "\u00a0", " ", "\r", "\n").Replace(text)
	text = regexp.MustCompile(`[ \t]+`).ReplaceAllString(text, " ")
	text = regexp.MustCompile(` ?\n[ \n]*`).ReplaceAllString(text, "\n")
	return strings.ReplaceAll(text, " :", ":")
}

// unwrapped joins the lines that a narrow terminal has cut, inside of words too. They
// are as long as the longest line.
func unwrapped(text string) string {
	lines := strings.Split(text, "\n")
	longest := 0
	for _, l := range lines {
		longest = max(longest, utf8.RuneCountInString(l))
	}
	var b strings.Builder
	for i, l := range lines {
		b.WriteString(l)
		if i < len(lines)-1 && utf8.RuneCountInString(l) < longest {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
