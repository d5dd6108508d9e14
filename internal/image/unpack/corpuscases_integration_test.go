//go:build integration

package unpack

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berthrun/berth/internal/image/imagetest"
	"github.com/berthrun/berth/internal/image/imagetest/hostileimage"
)

const (
	traversal = "containerd CVE-2025-47290, k3s CVE-2026-54250"
	bombs     = "decompression bombs"
	lies      = "headers that lie"
	slow      = "lookups that take long"
	disguise  = "other forms of a deletion"
)

// hostileLayers are all rows.
func hostileLayers() []hostileLayer {
	var all []hostileLayer
	for _, group := range [][]hostileLayer{namesOfLayers(), linksOfLayers(), deletionsOfLayers(), attributesOfLayers()} {
		all = append(all, group...)
	}
	for _, c := range append(headersOfLayers(), sizesOfLayers()...) {
		c.once = true
		all = append(all, c)
	}
	return all
}

// files makes a layer of files, links and devices.
func files(entries func(outside string) imagetest.Layer) func(t *testing.T, outside string) []byte {
	return func(t *testing.T, outside string) []byte {
		t.Helper()
		data, err := imagetest.Tar(entries(outside))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
}

// file is a raw entry with the bytes that must not get out of the layer.
func file(path string) imagetest.File {
	return imagetest.File{Path: path, Content: []byte("of the layer"), Raw: true}
}

// entries makes a layer of headers that tools do not write.
func entries(list ...hostileimage.RawEntry) func(*testing.T, string) []byte {
	return func(*testing.T, string) []byte {
		return new(hostileimage.RawTar).Add(list...).End()
	}
}

func entry(name string) hostileimage.RawEntry {
	return hostileimage.RawEntry{Name: name, Type: tar.TypeReg, Mode: 0o644, Body: []byte("of the layer")}
}

// has checks that the layer has a file with the layer's bytes.
func has(name string) func(*testing.T, string) {
	return func(t *testing.T, upper string) {
		t.Helper()
		if data, err := os.ReadFile(filepath.Join(upper, name)); err != nil || string(data) != "of the layer" {
			t.Errorf("%s is %q, %v", name, data, err)
		}
	}
}

// hasOutside is has for a path of the host's directory, as it is inside of the layer.
func hasOutside(t *testing.T, upper string) {
	t.Helper()
	has(filepath.Join(filepath.Dir(upper), "outside/secret"))(t, upper)
}

func namesOfLayers() []hostileLayer {
	up := strings.Repeat("../", 20)
	return []hostileLayer{
		{name: "a name with `..`", lesson: traversal, refused: "leads out of the image", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{file(up + outside + "/secret")}
		})},
		{name: "a name that goes down and out again", lesson: traversal, refused: `entry "../x" leads out of the image`, layer: entries(entry("a/../../x"))},
		{name: "the name `..`", lesson: traversal, refused: `entry ".." leads out of the image`, layer: entries(hostileimage.RawEntry{Name: "..", Type: tar.TypeDir, Mode: 0o777})},
		{name: "an absolute name", lesson: traversal, inside: "the name is below the image's root", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{file(outside + "/secret")}
		}), check: hasOutside},
		{name: "the name `.`", inside: "the root directory gets its mode and owner", layer: entries(hostileimage.RawEntry{Name: "./", Type: tar.TypeDir, Mode: 0o777, UID: 7}), check: func(t *testing.T, upper string) {
			if fi, err := os.Stat(upper); err != nil || fi.Mode().Perm() != 0o777 || fi.Sys().(*syscall.Stat_t).Uid != 7 {
				t.Errorf("%v, %v", fi, err)
			}
		}},
		{name: "backslashes", inside: "they are part of the name", layer: entries(entry(`..\..\x`)), check: has(`..\..\x`)},
		{name: "a NUL in a name", inside: "the name ends there", layer: entries(entry("cut\x00/../../x")), check: has("cut")},
		{name: "a NUL in a long name", lesson: lies, refused: `after entry "a"`, layer: entries(entry("a"), hostileimage.RawEntry{Name: "b", Type: tar.TypeReg, PAX: []string{"path=x\x00y"}})},
		{name: "a name of 900 KiB", lesson: bombs, refused: "has 921600 bytes, at most 4096", layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, LongName: strings.Repeat("n", 900<<10)})},
		{name: "a name of 100,000 parts", lesson: slow, refused: "has 199999 bytes, at most 4096", layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, LongName: strings.Repeat("d/", 100_000)})},
		{name: "a part of a name with 300 bytes", refused: "file name too long", layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, LongName: "d/" + strings.Repeat("n", 300)})},
		{name: "a path that links make longer than 4096 bytes", refused: "file name too long", layer: func(*testing.T, string) []byte {
			deep := strings.Repeat(strings.Repeat("d", 199)+"/", 10)
			return new(hostileimage.RawTar).Add(
				hostileimage.RawEntry{Name: "x", Type: tar.TypeDir, Mode: 0o755, LongName: deep},
				hostileimage.RawEntry{Name: "l", Type: tar.TypeSymlink, PAX: []string{"linkpath=" + deep}},
				hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, LongName: "l/" + deep + deep[:1000]},
			).End()
		}},
		{name: "a file below a file", refused: "not a directory", layer: entries(entry("a"), entry("a/b"))},
	}
}

