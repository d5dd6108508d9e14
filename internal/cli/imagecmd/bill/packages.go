package bill

import (
	"bufio"
	"bytes"
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"
)

// Package is an installed package.
type Package struct {
	// Type is deb or apk.
	Type, Name, Version, Architecture string
}

const (
	// maxPackages bounds those of one image, and maxField the bytes of one field.
	maxPackages = 100_000
	maxField    = 1024
	maxLine     = 1 << 20
)

// packagesOf reads the package databases and the name of the distribution.
func packagesOf(files map[string][]byte) ([]Package, map[string]string) {
	found := map[Package]bool{}
	for name, data := range files {
		switch {
		case name == dpkgStatus, path.Dir(name) == dpkgStatusD:
			stanzas(data, func(field map[string]string) {
				// The files of a directory, which images without dpkg have, say nothing of the state.
				if status := strings.Fields(field["Status"]); len(status) == 3 && status[2] != "installed" {
					return
				}
				add(found, Package{"deb", field["Package"], field["Version"], field["Architecture"]})
			})
		case name == apkDB, name == apkUsrDB:
			stanzas(data, func(field map[string]string) {
				add(found, Package{"apk", field["P"], field["V"], field["A"]})
			})
		}
	}
	all := slices.SortedFunc(maps.Keys(found), func(a, b Package) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Architecture, b.Architecture))
	})
	return all, release(files)
}

func add(found map[Package]bool, p Package) {
	if p.Name != "" && len(found) < maxPackages {
		found[p] = true
	}
}

// stanzas calls each with the fields of the paragraphs of a file, as dpkg and apk have them.
func stanzas(data []byte, each func(map[string]string)) {
	fields := map[string]string{}
	end := func() {
		if len(fields) > 0 {
			each(fields)
			fields = map[string]string{}
		}
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Text()
		if strings.TrimSpace(line) == "" {
			end()
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if !ok || strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t") {
			continue
		}
		switch name {
		case "Package", "Version", "Architecture", "Status", "P", "V", "A":
			fields[name] = clean(value)
		}
	}
	end()
}

// clean makes one short printable line of a value.
func clean(value string) string {
	value = strings.ToValidUTF8(strings.TrimSpace(value), "?")
	value = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, value)
	return value[:min(len(value), maxField)]
}

// release reads os-release.
func release(files map[string][]byte) map[string]string {
	data := files[osRelease]
	if data == nil {
		data = files[usrRelease] // to which the other usually is a link
	}
	found := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && (name == "ID" || name == "VERSION_ID") {
			found[name] = strings.Trim(clean(value), `"'`)
		}
	}
	return found
}
