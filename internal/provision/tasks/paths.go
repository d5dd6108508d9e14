package tasks

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	"github.com/rogpeppe/go-internal/diff"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// checkPath refuses paths that other programs would read differently.
func checkPath(p string) error {
	switch {
	case !path.IsAbs(p) || path.Clean(p) != p || p == "/":
		return fmt.Errorf("path %q is not absolute and clean: %w", p, errs.Invalid)
	case strings.ContainsAny(p, "\n\x00"):
		return fmt.Errorf("path %q has a newline or NUL: %w", p, errs.Invalid)
	}
	return nil
}

// makeParents makes the directories above p that are missing.
func makeParents(host provision.Host, p string) error {
	dir := path.Dir(p)
	if dir == "/" {
		return nil
	}
	_, err := host.Files().Stat(dir)
	if err == nil || !errors.Is(err, errs.NotFound) {
		return err
	}
	if err := makeParents(host, dir); err != nil {
		return err
	}
	return host.Files().Mkdir(dir, provision.Attr{Mode: defaultDirMode})
}

// ownerIDs turns names or numbers into ids. An empty one is 0.
func ownerIDs(host provision.Host, owner, group string) (uid, gid int, err error) {
	if uid, err = id(owner, func(name string) (int, error) {
		u, err := host.Accounts().User(name)
		return u.UID, err
	}); err != nil {
		return 0, 0, err
	}
	gid, err = id(group, func(name string) (int, error) {
		g, err := host.Accounts().Group(name)
		return g.GID, err
	})
	return uid, gid, err
}

func id(name string, lookup func(string) (int, error)) (int, error) {
	if name == "" {
		return 0, nil
	}
	if n, err := strconv.Atoi(name); err == nil {
		return n, nil
	}
	return lookup(name)
}

// ownerNow is ownerIDs as attributes, with the names of accounts that do not exist yet.
func ownerNow(host provision.Host, owner, group string) (uid, gid string, err error) {
	u, g, err := ownerIDs(host, owner, group)
	if errors.Is(err, errs.NotFound) {
		return owner, group, nil
	}
	return strconv.Itoa(u), strconv.Itoa(g), err
}

// attrs are the attributes of a path in a State. Keys are part of the journal's format.
const (
	attrType   = "type" // "file", "dir", "link", or another type
	attrMode   = "mode" // octal, with setuid, setgid and sticky as chmod has them
	attrUID    = "uid"
	attrGID    = "gid"
	attrTarget = "target"
)

// octal is a mode in octal digits.
func octal(mode fs.FileMode) string {
	n := uint32(mode.Perm())
	for bit, value := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if mode&bit != 0 {
			n |= value
		}
	}
	return fmt.Sprintf("%04o", n)
}

// fromOctal is the inverse of octal.
func fromOctal(text string) (fs.FileMode, error) {
	n, err := strconv.ParseUint(text, 8, 16)
	if err != nil {
		return 0, fmt.Errorf("mode %q: %w", text, errs.Invalid)
	}
	mode := fs.FileMode(n & 0o777)
	for bit, value := range map[fs.FileMode]uint64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if n&value != 0 {
			mode |= bit
		}
	}
	return mode, nil
}

// pathAttrs are the attributes of what Stat found.
func pathAttrs(info provision.FileInfo) map[string]string {
	attrs := map[string]string{attrUID: strconv.Itoa(info.UID), attrGID: strconv.Itoa(info.GID)}
	switch info.Type {
	case 0:
		attrs[attrType] = "file"
	case fs.ModeDir:
		attrs[attrType] = "dir"
	case fs.ModeSymlink:
		attrs[attrType] = "link"
		attrs[attrTarget] = info.Target
		return attrs
	default:
		attrs[attrType] = info.Type.String()
	}
	attrs[attrMode] = octal(info.Mode)
	return attrs
}

// stateAttr is the inverse for mode and owner.
func stateAttr(state provision.State) (provision.Attr, error) {
	mode, err := fromOctal(state.Attrs[attrMode])
	if err != nil {
		return provision.Attr{}, err
	}
	uid, err := strconv.Atoi(state.Attrs[attrUID])
	if err != nil {
		return provision.Attr{}, fmt.Errorf("uid %q: %w", state.Attrs[attrUID], errs.Invalid)
	}
	gid, err := strconv.Atoi(state.Attrs[attrGID])
	if err != nil {
		return provision.Attr{}, fmt.Errorf("gid %q: %w", state.Attrs[attrGID], errs.Invalid)
	}
	return provision.Attr{Mode: mode, UID: uid, GID: gid}, nil
}

// textLimit bounds the files that plans show line by line.
const textLimit = 256 << 10

