package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/berthrun/berth/internal/errs"
)

// Files are the kubeconfig files of a user, in the order in which kubectl reads them.
type Files []string

// Locate finds the files as kubectl does: the explicit one (--kubeconfig), else those
// of KUBECONFIG, else ~/.kube/config.
func Locate(explicit string, env func(string) string) (Files, error) {
	if explicit != "" {
		return Files{explicit}, nil
	}
	var files Files
	for _, file := range filepath.SplitList(env("KUBECONFIG")) {
		if file != "" && !slices.Contains(files, file) {
			files = append(files, file)
		}
	}
	if len(files) > 0 {
		return files, nil
	}
	home := env("HOME")
	if home == "" {
		// As in a unit of systemd.
		me, err := user.Current()
		if err != nil || me.HomeDir == "" {
			return nil, fmt.Errorf("cannot tell where the kubeconfig is: neither KUBECONFIG nor HOME is set; give --kubeconfig: %w", errs.Invalid)
		}
		home = me.HomeDir
	}
	return Files{filepath.Join(home, ".kube", "config")}, nil
}

// usual is the file that new things go to: the first that exists, else the first.
func (f Files) usual() string {
	for _, file := range f {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	return f[0]
}

// Merge puts the one cluster of a config (FromAdmin's) into the files and makes it
// the current context. It goes to the file that has its name already, else to the
// usual one, and is in no other afterwards. It returns the file.
func (f Files) Merge(ctx context.Context, config *api.Config) (string, error) {
	name, usual := config.CurrentContext, f.usual()
	target := usual
	err := f.change(ctx, name, usual, func(contents map[string]*api.Config) {
		for _, file := range f {
			if c := contents[file]; c != nil && (c.Clusters[name] != nil || c.AuthInfos[name] != nil || c.Contexts[name] != nil) {
				target = file
				break
			}
		}
		for _, c := range contents {
			drop(c, name)
		}
		contents[target].Clusters[name] = config.Clusters[name]
		contents[target].AuthInfos[name] = config.AuthInfos[name]
		contents[target].Contexts[name] = config.Contexts[name]
		// The first file wins that says a current context.
		contents[usual].CurrentContext = name
	})
	if err != nil {
		return "", fmt.Errorf("cannot add context %s to the kubeconfig: %w", name, err)
	}
	return target, nil
}

// Check tells, before somebody has made what goes there, that Merge would fail: files that
// cannot be read or written, or a lock that somebody does not let go. It makes nothing.
func (f Files) Check(ctx context.Context) error {
	for _, file := range f {
		if _, err := read(file); err != nil {
			return err
		}
	}
	usual := f.usual()
	dir := filepath.Dir(usual)
	if _, err := os.Stat(dir); err == nil {
		unlock, err := lockAll(ctx, []string{usual})
		if err != nil {
			return err
		}
		return unlock()
	}
	for {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir):
			dir = filepath.Dir(dir)
			continue
		case err == nil && !info.IsDir():
			err = syscall.ENOTDIR
		case err == nil:
			err = unix.Access(dir, unix.W_OK|unix.X_OK)
		}
		if err != nil {
			return fmt.Errorf("cannot make the directory of kubeconfig %s in %s: %w", usual, dir, err)
		}
		return nil
	}
}

// Remove takes the name out of all files. A current context of that name is unset;
// any other stays. Files that have nothing of it are not touched; nil if none has.
func (f Files) Remove(ctx context.Context, name string) error {
	err := f.change(ctx, name, "", func(contents map[string]*api.Config) {
		for _, c := range contents {
			drop(c, name)
		}
	})
	if err != nil {
		return fmt.Errorf("cannot remove context %s from the kubeconfig: %w", name, err)
	}
	return nil
}

// Find is what the files say of a context of that name: its cluster, nil where none has it.
// The first file wins, as for kubectl.
func (f Files) Find(name string) (*api.Cluster, error) {
	for _, file := range f {
		config, err := read(file)
		if err != nil {
			return nil, err
		}
		if context := config.Contexts[name]; context != nil && config.Clusters[context.Cluster] != nil {
			return config.Clusters[context.Cluster], nil
		}
	}
	return nil, nil
}

// Ours reports whether the files have a context of that name that Merge has put there, and not
// somebody else.
func (f Files) Ours(name string) (bool, error) {
	for _, file := range f {
		config, err := read(file)
		if err != nil {
			return false, err
		}
		if context := config.Contexts[name]; context != nil && context.Extensions[mark] != nil {
			return true, nil
		}
	}
	return false, nil
}

// change edits those of the files that have something of a name, and always, which
// may be "" for none, under their locks. Files of no concern need not even be
// writable.
func (f Files) change(ctx context.Context, name, always string, edit func(map[string]*api.Config)) error {
	for {
		concerned, err := f.concerned(name, always)
		if err != nil || len(concerned) == 0 {
			return err
		}
		again, err := f.changeLocked(ctx, name, always, concerned, edit)
		if err != nil || !again {
			return err
		}
	}
}

// changeLocked edits the files that were found concerned. again: while nobody had the
// locks, others became so.
func (f Files) changeLocked(ctx context.Context, name, always string, concerned []string, edit func(map[string]*api.Config)) (again bool, err error) {
	unlock, err := lockAll(ctx, concerned)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	now, err := f.concerned(name, always)
	if err != nil {
		return false, err
	}
	for _, file := range now {
		if !slices.Contains(concerned, file) {
			return true, nil
		}
	}
	contents := map[string]*api.Config{}
	for _, file := range concerned {
		if contents[file], err = read(file); err != nil {
			return false, err
		}
	}
	edit(contents)
	for _, file := range concerned {
		if err := write(file, contents[file]); err != nil {
			return false, err
		}
	}
	return false, nil
}

// concerned are the files that have something of a name, and always.
func (f Files) concerned(name, always string) ([]string, error) {
	var files []string
	for _, file := range f {
		config, err := read(file)
		if err != nil {
			return nil, err
		}
		if file == always || holds(config, name) {
			files = append(files, file)
		}
	}
	return files, nil
}

// read returns what a file has; a file that is not there has nothing.
func read(file string) (*api.Config, error) {
	config, err := clientcmd.LoadFromFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return api.NewConfig(), nil
	case err != nil:
		return nil, fmt.Errorf("cannot read kubeconfig %s: %w", file, err)
	}
	return config, nil
}
