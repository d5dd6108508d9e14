package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// archiveName is the name of the archive without its suffix, and of the directory in it.
func (o options) archiveName() string { return "berth-" + o.version.text + "-linux-" + o.arch }

// entry is one file of the archive.
type entry struct {
	name, target string
	mode         int64
	data         []byte
}

// writeArchive writes the archive: the files of the packages in the directories that they have below
// a prefix, units that do not know the prefix yet, and install.sh.
func writeArchive(o options, list []file) error {
	var entries []entry
	for _, f := range list {
		name := strings.TrimPrefix(strings.TrimPrefix(f.to, "/usr/"), "/")
		from := f.from
		switch {
		case f.kind == link:
			entries = append(entries, entry{name: name, target: f.from})
			continue
		case strings.HasPrefix(f.to, bindir+"/"):
			name = "bin/" + filepath.Base(f.to)
		case f.kind == config:
			name = "etc/" + filepath.Base(f.to)
		case strings.HasPrefix(f.to, unitdir+"/"):
			from = filepath.Join(o.source, "build", filepath.Base(f.to))
		}
		data, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: name, mode: int64(f.mode), data: data})
	}
	for name, mode := range map[string]int64{"install.sh": 0o755, "services.sh": 0o644} {
		data, err := os.ReadFile(filepath.Join(o.source, "build/packages", name))
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: name, mode: mode, data: data})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var sums strings.Builder
	for _, e := range entries {
		if e.target == "" {
			sum := sha256.Sum256(e.data)
			fmt.Fprintf(&sums, "%s  %s\n", hex.EncodeToString(sum[:]), e.name)
		}
	}
	entries = append(entries, entry{name: "SHA256SUMS", mode: 0o644, data: []byte(sums.String())})
	return pack(o, entries)
}

// pack writes the entries below one directory. Owners and dates are fixed.
func pack(o options, entries []entry) error {
	out, err := os.Create(filepath.Join(o.out, o.archiveName()+".tar.gz"))
	if err != nil {
		return err
	}
	zip := gzip.NewWriter(out)
	w := tar.NewWriter(zip)
	for _, e := range entries {
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: o.archiveName() + "/" + e.name, Mode: e.mode, Size: int64(len(e.data)),
			ModTime: o.date, Uname: "root", Gname: "root", Format: tar.FormatUSTAR,
		}
		if e.target != "" {
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.target, 0o777
		}
		if err := w.WriteHeader(header); err != nil {
			return errors.Join(err, out.Close())
		}
		if _, err := w.Write(e.data); err != nil {
			return errors.Join(err, out.Close())
		}
	}
	return errors.Join(w.Close(), zip.Close(), out.Close())
}
