package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/licensecheck"
	modules "golang.org/x/mod/module"
)

// noAssertion is SPDX's word for what nobody has looked up.
const noAssertion = "NOASSERTION"

// copyright is the file that Debian demands.
const copyright = `Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: berth
Source: ` + homepage + `

Files: *
Copyright: the berth authors
License: Apache-2.0

License: Apache-2.0
 The text is in /usr/share/doc/berth/LICENSE, and on Debian systems in
 /usr/share/common-licenses/Apache-2.0.
 .
 The binaries contain Go's standard library, the modules that sbom.spdx.json lists, and in
 berth-supervisor the C libraries libseccomp and glibc. Their licenses are in
 /usr/share/doc/berth/third-party-licenses.gz.
`

// writeLicenses writes the copyright file and the licenses of everything in the binaries.
func writeLicenses(p parts, stage string) error {
	var all strings.Builder
	texts := map[string][]string{} // by text, who has it
	add := func(who, text string) { texts[text] = append(texts[text], who) }
	text, err := os.ReadFile(filepath.Join(p.goroot, "LICENSE"))
	if err != nil {
		return fmt.Errorf("cannot read the license of Go: %w", err)
	}
	add("Go's standard library "+p.goVersion, string(text))
	for _, m := range p.modules {
		files, err := m.licenses(p.cache)
		if err != nil {
			return err
		}
		for _, text := range files {
			add(m.path+" "+m.version, text)
		}
	}
	for _, l := range p.libraries {
		if text, err := os.ReadFile(filepath.Join("/usr/share/doc", l.debian, "copyright")); err == nil && l.debian != "" {
			add(l.name+" "+l.version, string(text))
		}
	}
	blocks := make([]string, 0, len(texts))
	for text, who := range texts {
		blocks = append(blocks, strings.Join(who, "\n")+"\n\n"+strings.TrimSpace(text)+"\n")
	}
	slices.Sort(blocks)
	for _, block := range blocks {
		all.WriteString(strings.Repeat("=", 80) + "\n" + block + "\n")
	}
	small, err := zipped([]byte(all.String()))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(stage, "third-party-licenses.gz"), small, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(stage, "copyright"), []byte(copyright), 0o644)
}

// licenses reads the files of a module with its license, in the order of their names.
func (m module) licenses(cache string) ([]string, error) {
	path, err := modules.EscapePath(m.path)
	if err != nil {
		return nil, err
	}
	version, err := modules.EscapeVersion(m.version)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, path+"@"+version)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the license of %s: %w", m.path, err)
	}
	var texts []string
	for _, entry := range entries {
		name := strings.ToUpper(entry.Name())
		if entry.IsDir() || !slices.ContainsFunc([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("%s %s has no file with its license: the packages cannot contain it", m.path, m.version)
	}
	return texts, nil
}

// spdx is the expression for the licenses that a module declares.
func (m module) spdx(cache string) (string, error) {
	texts, err := m.licenses(cache)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, text := range texts {
		for _, match := range licensecheck.Scan([]byte(text)).Match {
			if !match.IsURL && !slices.Contains(ids, match.ID) {
				ids = append(ids, match.ID)
			}
		}
	}
	slices.Sort(ids)
	if len(ids) == 0 {
		return noAssertion, nil
	}
	return strings.Join(ids, " AND "), nil
}
