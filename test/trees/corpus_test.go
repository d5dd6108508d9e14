//go:build integration && e2e

package trees

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// entry is one of a layer: a header, and the content of a regular file.
type entry struct {
	tar.Header
	content string
}

var epoch = time.Unix(1_600_000_000, 0)

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: epoch}, content}
}

func dir(name string, mode int64) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, ModTime: epoch}}
}

func symlink(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777, ModTime: epoch}}
}

func hardlink(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644, ModTime: epoch}}
}

func device(name string, kind byte, major, minor int64) entry {
	return entry{Header: tar.Header{Typeflag: kind, Name: name, Mode: 0o620, Devmajor: major, Devminor: minor, ModTime: epoch}}
}

func whiteout(name string) entry {
	at, base := filepath.Split(name)
	return file(at+".wh."+base, "")
}

func opaque(name string) entry { return file(filepath.Join(name, ".wh..wh..opq"), "") }

func (e entry) mode(mode int64) entry     { e.Mode = mode; return e }
func (e entry) owner(uid, gid int) entry  { e.Uid, e.Gid = uid, gid; return e }
func (e entry) at(mtime time.Time) entry  { e.ModTime = mtime; return e }
func (e entry) format(f tar.Format) entry { e.Format = f; return e }
func (e entry) as(typeflag byte) entry    { e.Typeflag = typeflag; return e }
func (e entry) xattr(name, v string) entry {
	records := map[string]string{"SCHILY.xattr." + name: v}
	for key, value := range e.PAXRecords {
		records[key] = value
	}
	e.PAXRecords = records
	return e
}

// layer makes an archive.
func layer(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		if e.Format == tar.FormatUnknown {
			e.Format = tar.FormatPAX
		}
		must(t, w.WriteHeader(&e.Header))
		_, err := w.Write([]byte(e.content))
		must(t, err)
	}
	must(t, w.Close())
	return buf.Bytes()
}

// describedBy are the names that layers have entries for.
func describedBy(t *testing.T, layers [][]byte) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, layer := range layers {
		for r := tar.NewReader(bytes.NewReader(layer)); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			names[filepath.Join(".", header.Name)] = true
		}
	}
	return names
}

// Attributes as the kernel has them.
const (
	capability = "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_bind_service=ep
	aclAccess  = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00" +
		"\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff" // u::rw-,u:1000:r--,g::r--,m::r--,o::r--
	aclDefault = "\x02\x00\x00\x00\x01\x00\x07\x00\xff\xff\xff\xff\x02\x00\x07\x00\xe8\x03\x00\x00" +
		"\x04\x00\x05\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x05\x00\xff\xff\xff\xff"
)

// feature is an image of the corpus.
type feature struct {
	name   string
	layers [][]byte
	// small is a file that takes less than 1 MiB on disk.
	small string
}

