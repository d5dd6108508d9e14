// Package ocihooks adds to containers the OCI hooks that files on the node define, in the format 1.0.0 of CRI-O
// and podman (oci-hooks(5)).
//
// The directories are read again for each container, and a file only when it has changed. So a container gets
// the hooks that are there when it is created.
package ocihooks

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/errs/ocierror"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

const (
	// suffix is that of the names of files. Others in the directories are ignored.
	suffix = ".json"
	// maxFile is how many bytes of a file are read, maxFiles how many files.
	maxFile  = 1 << 20
	maxFiles = 1000
)

// Fault is a file, or a directory, that cannot be used.
type Fault struct {
	Path string
	Err  error
}

func (f *Fault) Error() string { return f.Path + ": " + f.Err.Error() }

func (f *Fault) Unwrap() error { return f.Err }

// Hooks are the hooks of all files, in the order in which containers get them.
type Hooks []*definition

// Container is what conditions look at.
type Container struct {
	// Annotations are those of the pod and of the container.
	Annotations map[string]string
	// Command is the first of the container's arguments.
	Command string
	// HasBindMounts is true when the request mounts something of the host.
	HasBindMounts bool
}

// Inject adds the hooks whose conditions hold to spec, behind those that spec has.
func (h Hooks) Inject(spec *specs.Spec, container *Container) {
	for _, d := range h {
		if !d.when.match(container) {
			continue
		}
		if spec.Hooks == nil && len(d.stages) > 0 {
			spec.Hooks = &specs.Hooks{}
		}
		for _, stage := range d.stages {
			list := stages(spec.Hooks)[stage]
			*list = append(*list, clone(&d.hook))
		}
	}
}

// Named adds stage, program and file of the hook that an error of a container is about. of are the hooks of the container.
// If the error does not say which of several hooks it was, the text has all of them. Errors of other things stay as they are.
func (h Hooks) Named(err error, of *specs.Hooks) error {
	failed, ok := ocierror.Hook(err)
	if !ok || of == nil {
		return err
	}
	var names []string
	byStage := stages(of)
	for _, stage := range stageOrder() {
		for i := range *byStage[stage] {
			hook := &(*byStage[stage])[i]
			if failed.Stage != "" && failed.Stage != stage || failed.Index >= 0 && failed.Index != i || failed.Program != "" && failed.Program != hook.Path {
				continue
			}
			names = append(names, fmt.Sprintf("%s (%s, %s)", hook.Path, stage, h.fileOf(stage, hook)))
		}
	}
	switch n := len(names); {
	case n == 0:
		return err
	case n == 1:
		return fmt.Errorf("OCI hook %s: %w", names[0], err)
	case n > maxFaults:
		names = append(names[:maxFaults], fmt.Sprintf("%d more", n-maxFaults))
	}
	return fmt.Errorf("one of the OCI hooks %s: %w", strings.Join(names, ", "), err)
}

// fileOf says which file a hook of a container is of. CDI devices, NRI plugins and base specs have hooks without one.
func (h Hooks) fileOf(stage string, hook *specs.Hook) string {
	var files []string
	for _, d := range h {
		if slices.Contains(d.stages, stage) && d.hook.Path == hook.Path && slices.Equal(d.hook.Args, hook.Args) &&
			slices.Equal(d.hook.Env, hook.Env) && !slices.Contains(files, d.file) {
			files = append(files, d.file)
		}
	}
	if len(files) == 0 {
		return "of no file in hooks_dirs"
	}
	return strings.Join(files, " or ")
}

// clone copies a hook: what gets it may change it.
func clone(h *specs.Hook) specs.Hook {
	c := *h
	c.Args, c.Env = slices.Clone(h.Args), slices.Clone(h.Env)
	if h.Timeout != nil {
		timeout := *h.Timeout
		c.Timeout = &timeout
	}
	return c
}

// Reader reads directories, and keeps what it has read of files that do not change. The zero value is ready. All
// methods are safe for concurrent use. A file system that hangs delays those that read its directories, and no one else.
type Reader struct {
	// mu is held during no call to a file system.
	mu sync.Mutex
	// known has the files of the last Read of a list of directories, by their paths. A map does not change once it is here.
	known map[string]map[string]parsed
}

// parsed is the content of a version of a file.
type parsed struct {
	version fileVersion
	made    *definition
	err     error
}

