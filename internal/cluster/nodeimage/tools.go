package nodeimage

import (
	"errors"
	"os"
	"path/filepath"
)

// versionFiles say which Kubernetes this is, to us and to scripts for nodes of kind.
func (b *builder) versionFiles() error {
	return errors.Join(
		b.write(VersionFile, []byte(b.version+"\n")),
		b.write(KindVersionFile, []byte(b.version)), // kind ends no line there
	)
}

// tools puts crictl and ctr beside berth, which is either of them by its name. A program that is
// given takes the place of its link, as does either of what a root file system brings.
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