func linksOfLayers() []hostileLayer {
	up := strings.Repeat("../", 20)
	return []hostileLayer{
		{name: "a link to the host, and a file below it", lesson: traversal, inside: "the file is in the image, at the path that the link has", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside}, file("l/secret")}
		}), check: hasOutside},
		{name: "a relative link to the host, and a file below it", lesson: traversal, inside: "the same", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: up + outside[1:]}, file("l/secret")}
		}), check: hasOutside},
		{name: "a link to a file, and a file of its name", lesson: traversal, inside: "the file replaces the link", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside + "/secret"}, file("l")}
		}), check: has("l")},
		{name: "a directory, a link of its name, and a file below it", lesson: "containerd CVE-2025-47290", inside: "the file is in the image", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "d", Dir: true}, {Path: "d", Symlink: outside}, file("d/secret")}
		}), check: hasOutside},
		{name: "a link to `/proc/1/root`", lesson: "runc CVE-2023-27561", inside: "the file is in the image", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: "/proc/1/root" + outside}, file("l/secret")}
		}), check: func(t *testing.T, upper string) {
			has(filepath.Join("proc/1/root", filepath.Dir(upper), "outside/secret"))(t, upper)
		}},
		{name: "`/dev`, `/proc`, `/etc` as links, and files below them", lesson: "runc CVE-2026-41579, CRI-O CVE-2024-5154", inside: "the files are in the image", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "dev", Symlink: outside}, file("dev/kept"), {Path: "proc", Symlink: outside}, file("proc/secret"), {Path: "etc", Symlink: outside + "/etc"}, file("etc/passwd")}
		}), check: hasOutside},
		{name: "a hard link to a file of the host", lesson: traversal, refused: `entry "h"`, layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "h", Hardlink: outside + "/secret"}, file("h")}
		})},
		{name: "a hard link with `..`", lesson: traversal, refused: `entry "h" leads out of the image`, layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "h", Hardlink: up + outside[1:] + "/secret"}}
		})},
		{name: "a hard link through a link to the host", lesson: traversal, refused: `entry "h"`, layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside}, {Path: "h", Hardlink: "l/secret"}, file("h")}
		})},
		{name: "a hard link to a link, which gets a mode and an owner", lesson: traversal, inside: "the link gets the owner, and nothing the mode", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside + "/secret"}, {Path: "h", Hardlink: "l", Mode: 0o4777, UID: 7}}
		})},
		{name: "a hard link to itself", refused: `entry "h"`, layer: files(func(string) imagetest.Layer { return imagetest.Layer{file("h"), {Path: "h", Hardlink: "h"}} })},
		{name: "a hard link to a directory", refused: `entry "h"`, layer: files(func(string) imagetest.Layer {
			return imagetest.Layer{{Path: "d", Dir: true}, {Path: "h", Hardlink: "d"}}
		})},
		{name: "a hard link to the root", refused: `entry "h"`, layer: files(func(string) imagetest.Layer { return imagetest.Layer{{Path: "h", Hardlink: "/"}} })},
		{name: "links that lead to each other, and a file below them", lesson: slow, refused: "leads through more than 255 links", layer: files(func(string) imagetest.Layer {
			return imagetest.Layer{{Path: "a", Symlink: "b"}, {Path: "b", Symlink: "a"}, file("a/x")}
		})},
		{name: "300 links in a row", lesson: slow, refused: "leads through more than 255 links", layer: files(func(string) (layer imagetest.Layer) {
			for i := range 300 {
				layer = append(layer, imagetest.File{Path: fmt.Sprint("l", i), Symlink: fmt.Sprint("l", i+1)})
			}
			return append(layer, file("l0/x"))
		})},
		{name: "links whose targets double", lesson: slow, refused: "leads through more than 255 links", layer: files(func(string) (layer imagetest.Layer) {
			for i := range 40 {
				layer = append(layer, imagetest.File{Path: fmt.Sprint("l", i), Symlink: fmt.Sprintf("l%d/../l%d", i+1, i+1)})
			}
			return append(layer, imagetest.File{Path: "l40", Dir: true}, file("l0/x"))
		})},
		{name: "a link without a target", refused: `entry "l"`, layer: entries(hostileimage.RawEntry{Name: "l", Type: tar.TypeSymlink})},
		{name: "a link whose target has 900 KiB", lesson: bombs, refused: "has 921600 bytes, at most 4096", layer: entries(hostileimage.RawEntry{Name: "l", Type: tar.TypeSymlink, PAX: []string{"linkpath=" + strings.Repeat("n", 900<<10)}})},
	}
}