// corpus are the images that are compared, one for each feature.
func corpus(t *testing.T) []feature {
	t.Helper()
	long, path := strings.Repeat("n", 255), strings.Repeat("p", 90)
	l := func(entries ...entry) []byte { return layer(t, entries...) }
	base := l(file("a", "low"), file("b", "low"), dir("d", 0o751).owner(7, 8), file("d/x", "x"), file("d/y", "y"), dir("d/sub", 0o700), file("d/sub/z", "z"))
	links := l(file("a", "shared").owner(5, 6), hardlink("b", "a"), file("c", "alone").xattr("user.k", "v").mode(0o4755), dir("d", 0o700), hardlink("d/e", "a"), symlink("s", "a"))
	all := []feature{
		{name: "modes", layers: [][]byte{l(file("su", "x").mode(0o4755), file("sg", "x").mode(0o2711), file("sticky", "x").mode(0o1644), file("none", "x").mode(0), dir("all", 0o7777), file("all/f", "x").mode(0o7777))}},
		{name: "owners", layers: [][]byte{l(file("0", "x"), file("last", "x").owner(1<<32-2, 1<<32-2), file("half", "x").owner(1<<31, 1<<31-1).mode(0o6755), dir("odd", 0o2770).owner(65534, 65535), symlink("s", "0").owner(12, 34))}},
		{name: "attributes of the root", layers: [][]byte{l(dir(".", 0o1711).owner(3, 4).xattr("user.root", "1"), file("a", "x"))}},
		{name: "attributes of the root in a lower layer", layers: [][]byte{l(dir(".", 0o1711).owner(3, 4), dir("d", 0o755)), l(dir("d", 0o755), file("d/b", "x")), l(file("d/c", "x"))}},
		{name: "hard links of a layer", layers: [][]byte{links}},
		{name: "a hard link to a lower layer", layers: [][]byte{links, l(hardlink("n", "c"), hardlink("d/m", "c"))}},
		{name: "a hard link to a link below", layers: [][]byte{links, l(hardlink("n", "s"))}},
		{name: "a hard link to a shared file below", layers: [][]byte{links, l(hardlink("n", "d/e"))}},
		{name: "a deletion of one of several names", layers: [][]byte{links, l(whiteout("a"))}},
		{name: "a change of one of several names", layers: [][]byte{links, l(file("b", "changed"))}},
		{name: "hard links and deletions of one layer", layers: [][]byte{links, l(file("new", "n"), hardlink("b", "new"), whiteout("b"), whiteout("a"), hardlink("d/e", "new"))}},
		{name: "a hard link without attributes", layers: [][]byte{l(file("a", "x").mode(0o4711).owner(3, 4), hardlink("b", "a").mode(0).at(time.Unix(0, 0)))}},
		{name: "symbolic links", layers: [][]byte{l(symlink("abs", "/etc/x"), symlink("rel", "../../x"), symlink("dangling", "nowhere"), symlink("self", "self"), dir("d", 0o755), symlink("d/up", ".."), symlink("long", strings.Repeat("t/", 2000)))}},
		{name: "a directory becomes a link and again a directory", layers: [][]byte{base, l(symlink("d", "e"), dir("e", 0o700), file("e/in", "e")), l(dir("d", 0o755), file("d/new", "n"))}},
		{name: "files below a link of a lower layer", layers: [][]byte{l(dir("real", 0o711).owner(3, 4), file("real/a", "x"), symlink("link", "real"), symlink("abs", "/real"), symlink("twice", "link")), l(file("link/b", "b"), file("abs/c", "c"), file("twice/new/d", "d"), whiteout("link/a"))}},
		{name: "files below a dangling link of a lower layer", layers: [][]byte{l(symlink("link", "nowhere/at/all"), file("x", "x")), l(file("link/b", "b"))}},
		{name: "a file becomes a directory and the reverse", layers: [][]byte{base, l(dir("a", 0o700), file("a/in", "in"), file("d", "file")), l(file("a", "again"), dir("d", 0o711), file("d/only", "o"))}},
		{name: "a directory of a directory gets other attributes", layers: [][]byte{l(dir("d", 0o700).xattr("user.old", "1").owner(1, 2), file("d/a", "x")), l(dir("d", 0o711).xattr("user.new", "2"))}},
		{name: "a directory twice in a layer", layers: [][]byte{l(dir("d", 0o700).xattr("user.old", "1"), file("d/a", "x"), dir("d", 0o711).xattr("user.new", "2").at(epoch.Add(time.Hour)))}},
		{name: "directories that the layer does not name", layers: [][]byte{base, l(file("d/new", "n"), file("d/sub/new", "n"), file("q/r/s", "s"))}},
		{name: "deletions", layers: [][]byte{base, l(whiteout("a"), whiteout("d/x"), whiteout("d/sub"), whiteout("nothing"), whiteout("d/nothing"))}},
		{name: "a deletion of what is nowhere", layers: [][]byte{base, l(whiteout("no/such/file"), opaque("none"), whiteout("d/sub/none/x"))}},
		{name: "deletions in a file", layers: [][]byte{base, l(file("d", "file"), whiteout("d/x"), opaque("d/sub"), whiteout("a/b"))}},
		{name: "deletions in an opaque directory", layers: [][]byte{base, l(dir("d", 0o755), whiteout("d/x"), whiteout("d/sub/z"), opaque("d"), file("d/new", "n"), dir("new", 0o700), whiteout("new/x"), file("new/y", "y"))}},
		{name: "a deletion in a directory and then of it", layers: [][]byte{base, l(whiteout("d/sub/z"), whiteout("d"))}},
		{name: "deletions in the lowest layer", layers: [][]byte{l(whiteout("x"), dir("d", 0o755), opaque("d"), file("d/a", "a"), whiteout("d/b"))}},
		{name: "opaque first", layers: [][]byte{base, l(opaque("d"), dir("d", 0o711), file("d/new", "n"))}},
		{name: "opaque last", layers: [][]byte{base, l(dir("d", 0o711), file("d/new", "n"), dir("d/sub", 0o755), file("d/sub/in", "i"), opaque("d"))}},
		{name: "opaque without the directory", layers: [][]byte{base, l(opaque("d"), file("d/new", "n"))}},
		{name: "an opaque root", layers: [][]byte{base, l(opaque(""), file("new", "n"), dir("d", 0o700), file("d/in", "i"))}},
		{name: "an opaque directory is filled again", layers: [][]byte{base, l(opaque("d")), l(file("d/x", "again"))}},
		{name: "a deletion and then the name", layers: [][]byte{base, l(whiteout("a"), file("a", "new"), whiteout("d"), dir("d", 0o711), file("d/new", "n"))}},
		{name: "a name and then its deletion", layers: [][]byte{base, l(file("a", "new"), whiteout("a"), dir("d", 0o711), file("d/new", "n"), whiteout("d"))}},
		{name: "a deleted directory is made by a file in it", layers: [][]byte{base, l(whiteout("d"), file("d/new", "n"))}},
		{name: "a deletion and the name in the next layer", layers: [][]byte{base, l(whiteout("a"), whiteout("d")), l(file("a", "x"), dir("d", 0o755))}},
		{name: "user attributes", layers: [][]byte{l(file("f", "x").xattr("user.text", "value").xattr("user.binary", "\xff\x01\x80"), dir("d", 0o755).xattr("user.d", "1"), file("d/f", "x").xattr("user."+strings.Repeat("n", 200), strings.Repeat("v", 2000)))}},
		{name: "an empty attribute", layers: [][]byte{l(file("f", "x").xattr("user.empty", ""))}},
		{name: "a user attribute of a link", layers: [][]byte{l(symlink("s", "x").xattr("user.k", "v"), device("p", tar.TypeFifo, 0, 0).xattr("user.k", "v"))}},
		{name: "capabilities", layers: [][]byte{l(file("ping", "x").mode(0o755).owner(1000, 1000).xattr("security.capability", capability))}},
		{name: "trusted attributes", layers: [][]byte{l(file("f", "x").xattr("trusted.k", "v"), symlink("s", "f").xattr("trusted.s", "v"))}},
		{name: "attributes of the overlay", layers: [][]byte{l(dir("d", 0o755).xattr("trusted.overlay.opaque", "y"), file("d/f", "x").xattr("user.overlay.k", "v"))}},
		{name: "ACLs", layers: [][]byte{l(file("f", "x").xattr("system.posix_acl_access", aclAccess), dir("d", 0o755).xattr("system.posix_acl_default", aclDefault), file("d/in", "x"), dir("d/sub", 0o700))}},
		{name: "a default ACL of a lower layer", layers: [][]byte{l(dir("d", 0o755).xattr("system.posix_acl_default", aclDefault), file("d/in", "x")), l(file("d/in2", "x"), dir("d/sub", 0o700))}},
		{name: "devices", layers: [][]byte{l(device("null", tar.TypeChar, 1, 3), device("sda", tar.TypeBlock, 8, 0), device("b0", tar.TypeBlock, 0, 0), device("pipe", tar.TypeFifo, 0, 0), device("big", tar.TypeChar, 4095, 1<<20-1))}},
		{name: "a device that the kernel takes for a deletion", layers: [][]byte{l(file("a", "x")), l(device("a", tar.TypeChar, 0, 0))}},
		{name: "a device beyond Linux' numbers", layers: [][]byte{l(file("a", "x")), l(device("a", tar.TypeChar, 4096, 0).format(tar.FormatGNU))}},
		{name: "long names in PAX", layers: [][]byte{l(file(long, "x"), file(path+"/"+path+"/"+path+"/f", "x"), file(strings.Repeat(path+"/", 42)+"f", "x"), hardlink("h", path+"/"+path+"/"+path+"/f"))}},
		{name: "long names of GNU", layers: [][]byte{l(file(long, "x").format(tar.FormatGNU), file(path+"/"+path+"/"+path+"/f", "x").format(tar.FormatGNU), symlink("s", long).format(tar.FormatGNU), file(strings.Repeat("u/", 70)+"f", "x").format(tar.FormatGNU))}},
		{name: "a name of 256 bytes", layers: [][]byte{l(file(long+"n", "x"))}},
		{name: "a path of 5000 bytes", layers: [][]byte{l(file(strings.Repeat("d/", 2500)+"f", "x"))}},
		{name: "odd names", layers: [][]byte{l(file("\xff\xfe", "x").format(tar.FormatGNU), file("line\nline", "x"), file("tab\t \x7f", "x"), file(" ", "x"), file("back\\slash", "x"), file("-rf", "x"), file("ünïcode/日本", "x"), symlink("to", "\xff\n"))}},
		{name: "names in other forms", layers: [][]byte{l(file("./a", "x"), file("/b", "x"), file("c/../d", "x"), file("e//f", "x"), file("g/./h", "x"))}},
		{name: "times", layers: [][]byte{l(file("1969", "x").at(time.Unix(-1, 0)), file("1901", "x").at(time.Unix(-1<<31, 0)), file("2100", "x").at(time.Unix(1<<32, 0)), file("2400", "x").at(time.Unix(13_569_465_600, 0)),
			file("ns", "x").at(time.Unix(1_600_000_000, 123_456_789)), file("before", "x").at(time.Unix(-2, 500_000_000)), dir("d", 0o755).at(time.Unix(-5, 7)), file("d/f", "x"), symlink("s", "x").at(time.Unix(-9, 5)), file("zero", "x").at(time.Unix(0, 0)))}},
		{name: "a name twice", layers: [][]byte{l(file("a", "1"), file("a", "2").mode(0o600), dir("d", 0o755), file("d", "f"), file("e", "f"), dir("e", 0o700))}},
		{name: "a contiguous file", layers: [][]byte{l(file("a", "content").as(tar.TypeCont).format(tar.FormatGNU))}},
		{name: "an empty archive", layers: [][]byte{base, l(), l(file("z", "z"))}},
		{name: "the empty layer of builders", layers: [][]byte{make([]byte, 1024), base, make([]byte, 1024), make([]byte, 10240)}},
		{name: "a layer twice", layers: [][]byte{base, l(whiteout("a"), file("n", "n")), base, l(whiteout("a"), file("n", "n")), base}},
		{name: "a layer twice with deletions", layers: [][]byte{base, l(opaque("d"), whiteout("b")), l(file("b", "2"), file("d/q", "q")), l(opaque("d"), whiteout("b"))}},
	}
	return append(all, sparse(t)...)
}

