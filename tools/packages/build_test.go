package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// program builds one small program, which has modules and stands for each of berth's.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "berth-packages-test-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	to := filepath.Join(dir, "program")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, "./testdata/program").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(to)
})

// fixture is a repository with binaries.
func fixture(t *testing.T) options {
	t.Helper()
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	data, err := program()
	if err != nil {
		t.Fatal(err)
	}
	v, err := parseVersion("1.2.4-dev.5")
	if err != nil {
		t.Fatal(err)
	}
	o := options{
		arch: runtime.GOARCH, bin: t.TempDir(), docs: t.TempDir(), source: source, out: t.TempDir(),
		version: v, date: time.Unix(1700000000, 0).UTC(), plugins: []string{"bridge", "portmap"},
	}
	for _, b := range programs {
		write(t, filepath.Join(o.bin, b.name), string(data))
	}
	write(t, filepath.Join(o.docs, defaultsOfUnit), "# defaults\n")
	for _, name := range shells {
		write(t, filepath.Join(o.docs, completionDir, name), "# completion\n")
	}
	write(t, filepath.Join(o.docs, manDir, "berth-pod.8.gz"), "a page")
	return o
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// built builds the packages of a fixture, and returns them by suffix.
func built(t *testing.T, o options) map[string][]byte {
	t.Helper()
	if err := build(o); err != nil {
		t.Fatal(err)
	}
	if err := checksums(o.out, hooks{}); err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	entries, err := os.ReadDir(o.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(o.out, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Ext(entry.Name())] = data
	}
	return files
}

// TestRelease builds the packages of one release, and tests what it has.
func TestRelease(t *testing.T) {
	o := fixture(t)
	files := built(t, o)
	t.Run("same bytes", func(t *testing.T) { testSameBytes(t, files) })
	t.Run("contents", func(t *testing.T) { testContents(t, o, files) })
	t.Run("list of parts", func(t *testing.T) { testBill(t, files) })
	t.Run("install script", func(t *testing.T) { testInstallScript(t, o) })
}

// testSameBytes: a second build, in another directory, at another time and with other dates of its
// sources, has the same bytes.
func testSameBytes(t *testing.T, one map[string][]byte) {
	second := fixture(t)
	past := time.Unix(1000000000, 0)
	for _, name := range []string{"berth", "berth-cni", "berth-supervisor"} {
		if err := os.Chtimes(filepath.Join(second.bin, name), past, past); err != nil {
			t.Fatal(err)
		}
	}
	two := built(t, second)
	for _, suffix := range []string{".deb", ".rpm", ".apk", ".gz", ".json", ""} {
		if len(one[suffix]) == 0 || !bytes.Equal(one[suffix], two[suffix]) {
			t.Errorf("the files %q of two builds differ, or there is none: %d and %d bytes", suffix, len(one[suffix]), len(two[suffix]))
		}
	}
}

// testContents: each format has its files, with root as their owner and the date of the commit.
func testContents(t *testing.T, o options, files map[string][]byte) {
	common := []string{
		"/usr/bin/berth 755", "/usr/bin/berth-supervisor 755", "/usr/lib/berth/cni/berth-cni 755", "/usr/lib/berth/cni/bridge -> berth-cni",
		"/etc/berth/berth.toml 644", "/usr/share/man/man8/berth-pod.8.gz 644", "/usr/share/doc/berth/copyright 644", "/usr/share/doc/berth/sbom.spdx.json 644",
		"/usr/share/bash-completion/completions/berth 644", "/usr/share/fish/vendor_completions.d/berth.fish 644",
	}
	units := []string{"/usr/lib/systemd/system/berth.service 644", "/usr/lib/systemd/system/berth-supervisor.service 644"}
	deb := unpackDeb(t, files[".deb"])
	has(t, o, "deb", deb["data"], append(common, append(units, "/usr/share/zsh/vendor-completions/_berth 644")...))
	if got := text(t, deb["control"], "conffiles"); got != "/etc/berth/berth.toml\n" {
		t.Errorf("the conffiles of the deb are %q", got)
	}
	control := text(t, deb["control"], "control")
	for _, want := range []string{"Package: berth\n", "Version: 1.2.4~dev.5", "Architecture: " + o.arch + "\n", "Installed-Size: "} {
		if !strings.Contains(control, want) {
			t.Errorf("the control file has no %q:\n%s", want, control)
		}
	}
	for script, word := range map[string]string{"postinst": "berth_upgraded; else berth_installed", "prerm": "remove) berth_removing", "postrm": "purge) berth_purge"} {
		if got := text(t, deb["control"], script); !strings.HasPrefix(got, "#!/bin/sh\nset -e\n") || !strings.Contains(got, word) {
			t.Errorf("the script %s has no %q:\n%s", script, word, got)
		}
	}
	unit := text(t, deb["data"], "usr/lib/systemd/system/berth.service")
	if !strings.Contains(unit, "ExecStart=/usr/bin/berth serve") || strings.Contains(unit, "@BINDIR@") {
		t.Errorf("the unit has no program:\n%s", unit)
	}
	apk := unzip(t, files[".apk"])
	has(t, o, "apk", apk, append(common, "/etc/init.d/berth 755", "/etc/init.d/berth-supervisor 755", "/usr/share/zsh/site-functions/_berth 644"))
	if info := text(t, apk, ".PKGINFO"); !strings.Contains(info, "pkgver = 1.2.4_pre5-r0\n") {
		t.Errorf(".PKGINFO has another version:\n%s", info)
	}
	for _, script := range []string{".post-install", ".post-upgrade", ".pre-deinstall"} {
		if got := text(t, apk, script); !strings.HasPrefix(got, "#!/bin/sh\n") {
			t.Errorf("the script %s is %q", script, got)
		}
	}
	if text(t, apk, "usr/lib/systemd/system/berth.service") != "" {
		t.Error("the apk has units of systemd")
	}
}

// TestScriptsAreShell: dash reads every script.
func TestScriptsAreShell(t *testing.T) {
	o := fixture(t)
	scripts := []string{filepath.Join(o.source, "build/packages/install.sh")}
	for name, text := range map[string]string{"deb-postinst": debPostinst, "deb-prerm": debPrerm, "deb-postrm": debPostrm, "rpm-post": rpmPost, "rpm-preun": rpmPreun, "rpm-postun": rpmPostun, "apk": apkPostUpgrade} {
		path, err := script(o, t.TempDir(), name, text)
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, path)
	}
	for _, path := range scripts {
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

// testInstallScript: install.sh installs into a root directory, keeps a configuration that is there,
// removes what it has installed, and refuses files that were changed.
func testInstallScript(t *testing.T, o options) {
	dir, root := t.TempDir(), t.TempDir()
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		return string(out), err
	}
	if out, err := run("tar", "-xzf", filepath.Join(o.out, o.archiveName()+".tar.gz"), "-C", dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir = filepath.Join(dir, o.archiveName())
	install := filepath.Join(dir, "install.sh")
	write(t, filepath.Join(root, "etc/berth/berth.toml"), "# mine\n")
	if out, err := run(install, "--destdir", root); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	unit, err := os.ReadFile(filepath.Join(root, "usr/local/lib/systemd/system/berth.service"))
	if err != nil || !strings.Contains(string(unit), "ExecStart=/usr/local/bin/berth serve") {
		t.Errorf("the unit: %v\n%s", err, unit)
	}
	if mine, err := os.ReadFile(filepath.Join(root, "etc/berth/berth.toml")); err != nil || string(mine) != "# mine\n" {
		t.Errorf("the configuration was replaced: %v %q", err, mine)
	}
	for path, mode := range map[string]os.FileMode{"bin/berth": 0o755, "bin/berth-supervisor": 0o755, "lib/berth/cni/berth-cni": 0o755, "share/man/man8/berth-pod.8.gz": 0o644} {
		if info, err := os.Stat(filepath.Join(root, "usr/local", path)); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want mode %o", path, info, err, mode)
		}
	}
	if target, err := os.Readlink(filepath.Join(root, "usr/local/lib/berth/cni/bridge")); err != nil || target != "berth-cni" {
		t.Errorf("the link of a plugin is %q, %v", target, err)
	}
	if out, err := run(install, "--destdir", root, "--uninstall"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	err = filepath.WalkDir(filepath.Join(root, "usr"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("%s stays", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/local/lib/berth")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the plugins stays: %v", err)
	}
	write(t, filepath.Join(dir, "bin/berth"), "another program")
	out, err := run(install, "--destdir", root)
	if err == nil || !strings.Contains(out, "nothing was changed") {
		t.Errorf("a changed file is installed: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(root, "usr/local/bin/berth")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a changed file is installed: %v", err)
	}
}

// TestHooks: the hooks sign packages before the checksums and every file after them, and one that
// writes no signature is an error.
func TestHooks(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "berth.deb"), "package")
	write(t, filepath.Join(dir, "berth.tar.gz"), "archive")
	h := hooks{signPackage: `echo signed >> "$1"`, sign: `sha256sum "$1" > "$2"`}
	if err := checksums(dir, h); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", "cd '"+dir+"' && sha256sum -c SHA256SUMS && ls").CombinedOutput(); err != nil ||
		!strings.HasSuffix(string(out), "SHA256SUMS\nSHA256SUMS.sig\nberth.deb\nberth.deb.sig\nberth.tar.gz\nberth.tar.gz.sig\n") {
		t.Errorf("%v\n%s", err, out)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "berth.deb")); err != nil || string(data) != "packagesigned\n" {
		t.Errorf("the package is %q, %v", data, err)
	}
	if err := checksums(dir, hooks{sign: "true"}); err == nil || !strings.Contains(err.Error(), "has written no signature") {
		t.Errorf("a hook without a signature: %v", err)
	}
	if err := checksums(dir, hooks{signPackage: "exit 3"}); err == nil || !strings.Contains(err.Error(), "SIGN_PACKAGE_COMMAND") {
		t.Errorf("a hook that fails: %v", err)
	}
}