func deletionsOfLayers() []hostileLayer {
	device := func(t *testing.T, upper, name string) {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(upper, name), &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
			t.Errorf("%s is a deletion", name)
		}
	}
	raw := func(name, text string) hostileLayer {
		return hostileLayer{name: "the deletion `" + name + "`", lesson: traversal, refused: text, layer: entries(hostileimage.RawEntry{Name: name, Type: tar.TypeReg})}
	}
	return []hostileLayer{
		raw(".wh.", `entry ".wh."`), raw(".wh..", `entry ".wh.."`), raw(".wh...", `entry ".wh..."`),
		raw("../.wh.secret", `entry "../.wh.secret" leads out of the image`),
		{name: "the deletion `.wh../../secret`", lesson: traversal, inside: "it is a file of the image", layer: entries(entry(".wh../../secret")), check: has("secret")},
		{name: "a deletion below a link to the host", lesson: traversal, inside: "nothing is deleted outside", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside}, {Path: "l/.wh.secret", Raw: true}}
		})},
		{name: "an opaque directory that is a link to the host", lesson: traversal, inside: "nothing is hidden outside", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside}, {Path: "l/.wh..wh..opq", Raw: true}}
		})},
		{name: "an opaque root", inside: "it hides the layers below, and nothing else", layer: files(func(string) imagetest.Layer { return imagetest.Layer{file("new"), imagetest.Opaque("")} }), check: has("new")},
		{name: "a deletion that is a link to the host", lesson: disguise, inside: "the deletion counts, the link does not", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: ".wh.secret", Symlink: outside + "/secret", Raw: true}}
		})},
		{name: "a deletion that is a hard link to the host", lesson: disguise, inside: "the deletion counts, the link does not", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: ".wh.secret", Hardlink: outside + "/secret", Raw: true}}
		})},
		{name: "character device 0:0", lesson: disguise, refused: `entry "etc/x" is character device 0:0`, layer: files(func(string) imagetest.Layer { return imagetest.Layer{{Path: "etc/x", Device: 'c'}} })},
		{
			name: "character device 4096:0, which the kernel takes for 0:0", lesson: disguise, refused: `entry "x" is device 4096:0`, layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeChar, Major: 4096}),
			check: func(t *testing.T, upper string) { device(t, upper, "x") },
		},
		{
			name: "character device 0:1048576, which the kernel takes for 0:0", lesson: disguise, refused: `entry "x" is device 0:1048576`, layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeChar, Minor: 1 << 20}),
			check: func(t *testing.T, upper string) { device(t, upper, "x") },
		},
		{name: "a directory with the name of a deletion", lesson: disguise, inside: "it deletes nothing outside", layer: files(func(string) imagetest.Layer { return imagetest.Layer{file(".wh.a/b")} })},
	}
}