// fileVersion identifies a version of a file.
type fileVersion struct {
	device, inode uint64
	size          int64
	modified      time.Time
	changed       syscall.Timespec
}

// Read returns the hooks of directories. A file of a later directory replaces one of the same name in an earlier
// one. A directory that does not exist has none. Faults are those of files that are not replaced, by their paths.
func (r *Reader) Read(dirs []string) (Hooks, []*Fault) {
	key := strings.Join(dirs, "\x00")
	known := r.knownOf(key)
	byName, faults := list(dirs)
	kept := make(map[string]parsed, len(byName))
	hooks := make(Hooks, 0, len(byName))
	for _, name := range order(byName) {
		path := byName[name]
		p, err := readFile(path, known)
		if errors.Is(err, errs.NotFound) && isGone(path) {
			continue // between the listing and now
		}
		if err == nil {
			kept[path] = p
			if err = p.err; err == nil {
				err = p.made.checkProgram()
			}
		}
		if err != nil {
			faults = append(faults, &Fault{path, err})
			continue
		}
		hooks = append(hooks, p.made)
	}
	r.keep(key, kept)
	slices.SortFunc(faults, func(a, b *Fault) int { return cmp.Compare(a.Path, b.Path) })
	return hooks, faults
}

func (r *Reader) knownOf(key string) map[string]parsed {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[key]
}

func (r *Reader) keep(key string, files map[string]parsed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[string]map[string]parsed{}
	}
	r.known[key] = files
}

// list returns the paths of the files by their names.
func list(dirs []string) (byName map[string]string, faults []*Fault) {
	byName = map[string]string{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			faults = append(faults, &Fault{dir, err})
			continue
		}
		for _, entry := range entries {
			if strings.HasSuffix(entry.Name(), suffix) {
				byName[entry.Name()] = filepath.Join(dir, entry.Name())
			}
		}
		if len(byName) > maxFiles {
			return nil, []*Fault{{dir, fmt.Errorf("there are more than %d files with hooks", maxFiles)}}
		}
	}
	return byName, faults
}

// order returns the names of files in the order of their hooks: by the names in lower case.
func order(byName map[string]string) []string {
	return slices.SortedFunc(maps.Keys(byName), func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.ToLower(a), strings.ToLower(b)), cmp.Compare(a, b))
	})
}

// readFile returns the content of a file, that of known when it is the same version. The error is that of finding and reading it.
func readFile(path string, known map[string]parsed) (parsed, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return parsed{}, fmt.Errorf("it does not exist: %w", errs.NotFound)
	}
	if err != nil {
		return parsed{}, err
	}
	st := info.Sys().(*syscall.Stat_t)
	p := parsed{version: fileVersion{st.Dev, st.Ino, st.Size, info.ModTime(), st.Ctim}}
	if last, ok := known[path]; ok && last.version == p.version {
		return last, nil
	}
	data, err := sysfile.ReadRegular(path, maxFile+1)
	switch {
	case err != nil:
		return parsed{}, err
	case len(data) > maxFile:
		return parsed{}, fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	if p.made, p.err = parse(data); p.err == nil {
		p.made.file = path
	}
	return p, nil
}

// isGone reports whether a path does not even exist as a link.
func isGone(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

// checkProgram returns an error when the program of a hook cannot be executed. That of startContainer is in the
// container.
func (d *definition) checkProgram() error {
	if !slices.ContainsFunc(d.stages, func(stage string) bool { return stage != startContainer }) {
		return nil
	}
	info, err := os.Stat(d.hook.Path)
	switch {
	case err != nil:
		return fault("hook.path", "%w", err)
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return fault("hook.path", "%s is not an executable file", d.hook.Path)
	}
	return nil
}

// maxFaults is how many faults an error names.
const maxFaults = 3

// Join returns the faults as one error, nil for none. Kind Unavailable.
func Join(faults []*Fault) error {
	if len(faults) == 0 {
		return nil
	}
	all := make([]error, 0, maxFaults+1)
	for _, f := range faults[:min(len(faults), maxFaults)] {
		all = append(all, f)
	}
	if more := len(faults) - maxFaults; more > 0 {
		all = append(all, fmt.Errorf("and %d more", more))
	}
	return fmt.Errorf("%w: %w", errors.Join(all...), errs.Unavailable)
}
