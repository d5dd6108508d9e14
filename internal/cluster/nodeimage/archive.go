package nodeimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
)

// settings are an image's settings for its containers.
type settings struct {
	Env        []string          `json:"Env,omitempty"`
	Entrypoint []string          `json:"Entrypoint,omitempty"`
	StopSignal string            `json:"StopSignal,omitempty"`
	Labels     map[string]string `json:"Labels,omitempty"`
}

// writeArchive writes an image of one layer as `docker save` does, which every engine loads. layer
// is an uncompressed tar file. The archive has no creation times: the same content is the same
// image.
func writeArchive(to io.Writer, names []string, s settings, layer string) error {
	file, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer file.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	diff := hex.EncodeToString(sum.Sum(nil))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": s,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + diff}},
	})
	if err != nil {
		return err
	}
	id := sha256.Sum256(config)
	configName, layerName := hex.EncodeToString(id[:])+".json", diff+"/layer.tar"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": names, "Layers": []string{layerName}}})
	if err != nil {
		return err
	}
	w := tar.NewWriter(to)
	for _, part := range []struct {
		name string
		size int64
		from io.Reader
	}{
		{layerName, size, file},
		{configName, int64(len(config)), bytes.NewReader(config)},
		{"manifest.json", int64(len(manifest)), bytes.NewReader(manifest)},
	} {
		if err := w.WriteHeader(&tar.Header{Name: part.name, Size: part.size, Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := io.Copy(w, part.from); err != nil {
			return err
		}
	}
	return w.Close()
}

// entry is a file of a small layer: a copy of a file, or a link.
type entry struct {
	path string // in the image, absolute
	from string // on this host
	link string // target, where it is a link
}

// writeLayer writes a layer of files that belong to root and anybody may run.
func writeLayer(to io.Writer, entries []entry) error {
	w := tar.NewWriter(to)
	made := map[string]bool{}
	for _, e := range append([]entry{{path: "/tmp/"}}, entries...) {
		if err := writeParents(w, made, path.Dir(e.path)); err != nil {
			return err
		}
		name := strings.TrimPrefix(e.path, "/")
		var err error
		switch {
		case strings.HasSuffix(e.path, "/"):
			// Its parents are the only directories.
		case e.link != "":
			err = w.WriteHeader(&tar.Header{Name: name, Linkname: e.link, Mode: 0o777, Typeflag: tar.TypeSymlink})
		default:
			err = copyIn(w, name, e.from)
		}
		if err != nil {
			return fmt.Errorf("cannot pack %s: %w", e.path, err)
		}
	}
	return w.Close()
}

func writeParents(w *tar.Writer, made map[string]bool, dir string) error {
	if dir == "/" || dir == "." || made[dir] {
		return nil
	}
	if err := writeParents(w, made, path.Dir(dir)); err != nil {
		return err
	}
	made[dir] = true
	mode := int64(0o755)
	if dir == "/tmp" {
		mode = 0o1777
	}
	return w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(dir, "/") + "/", Mode: mode, Typeflag: tar.TypeDir})
}

func copyIn(w *tar.Writer, name, from string) error {
	file, err := os.Open(from)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Size: info.Size(), Mode: 0o755, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return err
}