// sparse are the forms in which GNU tar writes files with holes.
func sparse(t *testing.T) []feature {
	t.Helper()
	from := t.TempDir()
	write := func(name string, size int64, at ...int64) {
		f, err := os.Create(filepath.Join(from, name))
		must(t, err)
		must(t, f.Truncate(size))
		for _, offset := range at {
			_, err := f.WriteAt([]byte(fmt.Sprintf("data at %d", offset)), offset)
			must(t, err)
		}
		must(t, f.Close())
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(from, name), []unix.Timespec{{Sec: 1}, {Sec: 1_600_000_000}}, 0))
	}
	const mib = 1 << 20
	write("hole", 64*mib, 0, 10*mib+7, 64*mib-20)
	write("end", 8*mib, 5)
	write("start", 8*mib, 8*mib-20)
	write("empty", 3*mib+1)
	write("many", 8*mib, 0, 1*mib, 2*mib, 3*mib, 4*mib, 5*mib, 6*mib, 7*mib, 7*mib+100_000, 7*mib+300_000)
	write("huge", 1024*mib, 0, 500*mib, 1024*mib-20)
	var all []feature
	for _, form := range [][]string{{"--format=gnu"}, {"--format=oldgnu"}, {"--format=posix", "--sparse-version=0.0"}, {"--format=posix", "--sparse-version=0.1"}, {"--format=posix", "--sparse-version=1.0"}} {
		for _, names := range [][]string{{"hole", "end", "start", "empty", "many"}, {"huge"}} {
			args := append(append([]string{"-c", "-S", "-C", from}, form...), names...)
			out, err := exec.CommandContext(t.Context(), "tar", args...).Output()
			must(t, err)
			all = append(all, feature{name: "sparse " + names[0] + " " + strings.TrimLeft(strings.Join(form, " "), "-"), layers: [][]byte{out}, small: names[0]})
		}
	}
	return all
}
