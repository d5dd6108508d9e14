package systemd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// packTimeout bounds the packing of the image on a busy machine.
const packTimeout = 5 * time.Minute

// Archive writes the machine's root as an image of one layer, in the format of docker save, and
// returns the file. Its program is systemd.
func Archive(t testing.TB, name string) string {
	t.Helper()
	root, err := filepath.Abs("../../out/systemd/root")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root); err != nil {
		t.Fatalf("the image is not made: run test/systemd/image.sh: %v", err)
	}
	dir := t.TempDir()
	layer, archive := filepath.Join(dir, "layer.tar"), filepath.Join(dir, "image.tar")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), packTimeout)
	defer cancel()
	pack := exec.CommandContext(ctx, "tar", "--directory="+root, "--exclude=./var/cache/apt/archives/*", "--exclude=./dev/*", "--create", "--file="+layer, ".")
	if out, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	if err := writeArchive(archive, name, layer); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(layer); err != nil {
		t.Error(err)
	}
	return archive
}

func writeArchive(to, name, layer string) error {
	from, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer from.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, from)
	if err != nil {
		return err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux",
		// A host has one tty1, for which all machines would compete.
		"config": map[string]any{"Cmd": []string{"/sbin/init", "systemd.mask=getty@tty1.service"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum.Sum(nil))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer file.Close()
	w := tar.NewWriter(file)
	for _, part := range []struct {
		name string
		size int64
		from io.Reader
	}{
		{"layer.tar", size, from},
		{"config.json", int64(len(config)), bytes.NewReader(config)},
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
