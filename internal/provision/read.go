package provision

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"

	"github.com/berthrun/berth/internal/errs"
)

// readLimit bounds what ReadFile returns, in bytes.
const readLimit = 1 << 20

// ReadFile returns the content of a file, at most its first MiB. It wraps errs.NotFound where there
// is none.
func ReadFile(files Files, name string) ([]byte, error) {
	r, err := files.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	defer r.Close()
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(r, readLimit)); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	return b.Bytes(), nil
}

// RefuseLink refuses the change of a file that somebody else made, if it is a link: a write would replace the link, with the
// mode of a link, and what the link points to would no longer be the file.
func RefuseLink(files Files, name string) error {
	info, err := files.Stat(name)
	if err == nil && info.Type == fs.ModeSymlink {
		err = fmt.Errorf("%s is a link to %s, which berth does not replace: change that file, or put it in the place of the link: %w",
			name, info.Target, errs.State)
	}
	return errs.IgnoreNotFound(err)
}

// FirstExisting returns the first of the names that exists, or "".
func FirstExisting(files Files, names ...string) string {
	for _, name := range names {
		if _, err := files.Stat(name); err == nil {
			return name
		}
	}
	return ""
}

// Exists reports whether one of the names exists.
func Exists(files Files, names ...string) bool { return FirstExisting(files, names...) != "" }
