package restoring

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
)

// archive writes an archive with files.
func archive(t *testing.T, files map[string]string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "archive.tar")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for name, content := range files {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestABaseImageIsNamedByItsDigest: an archive names its base image by an id, or by a name with a digest. A name that can
// be changed is not looked up, so an archive decides nothing for such a name (containerd CVE-2026-50195).
func TestABaseImageIsNamedByItsDigest(t *testing.T) {
	id, other := strings.Repeat("a", 64), strings.Repeat("b", 64)
	for config, want := range map[string][]string{
		fmt.Sprintf(`{"rootfsImage":"sha256:%s","rootfsImageRef":"docker.io/library/x@sha256:%s","rootfsImageName":"docker.io/library/trusted:1"}`, id, other): {
			"docker.io/library/x@sha256:" + other, "sha256:" + id,
		},
		fmt.Sprintf(`{"rootfsImage":"%s"}`, id):                                                       {id},
		fmt.Sprintf(`{"rootfsImage":"docker.io/library/trusted:1","rootfsImageRef":"sha256:%s"}`, id): {"sha256:" + id},
		`{"rootfsImage":"docker.io/library/trusted:1","rootfsImageRef":"docker.io/library/trusted"}`:  nil,
		`{"rootfsImageName":"docker.io/library/trusted:1"}`:                                           nil,
		fmt.Sprintf(`{"rootfsImage":"sha256:%s/../../x"}`, id):                                        nil,
		fmt.Sprintf(`{"rootfsImage":"x y@sha256:%s"}`, id):                                            nil,
	} {
		base, err := Files(filepath.Join(t.TempDir(), "in")).Read(t.Context(), archive(t, map[string]string{"config.dump": config}), "", "")
		if !slices.Equal(base, want) || (want == nil) != errors.Is(err, errs.Invalid) || want == nil && !strings.Contains(err.Error(), "no base image by a digest") {
			t.Errorf("%s: %q, %v, want %q", config, base, err, want)
		}
	}
}

// TestAnArchiveIsOfItsContainer: the archives of a pod's checkpoint cannot be swapped.
func TestAnArchiveIsOfItsContainer(t *testing.T) {
	config := fmt.Sprintf(`{"name":"a","rootfsImage":"%s"}`, strings.Repeat("a", 64))
	for name, right := range map[string]bool{"": true, "a": true, "b": false} {
		_, err := Files(filepath.Join(t.TempDir(), "in")).Read(t.Context(), archive(t, map[string]string{"config.dump": config}), "", name)
		if (err == nil) != right || !right && (!errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), `"a", not "b"`)) {
			t.Errorf("container %q: %v", name, err)
		}
	}
}

// TestADamagedArchive is refused with the part that is missing or cut, and its files can be removed.
func TestADamagedArchive(t *testing.T) {
	whole := archive(t, map[string]string{"config.dump": "{}", "rootfs-diff.tar": strings.Repeat("x", 4096)})
	data, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"empty": "", "no archive": "nonsense", "cut": string(data[:3000])} {
		path, files := filepath.Join(t.TempDir(), "archive.tar"), Files(filepath.Join(t.TempDir(), "in"))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Read(t.Context(), path, "", ""); !errors.Is(err, errs.Invalid) || !strings.Contains(err.Error(), "archive") {
			t.Errorf("%s: %v", name, err)
		}
		if err := files.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(string(files)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: its files: %v", name, err)
		}
	}
}

// TestASecondAttempt: what an earlier attempt has left is not mixed with the archive.
func TestASecondAttempt(t *testing.T) {
	files := Files(filepath.Join(t.TempDir(), "in"))
	config := fmt.Sprintf(`{"rootfsImage":"sha256:%s"}`, strings.Repeat("a", 64))
	for _, image := range []string{"core-1.img", "core-2.img"} {
		if _, err := files.Read(t.Context(), archive(t, map[string]string{"config.dump": config, "checkpoint/" + image: "x"}), "", ""); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(string(files), "checkpoint"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "core-2.img" {
		t.Errorf("%v, %v", entries, err)
	}
}