func attributesOfLayers() []hostileLayer {
	without := func(name string, attributes ...string) func(*testing.T, string) {
		return func(t *testing.T, upper string) {
			t.Helper()
			for _, attribute := range attributes {
				if n, err := unix.Lgetxattr(filepath.Join(upper, name), attribute, make([]byte, 64)); err == nil {
					t.Errorf("%s has %s, of %d bytes", name, attribute, n)
				}
			}
		}
	}
	attributed := func(list ...string) hostileLayer {
		attributes := map[string]string{}
		for _, name := range list {
			attributes[name] = "y"
		}
		return hostileLayer{inside: "without these attributes", check: without("d", list...), layer: files(func(string) imagetest.Layer {
			return imagetest.Layer{{Path: "d", Dir: true, Xattrs: attributes}, file("d/f")}
		})}
	}
	overlay := attributed("trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy", "user.overlay.opaque", "user.overlay.redirect", "user.overlay.whiteout")
	overlay.name, overlay.lesson = "attributes of the overlay file system", "mounts that show other layers"
	security := attributed("security.selinux", "security.ima", "security.evm", "trusted.x", "system.nfs4_acl")
	security.name, security.lesson = "attributes of security modules", "labels of the host"
	value := func(n int) []string { return []string{"SCHILY.xattr.user.x=" + strings.Repeat("v", n)} }
	id := func(name string, uid, gid int64, refused string) hostileLayer {
		return hostileLayer{name: name, lesson: "containerd CVE-2024-40635", refused: refused, layer: entries(hostileimage.RawEntry{Name: "f", Type: tar.TypeReg, Mode: 0o4755, UID: uid, GID: gid})}
	}
	return []hostileLayer{
		overlay, security,
		{name: "an attribute of 70,000 bytes", refused: `entry "f" has the attribute "user.x" of 70000 bytes`, layer: entries(hostileimage.RawEntry{Name: "f", Type: tar.TypeReg, PAX: value(70_000)})},
		{name: "attributes of 8 MiB", lesson: bombs, refused: `after entry "a"`, layer: entries(entry("a"), hostileimage.RawEntry{Name: "f", Type: tar.TypeReg, PAX: value(8 << 20)})},
		id("the owner 4294967296, which the kernel takes for root", 1<<32, 0, `entry "f" has the owner 4294967296:0`),
		id("the group 4294967296", 7, 1<<32, `entry "f" has the owner 7:4294967296`),
		id("the owner -1", -1, 0, `entry "f" has the owner -1:0`),
		id("the owner 4294967295, which is none", 1<<32-1, 0, `entry "f" has the owner 4294967295:0`),
		{name: "a set-user-id mode on a link to the host", lesson: traversal, inside: "the mode of a link has no effect", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside + "/secret", Mode: 0o4777, UID: 7}}
		})},
		{name: "a device in the place of a link to the host", lesson: traversal, inside: "the device replaces the link", layer: files(func(outside string) imagetest.Layer {
			return imagetest.Layer{{Path: "l", Symlink: outside + "/secret"}, {Path: "l", Device: 'c', Major: 1, Minor: 5, Mode: 0o666}}
		})},
		{name: "a device number of 40 bits", lesson: lies, refused: `entry "x" is device`, layer: entries(hostileimage.RawEntry{Name: "x", Type: tar.TypeBlock, Major: 1 << 40})},
	}
}

func headersOfLayers() []hostileLayer {
	var all []hostileLayer
	for _, kind := range []byte{'V', 'M', 'z'} {
		all = append(all, hostileLayer{
			name: fmt.Sprintf("an entry of type %q", kind), lesson: lies, refused: `entry "x" has the type ` + fmt.Sprintf("%q", kind), layer: entries(entry("a"), hostileimage.RawEntry{Name: "x", Type: kind}),
		})
	}
	after := func(name string, entry hostileimage.RawEntry) hostileLayer {
		return hostileLayer{name: name, lesson: lies, refused: `after entry "a"`, layer: entries(hostileimage.RawEntry{Name: "a", Type: tar.TypeReg}, entry)}
	}
	return append(all,
		after("a header with a wrong sum", hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Unsummed: true}),
		after("a negative size", hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Size: -1}),
		after("a negative size in a record", hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, PAX: []string{"size=-512"}}),
		after("letters in a size", hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, PAX: []string{"size=12x"}}),
		hostileLayer{name: "a global record with a path", lesson: lies, inside: "berth ignores it", layer: entries(hostileimage.RawEntry{Name: "f", Type: tar.TypeReg, Mode: 0o644, Body: []byte("of the layer"), Global: "path=../../x"}), check: has("f")},
		hostileLayer{name: "a second path in a record", lesson: lies, refused: `entry "../x" leads out of the image`, layer: entries(hostileimage.RawEntry{Name: "f", Type: tar.TypeReg, PAX: []string{"path=g", "path=../x"}})},
		hostileLayer{name: "the end in the middle of a file", refused: "truncated", layer: func(*testing.T, string) []byte {
			return new(hostileimage.RawTar).Add(hostileimage.RawEntry{Name: "x", Type: tar.TypeReg, Size: 4096, Body: []byte("short")}).Bytes()
		}},
		hostileLayer{name: "no archive", refused: "before its first entry", layer: func(*testing.T, string) []byte { return bytes.Repeat([]byte("no archive at all "), 100) }},
	)
}
