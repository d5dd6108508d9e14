package nodeimage

import (
	"errors"
	"os"
	"path/filepath"
)

// versionFiles write the version of Kubernetes, for berth and for scripts for kind's nodes.
func (b *builder) versionFiles() error {
	return errors.Join(
		b.write(VersionFile, []byte(b.version+"\n")),
		b.write(KindVersionFile, []byte(b.version)), // kind's file has no newline
	)
}

// tools installs crictl and ctr as links to berth, which acts by its name. A given program replaces
// its link, as does one of the root filesystem.
func (b *builder) tools() error {
	bin := filepath.Dir(EntryProgram)
	var all []error
	for name, program := range map[string]string{"crictl": b.Crictl, "ctr": ""} {
		target := filepath.Join(bin, name)
		all = append(all, os.RemoveAll(filepath.Join(b.root, target)))
		if program != "" {
			all = append(all, b.copy(program, target))
			continue
		}
		all = append(all, os.Symlink(filepath.Base(EntryProgram), filepath.Join(b.root, target)))
	}
	return errors.Join(all...)
}