// testBill: the list of parts names the modules with their licenses.
func testBill(t *testing.T, files map[string][]byte) {
	bill := string(files[".json"])
	for _, want := range []string{
		`"spdxVersion": "SPDX-2.3"`, `"name": "github.com/spf13/pflag"`, `"licenseDeclared": "BSD-3-Clause"`, `pkg:golang/github.com/spf13/pflag@v`,
		`"name": "stdlib"`, `"name": "libseccomp"`, `"relationshipType": "DEPENDS_ON"`, `"created": "2023-11-14T22:13:20Z"`,
	} {
		if !strings.Contains(bill, want) {
			t.Errorf("the list of parts has no %s", want)
		}
	}
}

// has requires files in an archive.
func has(t *testing.T, o options, format string, data []byte, want []string) {
	t.Helper()
	var list []string
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		name := "/" + strings.TrimPrefix(strings.TrimPrefix(h.Name, "./"), "/")
		if h.Typeflag == tar.TypeSymlink {
			list = append(list, name+" -> "+h.Linkname)
			continue
		}
		list = append(list, name+" "+strconv.FormatInt(h.Mode&0o7777, 8))
		if h.Uid != 0 || h.Gid != 0 || (h.Uname != "root" && h.Uname != "") {
			t.Errorf("%s: %s belongs to %d:%d (%s)", format, name, h.Uid, h.Gid, h.Uname)
		}
		if h.Typeflag == tar.TypeReg && strings.HasPrefix(name, "/usr") && !h.ModTime.Equal(o.date) {
			t.Errorf("%s: %s is of %v", format, name, h.ModTime)
		}
	}
	for _, file := range want {
		if !slices.Contains(list, file) {
			t.Errorf("%s has no %s; it has\n%s", format, file, strings.Join(list, "\n"))
		}
	}
}

// text is a file of an archive, "" if it is not there.
func text(t *testing.T, data []byte, name string) string {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return ""
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.TrimPrefix(h.Name, "./") == name {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		}
	}
}

// unpackDeb returns the two archives of a package: control and data.
func unpackDeb(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	members := map[string][]byte{}
	rest := strings.TrimPrefix(string(data), "!<arch>\n")
	for len(rest) >= 60 {
		name := strings.Trim(rest[:16], " /")
		size, err := strconv.Atoi(strings.TrimSpace(rest[48:58]))
		if err != nil {
			t.Fatal(err)
		}
		body := rest[60 : 60+size]
		rest = rest[60+size+size%2:]
		if base, _, ok := strings.Cut(name, ".tar.gz"); ok {
			members[base] = unzip(t, []byte(body))
		}
	}
	return members
}

func unzip(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
