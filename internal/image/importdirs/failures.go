package importdirs

import (
	"path/filepath"
	"slices"
)

// Failures returns a message for each archive of the directories that cannot be imported as it is.
func (i *Importer) Failures() []string {
	if all := i.failures.Load(); all != nil {
		return *all
	}
	return nil
}

// noteFailures is called when nothing is left to import. It also forgets failures in other directories, whose archives nobody
// wants any more.
func (i *Importer) noteFailures(dirs []string) {
	i.imported().forgetFailures(dirs)
	all := []string{}
	for _, dir := range dirs {
		for _, f := range i.archives(dir) {
			why := ""
			if known, ok := i.imported().get(f.path); ok && known.state == f.state {
				why = known.Error
			} else if last, ok := i.later[f.path]; ok && last.of == f.state {
				why = last.why
			}
			if why != "" {
				all = append(all, "the archive "+f.path+" of image.import_dirs is not imported: "+why)
			}
		}
	}
	i.failures.Store(&all)
}

// forgetFailures forgets archives that could not be imported and are in none of the directories.
func (l *list) forgetFailures(dirs []string) {
	in := func(r record) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return filepath.Clean(dir) == filepath.Dir(r.Path) })
	}
	l.mu.Lock()
	some := slices.ContainsFunc(l.all, func(r record) bool { return r.Error != "" && !in(r) })
	l.mu.Unlock()
	if !some {
		return
	}
	l.change(func(all []record) []record {
		return slices.DeleteFunc(all, func(r record) bool { return r.Error != "" && !in(r) })
	})
}
