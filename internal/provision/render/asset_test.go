package render

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// archive creates a release in containerd's format.
func archive(t *testing.T, names ...string) (file, digest string) {
	t.Helper()
	var data bytes.Buffer
	packed := gzip.NewWriter(&data)
	w := tar.NewWriter(packed)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(name))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := packed.Close(); err != nil {
		t.Fatal(err)
	}
	file = t.TempDir() + "/containerd-2.4.2-linux-amd64.tar.gz"
	if err := os.WriteFile(file, data.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(data.Bytes())
	return file, "sha256:" + hex.EncodeToString(hash[:])
}

// TestScriptPicksAsApplyDoes: the script installs the binaries of the first layout that matches,
// with their licences, and nothing else.
func TestScriptPicksAsApplyDoes(t *testing.T) {
	file, digest := archive(t, "bin/containerd", "bin/ctr", "bin/runc", "bin/README.md", "usr/local/bin/other", "LICENSE")
	out, err := Script(input(t, "debian 12", "runtime: {name: containerd, assets: [{source: "+file+", digest: \""+digest+"\"}]}\n", nil))
	if err != nil {
		t.Fatal(err)
	}
	root := writeRoot(t, "ID=debian\nVERSION_ID=12\n")
	if said, err := run(t, root, string(out.Text)); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	got := tree(t, root)
	for _, name := range []string{"bin/containerd", "bin/ctr", "bin/runc"} {
		if text := got["/usr/local/"+name]; !strings.HasPrefix(text, "-rwxr-xr-x") || !strings.HasSuffix(text, "\n"+name) {
			t.Errorf("%s: %q", name, text)
		}
	}
	for _, name := range []string{"bin/README.md", "bin/other"} {
		if _, there := got["/usr/local/"+name]; there {
			t.Errorf("%s was picked", name)
		}
	}
	if _, there := got["/usr/local/share/licenses/berth-node/containerd-2.4.2-linux-amd64.tar.gz/LICENSE"]; !there {
		t.Error("there is no licence")
	}
}

// TestScriptRefusesAnotherHash: the error names the source and the expected hash.
func TestScriptRefusesAnotherHash(t *testing.T) {
	file, _ := archive(t, "bin/containerd", "bin/runc")
	out, err := Script(input(t, "debian 12", "runtime: {name: containerd, assets: [{source: "+file+", digest: \""+zeros+"\"}]}\n", nil))
	if err != nil {
		t.Fatal(err)
	}
	root := writeRoot(t, "ID=debian\nVERSION_ID=12\n")
	said, err := run(t, root, string(out.Text))
	if err == nil || !strings.Contains(said, "containerd-2.4.2-linux-amd64.tar.gz is not what it should be") {
		t.Errorf("%v\n%s", err, said)
	}
	if _, err := os.Stat(root + "/usr/local/bin/containerd"); err == nil {
		t.Error("it was installed")
	}
}