// fields lists attributes that differ, in the order of names.
func fields(now, want map[string]string, names ...string) []provision.Field {
	var list []provision.Field
	for _, name := range names {
		if now[name] != want[name] {
			list = append(list, provision.Field{Name: name, From: now[name], To: want[name]})
		}
	}
	return list
}

// desiredFile is a regular file as it should be: Check compares the machine with it, and Apply
// writes it.
type desiredFile struct {
	path    string
	content string
	mode    fs.FileMode
	owner   string // a name or number; root when empty
	group   string
	secret  bool
}

// check returns the difference; the zero Diff means that there is none.
func (w desiredFile) check(host provision.Host) (provision.Diff, error) {
	now, err := readPath(host, w.path)
	if err != nil {
		return provision.Diff{}, err
	}
	want := map[string]string{attrType: "file", attrMode: octal(w.mode)}
	if want[attrUID], want[attrGID], err = ownerNow(host, w.owner, w.group); err != nil {
		return provision.Diff{}, err
	}
	d := provision.Diff{
		Object: provision.Object{Kind: kindFile, Name: w.path}, Action: provision.Modify,
		Fields: fields(now.Attrs, want, attrType, attrMode, attrUID, attrGID),
	}
	switch {
	case !now.Exists:
		d.Action, d.Reason = provision.Create, "is not there"
	case now.Attrs[attrType] != "file":
		d.Reason = "is a " + now.Attrs[attrType]
	case now.Digest != digest.FromString(w.content).String():
		d.Reason = "content differs"
	case len(d.Fields) > 0:
		d.Reason = "mode or owner differs"
		return d, nil
	default:
		return provision.Diff{}, nil
	}
	hidden, err := w.hidden(host)
	if err != nil {
		return d, err
	}
	if hidden {
		content := provision.Field{Name: "content", To: provision.Sealed(host, int64(len(w.content)), digest.FromString(w.content).String())}
		content.From, err = sealed(host, w.path, now)
		d.Fields = append(d.Fields, content)
		return d, err
	}
	d.Text, err = w.text(host, now)
	d.Text = provision.Conceal(host, d.Text)
	return d, err
}

// hidden reports whether the content must not be shown: the old one, or the new one.
func (w desiredFile) hidden(host provision.Host) (bool, error) {
	if w.secret || !provision.Readable(w.mode) {
		return true, nil
	}
	return provision.Hidden(host.Files(), w.path)
}

// sealed shows the size and fingerprint of a file's content; "" for no file.
func sealed(host provision.Host, path string, now provision.State) (string, error) {
	if now.Digest == "" {
		return "", nil
	}
	info, err := host.Files().Stat(path)
	return provision.Sealed(host, info.Size, now.Digest), errs.IgnoreNotFound(err)
}

func (w desiredFile) text(host provision.Host, now provision.State) (string, error) {
	old := ""
	from := "/dev/null"
	if now.Digest != "" {
		from = w.path
		data, err := readSmall(host, w.path)
		if err != nil {
			return "", err
		}
		old = string(data)
	}
	if !isText(old) || !isText(w.content) || provision.HasPrivateKey(old) || provision.HasPrivateKey(w.content) {
		return "", nil
	}
	return string(diff.Diff(from, []byte(old), w.path, []byte(w.content))), nil
}

// write writes the file with the ids that owner and group have by now.
func (w desiredFile) write(host provision.Host) error {
	if err := makeParents(host, w.path); err != nil {
		return err
	}
	attr, err := w.attr(host)
	if err != nil {
		return err
	}
	now, err := readPath(host, w.path)
	if err != nil {
		return err
	}
	if now.Attrs[attrType] == "file" && now.Digest == digest.FromString(w.content).String() {
		return host.Files().SetAttr(w.path, attr)
	}
	return host.Files().Write(w.path, strings.NewReader(w.content), attr)
}

func (w desiredFile) attr(host provision.Host) (provision.Attr, error) {
	uid, gid, err := ownerIDs(host, w.owner, w.group)
	return provision.Attr{Mode: w.mode, UID: uid, GID: gid}, err
}

// readSmall reads the beginning of a file, one byte past textLimit at most.
func readSmall(host provision.Host, path string) ([]byte, error) {
	r, err := host.Files().Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, textLimit+1))
}

func isText(s string) bool {
	return len(s) <= textLimit && utf8.ValidString(s) && !strings.Contains(s, "\x00")
}

// change makes a Change of those diffs that are one.
func change(diffs ...provision.Diff) provision.Change {
	return provision.Change{Diffs: slices.DeleteFunc(diffs, func(d provision.Diff) bool { return d.Action == "" })}
}
