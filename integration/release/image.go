// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The roce-cni authors

package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
)

// descriptor names a blob of an OCI image layout (image-spec v1.1).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// layout has the files of an OCI image layout.
type layout map[string]member

func (l layout) add(mediaType string, text []byte) descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(text))
	l["blobs/sha256/"+sum] = member{text, 0o644}
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(text)}
}

func (l layout) addJSON(mediaType string, object map[string]any) (descriptor, error) {
	text, err := json.Marshal(object)
	return l.add(mediaType, text), err
}

// image writes the image of all architectures as an archive for skopeo and ctr. Its
// programs are those of the archives, and it is what the Dockerfile describes.
func (r release) image() error {
	l := layout{"oci-layout": {[]byte(`{"imageLayoutVersion": "1.0.0"}`), 0o644}}
	var all []descriptor
	for _, r.arch = range architectures() {
		one, err := r.imageOfArch(l)
		if err != nil {
			return err
		}
		all = append(all, one)
	}
	index, err := l.addJSON(indexType, map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": all})
	if err != nil {
		return err
	}
	index.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": r.version,
		"io.containerd.image.name":          registry + "/roce-cni:" + r.version,
	}
	text, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{index}})
	if err != nil {
		return err
	}
	l["index.json"] = member{text, 0o644}
	if text, err = r.tar(l); err != nil {
		return err
	}
	return r.write("roce-cni-image-"+r.version+".tar", text)
}

// imageOfArch adds the image of one architecture, and returns its manifest.
func (r release) imageOfArch(l layout) (descriptor, error) {
	all, err := r.unpacked(r.name("roce-cni", "tgz"))
	if err != nil {
		return descriptor{}, err
	}
	layer, err := r.tar(map[string]member{
		"LICENSE": all["LICENSE"], "rocectl": all["rocectl"],
		"plugins/": {nil, 0o755}, "plugins/roce": all["roce"], "plugins/roce-ipam": all["roce-ipam"],
		"pod/": {nil, 0o755}, "pod/roce-env": all["roce-env"],
	})
	if err != nil {
		return descriptor{}, err
	}
	packed, err := compressed(layer)
	if err != nil {
		return descriptor{}, err
	}
	config, err := l.addJSON(configType, map[string]any{
		"created": r.at.Format(time.RFC3339), "architecture": r.arch, "os": "linux",
		"config": map[string]any{
			"Entrypoint": []string{"/rocectl"},
			"Labels": map[string]string{
				"org.opencontainers.image.title":       "roce-cni",
				"org.opencontainers.image.description": "CNI plugin and node agent for pods on RoCE NICs",
				"org.opencontainers.image.licenses":    "Apache-2.0",
				"org.opencontainers.image.version":     r.version,
			},
		},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return descriptor{}, err
	}
	manifest, err := l.addJSON(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": config, "layers": []descriptor{l.add(layerType, packed)},
	})
	manifest.Platform = map[string]string{"architecture": r.arch, "os": "linux"}
	return manifest, err
}
