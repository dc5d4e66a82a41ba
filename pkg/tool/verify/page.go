// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package verify

import (
	"html/template"
	"io"

	"github.com/roce-cni/roce-cni/pkg/tool/report"
)

// page is one file without references, so that a browser opens it without a network.
const page = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>rocectl verify</title>
<style>
body { font: 14px/1.5 sans-serif; margin: 2em; max-width: 90em }
table { border-collapse: collapse } td, th { border: 1px solid #bbb; padding: .3em .6em; text-align: left; vertical-align: top }
.ok { background: #dfd } .problem { background: #fdd } .cannot { background: #ffd } pre { margin: 0; white-space: pre-wrap }
</style></head><body>
<h1>rocectl verify</h1>
<p>{{len .Pods}} pods: {{range $i, $p := .Pods}}{{if $i}}, {{end}}{{$p}}{{end}}. {{.Summary}}</p>
<h2>Faults</h2>
{{if .Verdicts}}<ul>{{range .Verdicts}}<li>{{.}}</li>{{end}}</ul>{{else}}<p>none</p>{{end}}
<h2>Answers</h2>
<p>{{range $check, $n := .OK}}{{$check}}: {{$n}} ok. {{end}}</p>
<table><tr><th></th><th>test</th><th>of</th><th>found</th><th>what to do</th></tr>
{{range .Answers}}<tr class="{{class .Verdict}}"><td>{{.Verdict}}</td><td>{{.Check}}</td><td>{{.Of}}</td><td>{{.Found}}</td><td><pre>{{.Fix}}{{.Missing}}</pre></td></tr>
{{end}}</table></body></html>
`

// WritePage writes a report as one HTML page.
func (r Report) WritePage(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{"class": func(v report.Verdict) string {
		return map[report.Verdict]string{report.OK: "ok", report.Problem: "problem"}[v] + map[bool]string{true: "cannot"}[v == report.CannotTell]
	}}).Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, r)
}
