{{- /* image returns the name of an image: its own registry, or that of all images. */ -}}
{{- define "roce-cni.image" -}}
{{ .root.Values.imageRegistry | default .image.registry }}/{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}
